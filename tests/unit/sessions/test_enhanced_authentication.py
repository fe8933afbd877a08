"""Enhanced authentication as the broker decides about it: what the method says is put in by hand."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace
from tests.conformance.clause import V5, of_5
from tests.support.hand_driven import HandDrivenBroker, HandLink

from embermq.access.authentication.identity import Identity, MethodStep, Proof, Question, Refusal
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Subscription,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode

CONTINUE, AGAIN, PROTOCOL_ERROR = 0x18, 0x19, 0x82
LIMIT_MS = 5_000
METHOD = "TWO-ROUNDS"
ALICE = Proof(Identity("alice", ClientType.DEVICE, "given-id"), b"welcome")
MALLORY = Proof(Identity("mallory", ClientType.DEVICE, "given-id"), b"welcome")


def auth(code: int, data: bytes | None = b"proof", method: str = METHOD) -> Auth:
    return Auth(code, Properties(authentication_method=method, authentication_data=data))


class Entrance:
    """A client at the door, and the method that its answers go to."""

    def __init__(self, hand: HandDrivenBroker, *, expiry_s: int = 0, properties: Properties | None = None):
        self.hand = hand
        self.link = HandLink(hand, V5, None)
        hand.links.append(self.link)
        asked = properties or Properties(
            authentication_method=METHOD,
            authentication_data=b"hello",
            session_expiry_interval=expiry_s or None,
        )
        packet = Connect("c", V5, properties=asked)
        hand.broker.connecting.introduce(self.link, packet)
        hand.broker.authenticating.begin(self.link, packet, limit_ms=LIMIT_MS)

    def says(self, step: MethodStep | ReasonCode) -> None:
        """The method has made up its mind."""
        answer = Refusal(step) if isinstance(step, ReasonCode) else step
        self.hand.broker.authenticating.answered(self.link, answer)
        self.hand.settle()

    def does(self, *packets: Packet) -> None:
        self.link.does(*packets)
        self.hand.settle()

    def enters(self) -> HandLink:
        self.says(Question(b"who?"))
        self.does(auth(CONTINUE))
        self.says(ALICE)
        assert self.link.last(Connack).reason_code == 0
        return self.link


@pytest.fixture
def hand() -> HandDrivenBroker:
    return HandDrivenBroker()


@pytest.fixture
def door(hand: HandDrivenBroker) -> Entrance:
    return Entrance(hand)


def test_the_client_enters_after_two_rounds(door: Entrance) -> None:
    link = door.enters()
    assert link.asked_method == [(b"hello", True), (b"proof", False)]
    assert link.received[0] == auth(CONTINUE, b"who?")
    properties = link.last(Connack).properties
    assert properties is not None
    assert (properties.authentication_method, properties.authentication_data) == (METHOD, b"welcome")
    assert link.session is not None
    assert link.session.username == "alice"
    door.does(Pingreq())
    assert link.last(Pingresp) == Pingresp()


def test_a_method_may_be_content_with_connect(door: Entrance) -> None:
    door.says(ALICE)
    assert [type(packet) for packet in door.link.received] == [Connack]


@pytest.mark.parametrize("rounds", [0, 1, 2])
@pytest.mark.parametrize(
    "reason", [ReasonCode.NOT_AUTHORIZED, ReasonCode.SERVER_BUSY, ReasonCode.SERVER_UNAVAILABLE]
)
def test_a_refusal_at_every_step(door: Entrance, rounds: int, reason: ReasonCode) -> None:
    for _ in range(rounds):
        door.says(Question(b"more"))
        door.does(auth(CONTINUE))
    door.says(reason)
    assert door.link.last(Connack) == Connack(False, reason)
    assert door.link.ended
    assert door.hand.state.counters.connections_refused == 1
    assert not door.hand.state.sessions


@pytest.mark.parametrize(
    "packet",
    [
        Subscribe(1, (Subscription("a", 0),)),
        Publish("a", b""),
        Pingreq(),
        auth(AGAIN),
        auth(CONTINUE, method="OTHER"),
        auth(CONTINUE, method="two-rounds"),
    ],
    ids=["SUBSCRIBE", "PUBLISH", "PINGREQ", "again", "other method", "other case"],
)
def test_what_may_not_come_before_connack(door: Entrance, packet: Packet) -> None:
    door.says(Question(b"who?"))
    door.does(packet)
    assert door.link.last(Connack).reason_code == PROTOCOL_ERROR
    assert door.link.ended
    assert door.hand.state.counters.protocol_errors == 1
    door.says(ALICE)
    assert not door.hand.state.sessions


def test_an_answer_before_the_question_is_a_protocol_error(door: Entrance) -> None:
    door.does(auth(CONTINUE))
    assert door.link.last(Connack).reason_code == PROTOCOL_ERROR


def test_two_answers_to_one_question_are_a_protocol_error(door: Entrance) -> None:
    door.says(Question(b"who?"))
    door.does(auth(CONTINUE), auth(CONTINUE))
    assert door.link.last(Connack).reason_code == PROTOCOL_ERROR
    assert door.link.asked_method[1:] == [(b"proof", False)]


def test_disconnect_ends_the_exchange_without_connack(door: Entrance) -> None:
    door.says(Question(b"who?"))
    door.does(Disconnect(), Pingreq())
    assert door.link.ended
    assert door.link.all(Connack) == []
    door.says(ALICE)
    assert not door.hand.state.sessions


def test_nothing_is_taken_over_before_the_proof(hand: HandDrivenBroker) -> None:
    earlier = hand.connects("c")
    door = Entrance(hand)
    door.says(Question(b"who?"))
    door.does(auth(CONTINUE, b"wrong"))
    door.says(ReasonCode.NOT_AUTHORIZED)
    assert not earlier.ended
    assert hand.state.counters.takeovers == 0


def test_packets_between_the_proof_and_connack(hand: HandDrivenBroker) -> None:
    """CONNACK of a kept session waits for the disk: until then the client may not go on [MQTT-3.1.2-30]."""
    hand.held = True
    door = Entrance(hand, expiry_s=100)
    door.says(ALICE)
    assert door.link.received == []
    door.does(Pingreq())
    hand.finish_commit()
    hand.settle()
    assert [packet.reason_code for packet in door.link.all(Connack)] == [PROTOCOL_ERROR]


def test_a_disconnect_between_the_proof_and_connack_counts(hand: HandDrivenBroker) -> None:
    hand.held = True
    door = Entrance(hand, expiry_s=100)
    door.says(ALICE)
    door.does(Disconnect(0, Properties(session_expiry_interval=0)), Pingreq())
    hand.finish_commit()
    hand.held = False
    hand.settle()
    assert [packet.reason_code for packet in door.link.all(Connack)] == [0]
    assert door.link.ended
    assert not hand.state.sessions


def test_the_time_is_over_while_the_client_is_asked(door: Entrance) -> None:
    door.says(Question(b"who?"))
    door.hand.broker.authenticating.overdue(door.link)
    door.hand.settle()
    assert door.link.last(Connack).reason_code == 0x87


def test_the_time_is_over_while_the_broker_works(door: Entrance) -> None:
    door.hand.broker.authenticating.overdue(door.link)
    door.hand.settle()
    assert door.link.last(Connack).reason_code == 0x89


def test_what_is_late_after_entering_does_nothing(door: Entrance) -> None:
    link = door.enters()
    door.hand.broker.authenticating.overdue(link)
    door.hand.settle()
    assert not link.ended


def test_an_answer_to_a_client_that_is_gone_is_thrown_away(door: Entrance) -> None:
    door.link.drops()
    door.says(ALICE)
    assert not door.hand.state.sessions
    assert len(door.hand.state.timers) == 0


def test_authenticating_again(door: Entrance) -> None:
    link = door.enters()
    link.forgets()
    door.does(auth(AGAIN, b"hello again"))
    door.says(Question(b"who?"))
    door.does(Subscribe(1, (Subscription("a", 0),)), Pingreq())
    door.does(auth(CONTINUE))
    door.says(ALICE)
    assert [type(packet) for packet in link.received[1:]] == [Auth, Suback, Pingresp, Auth]
    assert link.received[1] == auth(CONTINUE, b"who?")
    assert link.received[-1] == auth(0, b"welcome")
    assert link.asked_method[2:] == [(b"hello again", True), (b"proof", False)]
    assert door.hand.state.counters.reauthentications == 1
    door.hand.passes(s=60)
    assert not link.ended
    door.does(auth(AGAIN))
    door.says(ALICE)
    assert link.last(Auth).reason_code == 0


def test_the_newer_proof_says_how_long_it_holds(door: Entrance) -> None:
    link = door.enters()
    door.does(auth(AGAIN))
    ends_ms = door.hand.now_ms + 10_000
    door.says(Proof(replace(ALICE.identity, expires_ms=ends_ms, account_version=7), b"welcome"))
    assert link.identity is not None
    assert link.identity.account_version == 7
    door.hand.passes(ms=10_000)
    assert link.ended
    assert link.last(Disconnect).reason_code == ReasonCode.NOT_AUTHORIZED


@pytest.mark.parametrize("step", [ReasonCode.NOT_AUTHORIZED, MALLORY, ReasonCode.SERVER_UNAVAILABLE])
@pytest.mark.parametrize("rounds", [0, 1])
def test_authenticating_again_fails(door: Entrance, rounds: int, step: MethodStep) -> None:
    link = door.enters()
    door.does(auth(AGAIN))
    for _ in range(rounds):
        door.says(Question(b"more"))
        door.does(auth(CONTINUE))
    door.says(step)
    assert link.last(Disconnect).reason_code == 0x87
    assert link.ended
    assert door.hand.state.counters.reauthentications_refused == 1
    assert door.hand.state.counters.reauthentications == 0


@pytest.mark.parametrize(
    "packets",
    [
        (auth(AGAIN), auth(AGAIN)),
        (auth(AGAIN), auth(CONTINUE)),
        (auth(CONTINUE),),
        (auth(AGAIN, method="OTHER"),),
    ],
    ids=["twice", "before the question", "without a beginning", "other method"],
)
def test_authenticating_again_out_of_turn(door: Entrance, packets: tuple[Auth, ...]) -> None:
    link = door.enters()
    door.does(*packets)
    assert link.last(Disconnect).reason_code == PROTOCOL_ERROR
    assert link.ended
    assert door.hand.state.counters.reauthentications_refused == 0


def test_a_second_beginning_during_the_question(door: Entrance) -> None:
    link = door.enters()
    door.does(auth(AGAIN))
    door.says(Question(b"who?"))
    door.does(auth(AGAIN))
    assert link.last(Disconnect).reason_code == PROTOCOL_ERROR


def test_authenticating_again_has_its_time(door: Entrance) -> None:
    link = door.enters()
    door.hand.passes(s=60)
    door.does(auth(AGAIN))
    door.says(Question(b"who?"))
    door.hand.passes(ms=LIMIT_MS - 1)
    assert not link.ended
    door.hand.passes(ms=1)
    assert link.last(Disconnect).reason_code == 0x87


def test_the_time_of_one_run_does_not_end_the_next(door: Entrance) -> None:
    link = door.enters()
    door.does(auth(AGAIN))
    door.says(ALICE)
    door.hand.passes(ms=LIMIT_MS - 100)
    door.does(auth(AGAIN))
    door.says(Question(b"who?"))
    door.hand.passes(ms=LIMIT_MS - 100)
    assert not link.ended
    door.hand.passes(ms=100)
    assert link.ended


def test_no_timer_outlives_the_connection(door: Entrance) -> None:
    link = door.enters()
    door.does(auth(AGAIN))
    link.drops()
    assert len(door.hand.state.timers) == 0


def test_an_auth_that_is_too_large_for_the_client_ends_the_connection(hand: HandDrivenBroker) -> None:
    question = auth(CONTINUE, b"q" * 100)
    size = len(encode(question, V5))
    for maximum, told in ((size, [question]), (size - 1, [])):
        door = Entrance(
            hand, properties=Properties(authentication_method=METHOD, maximum_packet_size=maximum)
        )
        door.says(Question(b"q" * 100))
        assert door.link.received == told
        assert door.link.ended is (told == [])


@of_5("3.15.2-2", "3.15.2-3")
@pytest.mark.parametrize(
    "explanation", [{"reason_string": "why"}, {"user_properties": (("a", "b"),)}], ids=["reason", "user"]
)
def test_what_explains_an_auth_is_left_out_when_it_does_not_fit(
    hand: HandDrivenBroker, explanation: dict[str, object]
) -> None:
    bare = Properties(authentication_method=METHOD, authentication_data=b"proof")
    explained = Auth(CONTINUE, msgspec.structs.replace(bare, **explanation))
    size = len(encode(explained, V5))
    for room, sent in ((size, explained), (size - 1, Auth(CONTINUE, bare))):
        asked = Properties(authentication_method=METHOD, maximum_packet_size=room)
        door = Entrance(hand, properties=asked)
        door.link.send_packet(explained)
        hand.settle()
        assert door.link.received == [sent]
        door.link.drops()


def test_a_client_without_a_method_sends_no_auth(hand: HandDrivenBroker) -> None:
    link = hand.connects("c")
    link.does(auth(AGAIN))
    hand.settle()
    assert link.last(Disconnect).reason_code == PROTOCOL_ERROR
