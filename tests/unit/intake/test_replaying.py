"""Messages of a replay: each number once, whatever is asked for again, refused or lost; to one client alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.hand_driven import HandDrivenBroker, dispatch
from tests.support.held_sessions import HeldSessions

from embermq.admin.errors import NotFound, OperationRefused, RequestRefused
from embermq.admin.replay_desk import ReplayDesk
from embermq.admin.values import ReplayRequest, ReplayTaken
from embermq.formats.log_record import (
    FIELD_RULES,
    decode_record,
    encode_record,
    is_addressed,
    iter_frames,
    replayed_in,
)
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


@pytest.mark.promise("pipeline-2")
@pytest.mark.parametrize("floor_has_passed", [False, True])
def test_where_the_log_is_a_store_of_its_own_each_record_tells_its_number(
    tmp_path: Path, floor_has_passed: bool
) -> None:
    """The broker dies between the log and the store of state, at the first piece or at a later one."""
    sessions = HeldSessions(tmp_path / "sessions.db")
    hand = HandDrivenBroker(sessions=sessions)
    taken = 0
    if floor_has_passed:
        assert replaying(hand).take(REPLAY, 0, messages(0, 1), None) is None
        hand.settle()
        hand.passes(s=1)
        assert hand.store.replays == {REPLAY: 2} and sessions.floors[-1] == 2
        taken = 2
    sessions.held = True
    assert replaying(hand).take(REPLAY, taken, messages(taken, taken + 1, taken + 2), None) is None
    hand.settle()
    assert hand.store.replays.get(REPLAY, 0) == taken, "not stored yet"
    assert len(payloads(hand)) == taken + 3
    for _ in range(2):  # the store may have lost its newest data
        hand = hand.restarted()
        assert replaying(hand).next_of(REPLAY) == taken + 3
        assert replaying(hand).take(REPLAY, 0, messages(*range(taken + 4)), None) is None
        assert replaying(hand).next_of(REPLAY) == taken + 4
    hand.settle()
    assert payloads(hand) == [b"%d" % number for number in range(taken + 4)]
    assert hand.store.replays == {REPLAY: taken + 4}
    told = [
        replayed_in(decode_record(frame))
        for _, records, _ in hand.store.batches
        for frame in iter_frames(b"".join(records))
    ]
    assert told == [(REPLAY, number) for number in range(taken + 4)]
    sessions.close()


def test_what_the_start_has_found_is_stored_though_its_tick_is_refused(tmp_path: Path) -> None:
    sessions = HeldSessions(tmp_path / "sessions.db")
    hand = HandDrivenBroker(sessions=sessions)
    sessions.held = True
    assert replaying(hand).take(REPLAY, 0, messages(0, 1), None) is None
    hand.settle()
    hand = hand.restarted()
    hand.failures = [StoreFull("no room")]
    assert replaying(hand).take("another", 0, messages(2), None) is None
    hand.settle()
    assert replaying(hand).next_of(REPLAY) == 2 and not replaying(hand).next_of("another")
    assert hand.store.replays == {REPLAY: 2, "another": 0}
    sessions.close()


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
        assert not hand.store.replays.get(REPLAY), "a start would leave the messages out"
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


def test_what_comes_of_a_rule_says_so_again() -> None:
    hand = HandDrivenBroker()
    ticks: Any = SimpleNamespace(look_at_clock=lambda: None, wake=lambda: None)
    desk = ReplayDesk(hand.broker, ticks)
    made, plain = messages(0, 1)
    assert made is not None and plain is not None
    pieces = (encode_record(made, unknown_fields=((FIELD_RULES, b"cold,hot"),)), encode_record(plain))

    async def replayed() -> ReplayTaken:
        found = asyncio.ensure_future(desk.take(ReplayRequest(replay=REPLAY, first=0, messages=pieces)))
        while not found.done():
            await asyncio.sleep(0)
            hand.run()
        return await found

    assert asyncio.run(replayed()).next == 2
    found = [
        [value for tag, value in decode_record(frame).unknown_fields if tag == FIELD_RULES]
        for _, records, _ in hand.store.batches
        for frame in iter_frames(b"".join(records))
    ]
    assert found == [[b"cold,hot"], []]
