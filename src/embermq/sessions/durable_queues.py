"""What the broker asks of durable queues: where topics below `$queue/` leave the ordinary path, and where their
deliveries come back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from embermq.access.authorization.rules import ADMIN_PREFIX
from embermq.ports.errors import StoreError
from embermq.routing.queue_target import QUEUE_PREFIX, QueueTarget

if TYPE_CHECKING:
    from embermq.access.authorization.rule_set import Permissions
    from embermq.model.message import Message
    from embermq.model.session import SubscriptionRow
    from embermq.mqtt.wire.packets import Publish, Subscribe, Subscription
    from embermq.mqtt.wire.properties import Properties
    from embermq.ports.tick_store import Receipt
    from embermq.sessions.link import Link
    from embermq.sessions.session import Delivery, Session
    from embermq.sessions.tick import Accepted, Batch, Enqueued, PublishRefusal, Verdict

PUBLISHED_PREFIXES = (QUEUE_PREFIX, ADMIN_PREFIX)
"""Topics below these are never matched by ordinary subscriptions."""


OffsetFound = Callable[[int | StoreError], None]
"""Told the first offset of the log that was committed at a time or after it, or why nobody knows."""


class DurableQueues(ABC):
    """Carries messages to and from durable queues. Called on the broker's thread, inside a tick.

    What it decides is in the writes of the present tick when a call returns; what a client is told about it leaves from
    the receipt of that tick, in its place.
    """

    @property
    @abstractmethod
    def is_enabled(self) -> bool:
        """Whether `$queue/...` topics are queues (`queues.enabled`)."""

    # The way in. `Publishing` has asked about rates, rights, packet ids and room.

    @abstractmethod
    def look_up(self, topic: str) -> QueueTarget | PublishRefusal:
        """What a topic below `$queue/` or `$admin/queue/` stands for. It is valid as a topic name, and what an alias
        stood for."""

    @abstractmethod
    def put(
        self, target: QueueTarget, accepted: Accepted, permissions: Permissions | None
    ) -> Enqueued | Verdict | PublishRefusal:
        """A message with its record, which is to be the next one of the tick; or why it is not to be stored. Whether
        the publisher may make the queue has not been asked; `permissions` are the publisher's."""

    @abstractmethod
    def respond(self, target: QueueTarget, message: Message) -> Verdict | PublishRefusal:
        """A response, which waits in memory alone."""

    @abstractmethod
    def control(
        self, link: Link, session: Session, packet: Publish, target: QueueTarget
    ) -> Verdict | PublishRefusal:
        """A word by which a consumer settles, or settings of a queue. Rights have not been asked: there are others for
        it than to publish."""

    @abstractmethod
    def committed(self, batch: Batch, receipt: Receipt) -> None:
        """A tick that has enqueued is durable, its records at least."""

    @abstractmethod
    def refused(self, batch: Batch) -> set[tuple[str, str]]:
        """It is not, and its publishers are about to be told. Returns what no repeat may count on any more, see
        `Verdict.repeats`."""

    # The way out.

    @abstractmethod
    def subscribe(
        self,
        link: Link,
        session: Session,
        asked: Subscription,
        identifier: int,
        properties: Properties | None,
        *,
        start: int | StoreError | None,
    ) -> tuple[int, str]:
        """A SUBSCRIBE to a filter below `$queue/`, shared or not: the reason code of the SUBACK, as the version of the
        client wants it, and for a refusal why. Rights have been asked. `start` is what `find_offset` told of its
        `start_time`. It waits for the commit of the tick."""

    @abstractmethod
    def subscribed(self, session: Session, answer: Callable[[], None]) -> None:
        """All of a SUBSCRIBE was asked for, queues among it: call `answer` when what that has founded is stored, and
        deliver nothing before."""

    @abstractmethod
    def start_time(self, link: Link, session: Session, packet: Subscribe) -> int:
        """The time, Unix milliseconds, at which a group is to begin that this SUBSCRIBE founds: the log has to be asked
        before. 0 when it founds none, or one that begins elsewhere."""

    @abstractmethod
    def find_offset(self, time_ms: int, then: OffsetFound) -> None:
        """Ask the log; `then` is called once on the broker's thread, when it has answered."""

    @abstractmethod
    def unsubscribe(self, session: Session, topic_filter: str) -> bool:
        """The session leaves the group; False when it was not subscribed."""

    @abstractmethod
    def restore_subscription(self, session: Session, row: SubscriptionRow) -> None:
        """A subscription read at start; nobody is connected yet."""

    @abstractmethod
    def connected(self, session: Session) -> None:
        """Its client is here, CONNACK is queued: it takes its places in groups again."""

    @abstractmethod
    def gone(self, session: Session) -> None:
        """Its connection is over; the session may go on [queues-19]."""

    @abstractmethod
    def ended(self, session: Session) -> None:
        """The session is over."""

    @abstractmethod
    def settled(self, session: Session, delivery: Delivery, reason_code: int, reason: str) -> None:
        """PUBACK or PUBCOMP came for a delivery of a queue, or PUBREC with an error; its packet id is free again.
        `reason` is its reason string, "" without one."""

    @abstractmethod
    def released(self, session: Session, delivery: Delivery) -> None:
        """PUBREC came for a delivery of a queue: PUBREL may leave."""

    @abstractmethod
    def completed(self, session: Session, packet_id: int) -> None:
        """Another delivery of a session with subscriptions to queues was acknowledged: the window has room. It may be
        what a queue has sent on a connection before, by PUBCOMP."""

    @abstractmethod
    def writable(self, session: Session) -> None:
        """The client's socket takes data again, or its window does."""

    @abstractmethod
    def authorized(self) -> None:
        """Other rules hold for clients and sessions that are there."""

    # Time.

    @abstractmethod
    def run(self) -> None:
        """Do what is due and hand out what can be handed out; once a tick, before its commit."""

    @abstractmethod
    def look(self) -> None:
        """Called some times a second, so that consumers' time stands still while nothing that they settle is taken."""

    @abstractmethod
    def stood_still(self) -> None:
        """The process did nothing for a while, and another one may serve by now: nothing of a queue is handed out, and
        nothing that is due happens, before its store says that it is still ours [cluster-16]."""

    @abstractmethod
    def stop(self) -> None:
        """The broker is about to end: nothing is handed out any more, and a connection that ends from now on is no
        failure of its consumer."""

    @abstractmethod
    def next_due_ms(self) -> int | None:
        """When `run` has something to do, Unix milliseconds; 0 for at once, None for never."""
