"""Queues as the broker sees them: puts the parts of this room together."""

import sys
from collections.abc import Callable, Iterator
from functools import partial

from embermq.access.authorization.rule_set import Permissions
from embermq.access.authorization.rules import ADMIN_PREFIX
from embermq.model.message import Message
from embermq.model.queue_rows import Move
from embermq.model.session import SubscriptionRow
from embermq.mqtt.wire.packets import Publish, Subscribe, Subscription
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.dead_letter_alerts import DeadLetterAlerts
from embermq.ports.errors import StoreError
from embermq.ports.queue_store import QueueStore
from embermq.ports.tick_store import EVERYBODY, Receipt, queue_owner
from embermq.queues.errors import NameRefused
from embermq.queues.mqtt.bodies import CACHE_BYTES, BodyCache
from embermq.queues.mqtt.configuring import Configuring, Creating, queue_of
from embermq.queues.mqtt.control import Control
from embermq.queues.mqtt.deliveries import Deliveries
from embermq.queues.mqtt.in_window import QueueDelivery
from embermq.queues.mqtt.publishes import Publishes
from embermq.queues.mqtt.responses import V3_FAILURE, Responses, is_of_responses
from embermq.queues.mqtt.subscriptions import Subscriptions, note_filter
from embermq.queues.names import QueueKind, Verb, kind_of, parse_topic
from embermq.queues.queue import Queue
from embermq.queues.queues import Queues
from embermq.queues.settings import OFF, BrokerQueueSettings
from embermq.routing.queue_target import QueueAim, QueueTarget
from embermq.sessions.durable_queues import DurableQueues, OffsetFound
from embermq.sessions.link import Link
from embermq.sessions.session import Delivery, Session
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Accepted, Batch, Enqueued, PublishRefusal, Verdict

ASKED_EVERY_MS = 500
"""How often it is found out whether what consumers settle is taken."""
IS_OFF = PublishRefusal(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, OFF, is_of_queue=True)


