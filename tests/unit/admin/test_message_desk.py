"""What an operator publishes, and what is told of it when."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.hand_driven import HandDrivenBroker

from embermq.admin import message_desk
from embermq.admin.errors import NotFound, OperationRefused, RequestRefused
from embermq.admin.message_desk import MessageDesk
from embermq.admin.values import PublishOutcome, PublishProperties, PublishRequest
from embermq.ports.errors import StoreError, StoreFull

TURN_S = 0.05


def desk_of(hand: HandDrivenBroker) -> MessageDesk:
    ticks: Any = SimpleNamespace(look_at_clock=lambda: None, wake=lambda: None)
    return MessageDesk(hand.broker, ticks)


def publishing(hand: HandDrivenBroker, **asked: Any) -> PublishOutcome:
    """What is answered when the tick is committed."""

    async def scenario() -> PublishOutcome:
        waiting = asyncio.create_task(desk_of(hand).publish(PublishRequest(**asked)))
        await asyncio.sleep(0)
        hand.settle()
        return await asyncio.wait_for(waiting, 30)

    return asyncio.run(scenario())


def test_it_is_answered_when_it_is_durable_and_reaches_who_has_subscribed() -> None:
    hand = HandDrivenBroker()
    client = hand.connects("c", expiry_s=60)
    client.subscribes("a/#")
    hand.settle()
    desk = desk_of(hand)

    async def scenario() -> None:
        hand.held = True
        waiting = asyncio.create_task(desk.publish(PublishRequest(topic="a/b", payload="ä", qos=2)))
        await asyncio.wait({waiting}, timeout=TURN_S)
        hand.run()
        await asyncio.wait({waiting}, timeout=TURN_S)
        assert not waiting.done() and not client.messages
        hand.held = False
        hand.finish_commit()
        assert await asyncio.wait_for(waiting, 30) == PublishOutcome(stored=True)

    asyncio.run(scenario())
    hand.settle()
    (message,) = client.messages
    assert (message.topic, message.payload, message.qos) == ("a/b", "ä".encode(), 2)


@pytest.mark.parametrize("error", [StoreFull("no room"), StoreError("the disk is gone")])
def test_what_is_not_stored_is_told_so_and_published_to_nobody(error: StoreError) -> None:
    hand = HandDrivenBroker()
    client = hand.connects("c", expiry_s=60)
    client.subscribes("#")
    desk = desk_of(hand)

    async def scenario() -> None:
        hand.failures = [error]
        waiting = asyncio.create_task(desk.publish(PublishRequest(topic="t", payload="x", retain=True)))
        await asyncio.sleep(0)
        hand.settle()
        with pytest.raises(StoreError):
            await asyncio.wait_for(waiting, 30)

    asyncio.run(scenario())
    assert not client.messages and hand.state.retained.is_settled("t")
    assert hand.state.retained.get("t") is None


def test_retained_messages_are_listed_in_pages_shown_and_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_desk, "STEPS_AT_ONCE", 3)
    hand = HandDrivenBroker()
    client = hand.connects("c")
    for topic in ("b/2", "a", "b/1", "b/1/x", "c/1"):
        assert publishing(hand, topic=topic, payload=topic, retain=True, qos=0) == PublishOutcome(stored=True)
    desk = desk_of(hand)

    def topics(topic_filter: str = "#", after: str = "", limit: int = 1_000) -> list[str]:
        return [one.topic for one in asyncio.run(desk.retained(topic_filter, after, limit))]

    assert topics() == ["a", "b/1", "b/1/x", "b/2", "c/1"]
    assert topics(limit=2) == ["a", "b/1"] and topics(after="b/1", limit=2) == ["b/1/x", "b/2"]
    assert topics("+/1") == ["b/1", "c/1"] and topics("b/1") == ["b/1"] and topics("z/#") == []
    with pytest.raises(RequestRefused, match="filter"):
        topics("a/#/b")

    found = desk.message("b/1")
    assert found.payload == "b/1" and found.about.payload_bytes == 3
    client.subscribes("b/+")
    hand.settle()

    async def delete() -> None:
        waiting = asyncio.create_task(desk.delete("b/1"))
        await asyncio.sleep(0)
        hand.settle()
        await asyncio.wait_for(waiting, 30)

    asyncio.run(delete())
    assert (client.messages[-1].topic, client.messages[-1].payload) == ("b/1", b"")
    assert "b/1" not in topics()
    assert "b/1" not in [row.topic for row in hand.restarted().state.retained.rows()]
    with pytest.raises(NotFound):
        desk.message("b/1")
    with pytest.raises(NotFound):
        asyncio.run(desk.delete("b/1"))


def test_payload_and_properties_are_those_that_were_asked_for() -> None:
    hand = HandDrivenBroker()
    properties = PublishProperties(
        message_expiry_interval=60,
        content_type="text/plain",
        correlation_data_base64=b64encode(b"\0\1").decode(),
        user_properties=(("a", "1"), ("a", "2")),
    )
    body = b64encode(b"\xff\xfe").decode()
    publishing(hand, topic="t", payload_base64=body, retain=True, properties=properties)
    found = desk_of(hand).message("t")
    assert found.payload_base64 == body and found.about.expires is not None
    assert found.properties["user_properties"] == (("a", "1"), ("a", "2"))
    hand.passes(s=61)
    with pytest.raises(NotFound):
        desk_of(hand).message("t")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"topic": "a/+"}, "wildcard"),
        ({"topic": "$SYS/broker/x"}, "SYS"),
        ({"topic": "a\0b"}, "U\\+0000|NUL|null"),
        ({"topic": "a", "payload_base64": "?"}, "payload_base64"),
        ({"topic": "a", "properties": PublishProperties(response_topic="a/#")}, "response"),
    ],
)
def test_what_no_client_could_send_is_refused(asked: dict[str, Any], told: str) -> None:
    hand = HandDrivenBroker()
    with pytest.raises(RequestRefused, match=told):
        publishing(hand, **asked)
    assert not hand.state.tick.batch.accepted


def test_what_the_log_has_no_room_for_is_refused() -> None:
    hand = HandDrivenBroker()
    hand.state.refuse_all = True
    with pytest.raises(OperationRefused, match="too far behind"):
        publishing(hand, topic="t", payload="x")
