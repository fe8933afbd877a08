"""What one message costs the broker without sockets and disk: `python -m benchmarks.in_process`.

The broker is whole: connections, tick, log and checkpoint, with `log.durability = os` in a directory of memory. Only
the network is played: clients hand over bytes and keep what they are sent. The processor's time is counted while the
broker works, not while a client makes its answers. A round is short, and the least of many stands in front, since
whatever else a machine does can only add to it; the median stands beside it.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
import uvloop
from msgspec.structs import replace

from benchmarks.machine import describe
from embermq.access.authentication.gate import Exchange, Visitor
from embermq.access.authentication.identity import Identity
from embermq.adapters.sqlite.settings import LogSettings
from embermq.app.config import Settings
from embermq.app.embedded import open_embedded
from embermq.edge.clock import BrokerClock
from embermq.edge.connection import Connection
from embermq.edge.connection_limits import Admission, ConnectionSlot
from embermq.edge.listener_context import ListenerContext
from embermq.edge.listener_settings import compose_listeners
from embermq.edge.settings import ClientSettings, ListenerSettings, TlsSettings, WebSocketSettings
from embermq.edge.tick_loop import TickLoop
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.decoder import Decoder, Role
from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import (
    Connect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion

V5 = ProtocolVersion.V5
PAIRS = 20
MESSAGES = 20
"""Of a publisher in a round, in one read."""
STORED_ROUNDS = 5
"""Rounds that gather for an absent client before it comes."""
RECEIVERS = 500
FANNED_OUT = 5
"""Messages of a round to all of these."""
CONNECTS = 200
PAYLOAD = b"x" * 64
LARGE_MESSAGES = 3
"""In one read, as a loop takes them from a socket at most."""
LARGE_PAYLOAD = b"x" * 65_536
PATIENCE = 2_000
"""Exchanges after which something must have been lost."""
WARM_UP = 5
"""Rounds that do not count."""
IN_MEMORY = Path("/dev/shm")

Work = AsyncIterator[tuple[str, int]]
"""What has been done, and how many messages it was; the time since the one before counts for it."""


class Everybody:
    """A gate that asks nothing."""

    def needs_check(self, packet: Connect, visitor: Visitor) -> bool:
        return False

    def admit(self, packet: Connect, visitor: Visitor) -> Identity:
        return Identity("", ClientType.DEVICE, "")

    async def check(self, packet: Connect, visitor: Visitor) -> Identity:
        return self.admit(packet, visitor)

    def exchange(self, method: str, client_id: str, visitor: Visitor) -> Exchange | None:
        return None


class PlayedTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes | bytearray | memoryview] = []
        self.is_over = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.sent += list_of_data

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing waits."""

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self.is_over

    def close(self) -> None:
        self.is_over = True

    abort = close

    def pause_reading(self) -> None:
        """Reads come by hand."""

    resume_reading = pause_reading


class PlayedClock(BrokerClock):
    """Goes on only while the broker works: a machine that is busy with other things makes nothing late."""

    def __init__(self) -> None:
        super().__init__()
        self._began_ms = super().now_ms()
        self.worked_ns = 0

    def now_ms(self) -> int:
        return self._began_ms + self.worked_ns // 1_000_000


class Client:
    """A client's end; it answers whatever has to be answered."""

    def __init__(self, door: ListenerContext, client_id: str, *, is_kept: bool = True) -> None:
        self._door = door
        self._hello = encode(
            Connect(
                client_id,
                V5,
                clean_start=not is_kept,
                properties=Properties(session_expiry_interval=3600) if is_kept else None,
            ),
            V5,
        )
        self.messages = 0
        self.prepares()

    def prepares(self) -> None:
        """Make its own side of a connection, which costs the broker nothing."""
        self.transport = PlayedTransport()
        self._decoder = Decoder(Role.CLIENT, packet_bytes_max=1 << 20, version=V5)

    def connects(self) -> None:
        self._connection = Connection(self._door, ConnectionSlot())
        self._connection.connection_made(self.transport)
        self.says(self._hello)

    def leaves(self) -> None:
        self.transport.close()
        self._connection.connection_lost(None)

    def says(self, data: bytes) -> None:
        self._connection.data_received(data)

    def answers(self) -> bytes:
        """To all that has come since it was asked last."""
        data = b"".join(self.transport.sent)
        self.transport.sent.clear()
        answers: list[Packet] = []
        for packet in self._decoder.feed(data):
            if isinstance(packet, Publish):
                self.messages += 1
                if packet.qos:
                    answers.append((Puback if packet.qos == 1 else Pubrec)(packet.packet_id))
            elif isinstance(packet, Pubrec):
                answers.append(Pubrel(packet.packet_id))
            elif isinstance(packet, Pubrel):
                answers.append(Pubcomp(packet.packet_id))
        if self._decoder.error is not None:
            raise self._decoder.error
        return b"".join(encode(answer, V5) for answer in answers)


