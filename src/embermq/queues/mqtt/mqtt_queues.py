"""Queues as the broker sees them: puts the parts of this room together."""

import sys
from collections.abc import Callable
from functools import partial

from embermq.access.authorization.rule_set import Permissions
from embermq.access.authorization.rules import ADMIN_PREFIX
from embermq.formats.log_record import Origin
from embermq.intake.refusing import Refusing
from embermq.model.message import Message
from embermq.model.session import SubscriptionRow
from embermq.mqtt.wire.packets import Publish, Subscribe, Subscription
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.dead_letter_alerts import DeadLetterAlerts
from embermq.ports.errors import StoreError
from embermq.ports.queue_store import QueueStore
from embermq.queues.errors import NameRefused
from embermq.queues.mqtt.bodies import Bodies
from embermq.queues.mqtt.configuring import Configuring
from embermq.queues.mqtt.consumer import QueueDelivery
from embermq.queues.mqtt.control import Control
from embermq.queues.mqtt.creating import Creating
from embermq.queues.mqtt.deliveries import Deliveries
from embermq.queues.mqtt.publishes import Publishes
from embermq.queues.mqtt.responses import V3_FAILURE, Responses, is_of_responses
from embermq.queues.mqtt.subscriptions import Subscriptions, note_filter
from embermq.queues.names import QueueKind, kind_of, parse_topic
from embermq.queues.queues import Queues
from embermq.queues.settings import OFF, BrokerQueueSettings
from embermq.sessions.durable_queues import OffsetFound, QueueSide
from embermq.sessions.link import Link
from embermq.sessions.session import Delivery, Session
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Batch


class MqttQueues(QueueSide):
    """The core, and what joins it to MQTT. `core` writes into the present tick."""

    def __init__(
        self,
        state: BrokerState,
        refusing: Refusing,
        settings: BrokerQueueSettings,
        store: QueueStore,
        find_offset: Callable[[int, OffsetFound], None],
        *,
        alerts: DeadLetterAlerts | None = None,
        letter_bytes_max: int = sys.maxsize,
    ) -> None:
        """`find_offset` asks the message log where a time is, see `QueueSide.find_offset`; without `alerts` nobody is
        told of dead letters; `letter_bytes_max` is for those of all queues. Raises StoreError."""
        self._state = state
        self._store = store
        self._find_offset = find_offset
        self._alerts = alerts
        self.core = Queues(
            settings,
            store.next_generation(),
            lambda: state.tick.writes.queues,
            letter_bytes_max=letter_bytes_max,
        )
        self._refusing = refusing
        self.creating = Creating(self.core, settings)
        self.bodies = Bodies(store, settings.body_cache_bytes, state.damaged)
        self.deliveries = Deliveries(state, self.core, self.bodies)
        self.subscriptions = Subscriptions(
            state,
            self.core,
            self.deliveries,
            self.creating,
            allows_none=settings.allow_ack_mode_none,
        )
        self._publishes = Publishes(state, self.core, refusing, self.creating, self.bodies)
        self._responses = Responses(state, refusing, settings)
        self._is_enabled = settings.enabled
        self._is_stopping = False
        self._configuring = Configuring(state, self.core, refusing, self.creating)
        self._control = Control(state, self.core, refusing, self.deliveries)

    def restore(self) -> None:
        """Take over what the store holds; before sessions and wills are restored. Raises StoreError. Switched off,
        queues are left as they are stored."""
        if not self._is_enabled:
            return
        self.core.restore(self._store.load(), self._state.tick.now_ms)

    # The way in.

    def publish(self, link: Link, session: Session, packet: Publish, topic: str) -> None:
        if not self._is_enabled:
            self._refusing.refuse(link, packet, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, OFF)
            return
        if topic.startswith(ADMIN_PREFIX):
            self._configuring.publish(link, session, packet, topic)
            return
        try:
            parsed = parse_topic(topic)
        except NameRefused as refusal:
            self._refusing.refuse(link, packet, refusal.reason_code, refusal.message)
            return
        if parsed.verb is not None:
            self._control.publish(link, session, packet, parsed.name, parsed.verb)
        elif kind_of(parsed.name) is QueueKind.RESPONSES:
            self._responses.publish(link, session, packet, topic, parsed.name)
        else:
            self._publishes.publish(link, session, packet, topic, parsed.name)

    def publish_own(self, message: Message, origin: Origin | None, permissions: Permissions | None) -> None:
        if self.refuses_will(message.topic) is not None:
            self._state.counters.publishes_refused += 1  # it was left when other rules held
            return
        name = parse_topic(message.topic).name
        if kind_of(name) is QueueKind.RESPONSES:
            self._responses.publish_own(message, name)
        else:
            self._publishes.publish_own(message, name, origin, permissions)

    def refuses_will(self, topic: str) -> tuple[ReasonCode, str] | None:
        if not self._is_enabled:
            return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, OFF
        try:
            parsed = parse_topic(topic)
        except NameRefused as refusal:
            return refusal.reason_code, refusal.message
        if parsed.verb is not None:
            return ReasonCode.TOPIC_NAME_INVALID, "a will cannot settle what a queue has delivered"
        return None

    def committed(self, batch: Batch, base_offset: int) -> None:
        self._publishes.committed(batch, base_offset)

    def refused(self, batch: Batch) -> None:
        self._publishes.refused(batch)

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

    def start_time(self, link: Link, session: Session, packet: Subscribe) -> int:
        return self.subscriptions.start_time(link, session, packet) if self._is_enabled else 0

    def find_offset(self, time_ms: int, then: OffsetFound) -> None:
        def found(offset: int | StoreError) -> None:
            self.deliveries.begin_tick()
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
        if self._alerts is not None:
            for alert in self.core.take_alerts():
                self._state.tick.batch.after_log.append(partial(self._alerts.tell, alert))

    def authorized(self) -> None:
        self.subscriptions.authorized()

    def stop(self) -> None:
        self._is_stopping = self.subscriptions.is_stopping = True

    def next_due_ms(self) -> int | None:
        return None if self._is_stopping else self.deliveries.next_due_ms()

    def wake_by(self, begin_tick: Callable[[], None]) -> None:
        self.deliveries.begin_tick = begin_tick
