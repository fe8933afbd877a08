"""What every store of ticks promises, together with the message log that it appends to."""

from __future__ import annotations

import errno
import os
from functools import partial

import pytest
from tests.contracts.kafka_stores import KafkaStores
from tests.contracts.stores import Stores, open_descriptors, tick_writes, told
from tests.support.waiting import wait_until

from embermq.adapters.segments import tick_store
from embermq.adapters.segments.tick_store import SegmentTickStore
from embermq.adapters.sqlite import session_tables, tick_tables
from embermq.adapters.sqlite.connection import apply_broker_schema, open_writer
from embermq.formats.log_record import decode_record, encode_record, iter_frames
from embermq.formats.segment_reader import SegmentReader
from embermq.model.application_positions import ReaderPosition, StoredPositions
from embermq.model.client_type import ClientType
from embermq.model.message import Message
from embermq.model.session import SessionRow, SubscriptionRow, WillRow
from embermq.model.session_writes import QueueMark, QueueRow, QueueState, RetainedWrite
from embermq.model.tick_writes import ApplicationMark, TickWrites
from embermq.model.unacknowledged import Unacknowledged, WhyUnacknowledged
from embermq.ports.errors import StoreError, StoreFull, StoreUnavailable
from embermq.ports.tick_store import Receipt


def record(payload: bytes, topic: str = "a/b", accepted_ms: int = 1_700_000_000_000) -> bytes:
    return encode_record(Message(topic, payload, 1, False, "p", 4, accepted_ms))


def position(committed: int) -> ReaderPosition:
    return ReaderPosition("", 0, StoredPositions(committed, committed))


def session(generation: int, client_id: str = "c") -> SessionRow:
    return SessionRow(client_id, generation, 1, ClientType.DEVICE, "", 5, 60, True, 0, 1_700_000_000_000)


def row(generation: int, seq: int, offset: int, state: int = QueueState.QUEUED) -> QueueRow:
    return QueueRow(generation, seq, offset, 0, state, 1, 2**41, (7, 268_435_455), b"record")


def payloads(stores: Stores, start: int = 0) -> list[bytes]:
    found: list[bytes] = []
    at = start
    while batches := stores.log.read(at, records_max=10_000, bytes_max=2**30):
        for batch in batches:
            frames = list(iter_frames(batch.body))
            assert len(frames) == batch.record_count
            found += [
                decode_record(frame).message.payload
                for number, frame in enumerate(frames)
                if batch.base_offset + number >= at
            ]
        at = batches[-1].base_offset + batches[-1].record_count
    return found


@pytest.mark.promise("repositories-2")
def test_offsets_follow_one_another_over_ticks_and_restarts(stores: Stores) -> None:
    assert stores.write(records=[record(b"0"), record(b"1")]) == Receipt(0, 2)
    assert stores.write() == Receipt(2, 0)
    assert stores.write(records=[record(b"2")]) == Receipt(2, 1)
    stores.reopen()
    assert stores.write(records=[record(b"3")]) == Receipt(3, 1)
    stores.reopen()
    assert payloads(stores) == [b"0", b"1", b"2", b"3"]
    assert stores.log.statistics().end_offset == 4
    assert stores.sessions.load().log_end == 4


def _begin_at(stores: Stores, offset: int) -> None:
    assert isinstance(stores.store, SegmentTickStore)
    stores.store.begin_at(offset)


def test_no_record_gets_an_offset_that_a_reader_has_confirmed(sqlite_stores: Stores) -> None:
    sqlite_stores.write(records=[record(b"0")])
    _begin_at(sqlite_stores, 7)
    assert sqlite_stores.sessions.load().log_end == 7
    assert sqlite_stores.write(records=[record(b"1")]) == Receipt(7, 1)
    assert payloads(sqlite_stores) == [b"0", b"1"]
    assert payloads(sqlite_stores, 3) == [b"1"]
    sqlite_stores.reopen()
    _begin_at(sqlite_stores, 2)
    assert sqlite_stores.write(records=[record(b"2")]) == Receipt(8, 1)


