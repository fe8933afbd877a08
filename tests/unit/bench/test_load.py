"""Loads, shapes and what is said of broken promises."""

from __future__ import annotations

import msgspec
import pytest

from embermq_bench.errors import LoadError
from embermq_bench.report import per_cpu_second
from embermq_bench.scenario import broken_promises
from embermq_bench.settings import Load
from embermq_bench.shape import fan_in, fan_out, pairs


@pytest.mark.parametrize(
    ("field", "value", "names"),
    [
        ("qos", 3, "qos is 3"),
        ("payload_bytes", 15, "15 bytes"),
        ("window", 0, "window is 0"),
        ("window", 65_536, "window is 65536"),
        ("rate", -1.0, "rate"),
        ("duration_s", 0.0, "duration"),
    ],
)
def test_a_load_that_cannot_be_is_refused_by_name(field: str, value: float, names: str) -> None:
    with pytest.raises(LoadError, match=names):
        msgspec.structs.replace(Load(), **{field: value}).check()


def test_a_count_needs_no_duration() -> None:
    Load(count=5, duration_s=0).check()


def test_shapes() -> None:
    assert [list(part.sources) for part in pairs(3).subscribers] == [[0], [1], [2]]
    assert [part.topic_filter for part in pairs(2).subscribers] == ["000000", "000001"]
    assert pairs(3).deliveries_per_message == 1
    (only,) = fan_in(4, "billing-1").subscribers
    assert (only.topic_filter, list(only.sources), only.client_id) == ("+", [0, 1, 2, 3], "billing-1")
    assert fan_in(4).deliveries_per_message == 1
    many = fan_in(4, "a", subscribers=3)
    assert [part.client_id for part in many.subscribers] == ["a-0", "a-1", "a-2"]
    assert many.deliveries_per_message == 3
    assert fan_in(4, subscribers=3, group="g").deliveries_per_message == 1
    with pytest.raises(LoadError, match="a/b"):
        fan_in(4, group="a/b")
    assert fan_out(5).publishers == 1
    assert fan_out(5).deliveries_per_message == 5


@pytest.mark.parametrize("make", [pairs, fan_in, fan_out])
@pytest.mark.parametrize("count", [0, 1_000_001])
def test_a_count_of_clients_has_limits(make: type, count: int) -> None:
    with pytest.raises(LoadError, match=str(count)):
        make(count)


@pytest.mark.parametrize(
    ("qos", "lost", "duplicated", "count"),
    [(0, 5, 5, 0), (1, 0, 5, 0), (1, 1, 0, 1), (2, 0, 1, 1), (2, 1, 1, 2), (2, 0, 0, 0)],
)
def test_what_counts_as_a_broken_promise(qos: int, lost: int, duplicated: int, count: int) -> None:
    assert len(broken_promises(qos, lost, duplicated)) == count


def test_no_rate_when_no_time_was_used() -> None:
    assert per_cpu_second(1000, 0.0) is None
    assert per_cpu_second(1000, 0.5) == 2000
