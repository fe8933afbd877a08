"""Clients that do nothing wrong while others misbehave, in a process of their own, and how long they had to wait.

Each publishes to a topic of its own, once an interval, and waits for the message to come back. A round trip counts from
the moment at which it was due: a pause of the broker is seen by every round that falls into it. At QoS 1 it includes
the commit of the message, at QoS 0 it is a matter of the event loop alone.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import cast

import uvloop
from tests.support.child_module import command
from tests.support.measuring import judge

from embermq.mqtt.wire.decoder import Decoder, Role
from embermq.mqtt.wire.encoder import encode, puback
from embermq.mqtt.wire.packets import Connack, Connect, Packet, Publish, Suback, Subscribe, Subscription
from embermq.mqtt.wire.version import ProtocolVersion

CLIENTS = 4
INTERVAL_S = 0.01
ANSWER_S = 60.0
V5 = ProtocolVersion.V5


@dataclass(frozen=True, slots=True)
class Waits:
    """Round trips of some stretch of time."""

    milliseconds: list[float]
    """Sorted."""

    def __post_init__(self) -> None:
        self.milliseconds.sort()

    def quantile(self, share: float) -> float:
        """Milliseconds within which that share of the round trips was."""
        return self.milliseconds[min(len(self.milliseconds) - 1, int(len(self.milliseconds) * share))]

    @property
    def longest(self) -> float:
        return self.milliseconds[-1]

    def __str__(self) -> str:
        return (
            f"{len(self.milliseconds)} round trips, ms: p50 {self.quantile(0.5):.1f}, "
            f"p99 {self.quantile(0.99):.1f}, longest {self.longest:.1f}"
        )


class Bystanders:
    """A context: they go round while it is open. Afterwards `waits` tells of them; losing one fails."""

    def __init__(
        self, port: int, *, clients: int = CLIENTS, interval_s: float = INTERVAL_S, qos: int = 1
    ) -> None:
        words = command("tests.hostile.bystanders", port, clients, interval_s, qos)
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._rounds: list[tuple[float, float]] = []

    def __enter__(self) -> Bystanders:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", "no bystander could enter"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            found = self._process.communicate(b"end\n", timeout=2 * ANSWER_S)[0]
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise
        if kind is None:
            assert self._process.returncode == 0, "a bystander lost its connection or waits for an answer"
            self._rounds = json.loads(found)

    def waits(self, start_s: float = 0.0, end_s: float = float("inf")) -> Waits:
        """Of the rounds that were due between two times of `time.monotonic`."""
        return self.waits_in([(start_s, end_s)])

    def waits_in(self, stretches: Sequence[tuple[float, float]]) -> Waits:
        """The same for several stretches of time."""
        found = [
            waited_ms
            for due_s, waited_ms in self._rounds
            if any(start_s <= due_s < end_s for start_s, end_s in stretches)
        ]
        return Waits(found)


@contextmanager
def undisturbed(port: int, longest_ms: float, what: str) -> Iterator[None]:
    """Bystanders while the context is open, of whom none may be lost; `make perf` judges how long they had to wait. The
    figures are written to the output, which `pytest -rP` shows."""
    with Bystanders(port) as bystanders:
        yield
    waits = bystanders.waits()
    sys.stdout.write(f"{what}: {waits}\n")
    judge(waits.longest, longest_ms, f"{what}, ms of the longest")


class _Bystander(asyncio.Protocol):
    def __init__(self, number: int, qos: int) -> None:
        self._topic = f"bystander/{number}"
        self._qos = qos
        self._decoder = Decoder(Role.CLIENT, version=V5)
        self._transport: asyncio.Transport | None = None
        self._entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._back: asyncio.Future[None] | None = None
        self.rounds: list[tuple[float, float]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        connect = Connect(self._topic, V5, True, 0, None, None, None, None)
        subscribe = Subscribe(1, (Subscription(self._topic, 1),))
        transport.write(encode(connect, V5) + encode(subscribe, V5))

    def data_received(self, data: bytes) -> None:
        for packet in self._decoder.feed(data):
            self._take(packet)

    def _take(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            assert self._transport is not None
            if packet.qos:
                self._transport.write(puback(packet.packet_id))
            if self._back is not None and not self._back.done():
                self._back.set_result(None)
        elif isinstance(packet, Connack):
            assert packet.reason_code == 0, packet
        elif isinstance(packet, Suback):
            self._entered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        for future in (self._entered, self._back):
            if future is not None and not future.done():
                future.set_exception(ConnectionError(f"{self._topic} lost its connection: {exc}"))

    async def go_round(self, first_s: float, interval_s: float, end: asyncio.Event) -> None:
        """Until `end`, one after the other; what is late begins at once."""
        await self._entered
        assert self._transport is not None
        due_s = first_s
        packet_id = 0
        while not (self.rounds and end.is_set()):
            await asyncio.sleep(due_s - time.monotonic())
            packet_id = packet_id % 60_000 + 1
            self._back = asyncio.get_running_loop().create_future()
            message = Publish(self._topic, b"x" * 32, self._qos, packet_id if self._qos else 0)
            self._transport.write(encode(message, V5))
            await asyncio.wait_for(self._back, ANSWER_S)
            self.rounds.append((due_s, (time.monotonic() - due_s) * 1000))
            due_s += interval_s
        self._transport.abort()


async def _main(port: int, clients: int, interval_s: float, qos: int) -> None:
    loop = asyncio.get_running_loop()
    end = asyncio.Event()
    bystanders = [_Bystander(number, qos) for number in range(clients)]
    for bystander in bystanders:
        await loop.create_connection(lambda made=bystander: made, "127.0.0.1", port)  # type: ignore[misc]
    begin_s = time.monotonic() + 0.05
    rounds = [
        loop.create_task(bystander.go_round(begin_s + interval_s * number / clients, interval_s, end))
        for number, bystander in enumerate(bystanders)
    ]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    loop.add_reader(sys.stdin.fileno(), end.set)
    await asyncio.gather(*rounds)
    sys.stdout.write(json.dumps([found for bystander in bystanders for found in bystander.rounds]))


if __name__ == "__main__":
    uvloop.run(_main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))
