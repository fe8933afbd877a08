"""Sessions that are behind: past the bound of what waits for the store, messages stay in the log and are read later."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink, numbered
from tests.support.held_sessions import HeldSessions, table
from tests.unit.durability.behind import subscriber

from embermq.delivery.device import behind
from embermq.intake.replaying import Replaying
from embermq.model.client_type import ClientType
from embermq.model.message import Message
from embermq.mqtt.wire.packets import Connack, Puback, Publish, Pubrec

PAYLOAD_BYTES = 100_000
BOUND = 1024 * 1024


def large(count: int, start: int = 0) -> list[bytes]:
    return [payload.ljust(PAYLOAD_BYTES) for payload in numbered(count, start)]


def told(link: HandLink) -> list[bytes]:
    return [payload.strip() for payload in link.payloads]


def publishes(hand: HandDrivenBroker, publisher: HandLink, count: int, start: int = 0, qos: int = 1) -> None:
    for number, payload in enumerate(large(count, start), start):
        publisher.publishes("t", payload, first_id=number + 1, qos=qos)
        hand.settle()


def answers(hand: HandDrivenBroker, sessions: HeldSessions) -> None:
    sessions.held = False
    hand.settle()
    hand.passes(s=2)


@pytest.fixture(params=[False, True], ids=["from the log", "from memory"])
def remembers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the newest records are remembered: without, the log is read to its end."""
    monkeypatch.setattr(behind, "RECENT_RECORDS", 10_000 if request.param else 3)
    monkeypatch.setattr(behind, "RECENT_BYTES", 2**30)
    return bool(request.param)


@pytest.mark.parametrize("qos", [1, 2])
def test_an_absent_client_gets_all_in_order_and_nothing_is_refused(
    hand: HandDrivenBroker, sessions: HeldSessions, remembers: bool, qos: int
) -> None:
    subscriber(hand, qos=qos).drops()
    publisher = hand.connects("p")
    sessions.held = True
    publishes(hand, publisher, 60, qos=qos)
    codes = [packet.reason_code for packet in publisher.all(Puback)]
    codes += [packet.reason_code for packet in publisher.all(Pubrec)]
    assert codes == [0] * 60
    assert sessions.waiting_bytes < 3 * BOUND, "what waits is bounded"
    answers(hand, sessions)
    publisher.publishes("t", b"after", first_id=100, qos=qos)
    hand.settle()
    assert told(hand.keeps("s")) == [*numbered(60), b"after"]
    assert (hand.log.reads_later > 0) is not remembers
    assert not hand.device.behind
    hand.passes(s=1)
    hand.counts_rows(sessions)
    assert sessions.floors[-1] == hand.state.log_end


def test_who_needs_no_store_is_served_on(hand: HandDrivenBroker, sessions: HeldSessions) -> None:
    subscriber(hand, name="away").drops()
    online = subscriber(hand, name="online", qos=1)
    clean = hand.connects("clean")
    clean.subscribes("t")
    publisher = hand.connects("p")
    sessions.held = True
    publishes(hand, publisher, 40)
    assert told(online) == told(clean) == numbered(40)
    hand.passes(s=1)
    publishes(hand, publisher, 5, 40)
    assert told(online) == numbered(45)
    answers(hand, sessions)
    assert told(online) == numbered(45), "nothing twice"
    assert told(hand.keeps("away")) == numbered(45)


def test_a_client_that_is_there_and_slow_falls_behind_and_catches_up(
    hand: HandDrivenBroker, sessions: HeldSessions, remembers: bool
) -> None:
    subscriber(hand, name="away").drops()
    slow = subscriber(hand, name="slow", qos=1, acknowledges=False, receive_maximum=5)
    publisher = hand.connects("p")
    sessions.held = True
    publishes(hand, publisher, 40)
    hand.passes(ms=200)
    publishes(hand, publisher, 20, 40)
    assert sessions.waiting_bytes < 6 * BOUND
    slow.acknowledges = True
    slow.does(*(Puback(message.packet_id) for message in slow.messages))
    answers(hand, sessions)
    assert told(slow) == numbered(60)
    publisher.publishes("t", b"live", first_id=100)
    hand.settle()
    assert told(slow)[-1] == b"live"
    assert not hand.state.sessions["slow"].backlog
    assert remembers or hand.log.reads_later


def test_queues_of_servers_that_answer_wait_for_nobody_until_far_too_much_does(
    hand: HandDrivenBroker, sessions: HeldSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "is_queue_away", lambda name: name == "away")

    def waiting() -> list[bool]:
        return [hand.state.must_queue_wait(name) for name in ("away", "there")]

    subscriber(hand).drops()
    publisher = hand.connects("p")
    sessions.held = True
    publishes(hand, publisher, 5)
    assert waiting() == [False, False], "there is room"
    publishes(hand, publisher, 10, 5)
    assert waiting() == [True, False]
    monkeypatch.setattr(type(sessions), "waiting_bytes", property(lambda _: 2 * BOUND + 1))
    assert waiting() == [True, True], "whatever it is that waits"


def test_what_was_replayed_to_one_application_is_not_owed_to_others(
    hand: HandDrivenBroker, sessions: HeldSessions, remembers: bool
) -> None:
    subscriber(hand).drops()
    subscriber(hand, name="one", qos=1, client_type=ClientType.APPLICATION)
    publisher = hand.connects("p")
    sessions.held = True
    publishes(hand, publisher, 20)
    assert len(hand.device.behind)
    again = Message("t", b"again", 1, False, "p", 5, 0)
    replaying = Replaying(hand.state, hand.broker.publishing)
    assert replaying.take("r", 0, [again], hand.state.sessions["one"]) is None
    publishes(hand, publisher, 5, 20)
    answers(hand, sessions)
    assert told(hand.keeps("s")) == numbered(25)
    assert (hand.log.reads_later > 0) is not remembers


