"""Messages of QoS 0 on their way to the other nodes of a cluster: no log has them, so they go from node to node.

As always with QoS 0, what cannot go now is dropped: while a node is away or too slow, and while it is looked for.
A record without a byte asks whether the node is there; it answers, behind all that came before, with its figures. One
that does not answer in time is called anew, which has a deadline too: until it answers there is no connection to it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
from msgspec import Struct, field

from embermq.edge.node_link import (
    SIZE_BYTES,
    AnswerReader,
    Homes,
    Messages,
    call_node,
    encode_introduction,
)
from embermq.edge.settings import Address
from embermq.formats.log_record import encode_record
from embermq.model.durations import Durations
from embermq.model.message import Message

LOG = logging.getLogger("embermq")
RETRY_S = 0.5
ANSWER_S = 30.0
"""How long an answer may take, for which a busy node takes `UNSENT_BYTES_MAX` of small messages first."""
UNSENT_BYTES_MAX = 8 * 1024 * 1024
"""What may wait for one node; past it messages for it are dropped."""

Moved = Callable[[int, Address], object]
"""Told of a slot and the node that had it."""
ARE_YOU_THERE = bytes(SIZE_BYTES)


class Far(Struct, eq=False):
    """The node of a slot. `sent` messages went to it, of `sent_bytes`. `node` is the one that was heard of last, at
    `heard_s`; `asked_s` is when it was asked what it has not answered yet. `away`: how long nothing was heard until the
    slot had a node again; `failovers` times it was another one. `figures` are those it has told of itself. `given_up`:
    how often a connection to it was ended since no answer came in time, or one that cannot be."""

    transport: asyncio.Transport | None = None
    sent: int = 0
    sent_bytes: int = 0
    node: Address | None = None
    heard_s: float = 0.0
    asked_s: float | None = None
    round_trips: Durations = field(default_factory=Durations)
    away: Durations = field(default_factory=Durations)
    failovers: int = 0
    given_up: int = 0
    figures: Mapping[str, int] = {}

    @property
    def waiting_bytes(self) -> int | None:
        """What it has not read yet; None while there is no connection to it."""
        far = self.transport
        return None if far is None or far.is_closing() else far.get_write_buffer_size()

    def begins(self, transport: asyncio.Transport, node: Address, now_s: float) -> None:
        """There is a connection to it."""
        self.transport, self.asked_s, self.figures = transport, None, {}
        if self.node is not None:
            self.away.add(now_s - self.heard_s)
            self.failovers += node != self.node
        self.node, self.heard_s = node, now_s

    def ask(self, now_s: float) -> None:
        """Whether it is there, unless it is asked already."""
        if self.asked_s is None and self.transport is not None:
            self.asked_s = now_s
            self.transport.write(ARE_YOU_THERE)

    def is_overdue(self, now_s: float) -> bool:
        """Whether it owes an answer for longer than it may take."""
        return self.asked_s is not None and now_s - self.asked_s > ANSWER_S

    def give_up(self, why: str) -> None:
        """Another connection is needed."""
        self.given_up += 1
        LOG.warning("the connection to node %s is ended and made anew: %s", self.node, why)

    def answered(self, told: bytes, now_s: float) -> None:
        """It is there."""
        if self.asked_s is not None:
            self.round_trips.add(now_s - self.asked_s)
        self.asked_s, self.heard_s = None, now_s
        try:
            self.figures = msgspec.json.decode(told, type=dict[str, int])
        except msgspec.MsgspecError:  # a later version
            self.figures = {}

    def ended(self, now_s: float | None) -> None:
        """The connection is over: by what the node did now, or None when it had said nothing any more."""
        self.transport = None
        if now_s is not None:
            self.heard_s = now_s


class NodeSender:
    """To the nodes of these slots, one connection each."""

    def __init__(self, homes: Homes, slots: Sequence[int], moved: Moved) -> None:
        self._homes = homes
        self._moved = moved
        self._slots = slots
        self.far = {slot: Far() for slot in slots}
        self._out: list[bytes] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.dropped = 0
        """Messages that did not go to a node, each node counted."""

    def start(self) -> None:
        """Look for the nodes, on the running loop."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._keep_connected(slot)) for slot in self._slots]

    def send(self, message: Message) -> None:
        """With all others of this turn of the event loop."""
        record = encode_record(message, b"")
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out += (len(record).to_bytes(SIZE_BYTES), record)

    def _flush(self) -> None:
        out, self._out = self._out, []
        packed = b"".join(out)
        for far in self.far.values():
            waiting = far.waiting_bytes
            if waiting is None or far.transport is None or waiting > UNSENT_BYTES_MAX:
                self.dropped += len(out) // 2
            else:
                far.transport.write(packed)
                far.sent += len(out) // 2
                far.sent_bytes += len(packed)

    def figures(self) -> list[Mapping[str, int] | None]:
        """What each node has told of itself; None for one to which there is no connection."""
        return [None if far.waiting_bytes is None else far.figures for far in self.far.values()]

    async def _keep_connected(self, slot: int) -> None:
        before: Address | None = None
        here = self.far[slot]
        while True:
            address = self._homes.address_of(slot)
            if before is not None and address != before:
                self._moved(slot, before)
            before = address
            if address is not None:
                ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                try:
                    far, nonce = await call_node(address, self._homes.tls, partial(_Ending, here, ended))
                    far.write(encode_introduction(Messages(slot=slot), nonce, self._homes.secret()))
                    here.begins(far, address, time.monotonic())
                    while not ended.done() and self._homes.address_of(slot) == address:
                        if here.is_overdue(time.monotonic()):
                            here.give_up(f"it has not answered for {ANSWER_S:g} s")
                            break
                        here.ask(time.monotonic())
                        await asyncio.wait([ended], timeout=RETRY_S)
                    here.ended(time.monotonic() if ended.done() else None)
                    far.abort()  # one that stands still says nothing, and another one has its slot by now
                except (OSError, EOFError):
                    pass  # its clients hear of it when they are looked for
                if self._homes.address_of(slot) != address:
                    continue
            await asyncio.sleep(RETRY_S)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for far in self.far.values():
            if far.transport is not None:
                far.transport.close()


class _Ending(AnswerReader):
    """Tells of answers, and of the end of the connection."""

    def __init__(self, far: Far, ended: asyncio.Future[None], nonce: asyncio.Future[bytes]) -> None:
        super().__init__(nonce)
        self._far = far
        self._over = ended

    def answered(self, answer: bytes) -> None:
        self._far.answered(answer, time.monotonic())

    def failed(self, why: str) -> None:
        self._far.give_up(why)
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._end()

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)