class Bench:
    """A broker, and the time that it takes."""

    def __init__(self, data_dir: Path) -> None:
        loop = asyncio.get_running_loop()
        settings = replace(Settings(), data_dir=str(data_dir), log=LogSettings(durability="os"))
        self.opened = open_embedded(data_dir, settings, loop.call_soon)
        self.state = self.opened.broker.state
        self.clock = PlayedClock()
        self.ticks = TickLoop(
            self.opened.broker,
            self.opened.delivery,
            self.opened.ticks,
            linger_ms=0.0,
            poll_ms=20,
            clock=self.clock,
        )
        (listener,) = compose_listeners(
            ListenerSettings(mqtt="127.0.0.1:0", http=(), grpc=()), {}, TlsSettings(), WebSocketSettings()
        )
        admission = Admission(ClientSettings(), self.state.counters)
        self.door = ListenerContext(
            self.opened.broker, self.ticks, Everybody(), listener, admission, connect_timeout_s=30.0
        )
        self.spent_ns = 0
        self.ticks.start_polling()

    def client(self, name: str, *, is_kept: bool = True, topic: str = "", qos: int = 1) -> Client:
        """A client that is connected; with a topic it has subscribed to it."""
        client = Client(self.door, name, is_kept=is_kept)
        client.connects()
        if topic:
            client.says(encode(Subscribe(1, (Subscription(topic, qos),)), V5))
        return client

    async def does(self, *doings: Callable[[], None]) -> None:
        """Do this and let the broker finish it, with the clock running."""
        began_ns = time.process_time_ns()
        for doing in doings:
            doing()
        await asyncio.sleep(0)
        for _ in range(4):
            await asyncio.sleep(0)
        worked_ns = time.process_time_ns() - began_ns
        self.spent_ns += worked_ns
        self.clock.worked_ns += worked_ns

    async def settle(self, clients: Sequence[Client]) -> None:
        """Let the broker finish what it has begun."""
        for _ in range(20):
            await self.does(lambda: None)
            await asyncio.sleep(0.001)
        await self.exchange(clients)

    async def exchange(
        self, clients: Sequence[Client], receivers: Sequence[Client] = (), wanted: int = 0
    ) -> None:
        """Let clients answer until `receivers` have got as many messages as are `wanted` and nobody says anything."""
        for _ in range(PATIENCE):
            said = [(client, answer) for client in clients if (answer := client.answers())]
            if not said:
                if sum(one.messages for one in receivers) >= wanted:
                    return
                await self.does(lambda: None)
                await asyncio.sleep(0.001)
                continue
            await self.does(*(_saying(client, answer) for client, answer in said))
        raise RuntimeError("the broker does not get on: a message may be lost")


def _saying(client: Client, data: bytes) -> Callable[[], None]:
    return lambda: client.says(data)


def _publishes(topic: str, qos: int, count: int = MESSAGES, payload: bytes = PAYLOAD) -> bytes:
    return b"".join(
        encode(Publish(topic, payload, qos, number if qos else 0), V5) for number in range(1, count + 1)
    )


async def pairs(bench: Bench, qos: int, *, count: int = MESSAGES, payload: bytes = PAYLOAD) -> Work:
    """Each publisher has a subscriber of its own; all keep their sessions."""
    prefix = "bench/"
    senders = [bench.client(f"sender-{number}") for number in range(PAIRS)]
    receivers = [
        bench.client(f"receiver-{number}-{number}", topic=f"{prefix}{number}", qos=qos)
        for number in range(PAIRS)
    ]
    everybody = senders + receivers
    said = [
        _saying(sender, _publishes(f"{prefix}{number}", qos, count, payload))
        for number, sender in enumerate(senders)
    ]
    await bench.settle(everybody)
    wanted = 0
    while True:
        wanted += PAIRS * count
        await bench.does(*said)
        await bench.exchange(everybody, receivers, wanted)
        yield "message", PAIRS * count


async def queue(bench: Bench) -> Work:
    """Publishers and as many consumers of one durable queue, which settle by PUBACK."""
    topic = "$queue/bench"
    senders = [bench.client(f"sender-{number}") for number in range(PAIRS)]
    receivers = []
    for number in range(PAIRS):
        receiver = bench.client(f"workers-{number}")
        asked = Properties(user_properties=(("ack-mode", "puback"),))
        receiver.says(encode(Subscribe(1, (Subscription(topic, 1),), asked), V5))
        receivers.append(receiver)
    everybody = senders + receivers
    said = [_saying(sender, _publishes(topic, 1)) for sender in senders]
    await bench.settle(everybody)
    wanted = 0
    while True:
        wanted += PAIRS * MESSAGES
        await bench.does(*said)
        await bench.exchange(everybody, receivers, wanted)
        yield "message", PAIRS * MESSAGES


