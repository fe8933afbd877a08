"""One publisher and one subscriber with kept sessions, against a model of what they are owed.

Connections break, are taken over and resumed, commits are held open and refused, the disk fills up, the broker dies.
Whatever happens: what was acknowledged arrives, at QoS 2 once; first deliveries of one QoS keep the order of
acceptance; what was refused never arrives.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from tests.support.hand_driven import HandDrivenBroker, HandLink

from embermq.delivery.device import requests
from embermq.formats.log_record import decode_record
from embermq.mqtt.wire.packets import (
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
)
from embermq.ports.errors import StoreFull

REFUSED = 0x80


class Publisher:
    """A client that keeps what is not acknowledged and sends it again."""

    def __init__(self) -> None:
        self.link: HandLink | None = None
        self.seen = 0
        self.unacknowledged: dict[int, Publish] = {}
        self.unreleased: dict[int, Publish] = {}
        self.taken: list[Publish] = []
        self.refused: list[Publish] = []
        self.repeated: set[bytes] = set()
        """Sent again: what is refused then may have been taken the first time, without the publisher knowing."""
        self.last_id = 0

    def publish(self, payload: bytes, qos: int) -> None:
        assert self.link is not None
        packet_id = 0
        if qos:
            self.last_id = packet_id = self.last_id % 20 + 1
            if packet_id in self.unacknowledged or packet_id in self.unreleased:
                return
            self.unacknowledged[packet_id] = Publish("t", payload, qos, packet_id)
        self.link.does(Publish("t", payload, qos, packet_id))

    def connected(self, link: HandLink) -> None:
        self.link, self.seen = link, 0
        for packet in self.unacknowledged.values():
            if packet.qos == 1:
                self.repeated.add(packet.payload)
            link.does(Publish(packet.topic, packet.payload, packet.qos, packet.packet_id, False, True))
        link.does(*(Pubrel(packet_id) for packet_id in self.unreleased))

    def listen(self) -> None:
        if self.link is None:
            return
        fresh, self.seen = self.link.received[self.seen :], len(self.link.received)
        for packet in fresh:
            if isinstance(packet, Puback | Pubrec):
                sent = self.unacknowledged.pop(packet.packet_id, None)
                if packet.reason_code >= REFUSED:
                    if sent is not None:
                        self.refused.append(sent)
                    continue
                if sent is not None:
                    self.taken.append(sent)
                if isinstance(packet, Pubrec):
                    if sent is not None:
                        self.unreleased[packet.packet_id] = sent
                    self.link.does(Pubrel(packet.packet_id))
            elif isinstance(packet, Pubcomp):
                self.unreleased.pop(packet.packet_id, None)
        if self.link.ended:
            self.link = None


class Subscriber:
    """A client that answers when it is told to, and knows a repeated QoS 2 message by its packet id."""

    def __init__(self) -> None:
        self.link: HandLink | None = None
        self.seen = 0
        self.owed: list[Packet] = []
        self.receiving: dict[int, bytes] = {}
        self.got: dict[int, list[bytes]] = {0: [], 1: [], 2: []}

    def connected(self, link: HandLink) -> None:
        self.link, self.seen, self.owed = link, 0, []

    def listen(self) -> None:
        if self.link is None:
            return
        fresh, self.seen = self.link.received[self.seen :], len(self.link.received)
        for packet in fresh:
            if isinstance(packet, Publish):
                self._take(packet)
            elif isinstance(packet, Pubrel):
                self.receiving.pop(packet.packet_id, None)
                self.owed.append(Pubcomp(packet.packet_id))
        if self.link.ended:
            self.link, self.owed = None, []

    def _take(self, packet: Publish) -> None:
        if packet.qos == 2:
            known = self.receiving.get(packet.packet_id)
            assert known in (None, packet.payload), "the id still belongs to another message"
            if known is None:
                self.receiving[packet.packet_id] = packet.payload
                self.got[2].append(packet.payload)
            self.owed.append(Pubrec(packet.packet_id))
        else:
            self.got[packet.qos].append(packet.payload)
            if packet.qos:
                self.owed.append(Puback(packet.packet_id))

    def answer(self, number: int) -> None:
        assert self.link is not None
        self.link.does(self.owed.pop(number % len(self.owed)))


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "PAGE_MESSAGES", 3)


class OneSession(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.hand = self.begin()
        self.publisher, self.subscriber = Publisher(), Subscriber()
        self.published: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
        self.connect_publisher()
        self.connect_subscriber(None)
        assert self.subscriber.link is not None
        self.subscriber.link.does(Subscribe(1, (Subscription("t", 2),)))
        self.step()

    def begin(self) -> HandDrivenBroker:
        return HandDrivenBroker()

    def step(self, *, whole: bool = True) -> None:
        (self.hand.settle if whole else self.hand.run)()
        self.publisher.listen()
        self.subscriber.listen()

    # The publisher

    @precondition(lambda self: self.publisher.link is not None)
    @rule(qos=st.sampled_from([0, 1, 1, 2, 2]), count=st.integers(1, 5))
    def publish(self, qos: int, count: int) -> None:
        for _ in range(count):
            payload = b"%d-%d" % (qos, len(self.published[qos]))
            self.published[qos].append(payload)
            self.publisher.publish(payload, qos)

    @rule()
    def connect_publisher(self) -> None:
        self.publisher.listen()
        link = self.hand.keeps("p", acknowledges=False, settles=False)
        self.publisher.connected(link)

    @precondition(lambda self: self.publisher.link is not None)
    @rule()
    def drop_publisher(self) -> None:
        assert self.publisher.link is not None
        self.publisher.listen()
        if self.publisher.link is not None:
            self.publisher.link.drops()
            self.publisher.link = None

    # The subscriber

    @rule(receive_maximum=st.sampled_from([None, 1, 2, 5]))
    def connect_subscriber(self, receive_maximum: int | None) -> None:
        self.subscriber.listen()
        link = self.hand.keeps("s", acknowledges=False, settles=False, receive_maximum=receive_maximum)
        self.subscriber.connected(link)

    @precondition(lambda self: self.subscriber.link is not None)
    @rule()
    def drop_subscriber(self) -> None:
        self.subscriber.listen()
        if self.subscriber.link is not None:
            self.subscriber.link.drops()
            self.subscriber.link = None

    @precondition(lambda self: self.subscriber.link is not None and self.subscriber.owed)
    @rule(numbers=st.lists(st.integers(0, 10), min_size=1, max_size=6))
    def acknowledge(self, numbers: list[int]) -> None:
        for number in numbers:
            if self.subscriber.link is not None and self.subscriber.owed:
                self.subscriber.answer(number)

    @precondition(lambda self: self.subscriber.link is not None)
    @rule(paused=st.booleans())
    def pause_socket(self, paused: bool) -> None:
        link = self.subscriber.link
        assert link is not None
        link.paused = paused
        session = self.hand.state.sessions.get("s")
        if not paused and session is not None and session.link is link:
            self.hand.state.path(session).writable(session)

    # The store, the clock, the end

    @rule()
    def run_one_tick(self) -> None:
        self.step(whole=False)

    @rule()
    def come_to_rest(self) -> None:
        self.step()

    @rule(held=st.booleans())
    def hold_commits(self, held: bool) -> None:
        self.hand.held = held

    @precondition(lambda self: self.hand.store.busy)
    @rule()
    def finish_commit(self) -> None:
        self.hand.finish_commit()
        self.step(whole=False)

    @rule(count=st.integers(1, 3))
    def refuse_commits(self, count: int) -> None:
        self.hand.failures += [StoreFull("no room")] * count

    @rule(full=st.booleans())
    def fill_the_disk(self, full: bool) -> None:
        self.hand.full = StoreFull("no room") if full else None

    @rule(ms=st.sampled_from([1, 40, 60, 500]))
    def let_time_pass(self, ms: int) -> None:
        self.hand.passes(ms=ms)
        self.step()

    @rule()
    def crash(self) -> None:
        self.publisher.listen()
        self.subscriber.listen()
        self.hand = self.hand.restarted()
        self.publisher.link = self.subscriber.link = None
        self.subscriber.owed = []

    def teardown(self) -> None:
        self.hand.held, self.hand.failures, self.hand.full = False, [], None
        self.step()
        for _ in range(3):
            if self.publisher.link is None:
                self.connect_publisher()
            self.step()
        self.connect_subscriber(None)
        self.step()
        for _ in range(1_000):
            if not self.subscriber.owed:
                break
            self.acknowledge([0])
            self.step()
        self.hand.passes(s=1)
        self.step()
        self.check()

    def check(self) -> None:
        got = self.subscriber.got
        for qos in (1, 2):
            taken = {packet.payload for packet in self.publisher.taken if packet.qos == qos}
            refused = {packet.payload for packet in self.publisher.refused if packet.qos == qos} - taken
            assert taken <= set(got[qos]), "acknowledged and lost"
            assert not refused & set(got[qos]) - self.publisher.repeated, "refused and delivered"
            order = [payload for payload in self.accepted() if payload in got[qos]]
            assert list(dict.fromkeys(got[qos])) == list(dict.fromkeys(order)), (
                "first deliveries out of order"
            )
        assert len(got[2]) == len(set(got[2])), "delivered twice at QoS 2"
        assert len(got[0]) == len(set(got[0]))
        assert not self.publisher.unacknowledged and not self.publisher.unreleased
        assert self.stored() == ([], []), "what nobody owes"
        session = self.hand.state.sessions["s"]
        assert (session.queued, session.window, session.uncommitted) == (0, {}, 0)
        assert not session.waiting and not session.resend
        assert (session.queued_bytes, session.waiting_bytes) == (0, 0)

    def stored(self) -> tuple[list[object], list[object]]:
        """Packet ids that are being received, and rows of the queue."""
        return list(self.hand.store.receiving), list(self.hand.store.queue)

    def accepted(self) -> list[bytes]:
        """Payloads in the order of the log."""
        frames = [frame for _, frames, _ in self.hand.store.batches for frame in frames]
        return [decode_record(frame).message.payload for frame in frames]


OneSession.TestCase.settings = settings(
    max_examples=max(50, settings().max_examples // 40), stateful_step_count=50, deadline=None
)
TestOneSession = pytest.mark.promise("device-8", "device-9", "repositories-1", "repositories-8")(
    OneSession.TestCase
)
