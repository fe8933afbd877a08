"""What an operator is told of a session's end, and when."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.hand_driven import HandDrivenBroker
from tests.unit.cluster.test_members import enters

from embermq.admin import session_desk
from embermq.admin.errors import NotFound, OperationRefused
from embermq.admin.session_desk import SessionDesk
from embermq.admin.session_values import UnacknowledgedView
from embermq.mqtt.wire.packets import Puback

TURN_S = 0.05


def test_delete_returns_when_it_is_durable() -> None:
    hand = HandDrivenBroker()
    hand.connects("c", expiry_s=60)
    ticks: Any = SimpleNamespace(look_at_clock=lambda: None, wake=lambda: None)
    desk = SessionDesk(hand.broker, ticks, lambda: None)

    async def scenario() -> None:
        hand.held = True
        deleting = asyncio.create_task(desk.delete("c"))
        await asyncio.wait({deleting}, timeout=TURN_S)
        hand.run()
        await asyncio.wait({deleting}, timeout=TURN_S)
        assert not deleting.done()
        hand.finish_commit()
        await asyncio.wait_for(deleting, 30)

    asyncio.run(scenario())
    assert "c" not in hand.restarted().state.sessions


def test_a_member_session_ends_with_its_client_s_own_and_not_alone() -> None:
    hand = HandDrivenBroker()
    enters(hand, "$member/7/a/b")
    ticks: Any = SimpleNamespace(look_at_clock=lambda: None, wake=lambda: None)
    desk = SessionDesk(hand.broker, ticks, lambda: None)
    with pytest.raises(OperationRefused, match=r"ends with it: end that of 'a/b'$"):
        asyncio.run(desk.delete("$member/7/a/b"))
    with pytest.raises(NotFound):
        asyncio.run(desk.delete("$member/8/a/b"))
    desk.disconnect("$member/7/a/b")
    hand.settle()
    assert "$member/7/a/b" in hand.restarted().state.sessions


def test_who_asks_for_a_client_of_another_node_is_told_which() -> None:
    hand = HandDrivenBroker()
    ticks: Any = SimpleNamespace(look_at_clock=lambda: None, wake=lambda: None)
    desk = SessionDesk(hand.broker, ticks, lambda: None)
    with pytest.raises(NotFound, match=r"there is no session of the client id 'c'$"):
        desk.session("c")
    hand.state.share.elsewhere = lambda client_id: f" on this node: ask for {client_id} there"
    for asks in (desk.session, desk.disconnect):
        with pytest.raises(NotFound, match=r"'c' on this node: ask for c there$"):
            asks("c")


def test_show_tells_by_topic_from_which_offset_on_nothing_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hand = HandDrivenBroker()
    subscriber = hand.connects("c", expiry_s=60, acknowledges=False, receive_maximum=4)
    subscriber.subscribes("#")
    publisher = hand.connects("p")
    for number, topic in enumerate(("b", "a", "b", "a", "b", "late")):
        publisher.publishes(topic, b"x", first_id=number + 1)
        hand.settle()
    ticks: Any = SimpleNamespace(look_at_clock=lambda: None, wake=lambda: None)
    desk = SessionDesk(hand.broker, ticks, lambda: None)
    begin = hand.state.log_end - 6

    def shown(topic: str, offset: int, messages: int) -> UnacknowledgedView:
        return UnacknowledgedView(topic=topic, partition=0, offset=begin + offset, messages=messages)

    assert desk.session("c").unacknowledged == [shown("b", 0, 3), shown("a", 1, 2), shown("late", 5, 1)]
    subscriber.does(Puback(subscriber.messages[0].packet_id))
    hand.settle()
    assert desk.session("c").unacknowledged[:2] == [shown("a", 1, 2), shown("b", 2, 2)]
    monkeypatch.setattr(session_desk, "TOPICS_MAX", 1)
    assert desk.session("c").unacknowledged == [shown("a", 1, 2)]
    assert desk.session("p").unacknowledged == []
