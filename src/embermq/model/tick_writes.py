"""What one tick of the broker wants made durable, all of it or nothing where the stores share a transaction.

Rows are keyed by session generation, which is never used again, so the order of the groups below is safe:
everything is put first, in list order inside a group, and sessions are deleted last.
"""

from msgspec import Struct, field

from embermq.model.session import SessionRow, SubscriptionRow, WillRow

QUEUE_SEQ_STEP = 65_536
"""Distance between the sequence numbers of a session's stored deliveries: what is stored late, after a crash, still
finds a place before what came after it."""


class QueueState:
    """State of a stored delivery. A DONE row stays until the dispatcher's floor has passed it."""

    QUEUED = 0
    SENT = 1
    RELEASED = 2  # PUBREC came, PUBREL is owed
    DONE = 3


class QueueRow(Struct, frozen=True, gc=False):
    """One stored delivery to one persistent session.

    `seq` grows by `QUEUE_SEQ_STEP` a session and gives the order; `offset` is the source position in the log, -1 for a
    retained message. `flags`: bits 0-1 granted QoS, bit 2 RETAIN flag to send, bit 3 came by a shared subscription.
    `packet_id` is 0 while QUEUED.
    """

    generation: int
    seq: int
    offset: int
    packet_id: int
    state: int
    flags: int
    expires_ms: int
    identifiers: tuple[int, ...]
    record: bytes


class QueueMark(Struct, frozen=True, gc=False):
    """New state of a stored delivery; SENT carries the packet id that the client will see. `offset` is the row's."""

    generation: int
    seq: int
    offset: int
    state: int
    packet_id: int


class ApplicationMark(Struct, frozen=True, gc=False):
    """State of one application log entry above the session's floor (`QueueState` without QUEUED)."""

    generation: int
    offset: int
    packet_id: int
    state: int


class RetainedWrite(Struct, frozen=True, gc=False):
    """The retained message of `topic` becomes record number `record_index` of this tick; -1 deletes it."""

    topic: str
    record_index: int


class TickWrites(Struct):
    """The writes of one tick. Filled by the deciding rooms, handed over whole, never touched afterwards."""

    records: list[bytes] = field(default_factory=list)
    retained: list[RetainedWrite] = field(default_factory=list)
    retained_expired: list[tuple[str, int]] = field(default_factory=list)
    """(topic, offset) of retained messages whose time is over; what has replaced them since stays."""
    receiving: list[tuple[int, int]] = field(default_factory=list)
    """(generation, packet id) of accepted QoS 2 PUBLISHes; falls with the records."""
    sessions: list[SessionRow] = field(default_factory=list)
    deleted_sessions: list[int] = field(default_factory=list)
    subscriptions: list[tuple[int, str, SubscriptionRow | None]] = field(default_factory=list)
    """(generation, filter, row); None unsubscribes."""
    wills: list[tuple[int, WillRow | None]] = field(default_factory=list)
    released: list[tuple[int, int]] = field(default_factory=list)
    """(generation, packet id): PUBREL came for an incoming QoS 2 PUBLISH."""
    queue_rows: list[QueueRow] = field(default_factory=list)
    queue_marks: list[QueueMark] = field(default_factory=list)
    queue_dropped: list[tuple[int, int]] = field(default_factory=list)
    """(generation, seq): over the limit or expired; they end as DONE rows do."""
    application_marks: list[ApplicationMark] = field(default_factory=list)
    application_floors: dict[int, int] = field(default_factory=dict)
    """generation -> every entry below this offset is settled."""
    receipts: list[bytes] = field(default_factory=list)
    dispatcher_floor: int = -1
    """Every record below it is delivered, stored or owed to nobody; -1 when unchanged."""
    generation_reserved: int = -1
    """Generations below it may be in use; -1 when unchanged."""

    def cap_offsets(self, log_end: int) -> set[int]:
        """After a failed commit: offsets that counted on its records become the end of the log at most. Returns the
        generations whose subscriptions were changed."""
        generations: set[int] = set()
        for index, (generation, topic_filter, row) in enumerate(self.subscriptions):
            if row is not None and row.since_offset > log_end:
                capped = SubscriptionRow(row.topic_filter, row.options, row.identifier, log_end)
                self.subscriptions[index] = (generation, topic_filter, capped)
                generations.add(generation)
        for generation, floor in self.application_floors.items():
            self.application_floors[generation] = min(floor, log_end)
        return generations

    def is_empty(self) -> bool:
        """True when a commit would change nothing."""
        return not (
            self.records
            or self.retained
            or self.retained_expired
            or self.queue_rows
            or self.queue_marks
            or self.sessions
            or self.subscriptions
            or self.released
            or self.wills
            or self.queue_dropped
            or self.application_marks
            or self.application_floors
            or self.deleted_sessions
            or self.receiving
            or self.receipts
            or self.dispatcher_floor >= 0
            or self.generation_reserved >= 0
        )
