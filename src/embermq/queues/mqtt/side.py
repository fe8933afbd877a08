"""Queues as the broker sees them: puts the parts of this room together."""

from collections.abc import Iterable

from embermq.authorization.rule_set import Permissions
from embermq.broker.link import Link
from embermq.broker.queue_side import QueueSide
from embermq.broker.refusing import Refusing
from embermq.broker.session import Delivery, Session
from embermq.broker.state import BrokerState
from embermq.broker.tick import Batch
from embermq.model.log_record import Origin
from embermq.model.message import Message
from embermq.model.queue_rows import StoredQueue
from embermq.model.session import SubscriptionRow
from embermq.protocol.packets import Publish, Subscription
from embermq.protocol.properties import Properties
from embermq.protocol.reason_codes import ReasonCode
from embermq.queues.errors import NameRefused
from embermq.queues.mqtt.control import Control
from embermq.queues.mqtt.creating import Creating
from embermq.queues.mqtt.publishes import Publishes
from embermq.queues.names import parse_topic
from embermq.queues.queues import Queues
from embermq.queues.settings import GroupSettings


class MqttQueues(QueueSide):
    """The core, and what joins it to MQTT. `core` writes into the present tick."""

    def __init__(
        self, state: BrokerState, refusing: Refusing, timing: GroupSettings, next_generation: int = 1
    ) -> None:
        self._state = state
        self.core = Queues(timing, next_generation, lambda: state.tick.writes.queues)
        self._refusing = refusing
        self.creating = Creating(self.core)
        self._publishes = Publishes(state, self.core, refusing, self.creating)
        self._control = Control(state, self.core, refusing)

    def restore(self, stored: Iterable[StoredQueue]) -> None:
        """Take over what the store holds; before sessions and wills are restored."""
        self.core.restore(stored, self._state.tick.now_ms)

    # The way in.

    def publish(self, link: Link, session: Session, packet: Publish, topic: str) -> None:
        try:
            parsed = parse_topic(topic)
        except NameRefused as refusal:
            self._refusing.refuse(link, packet, refusal.reason_code, refusal.message)
            return
        if parsed.verb is not None:
            self._control.publish(link, session, packet, parsed.name, parsed.verb)
        else:
            self._publishes.publish(link, session, packet, topic, parsed.name)

    def publish_own(self, message: Message, origin: Origin | None, permissions: Permissions | None) -> None:
        if self.refuses_will(message.topic) is None:
            self._publishes.publish_own(message, parse_topic(message.topic).name, origin, permissions)

    def refuses_will(self, topic: str) -> tuple[ReasonCode, str] | None:
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
    ) -> tuple[int, str]:
        return 0x80, "queues deliver nothing yet"

    def unsubscribe(self, session: Session, topic_filter: str) -> bool:
        return False

    def restore_subscription(self, session: Session, row: SubscriptionRow) -> None:
        pass

    def connected(self, session: Session) -> None:
        pass

    def gone(self, session: Session) -> None:
        pass

    def ended(self, session: Session) -> None:
        pass

    def settled(self, session: Session, delivery: Delivery, reason_code: int, reason: str) -> None:
        pass

    def released(self, session: Session, delivery: Delivery) -> None:
        pass

    def completed(self, session: Session, packet_id: int) -> None:
        pass

    def writable(self, session: Session) -> None:
        pass

    # Time.

    def run(self) -> None:
        self.core.run(self._state.tick.now_ms)

    def next_due_ms(self) -> int | None:
        return self.core.next_due_ms()
