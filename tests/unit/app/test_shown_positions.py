"""A log that goes on in another partition is shown as one: offsets do not jump by what a position packs above them."""

from __future__ import annotations

from prometheus_client import Metric

from embermq.app.service import shown_retention
from embermq.durability.retention import Pin, RetentionState
from embermq.model.position import position_of
from embermq.observability.metrics import _retention

STATE = RetentionState(
    position_of(1, 40), position_of(2, 7), 0, 0, (Pin("archive", position_of(1, 50)),), False, False, frozenset(), 0
)  # fmt: skip


def sample(metrics: list[Metric], name: str) -> tuple[dict[str, str], float]:
    ((labels, value),) = [
        (found.labels, found.value) for metric in metrics for found in metric.samples if found.name == name
    ]
    return labels, value


def test_metrics_have_the_partition_as_a_label() -> None:
    metrics = list(_retention(STATE))
    assert sample(metrics, "embermq_log_start_offset") == ({"partition": "1"}, 40)
    assert sample(metrics, "embermq_log_end_offset") == ({"partition": "2"}, 7)


def test_rest_names_both() -> None:
    shown = shown_retention(STATE)
    assert (shown["start_partition"], shown["start_offset"]) == (1, 40)
    assert (shown["end_partition"], shown["end_offset"]) == (2, 7)
    (pin,) = shown["pins"]
    assert (pin["name"], pin["partition"], pin["next_offset"]) == ("archive", 1, 50)
