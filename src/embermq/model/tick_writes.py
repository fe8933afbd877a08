"""What one tick of the broker wants made durable: with the embedded log all of it or nothing, on servers the records
first, then everything else.
"""

from operator import attrgetter
from typing import ClassVar

from msgspec import Struct, field

from embermq.model.application_positions import ReaderPosition
from embermq.model.parked_message import ParkedWrite
from embermq.model.queue_rows import QueueWrites
from embermq.model.session_writes import SessionWrites
from embermq.model.shared_logs import SharedWrites
from embermq.model.unacknowledged import Unacknowledged
from embermq.model.writes import Writes


class ApplicationMark(Struct, frozen=True, gc=False):
    """State of one application log entry above the session's floor (`QueueState` without QUEUED). SENT says where the
    record stands in the message log (`source`, a position), -1 when that is not known; what follows of the same entry
    leaves that as it is."""

    generation: int
    offset: int
    packet_id: int
    state: int
    source: int = -1


class TickWrites(Writes):
    """The writes of one tick. Filled by the deciding rooms, handed over whole, never touched afterwards.

    Of applications `restarted_applications` are removed first, then everything is put, and `ended_applications` are
    removed last.
    """

    FALLS: ClassVar[frozenset[str]] = frozenset({"records", "receipts"})

    records: list[bytes] = field(default_factory=list)
    session: SessionWrites = field(default_factory=SessionWrites)
    application_marks: list[ApplicationMark] = field(default_factory=list)
    restarted_applications: list[int] = field(default_factory=list)
    """Generations whose log in a store of its own is another one now: what is known of the one before goes."""
    application_positions: dict[int, ReaderPosition] = field(default_factory=dict)
    """generation -> where the reader of its log stands; marks below are settled."""
    unacknowledged: list[Unacknowledged] = field(default_factory=list)
    """What applications have not acknowledged, and need not any more."""
    parked: list[ParkedWrite] = field(default_factory=list)
    """What becomes of messages that are kept aside for applications, in this order."""
    ended_applications: list[int] = field(default_factory=list)
    """Generations of APPLICATION sessions that have ended: nobody reads their logs any more."""
    shared: SharedWrites = field(default_factory=SharedWrites)
    """Of shared subscriptions with a log of their own."""
    queues: QueueWrites = field(default_factory=QueueWrites)
    """Of durable queues."""
    replays: dict[str, int] = field(default_factory=dict)
    """Id of a replay -> the number of its next message: the ones before are in the log."""
    receipts: list[bytes] = field(default_factory=list)
    dispatcher_floor: int = -1
    """Every record below it is delivered, stored or owed to nobody; -1 when unchanged."""
    generation_reserved: int = -1
    """Generations below it may be in use; -1 when unchanged."""

    def cap_offsets(self, log_end: int) -> set[int]:
        """After a failed commit: offsets that counted on its records become the end of the log at most. Returns the
        generations whose subscriptions were changed."""
        return self.session.cap_offsets(log_end)

    def marks_left(self) -> list[ApplicationMark]:
        """Those of `application_marks` that are not settled within the tick: a client that answers at once has none."""
        positions = self.application_positions
        return [
            mark
            for mark in self.application_marks
            if (place := positions.get(mark.generation)) is None
            or mark.offset >= place.positions.committed_offset
        ]

    def is_state_empty(self) -> bool:
        """True when nothing but the log is concerned: no owner's data changes."""
        return not any(_state(self))

    def __bool__(self) -> bool:
        is_of_log = (
            self.records or self.receipts or self.dispatcher_floor >= 0 or self.generation_reserved >= 0
        )
        return bool(is_of_log) or any(_state(self))


_LOG_FIELDS = {"records", "receipts", "dispatcher_floor", "generation_reserved"}
_state = attrgetter(*(name for name in TickWrites.__struct_fields__ if name not in _LOG_FIELDS))
