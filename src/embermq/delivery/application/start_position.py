"""Where a session's reader begins: from what is stored, and from the log as it was found."""

from msgspec import Struct

from embermq.model.application_positions import UNCOUNTED, ReaderPosition, StoredPositions
from embermq.model.session_writes import QueueState
from embermq.model.tick_writes import ApplicationMark
from embermq.ports.application_logs import FoundLog
from embermq.ports.reader_positions import StoredReader
from embermq.sessions.packet_ids import later_id

_SENT, _RELEASED = QueueState.SENT, QueueState.RELEASED


class StartPosition(Struct, frozen=True):
    """`marks` are of what is in the log, `gone` are those of what is not there any more. `trouble` says what an
    operator has to know, "" when all is well."""

    place: ReaderPosition
    marks: tuple[ApplicationMark, ...] = ()
    gone: tuple[ApplicationMark, ...] = ()
    restarts: bool = False
    trouble: str = ""
    is_new: bool = False
    """Nothing was ever the client's that came before."""

    @property
    def packet_id(self) -> int:
        """The last that was given, 0 when none is known. What is lost may be with the client, which would take for it
        what came with its packet id."""
        marks = self.gone or self.marks
        return later_id(marks[-1].packet_id if marks else 0, self.place.packet_id)


def standing(stored: StoredReader, found: FoundLog, *, subscribed: bool) -> StartPosition:
    """What was never stored begins at the log's end: nobody has subscribed yet, and what stands before it is an earlier
    life's. When the session has subscriptions it was stored, and is lost."""
    end = found.ends.get(0, 0)
    place = stored.position
    if place is None and subscribed:
        fresh = ReaderPosition(found.identity, 0, StoredPositions(), settled=UNCOUNTED)
        text = "is read from its beginning: how far its client had come is not known any more"
        return StartPosition(fresh, restarts=True, trouble=text)
    if place is None:
        return StartPosition(ReaderPosition(found.identity, 0, StoredPositions(end, end)), is_new=True)
    positions = place.positions
    highest = max([positions.committed_offset, *(mark.offset + 1 for mark in stored.marks)])
    if place.log_id != found.identity:
        return cut_at(stored, found, 0, "is another one than the client was sent from")
    if highest > end:
        text = f"ends at {end}, the client was sent what stood before {highest}"
        return cut_at(stored, found, end, text)
    return StartPosition(place, stored.marks)


def cut_at(stored: StoredReader, found: FoundLog, end: int, trouble: str) -> StartPosition:
    """Of what is known of the log, that holds which speaks of offsets below `end`: all of another log is unread. Floors
    and what was served without it speak of the message log, and what stands before `end` is read for its source
    positions. What was early may have had its place behind: it is gone as well."""
    place = stored.position
    assert place is not None
    at = place.positions
    positions = StoredPositions(min(at.base_offset, end), min(at.committed_offset, end), at.floors)
    packet_id = later_id(stored.marks[-1].packet_id if stored.marks else 0, place.packet_id)
    bound = {mark.source for mark in stored.marks}
    early = [
        ApplicationMark(-1, end, one.packet_id, _RELEASED if one.is_released else _SENT, source)
        for source, one in place.early.items()
        if source not in bound
    ]
    return StartPosition(
        ReaderPosition(found.identity, packet_id, positions, place.served, settled=UNCOUNTED),
        tuple(mark for mark in stored.marks if mark.offset < end),
        (*(mark for mark in stored.marks if mark.offset >= end), *early),
        restarts=True,
        trouble=trouble,
    )
