"""The tick on a real event loop, with a store that a test answers for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink
from tests.support.waiting import wait_for

from embermq.model.tick_writes import TickWrites
from embermq.ports.errors import StoreError, StoreFull
from embermq.ports.tick_store import Logged, Stored
from embermq.protocol.packets import Puback, Publish
from embermq.server.tick_loop import GATHERED_BYTES_MAX, UNWRITTEN_BYTES_MAX, TickLoop

DEADLINE_S = 5.0


class Running:
    """A hand-driven broker whose ticks run by themselves; the store answers by `answer`."""

    def __init__(self) -> None:
        self.hand = HandDrivenBroker()
        self.failed: list[str] = []
        self.ticks = TickLoop(
            self.hand.broker, self.hand.delivery, self.hand.store, linger_ms=0.0, poll_ms=10
        )
        self.ticks.on_failing = self.failed.append
        self.answers: Callable[[], StoreError | None] = lambda: None
        self._submitted = self.hand.store.submit
        self.commits = 0
        self.hand.store.submit = self._submit  # type: ignore[method-assign]

    def _submit(self, writes: TickWrites, logged: Logged, stored: Stored | None) -> None:
        self._submitted(writes, logged, stored)
        asyncio.get_running_loop().call_soon(self._answer)

    def _answer(self) -> None:
        self.commits += 1
        error = self.answers()
        if error is None:
            self.hand.store.commit()
        else:
            self.hand.store.refuse(error)

    async def connects(self, client_id: str) -> HandLink:
        link = self.hand.connects(client_id, settles=False)
        self.ticks.wake()
        await wait_for(lambda: link.received, DEADLINE_S, "CONNACK")
        return link

    def publish(self, link: HandLink, packet_id: int, payload: bytes = b"x") -> None:
        self.ticks.wake()
        link.does(Publish("t", payload, 1, packet_id))


def run(test: Callable[[Running], Coroutine[None, None, None]]) -> None:
    async def whole() -> None:
        running = Running()
        running.ticks.start_polling()
        try:
            await test(running)
        finally:
            running.ticks.stop()

    asyncio.run(whole())


def test_publishers_are_answered_by_the_tick() -> None:
    async def test(running: Running) -> None:
        link = await running.connects("p")
        for packet_id in range(1, 101):
            running.publish(link, packet_id)
        await wait_for(lambda: len(link.all(Puback)) == 100, DEADLINE_S)
        assert [answer.packet_id for answer in link.all(Puback)] == list(range(1, 101))
        assert running.commits <= 3

    run(test)


def test_a_full_store_is_97_also_until_it_is_tried_again() -> None:
    async def test(running: Running) -> None:
        link = await running.connects("p")
        running.answers = lambda: StoreFull("no room")
        running.publish(link, 1)
        await wait_for(lambda: len(link.all(Puback)) == 1, DEADLINE_S)
        running.publish(link, 2)
        await wait_for(lambda: len(link.all(Puback)) == 2, DEADLINE_S)
        assert [answer.reason_code for answer in link.all(Puback)] == [0x97, 0x97]
        assert running.ticks.statistics().failing == "no room"
        assert running.failed == ["no room"]

    run(test)


@pytest.mark.timeout(20)
def test_room_is_found_again_without_any_publisher() -> None:
    async def test(running: Running) -> None:
        link = await running.connects("p")
        running.answers = lambda: StoreFull("no room")
        running.publish(link, 1)
        await wait_for(lambda: running.failed == ["no room"], DEADLINE_S)
        running.answers = lambda: None
        await wait_for(lambda: running.failed == ["no room", ""], DEADLINE_S, "the store works again")
        assert running.ticks.statistics().failing == ""
        running.publish(link, 2)
        await wait_for(lambda: len(link.all(Puback)) == 2, DEADLINE_S)
        assert link.last(Puback).reason_code == 0x10

    run(test)


def test_a_failing_store_does_not_keep_the_loop_busy() -> None:
    async def test(running: Running) -> None:
        link = await running.connects("p")
        running.answers = lambda: StoreFull("no room")
        running.publish(link, 1)
        await wait_for(lambda: running.failed, DEADLINE_S)
        before, began = running.ticks.statistics().ticks, asyncio.get_running_loop().time()
        await wait_for(lambda: asyncio.get_running_loop().time() - began > 1.0, DEADLINE_S)
        assert running.ticks.statistics().ticks - before < 30
        assert running.commits < 10

    run(test)


class _HeldBack:
    """Counts when it may be read again."""

    def __init__(self) -> None:
        self.read_on_calls = 0

    def read_on(self) -> None:
        self.read_on_calls += 1


def test_who_was_held_back_is_read_again_also_while_the_store_refuses() -> None:
    async def test(running: Running) -> None:
        link = await running.connects("p")
        running.answers = lambda: StoreFull("no room")
        running.publish(link, 1)
        await wait_for(lambda: running.failed, DEADLINE_S)
        held_back = _HeldBack()
        size = 1024 * 1024
        for packet_id in range(2, 2 + GATHERED_BYTES_MAX // size + 1):
            running.publish(link, packet_id, b"x" * size)
        assert running.ticks.hold_back(held_back, 1)  # type: ignore[arg-type]
        await wait_for(lambda: held_back.read_on_calls, DEADLINE_S, "the connection is read again")

    run(test)


def test_drain_ends_when_everything_is_durable() -> None:
    async def test(running: Running) -> None:
        link = await running.connects("p")
        running.publish(link, 1)
        await asyncio.wait_for(running.ticks.drain(DEADLINE_S), 1.0)
        assert running.hand.store.log_end == 1
        await asyncio.wait_for(running.ticks.drain(DEADLINE_S), 1.0)

    run(test)


def test_what_many_clients_bring_in_one_turn_is_written_before_the_turn_ends() -> None:
    async def test(running: Running) -> None:
        link = await running.connects("s")
        reader = _HeldBack()
        link.send(b"\xd0\x00")
        for _ in range(3):
            assert not running.ticks.hold_back(reader, UNWRITTEN_BYTES_MAX // 4)  # type: ignore[arg-type]
            assert link.out
        assert not running.ticks.hold_back(reader, UNWRITTEN_BYTES_MAX // 4)  # type: ignore[arg-type]
        assert not link.out

    run(test)
