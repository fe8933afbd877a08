"""Messages of a replay: each number once, whatever is asked for again, refused or lost; to one client alone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.hand_driven import HandDrivenBroker, dispatch

from embermq.admin.errors import NotFound, OperationRefused, RequestRefused
from embermq.admin.replay_desk import ReplayDesk
from embermq.admin.replay_values import ReplayRequest, ReplayTaken
from embermq.formats.log_record import decode_record, encode_record, is_addressed, iter_frames
from embermq.intake.replaying import Replaying
from embermq.model.client_type import ClientType
from embermq.model.message import Message
from embermq.ports.errors import StoreFull

REPLAY = "r1"


def messages(*numbers: int, topic: str = "t") -> list[Message | None]:
    return [Message(topic, b"%d" % number, 1, False, "p", 5, 0) for number in numbers]


def payloads(hand: HandDrivenBroker) -> list[bytes]:
    """Of all records."""
    return [
        decode_record(frame).message.payload
        for _, records, _ in hand.store.batches
        for frame in iter_frames(b"".join(records))
    ]


def replaying(hand: HandDrivenBroker) -> Replaying:
    return Replaying(hand.state, hand.broker.publishing)


@pytest.mark.promise("pipeline-2")
def test_each_number_is_taken_once_also_by_the_next_broker() -> None:
    hand = HandDrivenBroker()
    assert replaying(hand).take(REPLAY, 0, messages(0, 1, 2), None) is None
    assert replaying(hand).take(REPLAY, 0, messages(0, 1, 2), None) is None
    hand.settle()
    assert replaying(hand).take(REPLAY, 2, messages(2, 3), None) is None
    hand.settle()
    assert replaying(hand).take(REPLAY, 4, [None, *messages(5)], None) is None
    hand = hand.restarted()  # before the last piece was durable
    again = replaying(hand)
    assert again.next_of(REPLAY) == 4
    assert again.take(REPLAY, 2, [*messages(2, 3), None, *messages(5)], None) is None
    hand.settle()
    assert payloads(hand) == [b"0", b"1", b"2", b"3", b"5"]
    assert replaying(hand.restarted()).next_of(REPLAY) == 6
    assert again.take("another", 0, messages(0), None) is None
    hand.settle()
    assert payloads(hand)[-1] == b"0"


def test_what_could_not_be_stored_is_not_counted_and_comes_again() -> None:
    hand = HandDrivenBroker()
    ticks: Any = SimpleNamespace(look_at_clock=lambda: None, wake=lambda: None)
    desk = ReplayDesk(hand.broker, ticks)
    frames = tuple(encode_record(one) for one in messages(0, 1) if one is not None)

    async def asked(request: ReplayRequest) -> ReplayTaken:
        answer = asyncio.create_task(desk.take(request))
        while not answer.done():
            await asyncio.sleep(0)
            hand.run()
        return await answer

    async def scenario() -> None:
        hand.failures = [StoreFull("no room")]
        request = ReplayRequest(replay=REPLAY, first=0, messages=frames)
        taken = await asked(request)
        assert (taken.next, taken.passes) == (0, True) and not payloads(hand)
        assert not hand.store.replays, "a start would leave the messages out"
        assert await asked(request) == ReplayTaken(next=2)
        assert await asked(request) == ReplayTaken(next=2)
        assert payloads(hand) == [b"0", b"1"] and hand.state.counters.messages_replayed == 2
        hand.state.log_full = True
        more = ReplayRequest(replay=REPLAY, first=2, messages=frames)
        held = await asked(more)
        assert (held.next, held.passes) == (2, True) and "too far behind" in held.refused
        hand.state.log_full = False
        for bad, kind in (
            (ReplayRequest(replay=REPLAY, first=3), OperationRefused),
            (ReplayRequest(replay=REPLAY, first=2, messages=(b"no record",)), RequestRefused),
            (ReplayRequest(replay=REPLAY, first=2, messages=frames, client="nobody"), NotFound),
        ):
            with pytest.raises(kind):
                await asked(bad)
        hand.keeps("device")
        with pytest.raises(OperationRefused, match="has no application log"):
            await asked(ReplayRequest(replay=REPLAY, first=2, messages=frames, client="device"))
        assert payloads(hand) == [b"0", b"1"]

    asyncio.run(scenario())


def test_a_message_that_cannot_be_is_refused_and_those_before_it_are_taken() -> None:
    hand = HandDrivenBroker()
    for topic in ("a/+", "$SYS/a", "x" * 5_000):
        here = replaying(hand)
        first = here.next_of(REPLAY)
        refusal = here.take(REPLAY, first, messages(0) + messages(1, topic=topic) + messages(2), None)
        assert refusal is not None and not refusal.passes
        assert here.next_of(REPLAY) == first + 1
    hand.settle()
    assert payloads(hand) == [b"0"] * 3


def test_to_one_application_alone_also_when_the_log_is_read_again() -> None:
    hand = HandDrivenBroker()
    device = hand.keeps("device")
    device.subscribes("t", qos=1)
    others = [hand.keeps(name, client_type=ClientType.APPLICATION) for name in ("one", "two")]
    for link in others:
        link.subscribes("t", qos=1)
    wanted = hand.state.sessions.get("one")
    assert wanted is not None
    floor = hand.store.dispatcher_floor
    assert replaying(hand).take(REPLAY, 0, messages(0, 1), wanted) is None
    hand.settle()
    dispatch(hand)
    assert (others[0].payloads, others[1].payloads, device.payloads) == ([b"0", b"1"], [], [])
    (frame, _) = hand.store.batches[-1][1]
    record = decode_record(frame)
    assert is_addressed(record) and [stamp.log for stamp in record.stamps] == ["one"]
    hand.store.dispatcher_floor = floor
    hand = hand.restarted()
    assert not hand.recovered, "nobody else is owed it"
    assert hand.keeps("device").payloads == []