def test_a_tick_under_way_is_busy_and_not_seen(stores: Stores) -> None:
    stores.write(records=[record(b"0")])
    answers = stores.submit(TickWrites(records=[record(b"1")]))
    assert stores.store.busy
    assert answers == []
    with pytest.raises(RuntimeError):
        stores.store.submit(TickWrites(), lambda _: None)
    stores.answer()
    assert answers == [Receipt(1, 1)]
    assert not stores.store.busy


def test_reading_begins_where_asked_and_stops_at_limits(stores: Stores) -> None:
    for first in range(0, 30, 3):
        stores.write(records=[record(b"%d" % number) for number in range(first, first + 3)])
    assert payloads(stores, 10) == [b"%d" % number for number in range(10, 30)]
    tick = not isinstance(stores, KafkaStores)  # where a batch is a tick; Kafka's log stops at any record
    (only,) = stores.log.read(10, records_max=1, bytes_max=2**30)
    assert (only.base_offset, only.record_count) == ((9, 3) if tick else (10, 1))
    (only,) = stores.log.read(10, records_max=100, bytes_max=1)
    assert (only.base_offset, only.record_count) == ((9, 3) if tick else (10, 1))
    batches = stores.log.read(10, records_max=4, bytes_max=2**30)
    found = [(batch.base_offset, batch.record_count) for batch in batches]
    assert found == ([(9, 3), (12, 3)] if tick else [(10, 4)])
    assert stores.log.read(30, records_max=1, bytes_max=1) == []
    assert stores.log.read(1_000, records_max=1, bytes_max=1) == []


@pytest.mark.promise("repositories-2")
def test_trimming_forgets_whole_batches_and_never_an_offset(stores: Stores) -> None:
    for number in range(6):
        stores.write(records=[record(b"%d" % (2 * number)), record(b"%d" % (2 * number + 1))])
    before = stores.log.statistics()
    stores.log.trim(5)
    stores.write(receipts=[b"a tick of the log"])
    after = stores.log.statistics()
    in_kafka = isinstance(stores, KafkaStores)  # trims to the record
    start = 5 if in_kafka else 4
    assert (after.start_offset, after.end_offset) == (start, 12)
    assert after.body_bytes < before.body_bytes
    assert payloads(stores) == [b"%d" % number for number in range(start, 12)]
    stores.log.trim(1_000)
    stores.write(receipts=[b"a tick of the log"])
    statistics = stores.log.statistics()
    assert (statistics.start_offset, statistics.end_offset) == (12, 12)
    assert statistics.body_bytes == 0
    stores.reopen()
    assert stores.log.statistics().end_offset == 12
    assert stores.write(records=[record(b"12")]) == Receipt(12, 1)


def test_what_was_written_before_a_restart_is_trimmed_too(stores: Stores) -> None:
    for number in range(6):
        stores.write(records=[record(b"%d" % number)])
    stores.reopen()
    stores.log.trim(4)
    stores.write(receipts=[b"a tick of the log"])
    assert payloads(stores) == [b"4", b"5"]


@pytest.mark.promise("pipeline-5")
def test_statistics_stay_exact_while_the_log_grows_and_is_trimmed(stores: Stores) -> None:
    about = 64 * 4 if isinstance(stores, KafkaStores) else 0  # in proportion between two marks
    for number in range(1, 120):
        stores.write(records=[record(b"x" * number)] * 3)
        if number % 5 == 0:
            stores.log.trim(number * 2)
            stores.write(receipts=[b"a tick of the log"])
        if number % 7 == 0:
            found = stores.log.statistics()
            bodies = stores.log.read(0, records_max=10_000, bytes_max=2**30)
            assert found.body_bytes == pytest.approx(sum(len(batch.body) for batch in bodies), abs=about)
            assert (found.start_offset, found.end_offset) == (bodies[0].base_offset, number * 3)
    stores.log.trim(119 * 3)
    for _ in range(10):
        stores.write(receipts=[b"a tick of the log"])
    left = len(record(b"x" * 119)) if about else 0
    assert stores.log.statistics().body_bytes == pytest.approx(left, abs=about)
    stores.write(records=[record(b"last")])
    assert stores.log.statistics().body_bytes == pytest.approx(left + len(record(b"last")), abs=about)


