"""Bodies of stored messages that a frame does not have twice."""

from msgspec.structs import replace

from embermq.model.session_writes import QueueRow, QueueState
from embermq.model.tick_writes import TickWrites

LARGE_BYTES = 1024
"""A stored message of more bytes is not written again with the state."""
LEFT_OUT = b"@"
"""Stands for the record of a retained message whose body is left out of the state; no record is so short."""


def stands_in_log(row: QueueRow) -> bool:
    """Whether the record of a stored message is in the log, at its offset."""
    return row.offset >= 0 and row.state < QueueState.RELEASED


def without_bodies(writes: TickWrites, records: list[bytes]) -> TickWrites:
    """What a frame says of stored and retained messages: large ones are in the log already, at their offsets."""
    session = writes.session
    sizes = [len(row.record) for row in session.queue_rows]
    sizes += [len(one.record) for one in session.retained]
    if max(sizes, default=0) <= LARGE_BYTES:
        return writes
    rows = [
        replace(row, record=b"") if len(row.record) > LARGE_BYTES and stands_in_log(row) else row
        for row in session.queue_rows
    ]
    retained = [
        replace(one, record=LEFT_OUT)
        if len(one.record) > LARGE_BYTES
        and 0 <= one.record_index < len(records)
        and one.record == records[one.record_index]
        else one
        for one in session.retained
    ]
    return replace(writes, session=replace(session, queue_rows=rows, retained=retained))
