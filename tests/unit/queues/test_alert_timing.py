"""When a webhook is told of a dead letter: once it is durable, and once."""

from __future__ import annotations

from tests.support.hand_driven import HandDrivenBroker, HandLink
from tests.support.stand_in_store import StandInQueueStore

from embermq.mqtt.wire.packets import Puback, Publish, Subscribe, Subscription
from embermq.mqtt.wire.properties import Properties
from embermq.ports.dead_letter_alerts import AlertStatistics, DeadLetterAlert, DeadLetterAlerts
from embermq.ports.errors import StoreError
from embermq.queues.mqtt.mqtt_queues import MqttQueues
from embermq.queues.settings import BrokerQueueSettings, parse_settings

TOPIC = "$queue/work"
URL = "https://example.org/hook"


class Told(DeadLetterAlerts):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.alerts: list[DeadLetterAlert] = []

    def tell(self, alert: DeadLetterAlert) -> None:
        self.alerts.append(alert)

    def statistics(self) -> AlertStatistics:
        return AlertStatistics(sent=0, failed=0, refused=0, dropped=0, waiting=0)

    def close(self) -> None:
        """Nothing waits."""


class Hand(HandDrivenBroker):
    """With a queue that has a webhook, and commits that stay open until a test ends them."""

    def __init__(self) -> None:
        super().__init__()
        self.told = Told()
        self.queues = MqttQueues(
            self.state,
            BrokerQueueSettings(),
            StandInQueueStore(self.store),
            lambda _ms, then: then(0),
            alerts=self.told,
        )
        self.state.queues = self.queues
        text = b'{"dlq_config": {"alert_webhook": "%s"}}' % URL.encode()
        self.queues.core.configure(parse_settings("work", text))

    def run(self) -> None:
        self.queues.run()
        super().run()


def holder_of_a_message(hand: Hand) -> tuple[HandLink, str]:
    link = hand.connects("c")
    link.does(Subscribe(1, (Subscription(TOPIC, 1),)))
    link.does(Publish(TOPIC, b"m", 1, 2))
    hand.settle()
    (delivery,) = [packet for packet in link.received if isinstance(packet, Publish)]
    assert delivery.properties is not None
    return link, dict(delivery.properties.user_properties)["message-id"]


def reject(link: HandLink, message_id: str) -> None:
    said = Properties(user_properties=(("message-id", message_id),))
    link.does(Publish(f"{TOPIC}/$reject", b"", 1, 3, properties=said))


def test_a_webhook_hears_of_a_dead_letter_that_is_durable_and_not_before() -> None:
    hand = Hand()
    link, message_id = holder_of_a_message(hand)
    hand.held = True
    reject(link, message_id)
    hand.settle()
    assert hand.told.alerts == []
    hand.finish_commit()
    hand.settle()
    (alert,) = hand.told.alerts
    assert (alert.url, alert.letter.message_id, alert.queue) == (URL, message_id, "dlq/work")


def test_a_tick_that_could_not_be_stored_tells_of_it_once_when_it_is() -> None:
    hand = Hand()
    link, message_id = holder_of_a_message(hand)
    hand.failures = [StoreError("away")]
    reject(link, message_id)
    hand.settle()
    link.does(Publish("plain", b"", 1, 4))
    hand.settle()
    assert [packet.packet_id for packet in link.received if isinstance(packet, Puback)][-1] == 4
    assert [alert.letter.message_id for alert in hand.told.alerts] == [message_id]
