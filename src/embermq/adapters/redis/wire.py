"""One connection: commands out, answers in, in order.

Writes that a server has confirmed and may lose all the same: with appendfsync everysec the power takes what it has
not synced, a failover what the replica had not heard. They are kept for a while, to be sent again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, cast

import hiredis
from msgspec import Struct

from embermq.adapters.redis.answers import Answer, ErrorReply
from embermq.ports.store_node import Node

if TYPE_CHECKING:
    from embermq.adapters.redis.channel import Channel


class Settling:
    """What servers confirmed less than `settle_s` before they last gave a sign of life, at most `bytes_max` of it.

    Each server has a window of its own: one that is stuck, or dead and not replaced yet, may lose what it confirmed
    long ago by the clock, however busy the others are.
    """

    def __init__(self, settle_s: float, bytes_max: int) -> None:
        self.settle_s = settle_s
        self._bytes_max = bytes_max
        self._windows: dict[Node, ConfirmedWrites] = {}
        self.kept_bytes = 0
        self.let_go = 0
        """Operations that had to go before their time."""

    def window(self, node: Node) -> ConfirmedWrites:
        """That of one server, over all connections to it."""
        return self._windows.setdefault(node, ConfirmedWrites(self))

    def keep(self, size: int) -> None:
        """So many bytes more, wherever; the oldest go when that is too much."""
        self.kept_bytes += size
        while self.kept_bytes > self._bytes_max:
            oldest = min(
                (window for window in self._windows.values() if window.kept),
                key=lambda window: window.kept[0][0],
            )
            self.kept_bytes -= len(oldest.kept.popleft()[1].packed)
            self.let_go += 1

    def forget(self, before_s: float) -> None:
        """What any server confirmed before that time is safe."""
        for window in self._windows.values():
            window.drop(before_s)

    def take(self, is_lost: Callable[[Operation], bool]) -> dict[str, list[Operation]]:
        """Those that a server may have lost, by key, in the order in which they were confirmed."""
        found: list[tuple[float, Operation]] = []
        for window in self._windows.values():
            found += window.take(is_lost)
        found.sort(key=lambda entry: entry[0])
        taken: dict[str, list[Operation]] = {}
        for _, operation in found:
            taken.setdefault(operation.key, []).append(operation)
        return taken


class ConfirmedWrites:
    """Writes that one server has confirmed; oldest first, with the time of the confirmation (time.monotonic)."""

    def __init__(self, settling: Settling) -> None:
        self._settling = settling
        self.kept: deque[tuple[float, Operation]] = deque()

    def note(self, operation: Operation) -> None:
        """It is confirmed now."""
        self.kept.append((time.monotonic(), operation))
        self._settling.keep(len(operation.packed))

    def lived(self, at_s: float) -> None:
        """The server was alive then: it has answered what was sent at that time."""
        self.drop(at_s - self._settling.settle_s)

    def drop(self, before_s: float) -> None:
        """What was confirmed before that time is safe."""
        kept = self.kept
        while kept and kept[0][0] < before_s:
            self._settling.kept_bytes -= len(kept.popleft()[1].packed)

    def take(self, is_lost: Callable[[Operation], bool]) -> list[tuple[float, Operation]]:
        """Part with those that may be lost."""
        taken = [entry for entry in self.kept if is_lost(entry[1])]
        if taken:
            self.kept = deque(entry for entry in self.kept if not is_lost(entry[1]))
            self._settling.kept_bytes -= sum(len(operation.packed) for _, operation in taken)
        return taken


LOG = logging.getLogger("embermq.redis")
Word = bytes | str | int
Then = Callable[[Answer], None]
_NOTHING = object()
ASKING: bytes = hiredis.pack_command((b"ASKING",))


class Kind(IntEnum):
    """What is done with an answer; all but PLAIN go the careful way."""

    PLAIN = 0
    PROBE = 1
    """The first operation of a lane: those behind it wait for its answer."""
    WAIT = 2
    """How many replicas have all that was written before."""
    OWN = 3
    """A question of the link itself; `then` sees errors too."""
    SILENT = 4
    """Its answer means nothing."""


class Operation(Struct):
    """One command on its way. `slot` is its hash slot, 0 where there is no cluster."""

    key: str
    packed: bytes
    then: Then
    what: str
    slot: int = 0
    kind: int = Kind.PLAIN
    asking: bool = False
    writes: bool = False
    """Whether it has to be done again by a server that has lost it."""


class Ledger:
    """What one link has done, counted by its connections."""

    def __init__(self) -> None:
        self.commands = 0
        self.round_trips = 0
        self.retries = 0
        self.refused = 0
        self.connections = 0
        self.waiting = 0
        self.waiting_bytes = 0


def ignore(answer: Answer) -> None:
    """Take an answer that nobody waits for."""


def pack(words: Sequence[Word]) -> bytes:
    """A command as Redis reads it."""
    packed: bytes = hiredis.pack_command(tuple(words))  # type: ignore[arg-type]
    return packed


class Wire(asyncio.Protocol):
    """Carries commands of one connection. `held` are the keys whose answers need a closer look; shared by all.

    With `waits`, answers are kept in `unsafe` until a WAIT says that enough replicas have what was written.
    """

    def __init__(self, channel: Channel, ledger: Ledger, held: Mapping[str, object], *, waits: bool) -> None:
        self._channel = channel
        self._ledger = ledger
        self._held = held
        self._waits = waits
        self.confirmed: ConfirmedWrites | None = None
        """Told of writes, unless nobody keeps them. Only once it is clear whether the server is the one that was there
        before: signs of life of another one say nothing about what the old one lost."""
        self._written: deque[tuple[int, float]] = deque()
        """What `sent_total` was after a write, and when that was; of writes that are not answered to the end."""
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._transport: asyncio.Transport | None = None
        self._reason = ""
        self.sent: deque[Operation] = deque()
        self.unsafe: deque[tuple[Operation, Answer]] = deque()
        self.sent_total = 0
        self.progress_s = 0.0
        """When something was answered last, or first sent after a pause; the loop's clock."""
        self.is_open = False
        self.is_blocked = False
        """The socket takes no more for now."""
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def write(self, operations: Sequence[Operation], packed: Sequence[bytes]) -> None:
        """Send `packed`, to which `operations` are the answers to come."""
        assert self._transport is not None
        if not self.sent:
            self.progress_s = self._loop.time()
        self.sent.extend(operations)
        self.sent_total += len(operations)
        if self.confirmed is not None:
            self._written.append((self.sent_total, time.monotonic()))
        self._ledger.round_trips += 1
        self._transport.write(b"".join(packed))

    def data_received(self, data: bytes) -> None:
        ledger, sent, held, waits = self._ledger, self.sent, self._held, self._waits
        self.progress_s = self._loop.time()
        confirmed = self.confirmed
        try:
            self._reader.feed(data)
            while (answer := self._reader.gets()) is not _NOTHING:
                operation = sent.popleft()
                if held or operation.kind or answer.__class__ is ErrorReply:
                    self._channel.settle(self, operation, answer)
                elif waits:
                    self.unsafe.append((operation, answer))
                else:
                    ledger.commands += 1
                    ledger.waiting -= 1
                    ledger.waiting_bytes -= len(operation.packed)
                    if confirmed is not None and operation.writes:
                        confirmed.note(operation)
                    tell(operation, answer)
        except (hiredis.ProtocolError, IndexError):
            self.abort("what it says is not Redis's protocol")
            return
        if confirmed is not None:
            self._tell_alive(confirmed)
        self._channel.answered(self)

    def _tell_alive(self, confirmed: ConfirmedWrites) -> None:
        """By what was answered: its answer may have waited for long, in the server's machine or in this one."""
        answered = self.sent_total - len(self.sent)
        written, at_s = self._written, 0.0
        while written and written[0][0] <= answered:
            at_s = written.popleft()[1]
        if at_s:
            confirmed.lived(at_s)

    def settled(self, mark: int) -> bool:
        """Whether the first `mark` of what was sent have an answer that counts, or never will."""
        return not self.is_open or self.sent_total - len(self.sent) - len(self.unsafe) >= mark

    def pause_writing(self) -> None:
        self.is_blocked = True

    def resume_writing(self) -> None:
        self.is_blocked = bool(self._reason)
        self._channel.answered(self)

    def abort(self, reason: str) -> None:
        """End it at once, for a reason that is told."""
        if self._transport is not None and not self._transport.is_closing():
            self._reason = self._reason or reason
            self.is_blocked = True
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        reason = self._reason or (
            f"connection lost: {getattr(exc, 'strerror', None) or exc}" if exc else "closed the connection"
        )
        self._channel.lost(self, reason)


def tell(operation: Operation, answer: Answer) -> None:
    """Hand over an answer. A fault of who gets it must not take the connection with it, and all others' answers."""
    try:
        operation.then(answer)
    except Exception:
        LOG.exception("the answer to %s of %s was not taken", operation.what, operation.key)
