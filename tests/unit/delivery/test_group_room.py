"""Room of members that comes by other ways than an acknowledgement, and groups that end and begin meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from tests.support.hand_driven import HandDrivenBroker, numbered
from tests.support.held_sessions import HeldSessions

from embermq.delivery.device.settings import DeviceSettings
from embermq.mqtt.wire.packets import Subscribe, Subscription

FILTER = "$share/g/t/#"


@pytest.fixture(params=["embedded", "beside"])
def hand(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HandDrivenBroker]:
    """A broker on each kind of session store."""
    if request.param == "embedded":
        yield HandDrivenBroker()
        return
    sessions = HeldSessions(tmp_path / "sessions.db")
    yield HandDrivenBroker(sessions=sessions)
    sessions.close()


def away(hand: HandDrivenBroker, name: str) -> None:
    """A member that has subscribed and gone."""
    link = hand.keeps(name)
    link.subscribes(FILTER, qos=2)
    link.drops()
    hand.settle()


def publish(hand: HandDrivenBroker, payloads: list[bytes]) -> None:
    hand.connects("p", acknowledges=False).publishes("t/a", *payloads, qos=1)
    hand.settle()


def queues(hand: HandDrivenBroker) -> list[int]:
    """The generations of the queues of the group."""
    return [one.generation for one in hand.state.sessions.loaded if one.client_id == FILTER]


def test_a_message_that_is_too_large_for_its_member_makes_room(hand: HandDrivenBroker) -> None:
    away(hand, "x")
    publish(hand, [b"L" * 500, b"1", b"2"])
    link = hand.keeps("m", receive_maximum=1)
    link.packet_bytes_max = 60
    link.subscribes(FILTER, qos=2)
    hand.settle()
    publish(hand, [b"3"])
    assert link.payloads == [b"1", b"2", b"3"]


@pytest.mark.parametrize("steps", range(0, 16, 3))
def test_a_member_that_comes_while_the_last_message_is_given_gets_the_next(
    tmp_path: Path, steps: int
) -> None:
    sessions = HeldSessions(tmp_path / "sessions.db")
    hand = HandDrivenBroker(sessions=sessions)

    def goes_on(many: int) -> None:
        for _ in range(many):
            hand.run()
            if sessions.waiting:
                sessions.release()

    away(hand, "x")
    publish(hand, [b"A"])
    hand.passes(s=1)
    first = hand.keeps("m1", receive_maximum=1, acknowledges=False)
    second = hand.connects("m2")
    publisher = hand.connects("p", acknowledges=False)
    sessions.held = True
    first.does(Subscribe(1, (Subscription(FILTER, 2),)))
    goes_on(steps)
    second.does(Subscribe(1, (Subscription(FILTER, 2),)))
    hand.run()
    publisher.publishes("t/a", b"B", qos=1)
    goes_on(36)
    sessions.held = False
    hand.settle()
    assert sorted([*first.payloads, *second.payloads]) == [b"A", b"B"]
    sessions.close()


def test_a_group_that_ends_before_its_message_is_committed_gets_no_queue(hand: HandDrivenBroker) -> None:
    away(hand, "a")
    hand.held = True
    hand.connects("p", settles=False).publishes("t/a", *numbered(2))
    hand.run()
    hand.broker.connecting.remove(hand.state.sessions["a"], lambda: None)
    hand.held = False
    hand.settle()
    assert queues(hand) == []
    away(hand, "a")
    publish(hand, numbered(2))
    assert len(queues(hand)) == 1


def test_a_session_whose_id_began_like_a_group_is_no_group(
    hand: HandDrivenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such ids were let in before they were refused."""
    with monkeypatch.context() as before:
        before.setattr("embermq.sessions.connecting.is_queue_name", lambda _client_id: False)
        hand.keeps("$share/old").drops()
        hand.settle()
    assert "$share/old" not in hand.restarted().state.sessions


class ReceivesNothing:
    """Rights of a client that may subscribe and gets nothing."""

    principal = None

    def may_receive(self, topic: str) -> bool:
        return False

    def may_publish(self, *_asked: object) -> bool:
        return True

    def may_subscribe(self, *_asked: object) -> bool:
        return True


@pytest.mark.parametrize("kind", ["embedded", "beside"])
def test_rows_that_were_passed_over_come_although_the_limit_dropped_later_ones(
    tmp_path: Path, kind: str
) -> None:
    sessions = HeldSessions(tmp_path / "sessions.db") if kind == "beside" else None
    hand = HandDrivenBroker(sessions=sessions, device=DeviceSettings(queue_limit=3))
    away(hand, "x")
    denied = hand.keeps("m")
    denied.subscribes(FILTER, qos=2)
    hand.state.sessions["m"].permissions = cast("Any", ReceivesNothing())
    hand.state.router.forget()
    publish(hand, numbered(3))
    publish(hand, numbered(2, 3))
    denied.drops()
    link = hand.keeps("x")
    hand.settle()
    assert len(link.payloads) == 3 and link.payloads == sorted(link.payloads)
    assert not hand.state.sessions[FILTER].queued
    if sessions is not None:
        sessions.close()
