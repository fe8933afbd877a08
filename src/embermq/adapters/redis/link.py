"""The executor of session stores: what is asked goes to Redis in batches, in order per client, until it is answered."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct

from embermq.adapters.redis.address import RedisAddress, RedisSettings
from embermq.adapters.redis.answers import Answer, Refused, Sort, sort_error
from embermq.adapters.redis.channel import Channel, Plan
from embermq.adapters.redis.lane import HeldKeys, Lane
from embermq.adapters.redis.routes import ClusterRoutes, OneNode, Routes
from embermq.adapters.redis.script import Script
from embermq.adapters.redis.slots import named_in, slot_of
from embermq.adapters.redis.wire import Kind, Operation, Then, Wire, Word, pack
from embermq.ports.errors import TakenOver
from embermq.ports.store_address import tls_context

LOG = logging.getLogger("embermq.redis")
SWEEP_S = 0.005
SWEEP_MANY_S = 0.05
MANY = 100
COMPLAIN_S = 5.0
"""Between two lines of the log about operations that are refused for good."""


class LinkStatistics(Struct, frozen=True):
    """Counts since the start, and what waits now."""

    commands: int
    """Operations that were answered for good."""
    round_trips: int
    """Batches that were sent."""
    retries: int
    """Operations that were sent again."""
    refused: int
    """Operations that Redis will never do."""
    connections: int
    """How often a connection was opened and logged in."""
    waiting: int
    """Operations without an answer, now."""
    waiting_bytes: int
    """What they have as commands."""
    resent: int
    """Operations that were confirmed, and sent again to a server that may have lost them."""
    settling_let_go: int
    """Operations that were confirmed and not kept as long as they should be, for want of room."""


class RedisLink:
    """All that the broker asks of Redis while it runs; used on the event loop's thread only.

    Guarantees. Operations of one `key` (say always the same text for one client; all that it touches has the same hash
    tag) take effect in the order in which they are asked, and `then` is called in this order, once each, on the loop's
    thread and never from within the call. An operation may take effect more than once: when no answer came, or when one
    before it with the same key has to be repeated, it is sent again with all of that key that follow. The last times
    are in order, and no earlier one comes after them: what a server may still hold of a connection that was given up is
    discarded before the next one is used. So an operation must be safe to repeat, alone and in such a row. Reads are
    operations like others. Different keys have no order.

    Nothing fails for good but what Redis itself will never do (wrong type, an error in a script): `then(Refused)`,
    logged and counted. All else is tried until it succeeds. While a slot moves between nodes, a script may end in the
    middle (it meets keys that are gone already) and is run again.

    What waits has no limit here: `waiting_bytes` is for those who ask. Raises ValueError, naming the setting, when the
    certificates cannot be used.
    """

    prefix = ""
    """How all keys begin that are ours."""

    def __init__(
        self, address: RedisAddress, settings: RedisSettings, scripts: Sequence[Script] = ()
    ) -> None:
        self._plan = Plan(
            address, settings, scripts, tls_context(address, "stores.session") if address.tls else None
        )
        self._ledger = self._plan.ledger
        self._held = self._plan.held
        self._routes: Routes
        self.held_keys = HeldKeys()
        """What is asked of them waits: it counts as asked, so that whoever waits for it waits longer."""
        self.prefix = address.prefix
        self._slotted = address.cluster
        self._sweep: asyncio.TimerHandle | None = None
        self._told: dict[str, str] = {}
        self._resending = 0
        self._resent_s = float("-inf")
        self._resent = 0
        self.on_lost: Callable[[], None] = lambda: None
        """Called when a server turns out to have been restarted or replaced, before anything new is sent to it."""
        self._complained_s = float("-inf")

    def start(self, epoch: int = 0, on_taken_over: Callable[[TakenOver], object] = lambda _: None) -> None:
        """Begin to connect, on the running loop, as the broker with this epoch. What is asked waits for the connection.
        `on_taken_over` is told when a server knows a higher epoch: nothing takes effect there any more."""
        self._plan.epoch, self._plan.on_taken_over = epoch, on_taken_over
        self._loop = asyncio.get_running_loop()
        kind = ClusterRoutes if self._plan.address.cluster else OneNode
        self._routes = kind(self._plan, self)

    async def close(self, *, drain_s: float = 0.0) -> bool:
        """Wait up to `drain_s` for what was asked, then end. Returns whether all was answered; of what was not, `then`
        is never called."""
        end_s = self._loop.time() + drain_s
        while self._ledger.waiting and self._loop.time() < end_s:  # noqa: ASYNC110 - nobody tells of the last answer
            await asyncio.sleep(SWEEP_S)
        if self._sweep is not None:
            self._sweep.cancel()
        await self._routes.close()
        return not self._ledger.waiting

    def ask(self, key: str, script: Script, keys: Sequence[Word], args: Sequence[Word], then: Then) -> None:
        """Run a script, which was given to the constructor."""
        packed = pack((b"EVALSHA", script.sha, len(keys), *keys, *args))
        self._put(key, packed, script.name, then, writes=script.writes)

    def command(self, key: str, words: Sequence[Word], then: Then) -> None:
        """Any other single command, in the same order: `("HGETALL", "s:s:{pump-7}")`."""
        self._put(key, pack(words), str(words[0]), then)

    def _put(self, key: str, packed: bytes, what: str, then: Then, *, writes: bool = False) -> None:
        assert key.startswith(self.prefix)
        ledger = self._ledger
        ledger.waiting += 1
        ledger.waiting_bytes += len(packed)
        slot = slot_of(key) if self._slotted else 0
        operation = Operation(key, packed, then, what, slot, writes=writes)
        if key in self.held_keys:
            self.held_keys.put(key, partial(self._routes.put, operation))
        else:
            self._routes.put(operation)

    @property
    def epoch(self) -> int:
        """That of the broker; 0 when no other one can be told to be newer."""
        return self._plan.epoch

    @property
    def is_cluster(self) -> bool:
        """Whether keys are spread over several servers."""
        return self._plan.address.cluster

    @property
    def settle_s(self) -> float:
        """What was confirmed so long ago is taken for safe."""
        return self._plan.settings.settle_s

    def forget_settled(self, before_s: float) -> None:
        """What was confirmed before that time (time.monotonic) is not to be sent again."""
        self._plan.settling.forget(before_s)

    @property
    def is_resending(self) -> bool:
        """Whether something that a server has lost is sent again, and was not confirmed `settle_s` ago yet: it may be
        lost once more, and is sent once more then."""
        return self._resending > 0 or time.monotonic() < self._resent_s + self.settle_s

    @property
    def waiting_bytes(self) -> int:
        """See LinkStatistics."""
        return self._ledger.waiting_bytes

    @property
    def failing(self) -> str:
        """Why something waits longer than it should, without credentials, or nothing while all is well."""
        return self._routes.failing or next(iter(self._told.values()), "")

    def server_of(self, key: str) -> object:
        """Stands for the server that has this key now."""
        return self._routes.channel_of(slot_of(key) if self._slotted else 0)

    def is_away(self, key: str) -> bool:
        """Whether the node that has this key is known not to answer: what is asked now would wait."""
        channel = self._routes.channel_of(slot_of(key) if self._slotted else 0)
        return channel is None or channel.is_away

    def statistics(self) -> LinkStatistics:
        ledger = self._ledger
        return LinkStatistics(
            commands=ledger.commands,
            round_trips=ledger.round_trips,
            retries=ledger.retries,
            refused=ledger.refused,
            connections=ledger.connections,
            waiting=ledger.waiting,
            waiting_bytes=ledger.waiting_bytes,
            resent=self._resent,
            settling_let_go=self._plan.settling.let_go,
        )

    # What the channels meet

    def met(self, channel: Channel, wire: Wire, operation: Operation, text: str) -> None:
        """An operation was answered with an error."""
        sort = sort_error(text)
        if sort is Sort.BROKEN:
            self._refuse(channel, wire, operation, text)
            return
        lane = self._held.get(operation.key)
        if lane is None:
            lane = self._held[operation.key] = Lane(wire)
            lane.ops.append(operation)
        lane.failed(self._loop.time(), at_once=sort in (Sort.MOVED, Sort.ASK, Sort.SCRIPT))
        lane.ask = named_in(text, channel.node) if sort is Sort.ASK else None
        lane.trouble = text if sort is Sort.TELL else ""
        if lane.trouble:
            self._tell(lane.trouble)
        if sort is Sort.SCRIPT:
            channel.load_scripts()
        elif sort is Sort.AWAY:
            channel.reset(text)
        elif sort in (Sort.MOVED, Sort.LATER):
            self._routes.refresh(channel)
        self._arm()

    def advance(self, probe: Operation) -> None:
        """The first operation of a lane is done."""
        lane = self._held[probe.key]
        lane.ops.popleft()
        lane.probe = None
        lane.tries = 0
        lane.trouble = ""
        stepwise = lane.ask is not None
        lane.ask = None
        lane.due_s = 0.0
        if not stepwise or not (lane.ops or lane.later):
            self._dissolve(probe.key, lane)

    def renewed(self, channel: Channel) -> None:
        """It is connected, and the server was restarted meanwhile, or is another one."""
        self._send_again(lambda operation: self._routes.channel_of(operation.slot) is channel)

    def moved(self, slots: set[int]) -> None:
        """Another node has these slots now: promoted, it may not have heard of what was written last."""
        self._send_again(lambda operation: operation.slot in slots)

    def _send_again(self, is_lost: Callable[[Operation], bool]) -> None:
        """Before anything newer of the same key."""
        self.on_lost()
        for key, operations in self._plan.settling.take(is_lost).items():
            channel = self._routes.channel_of(operations[0].slot)
            if channel is None:
                continue
            lane = self.hold(operations[0], channel)
            again = operations if lane.probe is None else [*operations, lane.probe]
            copies = [
                Operation(key, one.packed, self._was_sent_again, one.what, one.slot, writes=True)
                for one in again
            ]
            lane.put_before(copies)
            ledger = self._ledger
            ledger.waiting += len(copies)
            ledger.waiting_bytes += sum(len(one.packed) for one in copies)
            self._resending += len(copies)
            self._resent += len(copies)

    def _was_sent_again(self, answer: Answer) -> None:
        self._resending -= 1
        self._resent_s = time.monotonic()

    def came(self, channel: Channel) -> None:
        """It is connected, and logged in."""
        self._routes.came(channel)

    def went(self, channel: Channel) -> None:
        """It is not connected any more, or could not be."""
        self._routes.went(channel)

    # Lanes

    def _arm(self) -> None:
        if self._sweep is None and self._held:
            pause_s = SWEEP_S if len(self._held) < MANY else SWEEP_MANY_S
            self._sweep = self._loop.call_later(pause_s, self._start_due)

    def _start_due(self) -> None:
        """Try the first operation of every lane whose time has come."""
        self._sweep = None
        now_s = self._loop.time()
        for key, lane in list(self._held.items()):
            if lane.is_due(now_s):
                self._try(key, lane)
        troubles = {_first_word(lane.trouble) for lane in self._held.values() if lane.trouble}
        for word in [word for word in self._told if word not in troubles]:
            del self._told[word]
            LOG.info("redis: no %s any more", word)
        self._arm()

    def _try(self, key: str, lane: Lane) -> None:
        lane.gather()
        if not lane.ops:
            self._dissolve(key, lane)
            return
        probe = lane.ops[0]
        channel = self._routes.channel_at(lane.ask) if lane.ask else None
        probe.asking = channel is not None
        channel = channel or self._routes.channel_of(probe.slot)
        if channel is None:
            return
        probe.kind = Kind.PROBE
        lane.probe = probe
        self._ledger.retries += 1
        channel.put_first([probe])

    def _dissolve(self, key: str, lane: Lane) -> None:
        """All goes its usual way again; what was asked meanwhile is behind it in the queue."""
        del self._held[key]
        lane.gather()
        channel = self._routes.channel_of(lane.ops[0].slot) if lane.ops else None
        if channel is not None:
            self._ledger.retries += len(lane.ops)
            channel.put_first(lane.ops)

    def hold(self, operation: Operation, channel: Channel) -> Lane:
        """The lane of an operation that is, or was, on its way by a channel where its keys are no more."""
        lane = self._held.get(operation.key)
        if lane is None:
            lane = self._held[operation.key] = Lane(channel.wire)
            self._arm()
        return lane

    def _refuse(self, channel: Channel, wire: Wire, operation: Operation, text: str) -> None:
        self._ledger.refused += 1
        now_s = self._loop.time()
        if now_s >= self._complained_s + COMPLAIN_S:
            self._complained_s = now_s
            LOG.error("redis refuses %s of %r for good: %s", operation.what, operation.key, text)
        channel.finish(wire, operation, Refused(text))

    def _tell(self, text: str) -> None:
        word = _first_word(text)
        if word not in self._told:
            LOG.error("redis: %s", text)
        self._told[word] = text


def _first_word(text: str) -> str:
    return text.partition(" ")[0]
