"""Rows of queues and packet ids that have come and gone between two commits are never written; all others are as their
ticks say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from embermq.adapters.sqlite.connection import apply_broker_schema, open_writer
from embermq.adapters.sqlite.device_queue import SqliteDeviceQueue
from embermq.adapters.sqlite.device_rows import GATHERED_MAX
from embermq.adapters.sqlite.tick_tables import TickTables
from embermq.model.queue_rows import EntryRow, GroupMark, MessageState, QueueWrites
from embermq.model.session_writes import QUEUE_SEQ_STEP, QueueMark, QueueRow, QueueState, SessionWrites
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


def test_rows_that_follow_one_another_are_marked_and_removed_alone(tables: TickTables) -> None:
    """What has a place between two of them is left as it is."""
    step = QUEUE_SEQ_STEP
    places = [step, 2 * step, 2 * step + 7, 3 * step, 4 * step, 6 * step]
    session(tables, queue_rows=[row(place, 5) for place in places])
    tables.write()

    def marks(state: int, *ids: tuple[int, int]) -> list[QueueMark]:
        return [QueueMark(1, number * step, 5, state, packet_id) for number, packet_id in ids]

    session(tables, queue_marks=marks(QueueState.SENT, (4, 9), (2, 7), (3, 8), (6, 10)))
    found = stored(tables, "SELECT seq, state, packet_id FROM device_queue ORDER BY seq")
    sent = [(2 * step, 1, 7), (2 * step + 7, 0, 0), (3 * step, 1, 8), (4 * step, 1, 9)]
    assert found == [(step, 0, 0), *sent, (6 * step, 1, 10)]
    session(tables, queue_marks=marks(QueueState.DONE, (3, 0), (2, 0)), queue_dropped=[(1, 4 * step)])
    found = stored(tables, "SELECT seq FROM device_queue WHERE state < 3 ORDER BY seq")
    assert found == [(step,), (2 * step + 7,), (6 * step,)]
    tables.apply(TickWrites(dispatcher_floor=6), 0)
    session(tables, queue_marks=marks(QueueState.DONE, (6, 0)), queue_dropped=[(1, 2 * step + 7)])
    assert stored(tables, "SELECT seq FROM device_queue") == [(step,)]


def test_many_rows_are_written_before_the_commit_and_done_after_that(tables: TickTables) -> None:
    step = QUEUE_SEQ_STEP
    rows = [row(number * step, number) for number in range(1, GATHERED_MAX + 1)]
    session(tables, queue_rows=rows, queue_marks=[QueueMark(1, step, 1, QueueState.SENT, 3)])
    assert tables.connection.execute("SELECT COUNT(*) FROM device_queue").fetchone() == (GATHERED_MAX,)
    session(tables, queue_marks=[QueueMark(1, one.seq, one.offset, QueueState.SENT, 4) for one in rows[1:]])
    session(tables, queue_marks=[QueueMark(1, one.seq, one.offset, QueueState.DONE, 4) for one in rows[2:]])
    found = stored(tables, "SELECT seq, state, packet_id FROM device_queue WHERE state < 3")
    assert found == [(step, 1, 3), (2 * step, 1, 4)]


def test_marks_are_written_before_the_commit_when_they_are_many(tables: TickTables) -> None:
    step = QUEUE_SEQ_STEP
    rows = [row(number * step, number) for number in range(1, GATHERED_MAX + 1)]
    session(tables, queue_rows=rows)
    late = GATHERED_MAX * step + 1
    session(tables, queue_rows=[row(late, 1)], queue_marks=[mark(late, 1, QueueState.SENT)])
    sent = [QueueMark(1, one.seq, one.offset, QueueState.SENT, 4) for one in rows]
    query = "SELECT COUNT(*) FROM device_queue WHERE state = 1"
    session(tables, queue_marks=[*sent[1:], *sent[1:]])
    assert tables.connection.execute(query).fetchone() == (0,)
    session(tables, queue_marks=sent[:1])
    assert tables.connection.execute(query).fetchone() == (GATHERED_MAX,)
    assert stored(tables, query) == [(GATHERED_MAX + 1,)]


@pytest.mark.parametrize("follows", [False, True])
def test_what_is_done_while_the_floor_stays_does_not_wait_for_the_commit(
    follows: bool, tables: TickTables
) -> None:
    many = 2 * GATHERED_MAX
    for number in range(1, many + 1):
        floor = number if follows else -1
        tables.apply(TickWrites(session=SessionWrites(queue_rows=[row(number, number)])), 0)
        done = SessionWrites(queue_marks=[mark(number, number, QueueState.DONE)])
        tables.apply(TickWrites(session=done, dispatcher_floor=floor), 0)
    query = "SELECT COUNT(*) FROM device_queue"
    assert tables.connection.execute(query).fetchone() == (0 if follows else GATHERED_MAX,)
    assert stored(tables, query) == [(1 if follows else many,)]


def test_nothing_is_left_of_a_session_that_has_ended(tables: TickTables) -> None:
    session(tables, queue_rows=[row(1, 5)], queue_marks=[mark(1, 5, QueueState.DONE)])
    session(tables, deleted_sessions=[1])
    assert stored(tables, "SELECT * FROM device_queue") == []


def test_a_packet_id_that_is_released_before_the_commit_is_never_written(tables: TickTables) -> None:
    before = tables.connection.total_changes
    session(tables, receiving=[(1, 5, 0), (2, 5, 1)])
    session(tables, released=[(1, 5), (2, 5), (1, 6)])
    assert stored(tables, "SELECT * FROM receiving") == []
    assert tables.connection.total_changes == before


def test_packet_ids_are_stored_as_their_ticks_say(tables: TickTables) -> None:
    session(tables, receiving=[(1, 5, 0), (1, 6, 1), (2, 5, 2), (3, 1, 3)])
    assert stored(tables, "SELECT COUNT(*) FROM receiving") == [(4,)]
    session(tables, released=[(1, 5), (1, 6)], receiving=[(2, 5, 0)])
    session(tables, receiving=[(1, 5, 0), (3, 2, 1)])
    session(tables, deleted_sessions=[3])
    assert stored(tables, "SELECT generation, packet_id FROM receiving ORDER BY 1") == [(1, 5), (2, 5)]
    session(tables, released=[(1, 5), (2, 5)], receiving=[(4, 1, 0)])
    assert stored(tables, "SELECT generation, packet_id FROM receiving") == [(4, 1)]


def test_packet_ids_of_a_tick_that_was_taken_back_count_for_nothing(tables: TickTables) -> None:
    session(tables, receiving=[(1, 5, 0)])
    tables.write()
    tables.connection.execute("BEGIN")
    session(tables, released=[(1, 5)], receiving=[(1, 6, 0)])
    tables.write()
    session(tables, receiving=[(1, 7, 0)])
    tables.connection.execute("ROLLBACK")
    tables.read_again()
    assert stored(tables, "SELECT packet_id FROM receiving") == [(5,)]
    session(tables, released=[(1, 5)])
    assert stored(tables, "SELECT packet_id FROM receiving") == []


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


def test_entries_that_follow_one_another_go_alone(tables: TickTables) -> None:
    numbers = [(1, 1), (1, 2), (1, 3), (1, 5), (2, 3), (2, 4), (3, 5)]
    entries = {key: EntryRow(*key, 0, 40 + index, -1, None, 9) for index, key in enumerate(numbers)}
    acked = GroupMark(MessageState.ACKED)
    marks = {(queue, "g", sequence): acked for queue, sequence in numbers}
    tables.apply(TickWrites(queues=QueueWrites(entries=entries, marks=marks)), 0)
    tables.write()
    gone = [(1, 5), (1, 2), (2, 4), (1, 1), (2, 3)]
    tables.apply(TickWrites(queues=QueueWrites(removed=dict.fromkeys(gone, 40))), 0)
    assert stored(tables, "SELECT queue, sequence FROM queue_entry") == [(1, 3), (3, 5)]
    assert stored(tables, "SELECT queue, sequence FROM queue_mark") == [(1, 3), (3, 5)]
