"""What a removed group of a durable queue has left goes a bounded piece a tick: statements run on the event loop."""

from __future__ import annotations

from pathlib import Path

from embermq.adapters.sqlite.connection import apply_broker_schema, open_writer
from embermq.adapters.sqlite.queue_tables import SWEPT_MARKS_MAX, QueueTables
from embermq.model.queue_rows import GroupMark, GroupRow, MessageState, QueueWrites

COUNT = 3 * SWEPT_MARKS_MAX


def test_a_removed_group_that_is_made_again_at_once_waits_for_no_marks(tmp_path: Path) -> None:
    connection = open_writer(tmp_path / "broker.db", synchronous="OFF")
    apply_broker_schema(connection)
    tables = QueueTables(connection)
    row, acked = GroupRow(1, "g", 0, 0), GroupMark(MessageState.ACKED)
    marks = {(1, "g", number): acked for number in range(1, COUNT + 1)}
    tables.apply(QueueWrites(groups={(1, "g"): row}, marks=marks), 0)
    before = connection.total_changes
    again = QueueWrites(
        ended_groups={(1, "g")}, groups={(1, "g"): row}, marks={(1, "g", number): acked for number in (7, 8)}
    )
    connection.execute("BEGIN")
    tables.apply(again, 0)
    connection.execute("ROLLBACK")
    tables.apply(again, 0)
    assert connection.total_changes - before <= 2 * 5, "two rows of groups, one of what goes, two marks"
    longest = 0
    while tables.is_sweeping:
        before = connection.total_changes
        tables.sweep()
        longest = max(longest, connection.total_changes - before)
    assert longest <= SWEPT_MARKS_MAX + 1
    assert connection.execute("SELECT sequence FROM queue_mark ORDER BY 1").fetchall() == [(7,), (8,)]
    assert connection.execute("SELECT COUNT(*) FROM queue_group_ended").fetchone() == (0,)
    connection.close()


def test_marks_of_a_removed_group_go_in_pieces_over_a_restart(tmp_path: Path) -> None:
    connection = open_writer(tmp_path / "broker.db", synchronous="OFF")
    apply_broker_schema(connection)
    tables = QueueTables(connection)
    acked = GroupMark(MessageState.ACKED)
    marks = {(1, group, number): acked for group in ("gone", "kept") for number in range(1, COUNT + 1)}
    tables.apply(QueueWrites(groups={(1, "gone"): GroupRow(1, "gone", 0, 0)}, marks=marks), 0)

    def changes() -> int:
        return connection.total_changes

    before = changes()
    tables.apply(QueueWrites(ended_groups={(1, "gone")}), 0)
    assert changes() - before <= 2, "the group itself, and that it has ended"
    longest = rounds = 0
    while tables.is_sweeping:
        tables = QueueTables(connection) if rounds == 1 else tables
        before = changes()
        tables.sweep()
        longest, rounds = max(longest, changes() - before), rounds + 1
    assert longest <= SWEPT_MARKS_MAX + 1
    left = connection.execute("SELECT message_group, COUNT(*) FROM queue_mark GROUP BY 1").fetchall()
    assert left == [("kept", COUNT)]
    assert connection.execute("SELECT COUNT(*) FROM queue_group_ended").fetchone() == (0,)
    connection.close()