@pytest.mark.parametrize("rounds", [0, 3, 7])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_broker_that_dies_behind_or_catching_up_loses_and_doubles_nothing(
    hand: HandDrivenBroker,
    sessions: HeldSessions,
    monkeypatch: pytest.MonkeyPatch,
    qos: int,
    rounds: int,
) -> None:
    monkeypatch.setattr(behind, "STEP_ROWS", 4)
    monkeypatch.setattr(behind, "RECENT_RECORDS", 9)
    subscriber(hand, qos=qos).drops()
    publisher = hand.connects("p")
    sessions.held = True
    publishes(hand, publisher, 60, qos=qos)
    sessions.held = not rounds
    for _ in range(rounds):
        hand.state.tick.now_ms += 60  # deliveries are due, and so is the floor
        hand.run()
    assert hand.device.behind, "it is under way"
    hand = hand.restarted()
    hand.settle()
    assert told(hand.keeps("s")) == numbered(60)


def test_a_shared_subscription_waits_as_a_whole(
    hand: HandDrivenBroker, sessions: HeldSessions, remembers: bool
) -> None:
    for name in ("one", "two"):
        hand.keeps(name).subscribes("$share/g/t", qos=2)
        hand.state.sessions[name].link.close("")  # type: ignore[union-attr]
    hand.settle()
    publisher = hand.connects("p")
    sessions.held = True
    publishes(hand, publisher, 60)
    assert sessions.waiting_bytes < 3 * BOUND
    answers(hand, sessions)
    publisher.publishes("t", b"after", first_id=100)
    hand.settle()
    one, two = hand.keeps("one"), hand.keeps("two")
    assert sorted([*told(one), *told(two)]) == [*numbered(60), b"after"]
    assert told(one) == sorted(told(one)) and told(two) == sorted(told(two))
    assert not hand.device.behind


@pytest.mark.parametrize("dies", [False, True])
def test_of_retained_messages_the_newest_is_stored_later(
    hand: HandDrivenBroker, sessions: HeldSessions, dies: bool
) -> None:
    subscriber(hand).drops()
    publisher = hand.connects("p")
    publisher.publishes("r/gone", b"before", retain=True)
    hand.settle()
    sessions.held = True
    publishes(hand, publisher, 15)
    for number in range(50):
        publisher.publishes("r/a", b"%d" % number, retain=True, first_id=100)
        publisher.publishes("r/b", bytes(PAYLOAD_BYTES), retain=True, first_id=101)
        hand.settle()
    publisher.publishes("r/gone", b"", retain=True, first_id=102)
    hand.settle()
    assert all(packet.reason_code in (0, 0x10) for packet in publisher.all(Puback))
    assert sessions.waiting_bytes < 3 * BOUND
    floor = hand.state.log_end
    if not dies:
        answers(hand, sessions)
        assert {row[0] for row in table(sessions, "retained")} == {"r/a", "r/b"}
        hand.passes(s=1)
        assert sessions.floors[-1] == floor
    hand = hand.restarted()
    late = hand.connects("late")
    late.subscribes("r/#")
    assert sorted(late.payloads, key=len) == [b"49", bytes(PAYLOAD_BYTES)]


def test_a_session_that_ends_behind_holds_nothing(hand: HandDrivenBroker, sessions: HeldSessions) -> None:
    leaving = hand.connects("s", expiry_s=10)
    leaving.subscribes("t")
    leaving.drops()
    publisher = hand.connects("p")
    sessions.held = True
    publishes(hand, publisher, 40)
    assert hand.device.behind
    hand.passes(s=20)
    assert not hand.device.behind
    answers(hand, sessions)
    hand.passes(s=1)
    assert sessions.floors[-1] == hand.state.log_end


def test_only_clients_of_the_server_that_is_away_are_behind(
    hand: HandDrivenBroker, sessions: HeldSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a cluster: what waits for one server takes up the room of all."""
    monkeypatch.setattr(sessions, "is_away", lambda client_id: client_id == "s")
    subscriber(hand).drops()
    subscriber(hand, name="well").drops()
    publisher = hand.connects("p")
    sessions.held = True
    publishes(hand, publisher, 7)
    assert hand.state.session_store_full
    assert hand.keeps("s").last(Connack).reason_code == 0x88
    well = hand.keeps("new", settles=False)
    publishes(hand, publisher, 3, 7)
    assert well.all(Connack) == [], "it is asked"
    lags = [lag.client_id for lag in hand.device.behind._lags.values()]
    assert lags == ["s"]
    answers(hand, sessions)
    monkeypatch.undo()
    answers(hand, sessions)
    assert told(hand.keeps("s")) == told(hand.keeps("well")) == numbered(10)


def test_what_no_record_holds_is_stored_before(hand: HandDrivenBroker, sessions: HeldSessions) -> None:
    """A message for a subscription that is made while its session is behind."""
    subscriber(hand, qos=1).drops()
    publisher = hand.connects("p")
    sessions.held = True
    publishes(hand, publisher, 40)
    sessions.held = False
    hand.run()
    back = hand.keeps("s", settles=False)
    hand.settle()
    back.subscribes("u", qos=1)
    publisher.does(Publish("u", b"to the new one", 1, 200, False))
    hand.settle()
    hand.passes(s=2)
    assert sorted(told(back)) == [*numbered(40), b"to the new one"]
