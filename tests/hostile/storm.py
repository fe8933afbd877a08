"""Conversations of `mutation`, valid or mutated, against a broker: a process of its own that is told what to do.

It reads lines: `valid SECONDS RATE` and `mutated SECONDS RATE` send conversations, so many packets a second,
`save FOLDER` writes the last ones to files, `end` ends it. Each line is answered by one line of JSON. A broker that
does not end a conversation that is over is a hang; the answer names it.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
import time
from collections import deque
from pathlib import Path
from typing import cast

import uvloop
from tests.hostile.mutation import Conversation, Storyteller

from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import Disconnect
from embermq.mqtt.wire.version import ProtocolVersion

AT_ONCE = 48
"""Conversations under way at a time."""
END_S = 60.0
"""How long the broker may take to end a conversation that is over."""
KEPT = 2_000
"""Conversations that can still be saved."""
ADDRESSES = 32
"""Addresses of loopback that they come from."""
AT_RESET = struct.pack("ii", 1, 0)
GOOD_BYE = encode(Disconnect(), ProtocolVersion.V311)


class _Talk(asyncio.Protocol):
    """Sends what it has to say and waits until the broker has ended the connection."""

    def __init__(self, pieces: list[bytes], half_closes: bool) -> None:
        self._pieces = pieces
        self._half_closes = half_closes
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_RESET)
        for piece in self._pieces:
            transport.write(piece)
        if self._half_closes:
            transport.write_eof()

    def data_received(self, data: bytes) -> None:
        """What the broker answers does not matter."""

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)


class Storm:
    """Conversations from `first` on, in turn."""

    def __init__(self, port: int, teller: Storyteller, first: int) -> None:
        self._port = port
        self._teller = teller
        self._next = first
        self._last: deque[tuple[Conversation, bool]] = deque(maxlen=KEPT)
        self._hung: list[int] = []
        self._refused = 0
        self._sent = 0
        self._mutations = 0
        self._owed = 0.0

    async def blow(self, seconds: float, mutated: bool, packets_a_second: float) -> dict[str, object]:
        """A phase; what a conversation sends counts towards the rate, so both kinds of phases are the same load."""
        self._sent = self._mutations = self._refused = 0
        self._hung = []
        began_s = time.monotonic()
        tasks = [
            asyncio.create_task(self._talk_on(began_s, seconds, mutated, packets_a_second))
            for _ in range(AT_ONCE)
        ]
        await asyncio.gather(*tasks)
        return {
            "start_s": began_s,
            "end_s": time.monotonic(),
            "packets": self._sent,
            "mutations": self._mutations,
            "refused": self._refused,
            "hung": self._hung,
            "next": self._next,
        }

    async def _talk_on(self, began_s: float, seconds: float, mutated: bool, rate: float) -> None:
        while True:
            passed_s = time.monotonic() - began_s
            if passed_s > seconds:
                return
            ahead_s = self._sent / rate - passed_s
            if ahead_s > 0:
                await asyncio.sleep(ahead_s)
                continue
            conversation = self._teller.tell(self._next)
            self._next += 1
            self._sent += len(conversation.valid)
            self._mutations += conversation.mutations if mutated else 0
            await self.talk(conversation, mutated)

    async def talk(self, conversation: Conversation, mutated: bool) -> None:
        """Have one conversation."""
        self._last.append((conversation, mutated))
        number = conversation.number
        packets = list(conversation.mutated if mutated else conversation.valid)
        ends = mutated and conversation.ends
        half_closes = mutated and conversation.waits
        if not ends and not half_closes:
            packets.append(GOOD_BYE)
        pieces = [b"".join(packets)]
        if number % 4 == 0 and len(pieces[0]) > 1:  # over several reads
            cut = 1 + number % (len(pieces[0]) - 1)
            pieces = [pieces[0][:cut], pieces[0][cut:]]
        talk = _Talk(pieces, half_closes)
        source = f"127.0.1.{1 + number % ADDRESSES}"
        try:
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: talk, "127.0.0.1", self._port, local_addr=(source, 0)
            )
        except OSError:
            self._refused += 1
            return
        try:
            await asyncio.wait_for(talk.over, END_S)
        except TimeoutError:
            self._hung.append(number)
            transport.abort()

    def save(self, folder: Path) -> int:
        """Write the last conversations, one file each, named in their order; returns how many."""
        folder.mkdir(parents=True, exist_ok=True)
        for conversation, mutated in self._last:
            told = conversation.mutated if mutated else conversation.valid
            (folder / f"{conversation.number:09}.mqtt").write_bytes(b"".join(told))
        return len(self._last)


async def _main(port: int, seed: int, first: int) -> None:
    storm = Storm(port, Storyteller(seed), first)
    loop = asyncio.get_running_loop()
    while True:
        words = (await loop.run_in_executor(None, sys.stdin.readline)).split()
        if not words or words[0] == "end":
            return
        answer: object
        if words[0] == "save":
            answer = storm.save(Path(words[1]))
        else:
            answer = await storm.blow(float(words[1]), words[0] == "mutated", float(words[2]))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(_main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
