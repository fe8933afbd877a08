"""Messages of QoS 0 on their way to the other nodes of a cluster: no log has them, so they go from node to node.

As always with QoS 0, what cannot go now is dropped: while a node is away or too slow, and while it is looked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from embermq.edge.node_link import SIZE_BYTES, Homes, Messages, NonceReader, call_node, encode_introduction
from embermq.edge.settings import Address
from embermq.formats.log_record import encode_record
from embermq.model.message import Message

RETRY_S = 0.5
UNSENT_BYTES_MAX = 8 * 1024 * 1024
"""What may wait for one node; past it messages for it are dropped."""

Moved = Callable[[int, Address], object]
"""Told of a slot and the node that had it."""


class NodeSender:
    """To the nodes of these slots, one connection each."""

    def __init__(self, homes: Homes, slots: Sequence[int], moved: Moved) -> None:
        self._homes = homes
        self._moved = moved
        self._slots = slots
        self._far: dict[int, asyncio.Transport] = {}
        self._out: list[bytes] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.dropped = 0
        """Messages that did not go to a node, each node counted."""
        self.sent: dict[int, tuple[int, int]] = dict.fromkeys(slots, (0, 0))
        """By slot the messages that went to its node, and their bytes."""

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
        for slot in self._slots:
            far = self._far.get(slot)
            if far is None or far.is_closing() or far.get_write_buffer_size() > UNSENT_BYTES_MAX:
                self.dropped += len(out) // 2
            else:
                far.write(packed)
                messages, size = self.sent[slot]
                self.sent[slot] = messages + len(out) // 2, size + len(packed)

    def waiting_bytes(self, slot: int) -> int | None:
        """What the node of a slot has not read yet; None while there is no connection to it."""
        far = self._far.get(slot)
        return None if far is None or far.is_closing() else far.get_write_buffer_size()

    async def _keep_connected(self, slot: int) -> None:
        before: Address | None = None
        while True:
            address = self._homes.address_of(slot)
            if before is not None and address != before:
                self._moved(slot, before)
            before = address
            if address is not None:
                ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                try:
                    far, nonce = await call_node(address, self._homes.tls, partial(_Ending, ended))
                    far.write(encode_introduction(Messages(slot=slot), nonce, self._homes.secret()))
                    self._far[slot] = far
                    while not ended.done() and self._homes.address_of(slot) == address:
                        await asyncio.wait([ended], timeout=RETRY_S)
                    far.abort()  # one that stands still says nothing, and another one has its slot by now
                except (OSError, EOFError):
                    pass  # its clients hear of it when they are looked for
                self._far.pop(slot, None)
                if self._homes.address_of(slot) != address:
                    continue
            await asyncio.sleep(RETRY_S)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for far in self._far.values():
            far.close()


class _Ending(NonceReader):
    """Tells of the end of the connection; nothing is answered."""

    def __init__(self, ended: asyncio.Future[None], nonce: asyncio.Future[bytes]) -> None:
        super().__init__(nonce)
        self._over = ended

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self._over.done():
            self._over.set_result(None)
