"""The tick on a real event loop, with session data in a store of its own that answers later."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from pathlib import Path

from tests.support.hand_driven import HandDrivenBroker, HandLink
from tests.support.held_sessions import HeldSessions
from tests.support.waiting import wait_for

from embermq.delivery.device.settings import DeviceSettings
from embermq.edge.tick_loop import TickLoop
from embermq.model.tick_writes import TickWrites
from embermq.mqtt.wire.packets import Puback, Publish, Suback, Subscribe, Subscription
from embermq.ports.tick_store import EVERYBODY, Logged
from embermq.sessions.tick import Batch

DEADLINE_S = 30.0
ANSWER_S = 0.002
PATIENT_S = 60
"""So that no timer of theirs begins a tick."""


class Running:
    """A hand-driven broker whose ticks run by themselves; its log answers at once, its session store soon."""

    def __init__(self, linger_ms: float) -> None:
        loop = asyncio.get_running_loop()
        self.sessions = HeldSessions(Path(":memory:"))
        self.hand = hand = HandDrivenBroker(
            sessions=self.sessions, connect_wait_s=PATIENT_S, device=DeviceSettings(linger_ms=linger_ms)
        )
        self._submitted = hand.store.submit
        hand.store.submit = self._submit  # type: ignore[method-assign]
        hand.ticks = hand.log_first(post=loop.call_soon)
        self.ticks = TickLoop(hand.broker, hand.delivery, hand.ticks, linger_ms=0.0, poll_ms=10)
        self._answering = loop.create_task(self._answer())

    def _submit(self, writes: TickWrites, logged: Logged) -> None:
        self._submitted(writes, logged)
        asyncio.get_running_loop().call_soon(self.hand.store.commit)

    async def _answer(self) -> None:
        while True:
            self.sessions.answer()
            await asyncio.sleep(ANSWER_S)

    async def stop(self) -> None:
        self._answering.cancel()
        await asyncio.gather(self._answering, return_exceptions=True)
        self.ticks.stop()
        self.sessions.close()

    def connects(self, client_id: str) -> HandLink:
        self.ticks.before_read()
        link = self.hand.keeps(client_id, settles=False)
        self.ticks.after_read()
        return link

    def says(self, link: HandLink, *packets: Publish | Subscribe | Puback) -> None:
        self.ticks.before_read()
        link.does(*packets)
        self.ticks.after_read()


def run(test: Callable[[Running], Coroutine[None, None, None]], linger_ms: float = 50.0) -> None:
    async def whole() -> None:
        running = Running(linger_ms)
        running.ticks.start_polling()
        try:
            await test(running)
        finally:
            await running.stop()

    asyncio.run(whole())


async def _with_stored_message(running: Running) -> tuple[HandLink, HandLink]:
    """A publisher and a subscriber for whom one message is stored, and who has left."""
    publisher, subscriber = running.connects("p"), running.connects("s")
    await wait_for(lambda: publisher.received and subscriber.received, DEADLINE_S, "CONNACK")
    running.says(subscriber, Subscribe(1, (Subscription("t", 1),)))
    await wait_for(lambda: subscriber.all(Suback), DEADLINE_S, "SUBACK")
    subscriber.drops()
    running.says(publisher, Publish("t", b"stored", 1, 1))
    await wait_for(lambda: publisher.all(Puback), DEADLINE_S, "PUBACK")
    await wait_for(lambda: running.hand.state.sessions["s"].uncommitted == 0, DEADLINE_S)
    return publisher, subscriber


def test_answers_that_come_later_are_acted_upon_at_once() -> None:
    async def test(running: Running) -> None:
        await _with_stored_message(running)
        back = running.connects("s")
        await wait_for(lambda: back.messages, DEADLINE_S, "the stored message")

    run(test, linger_ms=10_000)  # else its timer would begin a tick


def test_the_floor_follows_though_nothing_comes() -> None:
    async def test(running: Running) -> None:
        await _with_stored_message(running)
        log = running.hand.store
        await wait_for(lambda: log.dispatcher_floor == 1, DEADLINE_S, "the floor")

    run(test)


def test_the_log_answers_while_the_session_store_is_silent() -> None:
    async def test(running: Running) -> None:
        publisher, _ = await _with_stored_message(running)
        running.sessions.held = True
        running.says(publisher, Publish("t", b"waits", 1, 2))
        waiting = running.connects("s")
        await wait_for(lambda: len(publisher.all(Puback)) == 2, DEADLINE_S, "PUBACK")
        assert waiting.received == []
        running.sessions.held = False
        await wait_for(lambda: waiting.payloads == [b"stored", b"waits"], DEADLINE_S)

    run(test)


def test_who_waits_for_all_sessions_takes_a_turn() -> None:
    async def test(running: Running) -> None:
        publisher, _ = await _with_stored_message(running)
        running.sessions.held = True
        running.says(publisher, Publish("t", b"waits", 1, 2))
        await wait_for(lambda: running.hand.ticks.waits, DEADLINE_S)
        told: list[int] = []
        running.hand.state.tick.batch.when_stored(EVERYBODY, lambda: told.append(1))
        running.ticks.wake()
        state = running.hand.state
        await wait_for(lambda: len(state.tick.batch.after_commit) == 0, DEADLINE_S)
        assert told == []
        running.sessions.held = False
        await wait_for(lambda: told == [1], DEADLINE_S)

    run(test)


def test_draining_waits_for_the_session_store_but_not_for_ever() -> None:
    async def test(running: Running) -> None:
        publisher, _ = await _with_stored_message(running)
        running.sessions.held = True
        running.says(publisher, Publish("t", b"waits", 1, 2))
        await running.ticks.drain(0.2)
        generation = running.hand.state.sessions["s"].generation
        assert len(running.sessions.rows(generation)) == 1
        running.sessions.held = False
        await running.ticks.drain(DEADLINE_S)
        assert running.hand.ticks.waits is False
        assert len(running.sessions.rows(generation)) == 2

    run(test)


def _batches() -> int:
    gc.collect()
    return sum(isinstance(found, Batch) for found in gc.get_objects())


def test_ticks_that_wait_keep_nothing_of_their_messages() -> None:
    async def test(running: Running) -> None:
        publisher, _ = await _with_stored_message(running)
        running.sessions.held = True
        before = _batches()
        for number in range(2, 40):
            running.says(publisher, Publish("t" if number % 2 else "nobody", b"x", 1, number))
            await wait_for(lambda: len(publisher.all(Puback)) == number, DEADLINE_S)  # noqa: B023
        assert len(running.sessions.waiting) > 10
        assert _batches() - before < 8

    run(test)
