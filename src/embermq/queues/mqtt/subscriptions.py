"""SUBSCRIBE and UNSUBSCRIBE to queues, and what becomes of a consumer when its connection or its session ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec import Struct

from embermq.model.session import SubscriptionRow
from embermq.mqtt.wire.packets import Subscribe, Subscription
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.errors import StoreError
from embermq.ports.tick_store import queue_owner
from embermq.queues.consumer import EARLIEST, LATEST, Newcomer
from embermq.queues.errors import QueueRefusal
from embermq.queues.mqtt.configuring import Creating
from embermq.queues.mqtt.consumer import MqttConsumer
from embermq.queues.mqtt.deliveries import Deliveries, mode_on
from embermq.queues.mqtt.responses import is_of_responses
from embermq.queues.mqtt.subscription import (
    START_POSITION,
    AckMode,
    Asker,
    QueueSubscription,
    Start,
    read_subscription,
    restored,
)
from embermq.queues.names import QUEUE_PREFIX, is_queue_filter
from embermq.queues.publication import UserProperties
from embermq.queues.queues import Queues
from embermq.sessions.link import Link
from embermq.sessions.member_ids import client_of
from embermq.sessions.quotas import Quotas
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState

V3_FAILURE = 0x80


class _Beginning(Struct, frozen=True):
    """Where a group begins that a SUBSCRIBE founds: at a sequence, in the queue of this generation."""

    generation: int
    sequence: int


class Subscriptions:
    """A subscription to a queue is stored with its session and stands in no trie; a place in a group is held only
    while the client is there, or may come back soon."""

    def __init__(
        self,
        state: BrokerState,
        core: Queues,
        deliveries: Deliveries,
        creating: Creating,
        *,
        allows_none: bool,
    ) -> None:
        self._state = state
        self._core = core
        self._deliveries = deliveries
        self._creating = creating
        self._allows_none = allows_none
        self._homeless: dict[str, set[str]] = {}
        """By queue, client ids of connected consumers that have no place there: the queue is gone and they may not make
        it, or their group is gone and there are as many as may be."""
        self._placing: list[tuple[int, Callable[[], None]]] = []
        """Of the SUBSCRIBE that is looked at: for whose data each place waits, and how to take it."""
        self.is_stopping = False
        """The broker ends, and what is held is left as a crash would leave it: QUEUED, free of charge."""

    # The client's words

    def start_time(self, link: Link, session: Session, packet: Subscribe) -> int:
        """See `DurableQueues.start_time`."""
        said = packet.properties.user_properties if packet.properties is not None else ()
        if all(name != START_POSITION for name, _ in said):
            return 0
        asker = Asker(client_of(session.client_id), link.client_version, self._allows_none)
        for asked in packet.subscriptions:
            if not is_queue_filter(asked.topic_filter) or is_of_responses(asked.topic_filter):
                continue
            try:
                subscription, start = read_subscription(asked.topic_filter, asked.qos, 0, said, asker)
            except QueueRefusal:
                continue  # it is refused when its turn comes
            if not self._core.owns(subscription.queue):
                continue  # its own slot asks
            may = session.permissions is None or session.permissions.may_subscribe(
                QUEUE_PREFIX + subscription.queue
            )
            if start.time_ms and may and not self._has_group(subscription):
                return start.time_ms
        return 0

    def subscribe(
        self,
        link: Link,
        session: Session,
        asked: Subscription,
        identifier: int,
        properties: UserProperties,
        *,
        start: int | StoreError | None,
    ) -> tuple[int, str]:
        """See `DurableQueues.subscribe`."""
        try:
            subscription = self._subscribe(link, session, asked, identifier, properties, start=start)
        except QueueRefusal as refusal:
            self._state.counters.queue_subscriptions_refused += 1
            is_v5 = link.version is ProtocolVersion.V5
            return (refusal.reason_code if is_v5 else V3_FAILURE), refusal.message
        granted = self._prefetch(session, subscription)
        if granted >= subscription.prefetch:
            return subscription.qos, ""
        why = "Receive Maximum" if granted == session.receive_maximum else "mqtt.inflight_max: PUBACK settles"
        return subscription.qos, f"prefetch {granted} is granted of {subscription.prefetch} ({why})"

    def _subscribe(
        self,
        link: Link,
        session: Session,
        asked: Subscription,
        identifier: int,
        properties: UserProperties,
        *,
        start: int | StoreError | None,
    ) -> QueueSubscription:
        tick = self._state.tick
        asker = Asker(client_of(session.client_id), link.client_version, self._allows_none)
        subscription, begins = read_subscription(asked.topic_filter, asked.qos, identifier, properties, asker)
        self._creating.check(subscription.queue, session.permissions)
        self._creating.check_group(*subscription.place)
        sequence = self._sequence(subscription, begins, start)
        self._core.open_group(*subscription.place, tick.now_ms, start=sequence)
        consumer = self._consumer(session)
        before = consumer.subscriptions.get(asked.topic_filter)
        if before is not None and before.place != subscription.place:
            self._leave(consumer, asked.topic_filter)
        consumer.put(subscription)
        note_filter(self._state.quotas, session, asked.topic_filter)
        if session.persistent:
            entry = (session.generation, asked.topic_filter, subscription.row)
            tick.session_writes.subscriptions.append(entry)
        queue = self._core.queue(subscription.queue)
        begins_at = _Beginning(queue.generation, queue.end() if sequence == LATEST else sequence)
        take_place = partial(self._take_place, session, link, subscription, begins_at)
        self._placing.append((queue_owner(queue.generation), take_place))
        return subscription

    def subscribed(self, session: Session, answer: Callable[[], None]) -> None:
        """See `DurableQueues.subscribed`. A place only when the group is durable, and nothing before the SUBACK."""
        placing, self._placing = self._placing, []

        def stored() -> None:
            for _, take_place in placing:
                take_place()
            answer()

        owners = {session.generation, *(owner for owner, _ in placing)}
        self._state.tick.batch.when_all_stored(owners, stored)

    def _has_group(self, subscription: QueueSubscription) -> bool:
        queue = self._core.find(subscription.queue)
        return queue is not None and subscription.group in queue.groups

    def _sequence(
        self, subscription: QueueSubscription, start: Start, offset: int | StoreError | None
    ) -> int:
        """Where the group begins, if it is new. `offset` is where its time is in the log."""
        if start.is_latest:
            return LATEST
        if not start.time_ms or self._has_group(subscription):
            return start.sequence
        if not isinstance(offset, int):
            raise QueueRefusal(
                f"{START_POSITION} cannot be found: {offset or 'the group was removed just now'}",
                ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
            )
        return self._core.queue(subscription.queue).at_offset(offset)

    def _take_place(
        self, session: Session, link: Link, subscription: QueueSubscription, begins_at: _Beginning
    ) -> None:
        consumer = self._deliveries.consumers.get(session.client_id)
        if consumer is None or consumer.session is not session or session.link is not link:
            return
        if consumer.places.get(subscription.place) is not subscription:
            return  # it has said something else since
        if consumer.link is not link:
            self._deliveries.open(consumer, link)
        queue = self._core.find(subscription.queue)
        is_same = queue is not None and queue.generation == begins_at.generation
        self._join(consumer, subscription, start=begins_at.sequence if is_same else EARLIEST)

    def _join(
        self, consumer: MqttConsumer, subscription: QueueSubscription, *, start: int = EARLIEST
    ) -> None:
        """`start` is for a group that was removed since the SUBSCRIBE."""
        session = consumer.session
        queue, group = subscription.place
        try:
            self._creating.check(queue, session.permissions)
            self._creating.check_group(queue, group)
        except QueueRefusal:
            # It was deleted while the client was away, and may not be made by coming back.
            self._state.counters.queue_subscriptions_refused += 1
            self._homeless.setdefault(queue, set()).add(session.client_id)
            return
        limit = self._prefetch(session, subscription)
        held = self._core.held_ids(queue, group, session.client_id)
        kept = tuple(each for each in held if not consumer.lacks(queue, group, each))
        newcomer = Newcomer(
            session.client_id, session.held_under, limit, kept, start, concurrency=subscription.concurrency
        )
        self._core.join(queue, group, newcomer, self._state.tick.now_ms)

    def _prefetch(self, session: Session, subscription: QueueSubscription) -> int:
        """How many messages it may hold [queues-32]."""
        wanted = subscription.prefetch or self._core.queue(subscription.queue).settings.performance.prefetch
        # Where PUBACK settles, what it holds is what the window has: more would wait here, and not reach its socket.
        link = session.link
        is_explicit = link is not None and mode_on(subscription, link) is AckMode.EXPLICIT
        return min(wanted, session.receive_maximum if is_explicit else session.client_window_max)

    def other_prefetch(self, queue: str) -> None:
        """The queue has another one, which holds for those who have not said theirs."""
        if self._core.find(queue) is None:
            return  # deleted since: asking for its settings would make it again
        for consumer in self._deliveries.consumers.values():
            for subscription in consumer.places.values():
                if subscription.queue == queue and not subscription.prefetch:
                    session = consumer.session
                    limit = self._prefetch(session, subscription)
                    now_ms = self._state.tick.now_ms
                    self._core.set_prefetch(*subscription.place, session.client_id, limit, now_ms)

    def made(self, queue: str) -> None:
        """A queue is there that was not, or has a group less: who has been subscribed to it all the time takes its
        place."""
        for client_id in self._homeless.pop(queue, ()):
            consumer = self._deliveries.consumers.get(client_id)
            if consumer is not None and consumer.link is not None:
                for subscription in [each for each in consumer.places.values() if each.queue == queue]:
                    self._join(consumer, subscription)

    def authorized(self) -> None:
        """Other rules hold: who may consume again, or make what it has subscribed to, takes its place."""
        self._state.tick.wake()
        for consumer in self._deliveries.consumers.values():
            session = consumer.session
            permissions, link = session.permissions, consumer.link
            for subscription in list(consumer.places.values()) if link is not None else ():
                may_consume = permissions is None or permissions.may_consume(
                    QUEUE_PREFIX + subscription.queue
                )
                if may_consume and not self._core.is_member(*subscription.place, session.client_id):
                    self._join(consumer, subscription)

    def _forget(self, consumer: MqttConsumer, queue: str) -> None:
        """It does not wait for the queue any more, if it did."""
        waiting = self._homeless.get(queue)
        if waiting is not None:
            waiting.discard(consumer.session.client_id)
            if not waiting:
                del self._homeless[queue]

    def unsubscribe(self, session: Session, topic_filter: str) -> bool:
        """See `DurableQueues.unsubscribe`."""
        consumer = self._deliveries.consumers.get(session.client_id)
        if consumer is None or topic_filter not in consumer.subscriptions:
            return False
        self._leave(consumer, topic_filter)
        self.forget(session, topic_filter)
        if not consumer.subscriptions:
            self._deliveries.close(consumer)
            del self._deliveries.consumers[session.client_id]
        return True

    def forget(self, session: Session, topic_filter: str) -> None:
        """It is none of the session's any more."""
        session.queue_filters -= {topic_filter}
        self._state.quotas.removes(session, topic_filter)
        if session.persistent:
            self._state.tick.session_writes.subscriptions.append((session.generation, topic_filter, None))

    def _leave(self, consumer: MqttConsumer, topic_filter: str) -> None:
        place = consumer.remove(topic_filter)
        if place is not None:
            self._deliveries.note_written(consumer.session)
            self._core.leave(*place, consumer.session.client_id, self._state.tick.now_ms)
            if all(each.queue != place[0] for each in consumer.places.values()):
                self._forget(consumer, place[0])

    def _consumer(self, session: Session) -> MqttConsumer:
        consumer = self._deliveries.consumers.get(session.client_id)
        if consumer is None or consumer.session is not session:
            consumer = self._deliveries.consumers[session.client_id] = MqttConsumer(session)
        return consumer

    # Connections and sessions

    def rows(self, session: Session) -> list[SubscriptionRow]:
        """What is stored of its subscriptions."""
        consumer = self._deliveries.consumers.get(session.client_id)
        if consumer is None or consumer.session is not session:
            return []
        return [subscription.row for subscription in consumer.subscriptions.values()]

    def restore(self, session: Session, row: SubscriptionRow) -> None:
        """A subscription read at start: its client may come back."""
        try:
            subscription = restored(row.topic_filter, row.options & 3, row.identifier, row.queue)
        except ValueError:
            return  # of a broker that knew no queues: the filter matched nothing, and does so now
        self._consumer(session).put(subscription)
        note_filter(self._state.quotas, session, row.topic_filter)

    def connected(self, session: Session) -> None:
        """Its client is here: it takes its places, with what it still has [queues-19]."""
        consumer = self._deliveries.consumers.get(session.client_id)
        if consumer is None or session.link is None:
            return
        self._deliveries.open(consumer, session.link)
        for subscription in list(consumer.places.values()):
            self._join(consumer, subscription)

    def gone(self, session: Session) -> None:
        """Its connection is over, the session goes on: places are kept for a while."""
        self._end(session, may_return=True)

    def ended(self, session: Session) -> None:
        """Remove the consumer of a session that is over."""
        if self._end(session, may_return=False):
            del self._deliveries.consumers[session.client_id]

    def _end(self, session: Session, *, may_return: bool) -> bool:
        consumer = self._deliveries.consumers.get(session.client_id)
        if consumer is None or consumer.session is not session:
            return False
        if consumer.link is not None:
            self._deliveries.close(consumer)
        for place in consumer.places:
            self._forget(consumer, place[0])
            if not self.is_stopping:
                self._core.leave(*place, session.client_id, self._state.tick.now_ms, may_return=may_return)
        return True


def note_filter(quotas: Quotas, session: Session, topic_filter: str) -> None:
    """It counts as a subscription of the session does."""
    if topic_filter not in session.queue_filters:
        session.queue_filters |= {topic_filter}
        quotas.adds(session, topic_filter)
