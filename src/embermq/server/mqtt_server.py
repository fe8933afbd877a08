"""Listeners for MQTT over TCP, and their orderly end."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from embermq.broker.broker import Broker
from embermq.protocol.errors import ProtocolError
from embermq.protocol.reason_codes import ReasonCode
from embermq.server.connection import Connection, Door
from embermq.server.gate import Gate
from embermq.server.settings import Address, ClientSettings
from embermq.server.tick_loop import TickLoop

BACKLOG = 4_096
STOP_S = 2.0
"""How long a stop waits for acknowledgements that are due and for sockets to take what they are owed."""
LAST_WRITES_S = 0.5


class MqttServer:
    """Opens addresses and keeps their connections."""

    def __init__(
        self,
        broker: Broker,
        ticks: TickLoop,
        gate: Gate,
        settings: ClientSettings,
        on_error: Callable[[str, ProtocolError], None],
    ) -> None:
        self._broker = broker
        self._ticks = ticks
        self._gate = gate
        self._settings = settings
        self._on_error = on_error
        self._servers: list[asyncio.Server] = []
        self._doors: list[Door] = []

    async def open(self, addresses: Sequence[Address]) -> list[Address]:
        """Listen; returns the addresses with their real ports. Raises OSError when one cannot be bound."""
        bound: list[Address] = []
        loop = asyncio.get_running_loop()
        for address in addresses:
            door = Door(
                self._broker,
                self._ticks,
                self._gate,
                loopback=address.is_loopback,
                connect_timeout_s=self._settings.connect_timeout_s,
                on_error=self._on_error,
            )
            server = await loop.create_server(
                lambda door=door: Connection(door),  # type: ignore[misc]
                address.host,
                address.port,
                backlog=BACKLOG,
            )
            self._servers.append(server)
            self._doors.append(door)
            bound += [Address(sock.getsockname()[0], sock.getsockname()[1]) for sock in server.sockets]
        return bound

    @property
    def connections(self) -> int:
        """Open connections."""
        return sum(len(door.connections) for door in self._doors)

    async def stop(self) -> None:
        """Stop accepting, finish acknowledgements, say DISCONNECT 0x8B, flush, close."""
        for server in self._servers:
            server.close()
        await self._ticks.drain(STOP_S)
        links = [connection for door in self._doors for connection in list(door.connections)]
        for connection in links:
            connection.disconnect(ReasonCode.SERVER_SHUTTING_DOWN)
        self._ticks.wake()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                for door in self._doors:
                    await door.empty.wait()
        await self._ticks.drain(
            LAST_WRITES_S
        )  # what the ends of connections left: sessions, unacknowledged messages
        for door in self._doors:
            for check in list(door.checks):
                check.cancel()
            for connection in list(door.connections):
                connection.abort()
