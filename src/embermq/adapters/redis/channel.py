"""A place in line to one node: what waits for it, the connection as long as there is one, and the tries to get one."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from embermq.adapters.redis.address import WAIT_TIMEOUT_MS, RedisAddress, RedisSettings
from embermq.adapters.redis.answers import Answer, ErrorReply
from embermq.adapters.redis.handshake import EpochPassed, Greeting, NodeUnusable, log_in
from embermq.adapters.redis.lane import Lane
from embermq.adapters.redis.script import Script
from embermq.adapters.redis.wire import (
    ASKING,
    Kind,
    Ledger,
    Operation,
    Settling,
    Wire,
    Word,
    ignore,
    pack,
    tell,
)
from embermq.ports.errors import TakenOver
from embermq.ports.store_node import Node

if TYPE_CHECKING:
    from embermq.adapters.redis.link import RedisLink

LOG = logging.getLogger("embermq.redis")
CONNECT_TIMEOUT_S = 2.0
"""A connection that is not open and logged in after that is given up, and tried again."""
BREAKER_FAILURES = 5
"""After so many failures one after the other, some 0.6 s, a node counts as away: nobody waits for it."""
BREAKER_PAUSE_S = 1.0
"""How often a node that is away is tried. Before that, tries follow one another faster."""
BATCH_COMMANDS = 250
"""So many commands are sent at once, as soon as they are there."""
BATCH_BYTES_MAX = 1024 * 1024
BATCH_S = 0.001
"""How long a command may wait for company after the last batch. The first one after a pause never waits."""
SETTLE_BYTES_MAX = 64 * 1024 * 1024
"""Bytes that are kept for `redis.settle_s` at most; past it the oldest go before their time."""
BATCHES_MAX = 4
"""So many full batches may be on the way at once."""
FIRST_PAUSE_S = 0.02
_SILENT = Operation("", b"", ignore, "ASKING", kind=Kind.SILENT)


class Plan:
    """What all channels of a link share."""

    def __init__(
        self,
        address: RedisAddress,
        settings: RedisSettings,
        scripts: Sequence[Script],
        tls: ssl.SSLContext | None,
    ) -> None:
        self.address = address
        self.settings = settings
        self.scripts = scripts
        self.tls = tls
        self.ledger = Ledger()
        self.held: dict[str, Lane] = {}
        self.epoch = 0
        self.on_taken_over: Callable[[TakenOver], object] = lambda _: None
        """Told when a server knows a broker with a higher epoch."""
        self.settling = Settling(settings.settle_s, SETTLE_BYTES_MAX)
        self.wait = Operation(
            "",
            pack(("WAIT", settings.wait_replicas, WAIT_TIMEOUT_MS)),
            ignore,
            "WAIT",
            kind=Kind.WAIT,
        )


class Channel:
    """Sends what is put into it, in order, until it is answered; connects as often as needed.

    A batch goes when `BATCH_COMMANDS` are there or `BATCH_S` have gone since the last one.
    """

    def __init__(self, node: Node, plan: Plan, link: RedisLink) -> None:
        settings = plan.settings
        self.node = node
        self.queue: deque[Operation] = deque()
        self.failing = ""
        self.shortfall = ""
        """That too few replicas have what was written last."""
        self.failures = 0
        self.wire: Wire | None = None
        self._plan = plan
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._waits = settings.wait_replicas
        self._confirmed = plan.settling.window(node) if settings.settle_s else None
        self._flushed_s = float("-inf")
        self._flush: asyncio.Handle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._greeting = Greeting()
        self._is_renewed = False
        self._ended: asyncio.Future[str] = self._loop.create_future()
        self._loading = 0
        self._since_s = self._loop.time()
        self._task = self._loop.create_task(self._keep_connected())

    @property
    def is_ready(self) -> bool:
        """Whether it is connected and logged in."""
        return self.wire is not None

    @property
    def is_away(self) -> bool:
        """Whether so many tries failed that nobody should wait for it."""
        return self.failures >= BREAKER_FAILURES

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it is waited for."""
        return not self.queue and (self.wire is None or not (self.wire.sent or self.wire.unsafe))

    def put(self, operation: Operation) -> None:
        """Send it behind all others."""
        self.queue.append(operation)
        if self._flush is None:
            if self.wire is not None:
                self._arm()
        elif len(self.queue) == BATCH_COMMANDS:
            self.flush()

    def put_first(self, operations: Sequence[Operation]) -> None:
        """Send them before all others that are not on the way yet."""
        self.queue.extendleft(reversed(operations))
        if self._flush is None and self.wire is not None:
            self._arm()

    def load_scripts(self) -> None:
        """Once more: the node has forgotten them."""
        if self._loading:
            return
        loads = [pack(("SCRIPT", "LOAD", script.source)) for script in self._plan.scripts]
        self._loading = len(loads)
        self.put_first([Operation("", load, self._loaded, "SCRIPT LOAD", kind=Kind.OWN) for load in loads])

    def reset(self, reason: str) -> None:
        """End the connection; a new one is tried for."""
        if self.wire is not None:
            self.wire.abort(reason)

    async def close(self) -> None:
        """End the connection and all tries."""
        self._disarm()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self.wire is not None:
            self.wire.abort("closed")

    def flush(self) -> None:
        """Send what is there, as far as it may go."""
        self._disarm()
        wire, queue, held = self.wire, self.queue, self._plan.held
        if wire is None:
            return
        self._flushed_s = self._loop.time()
        while (
            queue and not wire.is_blocked and len(wire.sent) + len(wire.unsafe) < BATCHES_MAX * BATCH_COMMANDS
        ):
            operations: list[Operation] = []
            packed: list[bytes] = []
            size = 0
            while queue and len(operations) < BATCH_COMMANDS and size < BATCH_BYTES_MAX:
                operation = queue.popleft()
                if held and not operation.kind and (lane := held.get(operation.key)) is not None:
                    lane.later.append(operation)
                    continue
                if operation.asking:
                    operations.append(_SILENT)
                    packed.append(ASKING)
                operations.append(operation)
                packed.append(operation.packed)
                size += len(operation.packed)
            if not operations:
                break
            if self._waits:
                operations.append(self._plan.wait)
                packed.append(self._plan.wait.packed)
            wire.write(operations, packed)
        if wire.sent and self._watch is None:
            self._watch = self._loop.call_later(self._plan.settings.command_timeout_s, self._look)

    def _arm(self) -> None:
        due_s = self._flushed_s + BATCH_S
        if due_s <= self._loop.time() or len(self.queue) >= BATCH_COMMANDS:
            self._flush = self._loop.call_soon(self.flush)
        else:
            self._flush = self._loop.call_at(due_s, self.flush)

    def _disarm(self) -> None:
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None

    def _look(self) -> None:
        """Whether what was sent is being answered."""
        self._watch = None
        if self.wire is None or not self.wire.sent:
            return
        limit_s = self._plan.settings.command_timeout_s
        left_s = self.wire.progress_s + limit_s - self._loop.time()
        if left_s <= 0:
            self.failures += 1
            self.wire.abort(f"no answer for {limit_s:g} s")
        else:
            self._watch = self._loop.call_later(left_s, self._look)

    # What the connection tells

    def settle(self, wire: Wire, operation: Operation, answer: object) -> None:
        """Take an answer that needs a closer look."""
        if operation.kind == Kind.SILENT:
            return
        if operation.kind == Kind.OWN:
            operation.then(answer)  # type: ignore[arg-type]
            return
        if operation.kind == Kind.WAIT:
            self._count_replicas(wire, answer)
            return
        lane = self._plan.held.get(operation.key)
        if lane is not None and operation is not lane.probe:
            lane.ops.append(operation)
        elif isinstance(answer, ErrorReply):
            self._link.met(self, wire, operation, str(answer))
        else:
            self.finish(wire, operation, answer)  # type: ignore[arg-type]

    def finish(self, wire: Wire, operation: Operation, answer: Answer) -> None:
        """This is its answer for good, once enough replicas have it."""
        if self._waits:
            wire.unsafe.append((operation, answer))
        else:
            self._deliver(operation, answer)

    def answered(self, wire: Wire) -> None:
        """Some answers came, and all of them are dealt with."""
        self.failures = 0
        if self.queue and self._flush is None and wire is self.wire:
            self._arm()

    def lost(self, wire: Wire, reason: str) -> None:
        """The connection has ended: what is in `sent` and `unsafe` has no answer."""
        for operation in wire.sent:
            if operation.kind == Kind.OWN:
                operation.then(ErrorReply("LOST connection"))  # type: ignore[arg-type]
        if wire is not self.wire:
            return
        self.wire = None
        self._loading = 0
        self._disarm()
        self._take_back(wire)
        if not self._ended.done():
            self._ended.set_result(reason)

    def _take_back(self, wire: Wire) -> None:
        """What had no answer that counts is sent again, in the order that it had."""
        held = self._plan.held
        back: list[Operation] = []
        before: dict[str, list[Operation]] = {}
        for operation, _ in wire.unsafe:
            lane = held.get(operation.key)
            if lane is None:
                back.append(operation)
            elif operation is lane.probe:
                lane.failed(self._loop.time(), at_once=True)
            else:
                before.setdefault(operation.key, []).append(operation)
        for key, operations in before.items():
            held[key].ops.extendleft(reversed(operations))
        for operation in wire.sent:
            lane = held.get(operation.key)
            if operation.kind > Kind.PROBE:
                continue
            if lane is None:
                back.append(operation)
            elif operation is lane.probe:
                lane.failed(self._loop.time(), at_once=True)
            else:
                lane.ops.append(operation)
        wire.sent.clear()
        wire.unsafe.clear()
        self._plan.ledger.retries += len(back)
        self.queue.extendleft(reversed(back))

    def _deliver(self, operation: Operation, answer: Answer) -> None:
        ledger = self._plan.ledger
        ledger.commands += 1
        ledger.waiting -= 1
        ledger.waiting_bytes -= len(operation.packed)
        if self._confirmed is not None and operation.writes:
            self._confirmed.note(operation)
        tell(operation, answer)
        if operation.kind == Kind.PROBE:
            self._link.advance(operation)

    def _count_replicas(self, wire: Wire, answer: object) -> None:
        if not isinstance(answer, int):
            wire.abort(f"WAIT: {answer}")
            return
        if answer >= self._waits:
            self.shortfall = ""
            while wire.unsafe:
                self._deliver(*wire.unsafe.popleft())
            return
        if not self.shortfall:
            LOG.warning(
                "%s: too few replicas have what was written: %d of %d", self.node, answer, self._waits
            )
        self.shortfall = f"{answer} of {self._waits} replicas have what was written"
        if wire.unsafe and not any(operation.kind == Kind.WAIT for operation in wire.sent):
            wire.write([self._plan.wait], [self._plan.wait.packed])

    def _loaded(self, answer: object) -> None:
        self._loading = max(0, self._loading - 1)

    # The connection

    async def _keep_connected(self) -> None:
        while True:
            try:
                self._opened(await self._open())
            except TimeoutError:  # one of OSError's, so it comes first
                tls = " (does it speak TLS?)" if self._plan.tls else ""
                self._failed(f"no connection within {CONNECT_TIMEOUT_S:g} s{tls}")
            except (OSError, NodeUnusable) as error:
                self._failed(_reason(error))
                if isinstance(error, EpochPassed):
                    self._plan.on_taken_over(TakenOver(f"stores.session: {self.node}: {error}"))
            else:
                self._failed(await self._ended)
            await asyncio.sleep(self._pause_s())

    async def _open(self) -> Wire:
        plan = self._plan
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, wire = await self._loop.create_connection(
                lambda: Wire(self, plan.ledger, plan.held, waits=bool(self._waits)),
                self.node.host,
                self.node.port,
                ssl=plan.tls,
            )
            try:
                before = self._greeting
                self._greeting = await log_in(
                    lambda words: self._ask(wire, words),
                    str(self.node),
                    plan.address,
                    plan.scripts,
                    before,
                    epoch=plan.epoch,
                )
                self._is_renewed = self._is_renewed or self._greeting.is_another(before)
            except BaseException:
                wire.abort("not logged in")
                raise
        return wire

    def _ask(self, wire: Wire, words: Sequence[Word]) -> Awaitable[object]:
        future: asyncio.Future[object] = self._loop.create_future()

        def then(answer: object) -> None:
            if not future.done():
                future.set_result(answer)

        packed = pack(words)
        wire.write([Operation("", packed, then, str(words[0]), kind=Kind.OWN)], [packed])
        return future

    def _opened(self, wire: Wire) -> None:
        self._ended = self._loop.create_future()
        if not wire.is_open:
            self._ended.set_result("closed the connection")
            return
        if self.failing:
            LOG.info("%s: is back after %.1f s", self.node, self._loop.time() - self._since_s)
        self._plan.ledger.connections += 1
        self.failing = ""
        self.wire = wire
        if self._is_renewed:
            self._is_renewed = False
            self._link.renewed(self)
        wire.confirmed = self._confirmed
        self.flush()
        self._link.came(self)

    def _failed(self, reason: str) -> None:
        self.failures += 1
        if not self.failing:
            self._since_s = self._loop.time()
            LOG.warning("%s: %s", self.node, reason)
        self.failing = reason
        self._link.went(self)

    def _pause_s(self) -> float:
        longest_s = BREAKER_PAUSE_S
        if self.is_away:
            return longest_s
        return min(longest_s, FIRST_PAUSE_S * 2.0 ** min(self.failures, 20))


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason}"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)
