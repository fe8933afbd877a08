"""What every reader of application logs promises, and what stands in for one in other tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.contracts.application_feeds import ByHand, InKafka, PlaceOfLogs
from tests.support.application_log_writer import HandReader

from embermq.ports.application_feed import ApplicationFeed


@pytest.fixture(params=["kafka", "by hand"])
def place(request: pytest.FixtureRequest) -> Iterator[PlaceOfLogs]:
    opened = ByHand() if request.param == "by hand" else InKafka(request.getfixturevalue("kafka"))
    yield opened
    opened.close()


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


def test_every_client_gets_its_own_records_in_order(place: PlaceOfLogs) -> None:
    logs = [place.make(f"c{number}") for number in range(8)]
    for log in logs:
        place.write(log, numbered(300))
    readers = [place.reads(log, 10 * number) for number, log in enumerate(logs)]
    place.run_until(lambda: all(len(reader.came) >= 300 - 10 * n for n, reader in enumerate(readers)))
    for number, reader in enumerate(readers):
        assert reader.payloads == numbered(300)[10 * number :]
        assert [one.entry.offset for one in reader.came] == list(range(10 * number, 300))
        assert [one.entry.source for one in reader.came] == list(range(310 * number, 300 * number + 300))


def test_what_comes_while_one_reads_follows(place: PlaceOfLogs) -> None:
    log = place.make("app")
    reader = place.reads(log)
    for number in range(3):
        place.write(log, numbered(20, 20 * number))
        place.run_until(lambda: len(reader.came) >= 20 * (number + 1))  # noqa: B023 - at once
    assert reader.payloads == numbered(60)


def test_one_that_leaves_gets_nothing_more_and_may_return(place: PlaceOfLogs) -> None:
    log = place.make("app")
    place.write(log, numbered(1_000))
    for _ in range(3):
        reader = place.reads(log, 500)
        place.run_until(lambda: reader.came)  # noqa: B023 - at once
        _feed(reader).close()
        count = len(reader.came)
        again = place.reads(log, 200)
        place.run_until(lambda: len(again.came) >= 800)  # noqa: B023 - at once
        assert again.payloads == numbered(800, 200)
        assert len(reader.came) == count
        _feed(again).close()


def test_who_releases_nothing_is_read_for_within_bounds_and_goes_on_later(place: PlaceOfLogs) -> None:
    log, other = place.make("stalled"), place.make("other")
    payloads = [payload.ljust(place.payload_bytes, b".") for payload in numbered(2_000)]
    place.write(log, payloads)
    place.write(other, numbered(500))
    stalled = place.reads(log, stalled=True)
    place.run_until(lambda: stalled.held_bytes >= place.unread_bytes_max)
    neighbour = place.reads(other)
    place.run_until(lambda: len(neighbour.came) >= 500)
    assert len(stalled.came) < 1_500
    stalled.stalled = False
    stalled.release()
    place.run_until(lambda: len(stalled.came) >= 2_000)
    assert stalled.payloads == payloads


def test_what_cannot_be_understood_is_told_in_its_place(place: PlaceOfLogs) -> None:
    log = place.make("app")
    place.write(log, [b"0"])
    place.write_broken(log)
    place.write(log, [b"2"])
    reader = place.reads(log)
    place.run_until(lambda: len(reader.came) >= 3)
    assert [(one.entry.offset, one.entry.record is None) for one in reader.came] == [
        (0, False),
        (1, True),
        (2, False),
    ]
    assert reader.came[1].entry.problem == "has no header v, its format"


@pytest.mark.promise("application-3")
def test_what_was_deleted_before_it_was_read_is_told(place: PlaceOfLogs) -> None:
    log = place.make("app")
    place.write(log, numbered(10))
    place.trim(log, 6)
    reader = place.reads(log, 2)
    place.run_until(lambda: len(reader.came) >= 4)
    assert reader.payloads == numbered(4, 6)
    assert reader.firsts == [(0, 6)]


@pytest.mark.promise("application-2")
def test_a_log_that_is_deleted_under_its_reader_is_told_by_name(place: PlaceOfLogs) -> None:
    log, other = place.make("app"), place.make("other")
    reader, neighbour = place.reads(log), place.reads(other)
    place.write(log, numbered(3))
    place.run_until(lambda: len(reader.came) >= 3)
    place.delete(log)
    place.run_until(lambda: reader.reasons)
    assert log in reader.reasons[0]
    place.write(other, [b"x"])
    place.run_until(lambda: neighbour.payloads == [b"x"])
    assert neighbour.reasons == []


def _feed(reader: HandReader) -> ApplicationFeed:
    assert reader.feed is not None
    return reader.feed