async def away(bench: Bench) -> Work:
    """Subscribers are away while messages come for them, and then come and get them."""
    senders = [bench.client(f"sender-{number}") for number in range(PAIRS)]
    receivers = [bench.client(f"receiver-{number}", topic=f"bench/{number}") for number in range(PAIRS)]
    said = [_saying(sender, _publishes(f"bench/{number}", 1)) for number, sender in enumerate(senders)]
    await bench.settle(senders + receivers)
    count = STORED_ROUNDS * PAIRS * MESSAGES
    wanted = 0
    while True:
        for receiver in receivers:
            receiver.leaves()
            receiver.prepares()
        await bench.settle(senders)
        bench.spent_ns = 0
        for _ in range(STORED_ROUNDS):
            await bench.does(*said)
            await bench.exchange(senders)
        yield "stored", count
        wanted += count
        await bench.does(*(receiver.connects for receiver in receivers))
        await bench.exchange(receivers, receivers, wanted)
        yield "drained", count


async def fanout(bench: Bench, qos: int) -> Work:
    """One publisher to many."""
    sender = bench.client("sender")
    receivers = [bench.client(f"receiver-{number}", topic="bench", qos=qos) for number in range(RECEIVERS)]
    said = _saying(sender, _publishes("bench", qos, FANNED_OUT))
    await bench.settle([sender, *receivers])
    wanted = 0
    while True:
        wanted += RECEIVERS * FANNED_OUT
        await bench.does(said)
        await bench.exchange([sender, *receivers], receivers, wanted)
        yield "delivery", RECEIVERS * FANNED_OUT


async def connects(bench: Bench, *, is_kept: bool) -> Work:
    """Clients connect and leave; a kept session has one subscription."""
    clients = [Client(bench.door, f"client-{number}", is_kept=is_kept) for number in range(CONNECTS)]
    for number, client in enumerate(clients):
        client.connects()
        if is_kept:
            client.says(encode(Subscribe(1, (Subscription(f"bench/{number}", 1),)), V5))
    await bench.settle(clients)
    while True:
        await bench.does(*(client.leaves for client in clients))
        for client in clients:
            client.prepares()
        await bench.does(*(client.connects for client in clients))
        await bench.exchange(clients)
        yield "connect", CONNECTS


WORKS: dict[str, Callable[[Bench], Work]] = {
    "qos1": lambda bench: pairs(bench, 1),
    "lone": lambda bench: pairs(bench, 1, count=1),
    "qos2": lambda bench: pairs(bench, 2),
    "large": lambda bench: pairs(bench, 1, count=LARGE_MESSAGES, payload=LARGE_PAYLOAD),
    "away": away,
    "queue": queue,
    "fanout1": lambda bench: fanout(bench, 1),
    "fanout0": lambda bench: fanout(bench, 0),
    "clean": lambda bench: connects(bench, is_kept=False),
    "resumed": lambda bench: connects(bench, is_kept=True),
}


async def measure(name: str, seconds: float, memory: Path | None) -> dict[str, list[float]]:
    """Microseconds of the processor for each thing that was done, round by round."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="embermq-bench-", dir=memory) as at:
        bench = Bench(Path(at))
        work = WORKS[name](bench)
        end_s = time.process_time() + seconds
        rounds = 0
        async for done, count in work:
            if rounds > WARM_UP:
                found.setdefault(done, []).append(bench.spent_ns / 1000 / count)
            elif rounds == WARM_UP:
                gc.collect()
                gc.freeze()
            rounds += 1
            bench.spent_ns = 0
            if time.process_time() > end_s and len(found.get(done, ())) > 1:
                break
        await work.aclose()  # type: ignore[attr-defined]
        bench.ticks.stop()
        bench.opened.close()
    return found


def main(
    work: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(WORKS)}; repeatable.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="For each, of the processor.")] = 4.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Name to least and median, one JSON object.")
    ] = False,
) -> None:
    """Microseconds of the processor for one message, delivery or CONNECT: the least and the median of all rounds."""
    gc.disable()
    sys.setswitchinterval(0.0005)
    memory = IN_MEMORY if IN_MEMORY.is_dir() else None
    rows: dict[str, tuple[float, float]] = {}
    for name in work or WORKS:
        if name not in WORKS:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(WORKS)}")
        for done, found in uvloop.run(measure(name, seconds, memory)).items():
            rows[f"{name} {done}"] = (min(found), statistics.median(found))
    if as_json:
        print(msgspec.json.encode(rows).decode())
        return
    machine = describe()
    print(
        f"{machine.processor}, {machine.cores} cores, Python {machine.python}, EmberMQ {machine.versions['embermq']},"
        f" load {machine.load_average[0]:.1f}"
    )
    for row, (least, median) in rows.items():
        print(f"{row:20} {least:8.2f} µs  {median:8.2f} µs")


if __name__ == "__main__":
    typer.run(main)
