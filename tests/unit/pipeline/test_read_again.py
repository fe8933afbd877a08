"""Where queries on a log in Kafka begin to read, so that something goes through them at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from embermq.pipeline.jobs.kafka_dispatch import KafkaDispatch
from embermq.pipeline.jobs.kafka_sinks import KafkaSinkJob
from embermq.pipeline.log_look import Bounds

BOUNDS = {0: Bounds(3, 10), 1: Bounds(3, 10), 2: Bounds(0, 0)}
DONE = {0: 10, 1: 3, 2: 0}


@pytest.mark.promise("pipeline-14")
def test_sinks_that_skip_repeats_read_one_record_again_where_there_is_one() -> None:
    job: Any = SimpleNamespace(kafka=SimpleNamespace(positions=SimpleNamespace(bounds=lambda: BOUNDS)))
    assert KafkaSinkJob.read_from(job, DONE) == {0: 9, 1: 3, 2: 0}


@pytest.mark.promise("pipeline-2")
def test_dispatch_repeats_nothing_below_what_it_has_published() -> None:
    """Readers need not know repeats below that."""
    job: Any = None
    assert KafkaDispatch.read_from(job, DONE) == DONE
