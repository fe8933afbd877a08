"""What a login costs, and how long a fleet takes to come back: `python -m benchmarks.logins`.

A broker starts with accounts. Devices whose passwords EmberMQ generated all connect at the same moment, as after a
restart; then accounts with chosen passwords enter, each once, and again and again. Seconds are from the first
connection to the last CONNACK, over loopback, and the clients share the machine; the processor's time is that of the
broker with all its threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, cast

import msgspec
import typer
import uvloop
from msgspec.structs import replace

from benchmarks.brokers import Programs, RunningBroker
from benchmarks.machine import describe
from benchmarks.plan import FSYNC
from embermq.app.accounts import accounts_of
from embermq.app.config import Settings
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import Connect
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq_bench.connecting import open_files
from embermq_bench.process_cost import read_cpu

V5 = ProtocolVersion.V5
DEADLINE_S = 300.0
OPENING_MAX = 100
"""Connections that have been asked for and are not there yet: one process that opened all of them before it says the
first CONNECT would be late for the broker. Any number waits for its CONNACK."""
CONNACK_SEEN = 4
"""Bytes with which the reason code of a CONNACK is there."""


class Credentials(msgspec.Struct, frozen=True):
    """Of one account."""

    name: str
    password: str

    def __repr__(self) -> str:
        """Without the password."""
        return f"Credentials({self.name!r})"


class Figures(msgspec.Struct, frozen=True):
    """Of so many logins."""

    what: str
    logins: int
    took_s: float
    processor_s: float

    @property
    def per_processor_s(self) -> float:
        """Logins for a second of the processor."""
        return self.logins / max(self.processor_s, 0.01)


class Device(asyncio.Protocol):
    """Connects, and waits for its CONNACK."""

    def __init__(self, credentials: Credentials, done: asyncio.Future[None]) -> None:
        self._credentials = credentials
        self._done = done
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        name = self._credentials.name
        hello = Connect(name, V5, username=name, password=self._credentials.password.encode())
        self._transport.write(encode(hello, V5))

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < CONNACK_SEEN or self._done.done():
            return
        code = self._received[CONNACK_SEEN - 1]
        if code == ReasonCode.SUCCESS:
            self._done.set_result(None)
        else:
            self._done.set_exception(RuntimeError(f"{self._credentials.name} was refused with {code:#04x}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            why = exc or "the broker closed it"
            self._done.set_exception(RuntimeError(f"{self._credentials.name} lost its connection: {why}"))

    def leave(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()


async def enter(
    broker: RunningBroker, what: str, everybody: Sequence[Credentials], times: int = 1
) -> Figures:
    """Let all of them in at the same moment, and each as many times, one after the other. Raises RuntimeError for one
    that is refused."""
    opening = asyncio.Semaphore(OPENING_MAX)

    async def come(credentials: Credentials) -> Device:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        async with opening:
            device = await _connected(broker.port, credentials, done)
        await done
        return device

    async def come_again(credentials: Credentials) -> Device:
        device = await come(credentials)
        for _ in range(1, times):
            device.leave()
            device = await come(credentials)
        return device

    before_s = read_cpu(broker.pid, children=False).own_s
    began_s = time.perf_counter()
    async with asyncio.timeout(DEADLINE_S):
        devices = await asyncio.gather(*map(come_again, everybody))
    took_s = time.perf_counter() - began_s
    processor_s = read_cpu(broker.pid, children=False).own_s - before_s
    for device in devices:
        device.leave()
    return Figures(what, len(everybody) * times, took_s, processor_s)


async def _connected(port: int, credentials: Credentials, done: asyncio.Future[None]) -> Device:
    loop = asyncio.get_running_loop()
    _, device = await loop.create_connection(lambda: Device(credentials, done), "127.0.0.1", port)
    return device


async def measure(
    broker: RunningBroker, generated: Sequence[Credentials], chosen: Sequence[Credentials], rounds: int
) -> list[Figures]:
    """The fleet first, while the broker remembers nobody."""
    found = []
    if generated:
        found.append(await enter(broker, "generated, all at once", generated))
    if chosen:
        found.append(await enter(broker, "chosen, the first time", chosen))
        found.append(await enter(broker, "chosen, again and left", chosen, rounds))
    return found


def add_accounts(data_dir: Path, generated: int, chosen: int) -> tuple[list[Credentials], list[Credentials]]:
    """As `embermq users add` does."""
    with accounts_of(replace(Settings(), data_dir=str(data_dir)), create=True) as accounts:
        names = [f"pump-{number}" for number in range(generated)]
        fleet = [Credentials(name, accounts.add(name, None, ClientType.DEVICE)) for name in names]
        people = [Credentials(f"person-{number}", f"chosen-{number}") for number in range(chosen)]
        for person in people:
            accounts.add(person.name, person.password.encode(), ClientType.DEVICE)
    return fleet, people


def main(
    generated: Annotated[int, typer.Option(min=0, help="Accounts with a password of --generate.")] = 10_000,
    chosen: Annotated[int, typer.Option(min=0, help="Accounts whose password somebody chose.")] = 200,
    rounds: Annotated[int, typer.Option(min=1, help="How often these enter again.")] = 50,
) -> None:
    """Seconds until all are in, and logins for a second of the broker's processor."""
    open_files(max(generated, chosen))
    machine = describe()
    typer.echo(
        f"{machine.processor}, {machine.cores} cores, Python {machine.python}, load {machine.load_average[0]:.1f}"
    )
    broker = RunningBroker(FSYNC, Programs(mosquitto=""))
    fleet, people = add_accounts(broker.data_dir, generated, chosen)
    with broker:
        found = uvloop.run(measure(broker, fleet, people, rounds))
    typer.echo(f"{'password':<24} {'logins':>8} {'seconds':>8} {'CPU s':>8} {'logins a CPU s':>15}")
    for one in found:
        typer.echo(
            f"{one.what:<24} {one.logins:>8,} {one.took_s:>8.2f} {one.processor_s:>8.2f} {one.per_processor_s:>15,.0f}"
        )


if __name__ == "__main__":
    typer.run(main)