class MqttQueues(DurableQueues):
    """The core, and what joins it to MQTT. `core` writes into the present tick."""

    def __init__(
        self,
        state: BrokerState,
        settings: BrokerQueueSettings,
        store: QueueStore,
        find_offset: Callable[[int, OffsetFound], None],
        *,
        alerts: DeadLetterAlerts | None = None,
        letter_bytes_max: int = sys.maxsize,
    ) -> None:
        """`find_offset` asks the message log where a time is, see `DurableQueues.find_offset`; without `alerts` nobody
        is told of dead letters; `letter_bytes_max` is for those of all queues. Raises StoreError."""
        self._state = state
        self._store = store
        self._find_offset = find_offset
        self._alerts = alerts
        self.core = Queues(
            settings,
            store.next_generation(),
            lambda: state.tick.writes.queues,
            letter_bytes_max=letter_bytes_max,
            owns=state.share.owns_queue,
        )
        self.creating = Creating(self.core, settings)
        self.bodies = BodyCache(store, CACHE_BYTES, state.damaged, self._unstored_moves)
        self.deliveries = Deliveries(state, self.core, self.bodies)
        self.subscriptions = Subscriptions(
            state,
            self.core,
            self.deliveries,
            self.creating,
            allows_none=settings.allow_ack_mode_none,
        )
        self._publishes = Publishes(state, self.core, self.creating, self.bodies)
        self._responses = Responses(state, settings)
        self._is_enabled = settings.enabled
        self._is_stopping = False
        self._asked_ms = 0
        self._configuring = Configuring(self.core, self.creating)
        self._control = Control(state, self.core, self.deliveries)

    def restore(self) -> None:
        """Take over what the store holds; before sessions and wills are restored. Raises StoreError. Switched off,
        queues are left as they are stored."""
        if not self._is_enabled:
            return
        self.core.restore(self._store.load(), self._state.tick.now_ms)

    @property
    def is_enabled(self) -> bool:
        return self._is_enabled

    def _unstored_moves(self) -> Iterator[Move]:
        for writes in self._state.tick.unstored():
            yield from writes.queues.moves

    # The way in.

    def look_up(self, topic: str) -> QueueTarget | PublishRefusal:
        if not self._is_enabled:
            return IS_OFF
        if topic.startswith(ADMIN_PREFIX):
            return QueueTarget(QueueAim.CONFIGURE, topic, elsewhere=self._elsewhere(queue_of(topic)))
        try:
            parsed = parse_topic(topic)
        except NameRefused as refusal:
            return PublishRefusal(refusal.reason_code, refusal.message)
        if parsed.verb is not None:
            return QueueTarget(QueueAim.SETTLE, parsed.name, parsed.verb, self._elsewhere(parsed.name))
        is_response = kind_of(parsed.name) is QueueKind.RESPONSES
        aim = QueueAim.RESPOND if is_response else QueueAim.ENQUEUE
        return QueueTarget(aim, parsed.name, elsewhere=self._elsewhere(parsed.name))

    def _elsewhere(self, name: str) -> str:
        return "" if self.core.owns(name) else name

    def put(
        self, target: QueueTarget, accepted: Accepted, permissions: Permissions | None
    ) -> Enqueued | Verdict | PublishRefusal:
        return self._publishes.put(target.name, accepted, permissions)

    def respond(self, target: QueueTarget, message: Message) -> Verdict | PublishRefusal:
        return self._responses.put(message, target.name)

    def control(
        self, link: Link, session: Session, packet: Publish, target: QueueTarget
    ) -> Verdict | PublishRefusal:
        if target.aim is QueueAim.CONFIGURE:
            return self._configuring.configure(session, target.name, packet.payload)
        return self._control.settle(link, session, packet, target.name, Verb(target.verb))

    def committed(self, batch: Batch, receipt: Receipt) -> None:
        self._publishes.committed(batch, receipt)

    def refused(self, batch: Batch) -> set[tuple[str, str]]:
        return self._publishes.refused(batch)

    # The way out.

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
        said = properties.user_properties if properties is not None else ()
        if not self._is_enabled:
            is_v5 = link.version is ProtocolVersion.V5
            return (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR if is_v5 else V3_FAILURE), OFF
        if is_of_responses(asked.topic_filter):
            return self._responses.subscribe(link, session, asked, identifier, said)
        return self.subscriptions.subscribe(link, session, asked, identifier, said, start=start)

    def subscribed(self, session: Session, answer: Callable[[], None]) -> None:
        self.subscriptions.subscribed(session, answer)

    def start_time(self, link: Link, session: Session, packet: Subscribe) -> int:
        return self.subscriptions.start_time(link, session, packet) if self._is_enabled else 0

    def find_offset(self, time_ms: int, then: OffsetFound) -> None:
        def found(offset: int | StoreError) -> None:
            self._state.tick.wake()
            then(offset)

        self._find_offset(time_ms, found)

    def unsubscribe(self, session: Session, topic_filter: str) -> bool:
        if is_of_responses(topic_filter):
            return self._responses.unsubscribe(session, topic_filter)
        if not self._is_enabled:
            self.subscriptions.forget(session, topic_filter)
            return True
        return self.subscriptions.unsubscribe(session, topic_filter)

    def restore_subscription(self, session: Session, row: SubscriptionRow) -> None:
        if self._is_enabled:
            self.subscriptions.restore(session, row)
        else:
            note_filter(self._state.quotas, session, row.topic_filter)  # so that it can be taken back

    def rows(self, session: Session) -> list[SubscriptionRow]:
        """What is stored of its subscriptions to queues."""
        return self.subscriptions.rows(session)

    def connected(self, session: Session) -> None:
        self.subscriptions.connected(session)
        self._responses.connected(session)

    def gone(self, session: Session) -> None:
        self.subscriptions.gone(session)
        self._responses.gone(session)

    def ended(self, session: Session) -> None:
        self.subscriptions.ended(session)
        self._responses.ended(session)

    def settled(self, session: Session, delivery: Delivery, reason_code: int, reason: str) -> None:
        path = self._state.path(session)
        if delivery.seq:
            path.settled(session, delivery)  # its packet id was stored
        else:
            path.writable(session)  # there is room in the window
        if isinstance(delivery, QueueDelivery):
            self.deliveries.settled(session, delivery, reason_code, reason)
        self._responses.writable(session)

    def released(self, session: Session, delivery: Delivery) -> None:
        assert isinstance(delivery, QueueDelivery)
        self.deliveries.released(session, delivery)
        self._state.path(session).released(session, delivery)

    def completed(self, session: Session, packet_id: int) -> None:
        self.deliveries.completed(session, packet_id)
        self._responses.writable(session)

    def writable(self, session: Session) -> None:
        self.deliveries.writable(session)
        self._responses.writable(session)

    # Time.

    def run(self) -> None:
        for name in self.core.take_made():
            self.subscriptions.made(name)
        for name in self.core.take_other_prefetch():
            self.subscriptions.other_prefetch(name)
        if not self._is_stopping:
            self.deliveries.run()
            for unsure, number in self.core.take_unsure():
                self._store.confirm(unsure.generation, partial(self._is_ours, unsure.settings.name, number))
        if self._alerts is not None:
            for alert in self.core.take_alerts():
                queue = self.core.find(alert.queue)
                owner = queue_owner(queue.generation) if queue is not None else EVERYBODY
                self._state.tick.batch.when_stored(owner, partial(self._alerts.tell, alert))

    def look(self) -> None:
        """A call that goes the way of the answer to a settlement. While the store refuses writes there is none: an
        empty tick would be answered all the same."""
        tick = self._state.tick
        if tick.now_ms - self._asked_ms < ASKED_EVERY_MS:
            return
        self._asked_ms = tick.now_ms
        refuses = self._state.store_failure is not None
        asked = self.core.asked(tick.now_ms, _everyone if refuses else self._state.is_queue_away)
        for queue in asked:
            tick.batch.when_stored(queue_owner(queue.generation), partial(self._is_taken, queue))
        if asked:
            tick.wake()

    def _is_taken(self, queue: Queue) -> None:
        queue.clock.answered(self._state.tick.now_ms)

    def stood_still(self) -> None:
        self.core.doubt()

    def _is_ours(self, name: str, number: int) -> None:
        self.core.believe(name, number)
        self.deliveries.go_on()
        self._state.tick.wake()

    def authorized(self) -> None:
        self.subscriptions.authorized()

    def stop(self) -> None:
        self._is_stopping = self.subscriptions.is_stopping = True

    def next_due_ms(self) -> int | None:
        return None if self._is_stopping else self.deliveries.next_due_ms()


def _everyone(_queue: str) -> bool:
    return True
