"""Write elision for clients that take their time: how long what they have not acknowledged stays unwritten."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink, numbered

from embermq.delivery.device import linger
from embermq.delivery.device.floor import FLOOR_WRITE_MS
from embermq.model.session_writes import QueueState
from embermq.mqtt.wire.packets import Puback, Publish, Pubrec
from embermq.sessions.ack_time import LINGER_MAX_MS

LEAST_MS = 50
STEP_MS = 20
EACH_STEP = 5
"""Messages; so 250 a second."""


class SlowClient:
    """Acknowledges each QoS 1 message `after_ms`; a publisher sends to it meanwhile."""

    def __init__(self, hand: HandDrivenBroker, after_ms: int, **options: object) -> None:
        self.hand = hand
        self.after_ms = after_ms
        self.link: HandLink = hand.keeps("s", acknowledges=False, **options)
        self.link.subscribes("t", qos=2)
        self.publisher = hand.connects("p")
        self.published = 0
        self.floor_behind = 0
        """Records, at most."""
        self._seen = 0
        self._unanswered: deque[tuple[int, Publish]] = deque()

    def passes(self, ms: int, *, messages: int = EACH_STEP) -> None:
        """Time, with so many messages in each step."""
        for _ in range(ms // STEP_MS):
            if messages:
                self.publisher.publishes("t", *numbered(messages, self.published))
                self.published += messages
                self.hand.settle()
            self.hand.passes(ms=STEP_MS)
            self.answers()
            behind = self.published - self.hand.store.dispatcher_floor
            self.floor_behind = max(self.floor_behind, behind)

    def answers(self) -> None:
        now_ms = self.hand.now_ms
        received = self.link.received
        self._unanswered += [(now_ms, one) for one in received[self._seen :] if isinstance(one, Publish)]
        self._seen = len(received)
        due: list[Puback] = []
        while self._unanswered and self._unanswered[0][0] + self.after_ms <= now_ms + STEP_MS:
            due.append(Puback(self._unanswered.popleft()[1].packet_id))
        self.link.does(*due)
        self.hand.settle()

    def ends(self) -> None:
        self.passes(2 * LINGER_MAX_MS + self.after_ms, messages=0)
        assert self.link.payloads == numbered(self.published)
        assert self.hand.store.dispatcher_floor == self.published
        assert self.hand.store.queue == {}
        self.hand.counts_queues()


@pytest.fixture
def hand() -> HandDrivenBroker:
    return HandDrivenBroker()


@pytest.mark.promise("device-11")
@pytest.mark.parametrize(("after_ms", "behind_ms"), [(20, 50), (80, 200), (300, 400), (700, 1_000)])
def test_a_client_that_takes_its_time_has_no_rows(
    hand: HandDrivenBroker, after_ms: int, behind_ms: int
) -> None:
    client = SlowClient(hand, after_ms)
    client.passes(1_000)
    client.floor_behind = 0
    client.passes(1_000)
    assert client.floor_behind <= (behind_ms + FLOOR_WRITE_MS + STEP_MS) * EACH_STEP // STEP_MS
    client.ends()
    counters = hand.state.counters
    assert (counters.messages_stored, counters.messages_elided) == (0, 500)


@pytest.mark.promise("device-11")
@pytest.mark.parametrize("after_ms", [1_500, 10_000_000], ids=["too slow", "silent"])
def test_who_is_slower_than_the_most_holds_the_floor_once(hand: HandDrivenBroker, after_ms: int) -> None:
    client = SlowClient(hand, after_ms)
    client.passes(LINGER_MAX_MS - STEP_MS, messages=1)
    counters = hand.state.counters
    assert (counters.messages_stored, hand.store.dispatcher_floor) == (0, 0)
    client.passes(2 * STEP_MS, messages=0)
    stored = LINGER_MAX_MS // STEP_MS - 1
    assert counters.messages_stored == stored, "what came after the first one goes with it"
    assert [row.state for row in hand.store.queue.values()] == [QueueState.SENT] * stored
    client.passes(LEAST_MS + FLOOR_WRITE_MS, messages=0)
    client.floor_behind = 0
    client.passes(2_000, messages=1)
    assert client.floor_behind <= (LEAST_MS + FLOOR_WRITE_MS + 2 * STEP_MS) // STEP_MS
    assert counters.messages_elided == 0


@pytest.mark.promise("device-11")
def test_a_client_that_stops_answering_and_goes_on(hand: HandDrivenBroker) -> None:
    client = SlowClient(hand, 80)
    client.passes(1_000)
    client.after_ms = 600
    client.passes(400)
    counters = hand.state.counters
    assert counters.messages_stored >= 200 // STEP_MS * EACH_STEP
    client.after_ms = 80
    client.passes(1_500)
    stored = counters.messages_stored
    assert stored < 600 // STEP_MS * EACH_STEP, "what was under way when it stopped"
    client.passes(1_000)
    assert counters.messages_stored == stored
    client.ends()


@pytest.mark.promise("device-11")
def test_what_waits_for_a_narrow_window_is_not_written_either(hand: HandDrivenBroker) -> None:
    client = SlowClient(hand, 80, receive_maximum=5)
    for _ in range(5):
        client.passes(STEP_MS, messages=25)
        client.passes(500, messages=0)
    client.ends()
    assert hand.state.counters.messages_stored == 0


def test_what_stays_longer_has_a_limit(hand: HandDrivenBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    client = SlowClient(hand, 300)
    client.passes(STEP_MS, messages=1)
    record_bytes = len(hand.log.read(0, records_max=1, bytes_max=2**20)[0].body)
    monkeypatch.setattr(linger, "LONGER_BYTES_MAX", 20 * (record_bytes + linger.DELIVERY_BYTES))
    client.passes(2 * STEP_MS, messages=2)
    assert hand.state.counters.messages_stored == 0
    client.passes(200)
    assert hand.state.counters.messages_stored > 10, "the one that found no room, and all of its client"
    client.passes(1_000)
    client.ends()


# Connections end, brokers die


@pytest.mark.promise("device-8", "device-11")
def test_what_lingers_is_written_when_the_client_goes(hand: HandDrivenBroker) -> None:
    client = SlowClient(hand, 300)
    client.passes(1_000)
    assert hand.state.counters.messages_stored == 0
    left = sorted(client.link.in_flight)
    assert len(left) >= 200 // STEP_MS * EACH_STEP
    client.link.drops()
    hand.settle()
    assert [row.packet_id for row in hand.store.queue.values()] == left
    hand.passes(ms=LINGER_MAX_MS + FLOOR_WRITE_MS)
    assert hand.store.dispatcher_floor == client.published
    again = hand.keeps("s")
    assert [message.packet_id for message in again.messages] == left
    assert all(message.dup for message in again.messages)
    hand.passes(s=2)
    assert hand.store.queue == {}


@pytest.mark.promise("device-8", "device-11")
def test_another_connection_takes_the_session_over_and_is_measured_anew(hand: HandDrivenBroker) -> None:
    client = SlowClient(hand, 300)
    client.passes(1_000)
    owed = len(client.link.in_flight)
    assert owed >= 200 // STEP_MS * EACH_STEP
    again = hand.keeps("s")
    hand.settle()
    assert [message.dup for message in again.messages] == [True] * owed
    assert hand.state.sessions["s"].ack_time is None


@pytest.mark.promise("device-5", "device-11")
@pytest.mark.parametrize("after_ms", [80, 300, 1_500])
def test_a_crash_loses_nothing_that_lingers(hand: HandDrivenBroker, after_ms: int) -> None:
    client = SlowClient(hand, after_ms)
    client.passes(1_500)
    answered = {message.payload for message in client.link.messages} - {
        message.payload for message in client.link.messages if message.packet_id in client.link.in_flight
    }
    again = hand.restarted()
    assert again.recovered <= (LINGER_MAX_MS + FLOOR_WRITE_MS) * EACH_STEP // STEP_MS
    back = again.keeps("s")
    assert set(back.payloads) | answered == set(numbered(client.published))
    assert back.payloads == sorted(back.payloads)


@pytest.mark.promise("device-8")
@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_written_when_keeps_the_order_of_sending(seed: int) -> None:
    """Of both kinds of QoS, to a client that answers some, late or never, and comes back."""
    random = Random(seed)
    hand = HandDrivenBroker()
    link = hand.keeps("s", acknowledges=False, receive_maximum=random.choice((5, 40, None)))
    link.subscribes("t", qos=2)
    publisher = hand.connects("p")
    publisher.releases = True
    number = 0
    for _ in range(40):
        for _ in range(random.randrange(4)):
            publisher.publishes("t", b"%04d" % number, qos=random.choice((1, 1, 1, 2)), first_id=number + 1)
            number += 1
        hand.settle()
        hand.passes(ms=random.choice((10, 30, 60, 110, 250, 1_100)))
        qos1 = [one for one in link.messages if one.qos == 1 and one.packet_id in link.in_flight]
        qos2 = [one for one in link.messages if one.qos == 2 and one.packet_id in link.in_flight]
        answered = random.sample(qos1, random.randrange(len(qos1) + 1)) if random.random() < 0.7 else []
        link.does(*(Puback(one.packet_id) for one in answered))
        if qos2 and random.random() < 0.1:
            link.does(Pubrec(qos2[0].packet_id, 0x80))
        hand.settle()
    sent = {one.packet_id: one.payload for one in link.messages if one.packet_id in link.in_flight}
    link.drops()
    hand.settle()
    back = hand.keeps("s", acknowledges=False)
    resent = [(one.packet_id, one.payload) for one in back.messages if one.dup]
    assert resent == list(sent.items())
