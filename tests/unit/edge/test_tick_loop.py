"""The tick on a real event loop, with a store that a test answers for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink
from tests.support.waiting import wait_for

from embermq.edge import tick_loop
from embermq.edge.clock import BrokerClock
from embermq.edge.tick_loop import GATHERED_BYTES_MAX, STOOD_MS, UNWRITTEN_BYTES_MAX, TickLoop
from embermq.model.tick_writes import TickWrites
from embermq.mqtt.wire.packets import Connack, Disconnect, Puback, Publish, Unsuback, Unsubscribe
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.ports.errors import StoreError, StoreFull
from embermq.ports.tick_store import Logged
from embermq.sessions.link import Link

DEADLINE_S = 30.0


class Running:
    """A hand-driven broker whose ticks run by themselves; the store answers by `answer`."""

    def __init__(self, linger_ms: float = 0.0) -> None:
        self.hand = HandDrivenBroker()
        self.failed: list[str] = []
        self.ticks = TickLoop(
            self.hand.broker,
            self.hand.delivery,
            self.hand.store,
            linger_ms=linger_ms,
            poll_ms=10,
            on_failing=self.failed.append,
        )
        self.answers: Callable[[], StoreError | None] = lambda: None
        self._submitted = self.hand.store.submit
        self.commits = 0
        self.holds = False
        """The store does not answer until `lets_go`."""
        self.hand.store.submit = self._submit  # type: ignore[method-assign]

    def _submit(self, writes: TickWrites, logged: Logged) -> None:
        self._submitted(writes, logged)
        if not self.holds:
            asyncio.get_running_loop().call_soon(self._answer)

    def lets_go(self) -> None:
        self.holds = False
        self._answer()

    def _answer(self) -> None:
        self.commits += 1
        error = self.answers()
        if error is None:
            self.hand.store.commit()
        else:
            self.hand.store.refuse(error)

    async def connects(self, client_id: str, *, expiry_s: int = 0) -> HandLink:
        link = self.hand.connects(client_id, expiry_s=expiry_s, settles=False)
        self.ticks.wake()
        await wait_for(lambda: link.received, DEADLINE_S, "CONNACK")
        return link

    def publish(self, link: HandLink, packet_id: int, payload: bytes = b"x") -> None:
        self.ticks.wake()
        link.does(Publish("t", payload, 1, packet_id))


def run(test: Callable[[Running], Coroutine[None, None, None]], linger_ms: float = 0.0) -> None:
    async def whole() -> None:
        running = Running(linger_ms)
        running.ticks.start_polling()
        try:
            await test(running)
        finally:
            running.ticks.stop()

    asyncio.run(whole())


def test_what_fails_in_one_look_does_not_end_the_looking() -> None:
    async def test(running: Running) -> None:
        looks: list[None] = []
        problems: list[object] = []

        def fails() -> None:
            looks.append(None)
            raise RuntimeError("of the store")

        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        running.hand.store.settle = fails  # type: ignore[method-assign]
        await wait_for(lambda: len(looks) >= 3, DEADLINE_S)
        assert len(problems) >= 2

    run(test)


@pytest.mark.parametrize("stood_ms", [STOOD_MS, STOOD_MS + 1])
def test_queues_are_told_when_the_process_stood_still_before_anything_else_happens(stood_ms: int) -> None:
    async def test(running: Running) -> None:
        told: list[int] = []
        tick = running.hand.state.tick
        queues = SimpleNamespace(stood_still=lambda: told.append(tick.now_ms))
        running.hand.state.queues = queues  # type: ignore[assignment]
        now_ms = running.ticks.look_at_clock()
        told.clear()
        running.ticks._clock = _At(now_ms + stood_ms)
        assert running.ticks.look_at_clock() == now_ms + stood_ms
        running.ticks.look_at_clock()
        assert told == [now_ms + stood_ms] * (stood_ms > STOOD_MS)
        running.hand.state.queues = None

    run(test)


def test_publishers_are_answered_by_the_tick() -> None:
    async def test(running: Running) -> None:
        link = await running.connects("p")
        for packet_id in range(1, 101):
            running.publish(link, packet_id)
        await wait_for(lambda: len(link.all(Puback)) == 100, DEADLINE_S)
        assert [answer.packet_id for answer in link.all(Puback)] == list(range(1, 101))
        assert running.commits <= 3

    run(test)


def test_a_lone_publisher_does_not_wait_for_company() -> None:
    """The linger is longer than the test: who waits for it fails."""

    async def test(running: Running) -> None:
        link = await running.connects("p")
        for packet_id in range(1, 4):
            running.publish(link, packet_id)
            running.ticks.wake()
            await wait_for(lambda count=packet_id: len(link.all(Puback)) == count, DEADLINE_S)  # type: ignore[misc]
        other = await running.connects("q")
        commits = running.commits
        running.publish(other, 1)
        running.ticks.wake()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not other.all(Puback), "now there are two"
        assert running.commits == commits

    run(test, linger_ms=DEADLINE_S * 10_000)


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


class _At(BrokerClock):
    """A clock that stands."""

    def __init__(self, at_ms: int) -> None:
        super().__init__()
        self._at_ms = at_ms

    def now_ms(self) -> int:
        return self._at_ms


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
        assert running.ticks.hold_back(held_back, 1)
        await wait_for(lambda: held_back.read_on_calls, DEADLINE_S, "the connection is read again")

    run(test)


def test_answers_that_wait_for_a_store_are_bounded_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tick_loop, "GATHERED_CALLS_MAX", 50)

    async def test(running: Running) -> None:
        keeper, publisher = running.hand.keeps("keeper"), await running.connects("p")
        running.holds = True
        running.publish(publisher, 1)
        await wait_for(lambda: running.hand.store.busy, DEADLINE_S)
        held_back = _HeldBack()
        for _ in range(49):
            keeper.does(Unsubscribe(1, ("no/such",)))
        assert not running.ticks.hold_back(held_back, 1)
        keeper.does(Unsubscribe(1, ("no/such",)))
        assert running.ticks.hold_back(held_back, 1)
        running.lets_go()
        await wait_for(lambda: held_back.read_on_calls == 1, DEADLINE_S)
        await wait_for(lambda: len(keeper.all(Unsuback)) == 50, DEADLINE_S)
        running.holds = True
        for _ in range(51):
            publisher.does(Publish("t", b"the same again", 2, 7))
        assert running.ticks.hold_back(held_back, 1)
        assert not any(accepted.message.payload for accepted in running.hand.state.tick.batch.accepted[1:])

    run(test)


def test_behind_a_commit_that_takes_very_long_sessions_and_then_messages_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tick_loop, "GATHERED_BYTES_MAX", 1_000)

    async def test(running: Running) -> None:
        hand = running.hand
        links = [await running.connects(name) for name in ("a", "b", "c")]
        held_back = _HeldBack()

        def publish(link: HandLink, packet_id: int) -> None:
            running.publish(link, packet_id, b"x" * 1_000)
            running.ticks.hold_back(held_back, 1_000)

        def refuses() -> tuple[bool, bool]:
            return hand.state.log_late, hand.state.log_full

        await wait_for(
            lambda: not hand.store.busy, DEADLINE_S, "what the clients' coming has written is stored"
        )
        running.holds = True
        publish(links[0], 1)
        await wait_for(lambda: hand.store.busy, DEADLINE_S)
        for link in links[1:]:
            publish(link, 1)
        assert refuses() == (False, False)
        monkeypatch.setattr(tick_loop, "LATE_S", 0.05)
        await wait_for(lambda: refuses() == (True, False), DEADLINE_S, "it takes long")
        late = await running.connects("late", expiry_s=60)
        assert (late.last(Connack).reason_code, late.closing) == (ReasonCode.SERVER_UNAVAILABLE, True)
        await running.connects("passing")
        publish(links[1], 2)
        assert refuses() == (True, True)
        publish(links[2], 2)
        await wait_for(lambda: links[2].all(Disconnect), DEADLINE_S, "the client is sent away")
        assert links[2].last(Disconnect).reason_code == ReasonCode.QUOTA_EXCEEDED
        assert hand.state.counters.refused_log_full == 1
        assert not links[1].closing
        running.lets_go()
        await wait_for(lambda: len(links[1].all(Puback)) == 2, DEADLINE_S, "what was taken is stored")
        assert refuses() == (False, False)
        assert (await running.connects("late")).last(Connack).reason_code == ReasonCode.SUCCESS

    run(test)


def test_drain_ends_when_everything_is_durable() -> None:
    async def test(running: Running) -> None:
        link = await running.connects("p")
        running.publish(link, 1)
        await asyncio.wait_for(running.ticks.drain(DEADLINE_S), DEADLINE_S / 2)
        assert running.hand.store.log_end == 1
        await asyncio.wait_for(running.ticks.drain(DEADLINE_S), DEADLINE_S / 2)

    run(test)


def test_what_many_clients_bring_in_one_turn_is_written_before_the_turn_ends() -> None:
    async def test(running: Running) -> None:
        link = await running.connects("s")
        reader = _HeldBack()
        link.send(b"\xd0\x00")
        for _ in range(3):
            assert not running.ticks.hold_back(reader, UNWRITTEN_BYTES_MAX // 4)
            assert link.out
        assert not running.ticks.hold_back(reader, UNWRITTEN_BYTES_MAX // 4)
        assert not link.out

    run(test)


def test_a_timer_that_a_write_before_the_end_of_the_turn_has_set_is_kept() -> None:
    """As that of a client that does not read."""

    async def test(running: Running) -> None:
        await asyncio.wait_for(running.ticks.drain(DEADLINE_S), DEADLINE_S)
        state, over = running.hand.state, asyncio.Event()

        class Slow(Link):
            def flush(self) -> None:
                state.timers.at(state.tick.now_ms + 1, over.set)

        running.ticks.before_read()
        state.tick.dirty.append(Slow(state.tick.dirty, "test", state.tick.now_ms))
        running.ticks.after_read()
        assert not running.ticks.hold_back(_HeldBack(), UNWRITTEN_BYTES_MAX)
        assert not state.tick.dirty
        await asyncio.wait_for(over.wait(), DEADLINE_S)

    run(test)


def test_a_drain_that_ends_with_its_time_is_no_error() -> None:
    async def ends_with_its_time(running: Running) -> None:
        running.holds = True
        drain = asyncio.create_task(running.ticks.drain(0))
        asyncio.get_running_loop().call_soon(running.ticks._tell_idle)
        await asyncio.wait_for(drain, DEADLINE_S)

    run(ends_with_its_time)
