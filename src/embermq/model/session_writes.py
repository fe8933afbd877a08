"""The part of a tick's writes that is session data: what clients' sessions become.

Rows name their session by generation, which is never used again. A store that keys by client id learns from `sessions`
and from what it loaded at start which client a generation belongs to; a `SessionRow` of a newer generation replaces
everything that the store holds of that client id.
"""

from typing import ClassVar, Self

from msgspec import Struct, field
from msgspec.structs import replace

from embermq.model.session import SessionRow, SubscriptionRow, WillRow
from embermq.model.writes import Writes

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
    retained message. `flags`: bits 0-1 granted QoS, bit 2 RETAIN flag to send, bit 3 came by a shared subscription, the
    others are then the CRC-32 of its name.
    The broker writes `packet_id` 0 while QUEUED; a store that numbers rows when it saves them gives them ids of its
    own, and the mark SENT carries the one that counts.
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
    """New state of a stored delivery, with the packet id that the client sees. `offset` is the row's; `qos` comes with
    SENT."""

    generation: int
    seq: int
    offset: int
    state: int
    packet_id: int
    qos: int = 0


class RetainedWrite(Struct, frozen=True, gc=False):
    """The retained message of `topic` becomes `record`, which is number `record_index` of this tick; b"" deletes it.

    Its position, the log offset of that record, decides where stores differ: it replaces only what has an earlier one.
    """

    topic: str
    record_index: int
    record: bytes


class SessionWrites(Writes):
    """Filled by the deciding rooms in one tick, handed over whole, never touched afterwards.

    Take them in this order: sessions, then the other groups as they stand here, in list order inside a group,
    `deleted_sessions` last.
    """

    FALLS: ClassVar[frozenset[str]] = frozenset({"receiving", "retained"})

    sessions: list[SessionRow] = field(default_factory=list)
    subscriptions: list[tuple[int, str, SubscriptionRow | None]] = field(default_factory=list)
    """(generation, filter, row); None unsubscribes."""
    wills: list[tuple[int, WillRow | None]] = field(default_factory=list)
    """Also of clients without a kept session; None takes it back."""
    receiving: list[tuple[int, int, int]] = field(default_factory=list)
    """(generation, packet id, record index) of accepted QoS 2 PUBLISHes."""
    released: list[tuple[int, int]] = field(default_factory=list)
    """(generation, packet id): PUBREL came for an incoming QoS 2 PUBLISH."""
    queue_rows: list[QueueRow] = field(default_factory=list)
    queue_marks: list[QueueMark] = field(default_factory=list)
    queue_dropped: list[tuple[int, int]] = field(default_factory=list)
    """(generation, seq): over the limit or expired; they end as DONE rows do."""
    retained: list[RetainedWrite] = field(default_factory=list)
    retained_expired: list[tuple[str, int]] = field(default_factory=list)
    """(topic, offset) of retained messages whose time is over; what has replaced them since stays."""
    handed_on: list[tuple[int, int]] = field(default_factory=list)
    """(generation, generation): what the first session had, the other one has now. Where each is stored by itself, it
    goes from the first when the other's is stored."""
    handing_on: list[int] = field(default_factory=list)
    """Sessions that have ended and whose messages are still offered to others: not one of them goes before they are
    deleted, in a later tick."""
    deleted_sessions: list[int] = field(default_factory=list)

    def cap_offsets(self, log_end: int) -> set[int]:
        """After a failed commit: subscriptions and wills that counted on its records begin at the end of the log at
        most. Returns the generations whose subscriptions were changed."""
        for index, (generation, will) in enumerate(self.wills):
            if will is not None and will.since_offset > log_end:
                self.wills[index] = (generation, replace(will, since_offset=log_end))
        generations: set[int] = set()
        for index, (generation, topic_filter, row) in enumerate(self.subscriptions):
            if row is not None and row.since_offset > log_end:
                capped = SubscriptionRow(row.topic_filter, row.options, row.identifier, log_end)
                self.subscriptions[index] = (generation, topic_filter, capped)
                generations.add(generation)
        return generations

    def put_before(self, kept: Self) -> None:
        super().put_before(kept)
        latest = {row.generation: row for row in self.sessions}  # while clients come and go
        self.sessions[:] = latest.values()
