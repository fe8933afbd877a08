"""What is told of a queue whose data is stored after the log: when it is, and without waiting for other queues."""

from __future__ import annotations

from tests.support.hand_driven import HandLink
from tests.unit.queues.test_alert_timing import TOPIC, Hand, reject

from embermq.model.tick_writes import TickWrites
from embermq.mqtt.wire.packets import Puback, Publish, Suback, Subscribe, Subscription
from embermq.mqtt.wire.properties import Properties
from embermq.ports.errors import StoreError
from embermq.ports.tick_store import Logged, Receipt, Stored, TickStore, queue_owner


class StoredApart(TickStore):
    """Answers with the log; the data of queues waits for `release`."""

    def __init__(self, log: TickStore) -> None:
        self._log = log
        self.calls: list[tuple[int, Stored]] = []

    def submit(self, writes: TickWrites, logged: Logged) -> None:
        def answered(result: Receipt | StoreError) -> None:
            if isinstance(result, Receipt):
                result = Receipt(result.base_offset, result.record_count, whole=False)
            logged(result)

        self._log.submit(writes, answered)

    @property
    def busy(self) -> bool:
        return self._log.busy

    @property
    def waits(self) -> bool:
        return True

    def when_stored(self, generation: int, call: Stored) -> None:
        if generation < 0:
            self.calls.append((generation, call))
        else:
            call()

    def release(self, generation: int) -> None:
        due = [call for owner, call in self.calls if owner == queue_owner(generation)]
        self.calls = [entry for entry in self.calls if entry[0] != queue_owner(generation)]
        for call in due:
            call()

    def settle(self) -> None:
        self._log.settle()

    def close(self) -> None:
        self._log.close()


def apart() -> tuple[Hand, StoredApart]:
    hand = Hand()
    hand.settle()
    hand.ticks = store = StoredApart(hand.store)
    return hand, store


def generation(hand: Hand, name: str) -> int:
    return hand.queues.core.queue(name).generation


def answers(link: HandLink, kind: type[Puback | Suback | Publish]) -> list[int]:
    return [packet.packet_id for packet in link.received if isinstance(packet, kind)]


def consumer(hand: Hand, store: StoredApart) -> tuple[HandLink, str]:
    link = hand.connects("c")
    link.does(Subscribe(1, (Subscription(TOPIC, 1),)))
    link.does(Publish(TOPIC, b"m", 1, 2))
    hand.settle()
    store.release(generation(hand, "work"))
    hand.settle()
    (delivery,) = [packet for packet in link.received if isinstance(packet, Publish)]
    assert delivery.properties is not None
    return link, dict(delivery.properties.user_properties)["message-id"]


def test_suback_and_the_first_delivery_wait_for_every_queue_that_was_named() -> None:
    hand, store = apart()
    link = hand.connects("c")
    link.does(Publish(TOPIC, b"m", 1, 2))
    link.does(Subscribe(1, (Subscription(TOPIC, 1), Subscription("$queue/other", 1))))
    hand.settle()
    assert answers(link, Puback) == [2], "the log has it"
    store.release(generation(hand, "work"))
    hand.settle()
    assert answers(link, Suback) == [] and answers(link, Publish) == []
    store.release(generation(hand, "other"))
    hand.settle()
    assert answers(link, Suback) == [1] and len(answers(link, Publish)) == 1


def test_the_answer_to_a_control_message_waits_for_its_queue_alone() -> None:
    hand, store = apart()
    link, message_id = consumer(hand, store)
    said = Properties(user_properties=(("message-id", message_id),))
    link.does(Publish(f"{TOPIC}/$ack", b"", 1, 3, properties=said))
    link.does(Publish("$queue/other", b"", 1, 4))
    hand.settle()
    assert answers(link, Puback) == [2, 4]
    store.release(generation(hand, "work"))
    hand.settle()
    assert answers(link, Puback) == [2, 4, 3]


def test_a_webhook_hears_of_a_dead_letter_when_the_queue_that_has_it_is_stored() -> None:
    hand, store = apart()
    link, message_id = consumer(hand, store)
    reject(link, message_id)
    hand.settle()
    store.release(generation(hand, "work"))
    assert hand.told.alerts == []
    store.release(generation(hand, "dlq/work"))
    assert [alert.letter.message_id for alert in hand.told.alerts] == [message_id]
