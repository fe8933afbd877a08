"""Rows of queues that have come and gone between two commits are never written; all others are as their ticks say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from embermq.adapters.sqlite.connection import apply_broker_schema, open_writer
from embermq.adapters.sqlite.device_queue import SqliteDeviceQueue
from embermq.adapters.sqlite.tick_tables import TickTables
from embermq.model.queue_rows import EntryRow, GroupMark, MessageState, QueueWrites
from embermq.model.session_writes import QueueMark, QueueRow, QueueState, SessionWrites
from embermq.model.tick_writes import TickWrites


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[TickTables]:
    with closing(open_writer(tmp_path / "broker.db", synchronous="OFF")) as connection:
        apply_broker_schema(connection)
        yield TickTables(connection)


def row(seq: int, offset: int) -> QueueRow:
    return QueueRow(1, seq, offset, 0, QueueState.QUEUED, 1, 1_000, (), b"record")


def mark(seq: int, offset: int, state: int) -> QueueMark:
    return QueueMark(1, seq, offset, state, 7)


def session(tables: TickTables, **writes: object) -> None:
    tables.apply(TickWrites(session=SessionWrites(**writes)), 0)  # type: ignore[arg-type]


def stored(tables: TickTables, query: str) -> list[tuple[object, ...]]:
    tables.write()
    return tables.connection.execute(query).fetchall()


def test_a_delivery_that_is_done_before_the_commit_is_never_written(tables: TickTables) -> None:
    tables.apply(TickWrites(dispatcher_floor=10), 0)
    tables.write()
    before = tables.connection.total_changes
    session(tables, queue_rows=[row(1, 5), row(2, 6)])
    session(tables, queue_marks=[mark(1, 5, QueueState.SENT)], queue_dropped=[(1, 2)])
    session(tables, queue_marks=[mark(1, 5, QueueState.DONE)])
    assert stored(tables, "SELECT * FROM device_queue") == []
    assert tables.connection.total_changes == before


def test_above_the_floor_a_done_delivery_stays_known(tables: TickTables) -> None:
    session(tables, queue_rows=[row(1, 5), row(2, 6)])
    session(tables, queue_marks=[mark(1, 5, QueueState.DONE)], queue_dropped=[(1, 2)])
    assert stored(tables, "SELECT seq, state, record FROM device_queue") == [(1, 3, b""), (2, 3, b"")]
    tables.apply(TickWrites(dispatcher_floor=6), 0)
    assert stored(tables, "SELECT seq FROM device_queue") == [(2,)]


def test_who_reads_a_session_is_shown_what_has_gathered(tables: TickTables) -> None:
    queue = SqliteDeviceQueue(tables)
    found: list[list[QueueRow]] = []
    session(tables, queue_rows=[row(1, 5), row(2, 6)], queue_marks=[mark(1, 5, QueueState.SENT)])
    queue.page(1, 0, 10, found.append)
    queue.in_flight(1, found.append)
    assert [[(one.seq, one.packet_id) for one in rows] for rows in found] == [[(2, 0)], [(1, 7)]]
    session(tables, queue_marks=[mark(1, 5, QueueState.DONE)])
    queue.in_flight(1, found.append)
    assert found[-1] == []


def test_an_entry_that_goes_before_the_commit_is_never_written(tables: TickTables) -> None:
    def entry(sequence: int) -> EntryRow:
        return EntryRow(1, sequence, 0, -1, 0, None, 1_000)

    def apply(writes: QueueWrites, base: int) -> None:
        tables.apply(TickWrites(queues=writes), base)

    acked = GroupMark(MessageState.ACKED)
    apply(QueueWrites(entries={(1, 1): entry(1), (1, 2): entry(2)}), 40)
    assert stored(tables, 'SELECT sequence, "offset" FROM queue_entry') == [(1, 40), (2, 40)]
    before = tables.connection.total_changes
    apply(QueueWrites(entries={(1, 3): entry(3), (1, 4): entry(4)}, marks={(1, "g", 3): acked}), 50)
    apply(QueueWrites(removed={(1, 1): 40, (1, 3): 50}, marks={(1, "g", 4): acked}), 60)
    assert stored(tables, 'SELECT sequence, "offset" FROM queue_entry') == [(2, 40), (4, 50)]
    assert stored(tables, "SELECT sequence FROM queue_mark") == [(4,)]
    assert tables.connection.total_changes == before + 3, "one entry goes, another one comes with its mark"