def test_receipts_are_kept_a_while_and_let_go_a_few_at_a_time(
    sqlite_stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept() -> list[bytes]:
        sqlite_stores.tables.write()
        rows = sqlite_stores.writer.execute("SELECT body FROM receipt_batch ORDER BY id").fetchall()
        return [bytes(row[0]) for row in rows]

    monkeypatch.setattr(tick_store, "CHECKPOINT_S", 3_600.0)
    for number in range(100):
        sqlite_stores.write(receipts=[b"%d," % number])
        sqlite_stores.write(receipts=[b"%d;" % number])
        assert kept()[-1] == b"%d,%d;" % (number, number)  # what gathers is one row
    assert len(kept()) == 100
    monkeypatch.setattr(tick_tables, "RECEIPTS_KEPT_MS", -1_000)
    sqlite_stores.write(receipts=[b"new"])
    assert len(kept()) == 101 - tick_tables.RECEIPT_BATCHES_MAX
    sqlite_stores.write(receipts=[b"newer"])
    assert kept() == []


def test_statistics_count_the_bytes_of_bodies(stores: Stores) -> None:
    assert (stores.log.statistics().start_offset, stores.log.statistics().body_bytes) == (0, 0)
    bodies = [record(b"x" * size) for size in (0, 1, 100_000)]
    stores.write(records=bodies)
    assert stores.log.statistics().body_bytes == sum(map(len, bodies))


def test_offset_at_a_time(stores: Stores) -> None:
    stores.write(records=[record(b"0")])
    assert stores.log.offset_at(0) == 0
    assert stores.log.offset_at(2**50) == 1


def test_retained_messages_point_at_the_records_of_their_tick(stores: Stores) -> None:
    stores.write(records=[record(b"0")])
    writes = [
        RetainedWrite("a/b", 0, record(b"1")),
        RetainedWrite("x", 1, record(b"2", "x")),
        RetainedWrite("a/b", 2, record(b"3")),
    ]
    stores.write(records=[record(b"1"), record(b"2", "x"), record(b"3")], retained=writes)
    kept = {row.topic: (row.offset, row.record) for row in stores.sessions.load_retained()}
    assert kept == {"a/b": (3, record(b"3")), "x": (2, record(b"2", "x"))}
    stores.write(records=[record(b"")], retained=[RetainedWrite("a/b", 0, b"")])
    assert [row.topic for row in stores.sessions.load_retained()] == ["x"]


def test_an_expired_retained_message_goes_unless_it_was_replaced(stores: Stores) -> None:
    writes = [RetainedWrite("a", 0, record(b"1")), RetainedWrite("b", 1, record(b"2"))]
    stores.write(records=[record(b"1"), record(b"2")], retained=writes)
    stores.write(retained_expired=[("a", 0)])
    assert [row.topic for row in stores.sessions.load_retained()] == ["b"]
    stores.write(records=[record(b"3")], retained=[RetainedWrite("b", 0, record(b"3"))])
    stores.write(
        records=[record(b"4")],
        retained=[RetainedWrite("c", 0, record(b"4"))],
        retained_expired=[("b", 1), ("c", 2)],
    )
    assert [row.topic for row in stores.sessions.load_retained()] == ["b", "c"]


def test_sessions_are_deleted_after_everything_of_the_tick(stores: Stores) -> None:
    stores.write(
        records=[record(b"0")], sessions=[session(1)], queue_rows=[row(1, 65_536, 0)], receiving=[(1, 7, 0)]
    )
    stores.write(
        sessions=[session(1), session(2)],
        subscriptions=[(1, "x", SubscriptionRow("x", 1, 0, 0))],
        queue_rows=[row(1, 131_072, 1), row(2, 65_536, 1)],
        application_positions={1: position(5), 2: position(5)},
        deleted_sessions=[1],
        ended_applications=[1],
    )
    state = stores.sessions.load()
    assert [stored.row.generation for stored in state.sessions] == [2]
    assert stores.queue.page(1, 0, 10) == []
    assert [floor.generation for floor in stores.applications.floors()] == [2]


def test_released_beats_receiving_and_drop_beats_mark_in_one_tick(stores: Stores) -> None:
    stores.write(
        records=[record(b"0")],
        sessions=[session(1)],
        receiving=[(1, 7, 0), (1, 8, 0)],
        released=[(1, 7)],
        queue_rows=[row(1, 65_536, 0), row(1, 131_072, 1)],
        queue_marks=[QueueMark(1, 65_536, 0, QueueState.SENT, 9)],
        queue_dropped=[(1, 65_536)],
    )
    (stored,) = stores.sessions.load().sessions
    assert stored.receiving == (8,)
    assert stores.queue.in_flight(1) == []
    assert [queued.seq for queued in stores.queue.page(1, 0, 10)] == [131_072]


@pytest.mark.promise("device-13")
def test_a_full_store_refuses_the_whole_tick_and_recovers(sqlite_stores: Stores) -> None:
    stores = sqlite_stores
    stores.write(records=[record(b"0")], sessions=[session(1)])
    stores.fill()
    everything = tick_writes(
        records=[record(b"1" * 200_000)],
        retained=[RetainedWrite("a/b", 0, record(b"1" * 200_000))],
        receiving=[(1, 1, 0)],
        sessions=[session(2, "d")],
        deleted_sessions=[1],
        subscriptions=[(1, "f", SubscriptionRow("f", 1, 0, 0))],
        wills=[(1, WillRow("c", 0, b"w"))],
        queue_rows=[row(1, 65_536, 1)],
        application_positions={1: position(1)},
        dispatcher_floor=1,
        generation_reserved=99,
    )
    answers = stores.submit(everything)
    stores.answer()
    assert [type(answer) for answer in answers] == [StoreFull]
    assert not stores.store.busy
    stores.make_room()
    assert stores.write(records=[record(b"1")]) == Receipt(1, 1)
    state = stores.sessions.load()
    assert [stored.row for stored in state.sessions] == [session(1)]
    assert (state.wills, state.dispatcher_floor, state.generation_reserved) == ([], 0, 1)
    assert stores.sessions.load_retained() == []
    assert stores.queue.page(1, 0, 10) == []
    assert list(stores.sessions.load().sessions)[-1].subscriptions == ()
    assert payloads(stores) == [b"0", b"1"]


@pytest.mark.promise("device-13")
def test_a_refused_tick_takes_no_earlier_one_with_it(sqlite_stores: Stores) -> None:
    stores = sqlite_stores
    for number in range(5):
        assert stores.write(records=[record(b"%d" % number)]) == Receipt(number, 1)
    stores.fill()
    answers = stores.submit(TickWrites(records=[record(b"x" * 500_000)]))
    stores.answer()
    assert isinstance(answers[0], StoreFull)
    stores.make_room()
    assert stores.write(records=[record(b"5")]) == Receipt(5, 1)
    assert payloads(stores) == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize(("stores", "call"), [("fsync", "fdatasync"), ("os", "pwritev")], indirect=["stores"])
def test_a_failed_write_or_sync_ends_the_log_without_an_answer(
    stores: Stores, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores.write(records=[record(b"0")])
    assert isinstance(stores.store, SegmentTickStore)
    ends: list[StoreError] = []
    stores.store.on_end.append(ends.append)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "disk I/O error")

    with monkeypatch.context() as failing:
        failing.setattr(os, call, fail)
        answers = stores.submit(tick_writes(records=[record(b"lost")], sessions=[session(1)]))
        if call == "fdatasync":
            stores.answer()  # of the thread, for the store
    assert (answers, len(ends)) == ([], 1)
    assert "disk I/O error" in str(ends[0])
    assert payloads(stores) == [b"0"]
    stores.reopen()
    assert stores.write(records=[record(b"1")]).record_count == 1
    assert payloads(stores)[0] == b"0"
    assert payloads(stores)[-1] == b"1"


@pytest.mark.parametrize("stores", ["memory"], indirect=True)
def test_the_level_memory_writes_soon_also_when_nothing_follows(stores: Stores) -> None:
    stores.write(records=[record(b"0")])
    other = SegmentReader(stores.folder / "log")

    def seen() -> int:
        stores.store.settle()
        end = other.end()
        return 0 if end is None else end.offset

    wait_until(lambda: seen() == 1, 30, "the tick is written")
    other.close()


def test_closing_releases_every_file(sqlite_stores: Stores) -> None:
    sqlite_stores.write(records=[record(b"0")])
    before = open_descriptors()
    for _ in range(3):
        sqlite_stores.reopen()
    assert open_descriptors() <= before


def test_application_marks_below_the_floor_are_forgotten(stores: Stores) -> None:
    stores.write(
        sessions=[session(1)],
        application_marks=[ApplicationMark(1, offset, offset + 1, QueueState.SENT) for offset in (3, 4, 5)],
        application_positions={1: position(2)},
    )
    stores.write(
        application_marks=[ApplicationMark(1, 4, 5, QueueState.DONE)], application_positions={1: position(4)}
    )
    stored = told(stores, partial(stores.readers.load, 1))
    assert [(mark.offset, mark.state) for mark in stored.marks] == [
        (4, QueueState.DONE),
        (5, QueueState.SENT),
    ]


def test_what_was_not_acknowledged_is_kept_for_a_month_also_of_sessions_that_ended(
    sqlite_stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept() -> list[tuple[int, int, int]]:
        rows = sqlite_stores.writer.execute(
            'SELECT generation, "offset", why FROM application_unacknowledged ORDER BY generation, "offset", why'
        )
        return [tuple(row) for row in rows]

    two = [Unacknowledged(1, 4, WhyUnacknowledged.EXPIRED), Unacknowledged(1, 6, WhyUnacknowledged.PARKED)]
    sqlite_stores.write(sessions=[session(1)], application_positions={1: position(5)}, unacknowledged=two)
    sqlite_stores.write(unacknowledged=two[:1], ended_applications=[1, 2])
    sqlite_stores.reopen()
    sqlite_stores.write(ended_applications=[1])
    ended = WhyUnacknowledged.ENDED
    assert kept() == [
        (1, 4, WhyUnacknowledged.EXPIRED),
        (1, 5, ended),
        (1, 6, WhyUnacknowledged.PARKED),
        (2, 0, ended),
    ]
    monkeypatch.setattr(session_tables, "UNACKNOWLEDGED_KEPT_MS", -1_000)
    sqlite_stores.write(unacknowledged=[Unacknowledged(3, 9, WhyUnacknowledged.REFUSED)])
    assert kept() == []


@pytest.mark.parametrize("stores", ["os"], indirect=True)
@pytest.mark.parametrize(
    ("version", "way_out"),
    [
        (99, "schema version 99, .* start it with the newer EmberMQ that wrote it"),
        (9, r"schema version 9, of a build before EmberMQ 0\.1\.0; .* with the build that wrote it"),
    ],
)
def test_a_file_of_another_schema_is_refused_by_number_and_left_alone(
    stores: Stores, version: int, way_out: str
) -> None:
    stores.writer.execute("UPDATE meta SET value = ? WHERE name = 'schema_version'", (version,))
    stores.writer.execute("DROP TABLE queue_body")
    stores.close()
    again = open_writer(stores.folder / "broker.db", synchronous="NORMAL")
    with pytest.raises(StoreUnavailable, match=way_out):
        apply_broker_schema(again)
    assert again.execute("SELECT 1 FROM sqlite_schema WHERE name = 'queue_body'").fetchone() is None
    again.close()


@pytest.mark.promise("repositories-2")
@pytest.mark.parametrize("stores", ["os"], indirect=True)
def test_offsets_beyond_31_bits(stores: Stores) -> None:
    stores.writer.execute("INSERT OR REPLACE INTO meta VALUES ('log_end', ?)", (2**31,))
    stores.reopen()
    assert stores.write(records=[record(b"0"), record(b"1")]) == Receipt(2**31, 2)
    assert payloads(stores, 2**31 + 1) == [b"1"]
    stores.reopen()
    assert stores.write(records=[record(b"2")]) == Receipt(2**31 + 2, 1)
