"""Where a session's reader begins: from what is stored, and from the log as it was found."""

from msgspec import Struct
from msgspec.structs import replace

from embermq.model.application_positions import ReaderPosition, StoredPositions
from embermq.model.session_writes import QueueState
from embermq.model.tick_writes import ApplicationMark
from embermq.ports.application_logs import FoundLog
from embermq.ports.reader_positions import StoredReader


class Standing(Struct, frozen=True):
    """`marks` are of the log that is there; `owed` are packet ids whose PUBREL is owed from a log that is gone, and
    `lost` counts messages under way from it. `trouble` says what an operator has to know, "" when all is well."""

    place: ReaderPosition
    marks: tuple[ApplicationMark, ...] = ()
    owed: tuple[int, ...] = ()
    lost: int = 0
    restarts: bool = False
    trouble: str = ""


def standing(stored: StoredReader, found: FoundLog, source_id: str, *, subscribed: bool) -> Standing:
    """`source_id` is the message log of now. What was never stored begins at the log's end: nobody has subscribed yet,
    and what stands before it is an earlier life's. When the session has subscriptions it was stored, and is lost."""
    end = found.ends.get(0, 0)
    place = stored.position
    if place is None and subscribed:
        fresh = ReaderPosition(found.identity, source_id, 0, StoredPositions())
        text = "is read from its beginning: how far its client had come is not known any more"
        return Standing(fresh, restarts=True, trouble=text)
    if place is None:
        return Standing(ReaderPosition(found.identity, source_id, 0, StoredPositions(end, end)))
    positions = place.positions
    highest = max([positions.committed_offset, *(mark.offset + 1 for mark in stored.marks)])
    if place.log_id != found.identity:
        return _other_log(stored, found, source_id, 0, "is another one than the client was sent from")
    if highest > end:
        text = f"ends at {end}, the client was sent what stood before {highest}"
        return _other_log(stored, found, source_id, end, text)
    if place.source_id != source_id:
        fresh = replace(place, source_id=source_id, positions=replace(positions, floors=()))
        return Standing(
            fresh,
            stored.marks,
            trouble="has records of another message log: repeats of what it has settled of them are not all known",
        )
    return Standing(place, stored.marks)


def _other_log(stored: StoredReader, found: FoundLog, source_id: str, begin: int, trouble: str) -> Standing:
    """What is settled stays so: floors speak of the message log, and of a log that has lost its end what stands before
    `begin` is read for its source positions."""
    place = stored.position
    assert place is not None
    floors = place.positions.floors if place.source_id == source_id else ()
    positions = StoredPositions(min(place.positions.base_offset, begin), begin, floors)
    fresh = ReaderPosition(found.identity, source_id, place.packet_id, positions)
    states = [mark.state for mark in stored.marks]
    owed = tuple(mark.packet_id for mark in stored.marks if mark.state == QueueState.RELEASED)
    return Standing(fresh, (), owed, states.count(QueueState.SENT), restarts=True, trouble=trouble)
