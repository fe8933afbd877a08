"""A session: its subscriptions, its packet ids, its windows."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from embermq.access.authorization.rules import Principal
from embermq.model.client_type import ClientType
from embermq.model.message import Message
from embermq.model.session import SessionRow
from embermq.model.session_writes import QUEUE_SEQ_STEP
from embermq.sessions.member_ids import client_of
from embermq.sessions.timers import Timer

if TYPE_CHECKING:
    from collections.abc import Callable

    from embermq.access.authorization.rule_set import Permissions
    from embermq.routing.router import GroupTurn, Subscriber
    from embermq.sessions.ack_time import AckTime
    from embermq.sessions.link import Link
    from embermq.sessions.quotas import Account

PACKET_IDS = 65_535
EPOCH_BITS = 32
NO_FILTERS: frozenset[str] = frozenset()


class Delivery(Struct, gc=False):
    """One QoS 1 or 2 message on its way to one session.

    `seq` is its place in the device queue, 0 while it is not stored; `place` is the one that is kept free for it, when
    something that was sent later has been stored already; `offset` its source position, -1 for a
    retained message; `application` tells the log it came from. `released` is True from PUBREC on; `shared` is the
    mark of the shared subscription by which it came, else 0; `given`: the queue of that has it still. `from_queue` says
    that a durable queue keeps it: it is never stored in the device queue, but for its packet id once that is released.
    `waiting_bytes` is what it counts for while it waits for room. `source`: where the record of what came by an
    application log stands in the message log, -1 when that is not known.
    """

    message: Message
    record: bytes
    offset: int
    qos: int
    retain: bool
    identifiers: tuple[int, ...]
    seq: int = 0
    packet_id: int = 0
    application: bool = False
    released: bool = False
    settled: bool = False
    dup: bool = False
    shared: int = 0
    place: int = 0
    from_queue: bool = False
    waiting_bytes: int = 0
    given: bool = False
    source: int = -1


class Session:
    """The state that MQTT calls Session, and where its client is connected.

    It belongs to the user `username`, and to nobody while that is empty; `certificate` is the subject of that user's.
    `generation` is new at each birth; `epoch` rises at each takeover. `window` maps the packet ids in flight to
    their deliveries, in the order in which they were first sent. `waiting` holds deliveries that arrived while the
    window was full; they are neither stored nor sent; `waiting_bytes` is what their publishers have said. `resend`
    holds deliveries that keep their packet ids from a connection before and did not fit the window of this one.

    Of the device queue: `queued` stored deliveries, with `queued_bytes` of records, are not done; `backlog` is True
    while some of them are still to be read and everything new queues behind them; `queue_read_seq` is the last one
    read; up to `queue_dropped_seq` what was queued has been dropped; `paging` is True while a page is on its way;
    `uncommitted` counts the ticks that hold rows of it and are not stored; `unsent` are deliveries that were stored to
    be sent at once, until they are.
    """

    __slots__ = (
        "account",
        "ack_time",
        "backlog",
        "beside",
        "certificate",
        "claimant",
        "client_id",
        "client_type",
        "client_window_max",
        "created_ms",
        "dead",
        "epoch",
        "expires_ms",
        "expiry_interval_s",
        "generation",
        "given_up",
        "group",
        "has_unplaced",
        "id_rest",
        "id_step",
        "last_packet_id",
        "link",
        "paging",
        "permissions",
        "persistent",
        "queue_dropped_seq",
        "queue_filters",
        "queue_read_seq",
        "queue_seq_next",
        "queued",
        "queued_bytes",
        "receive_maximum",
        "receiving",
        "resend",
        "reserved",
        "subscription_bytes",
        "subscriptions",
        "timer",
        "uncommitted",
        "unsent",
        "username",
        "version",
        "waiting",
        "waiting_bytes",
        "window",
        "window_max",
    )

    is_loaded: ClassVar[bool] = True

    def __init__(self, row: SessionRow, *, persistent: bool) -> None:
        self.client_id = row.client_id
        self.generation = row.generation
        self.epoch = row.epoch
        self.client_type = row.client_type
        self.username = row.username
        self.certificate = row.certificate
        self.permissions: Permissions | None = None
        """What its client may do; None: everything."""
        self.version = row.version
        self.expiry_interval_s = row.expiry_interval_s
        self.expires_ms = row.expires_ms
        self.created_ms = row.created_ms
        self.persistent = persistent
        self.dead = False
        self.link: Link | None = None
        self.claimant: Link | None = None
        self.subscriptions: dict[str, Subscriber] = {}
        self.subscription_bytes = 0
        """Memory of their filters (`broker.quotas`)."""
        self.account: Account | None = None
        """Where it counts, with the other sessions of its user; None before its begin and after its end."""
        self.queue_filters = NO_FILTERS
        """Subscriptions to durable queues, which stand in no trie; their bytes count in `subscription_bytes`."""
        self.window: dict[int, Delivery] = {}
        self.client_window_max = PACKET_IDS
        """What its client may have unacknowledged."""
        self.window_max = PACKET_IDS
        """The same, less what other slots have of it."""
        self.receive_maximum = PACKET_IDS
        """What its client has said last [MQTT-3.1.2.11.3]."""
        self.waiting: deque[Delivery] | None = None
        self.waiting_bytes = 0
        self.resend: deque[Delivery] | None = None
        self.reserved: dict[int, Delivery] | None = None
        """By packet id, what was given up without an answer: the client may hold the id, and still answer."""
        self.given_up: set[int] | None = None
        """Packet ids in the window of what was given up on this connection, where it counts until it is answered."""
        self.last_packet_id = 0
        self.id_step = 1
        self.id_rest = 0
        """It gives the packet ids that leave this rest when divided by the step: other slots give the others."""
        self.beside: Callable[[], None] | None = None
        """Told that its window may have room, for what is sent to its client beside it; None when nothing is."""
        self.receiving: set[int] | None = None
        self.queue_seq_next = QUEUE_SEQ_STEP
        self.queue_dropped_seq = 0
        self.queue_read_seq = 0
        self.queued = 0
        self.queued_bytes = 0
        self.backlog = False
        self.paging = False
        self.uncommitted = 0
        self.unsent: deque[Delivery] | None = None
        self.has_unplaced = False
        """Whether something in flight may have neither a row nor a place among the rows (`delivery.device.places`)."""
        self.ack_time: AckTime | None = None
        """How long its client takes to acknowledge; None: never longer than everybody is given, on this connection."""
        self.timer: Timer | None = None
        """Its expiry, while the client is away."""
        self.group: GroupTurn | None = None
        """The shared subscription whose queue this is; None for a client's session."""

    @property
    def principal(self) -> Principal:
        """Who its client is, for the rules: who is connected, or while nobody is, whose session it is."""
        link = self.link or self.claimant
        who = link.identity if link is not None else None
        client_id = client_of(self.client_id)
        if who is None:
            return Principal(self.username, client_id, self.certificate)
        return Principal(who.username, client_id, who.certificate)

    @property
    def is_application(self) -> bool:
        """True when its messages come from a log of its own, filled by the pipeline."""
        return self.persistent and self.client_type is ClientType.APPLICATION

    @property
    def held_under(self) -> int:
        """The session and its connection as one number, which no other of the same client id has: only under that may
        it settle what a queue hands it [queues-29]. Another session may have the same epoch."""
        return self.generation << EPOCH_BITS | self.epoch

    @property
    def is_here(self) -> bool:
        """Whether its client is connected."""
        return self.link is not None and not self.link.closing

    @property
    def has_room(self) -> bool:
        """Whether its client is connected and can be sent one more message now, with nothing to come before it."""
        link = self.link
        return (
            link is not None
            and not link.closing
            and not link.paused
            and not self.backlog
            and not self.waiting
            and not self.resend
            and len(self.window) < self.window_max
        )

    @property
    def has_room_again(self) -> bool:
        """Whether at least half of what the client may have unacknowledged is free; what was given up is not."""
        held = len(self.given_up) if self.given_up else 0
        return 2 * (len(self.window) - held) <= self.window_max - held

    def next_place(self) -> int:
        """A sequence number in the device queue, behind all others."""
        place = self.queue_seq_next
        self.queue_seq_next = place + QUEUE_SEQ_STEP
        return place

    def place_of_sent(self) -> int:
        """A sequence number for what is sent now and may be stored later: before what is to be sent as soon as it is
        stored; 0 when nothing is."""
        if not self.unsent:
            return 0
        first = self.unsent[0]
        first.place += 1  # its own is `seq`: here it counts who has overtaken it
        step = (
            QUEUE_SEQ_STEP // 2
        )  # the repair after a start begins at the lower end of what lies between two rows
        return first.seq - step + first.place if first.place < step else 0

    def forget_stored(self, record_bytes: int) -> None:
        """One stored delivery is done or dropped."""
        self.queued -= 1
        self.queued_bytes -= record_bytes
        if not self.queued:
            self.queued_bytes = 0  # the store may have lost a record whose time was over

    def row(self) -> SessionRow:
        """What is stored of it now."""
        return SessionRow(
            self.client_id,
            self.generation,
            self.epoch,
            self.client_type,
            self.username,
            self.version,
            self.expiry_interval_s,
            self.link is not None or self.claimant is not None,
            self.expires_ms,
            self.created_ms,
            self.certificate,
        )
