"""Drivers without a broker's data directory: one works on a log, also when two start at once."""

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.pipeline.kafka_topics import DEADLINE_S, LogInKafka
from tests.support.waiting import wait_until

from embermq.pipeline.driver import Driver
from embermq.pipeline.errors import DriverLockError
from embermq.pipeline.kafka_driver import KafkaDriver
from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.sources import kafka_positions
from embermq.pipeline.status import DriverReport


def reports(log: LogInKafka) -> list[bytes]:
    return [told.value for told in log.positions.reports({})[0]]


def test_one_consumer_hears_all_that_is_said(kafka_log: LogInKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one for each look would connect anew every two seconds."""
    made: list[object] = []
    consumer = vars(kafka_positions)["Consumer"]

    def counted(options: object) -> object:
        made.append(options)
        return consumer(options)

    monkeypatch.setattr(kafka_positions, "Consumer", counted)
    heard: list[bytes] = []
    at: dict[int, int] = {}
    for number in range(4):
        kafka_log.positions.publish_report(b"%d" % number)
        told, at = kafka_log.positions.reports(at)
        heard += [report.value for report in told]
    assert heard == [b"0", b"1", b"2", b"3"]
    assert kafka_log.positions.reports(at) == ([], at)
    assert [report.value for report in kafka_log.positions.reports({})[0]][-1:] == [b"3"]
    kafka_log.positions.close()
    assert len(made) == 1


@pytest.mark.promise("pipeline-2")
def test_of_two_that_start_at_once_the_younger_ends_and_later_ones_wait(
    kafka_log: LogInKafka, tmp_path: Path
) -> None:
    """Neither has said anything when the other looks."""
    settings = DriverSettings(queries=("lake",), kafka=kafka_log.kafka, elsewhere=True)
    first_stops = threading.Event()
    with ExitStack() as at_end:
        at_end.callback(first_stops.set)
        first = KafkaDriver(kafka_log.kafka, Places(tmp_path / "a"), first_stops, elsewhere=True)
        second = Driver(settings, tmp_path / "b")
        at_end.callback(second.stop)
        assert second._kafka is not None
        first.wait_for_log(settings)
        second._kafka.wait_for_log(settings)
        first.tell(DriverReport(pid=7, host="one", state="starting", started_ms=1, updated_ms=1))
        second._report("starting")
        with pytest.raises(DriverLockError, match="a pipeline runs already, process 7 on one"):
            second._watch()
        second._report("stopped")
        later = KafkaDriver(kafka_log.kafka, Places(tmp_path / "c"), threading.Event(), elsewhere=True)
        for _ in range(2):
            assert "process 7 on one" in later._other_driver(), (
                "whoever comes later waits, however often it looks"
            )
        said = len(reports(kafka_log))
        wait_until(lambda: len(reports(kafka_log)) > said, DEADLINE_S, "the first goes on")
        assert not first.refusal and not first_stops.is_set()
        assert b'"stopped"' not in b"".join(reports(kafka_log)), "the first is what status shows"
