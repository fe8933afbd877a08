"""Listeners for MQTT, and their orderly end."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import cast

from msgspec import Struct

from embermq.access.authentication.gate import Gate
from embermq.edge.client_door import ClientDoor, Served
from embermq.edge.connection import Connection
from embermq.edge.connection_limits import Admission, ConnectionSlot
from embermq.edge.listener_context import ListenerContext
from embermq.edge.listener_settings import Listener
from embermq.edge.listening_sockets import Factory, Handshakes, Listening, bind
from embermq.edge.node_door import NodeDoor, NodeListenerContext, Operate
from embermq.edge.node_link import Homes, IntroductionError, Stops, ask_node
from embermq.edge.node_tls import node_listener
from embermq.edge.plain_sockets import PlainSockets
from embermq.edge.settings import Address, ClientSettings, UnixAddress
from embermq.edge.tick_loop import TickLoop
from embermq.edge.tls import TlsFileError, context_of
from embermq.intake.broker import Broker

STOP_S = 2.0
"""How long a stop waits for acknowledgements that are due and for sockets to take what they are owed."""
LAST_WRITES_S = 0.5
FILES_HANDED_ON = 3
"""File descriptors for a client that belongs to another node: two here, and one for another's that belongs here."""


class ServerStatistics(Struct, frozen=True):
    """`by_listener` names each listener with its connections; `readers_paused` of them do not take what they are sent,
    `publishers_paused` are not read because they publish too fast."""

    by_listener: dict[str, int]
    connections_max: int
    tls_handshakes: int
    readers_paused: int
    publishers_paused: int


class MqttServer:
    """Opens addresses and keeps their connections."""

    def __init__(
        self,
        broker: Broker,
        ticks: TickLoop,
        gate: Gate,
        settings: ClientSettings,
        homes: Homes | None = None,
    ) -> None:
        """`homes` says which clients belong to other nodes; None: all belong here."""
        self._homes = homes
        self._broker = broker
        self._ticks = ticks
        self._gate = gate
        self._settings = settings
        self._listening: list[tuple[ListenerContext, Listening]] = []
        self._doors: list[ListenerContext] = []
        counters = broker.state.counters
        files_each = FILES_HANDED_ON if homes is not None else 1
        self._admission = Admission(settings, counters, files_each=files_each)
        self._handshakes = Handshakes(counters)
        self._node_handshakes = Handshakes(counters)
        """Apart, so that nodes reach one another while more clients come than there is room for."""
        self._plain = PlainSockets()

    async def open_for_nodes(
        self,
        address: Address,
        slot: int,
        *,
        take: Callable[[bytes], None],
        members_of: Callable[[int], list[str]],
        do: Operate,
        figures: Callable[[], Mapping[str, int]],
    ) -> None:
        """Listen for other nodes, which hand over clients of this node's slot; `take` gets records of messages that
        they send, `members_of` names sessions here of another slot's clients, `do` does what operators ask of other
        nodes, `figures` are this node's. Raises OSError, TlsFileError."""
        assert self._homes is not None, "there is a cluster"
        listener = node_listener(address, self._homes.tls)
        context = context_of(listener)
        door = NodeListenerContext(
            self._broker,
            self._ticks,
            self._gate,
            listener,
            Admission(ClientSettings(), self._broker.state.counters),  # their own nodes have counted them
            connect_timeout_s=self._settings.connect_timeout_s,
        )
        listening = Listening(
            await bind(address, ""),
            partial(
                NodeDoor, self._homes, slot, door, take=take, members_of=members_of, do=do, figures=figures
            ),
            door.admission,
            self._node_handshakes,
            handshake_s=self._settings.connect_timeout_s,
            proxied=False,
            on_refused=door.refused,
            plain=self._plain,
        )
        self._doors.append(door)
        self._listening.append((door, listening))
        listening.serve(context)

    def leave_node(self, slot: int, address: Address) -> None:
        """End connections of clients that were handed to this node, which has the slot no more, and of members that it
        has brought: it may stand still, and say nothing for ever."""
        for door in self._doors:
            for connection in list(door.connections):
                member = connection.member
                if member is not None and (member.of, member.node) == (slot, str(address)):
                    connection.abort()
            for each in list(door.doors):
                if isinstance(each, ClientDoor) and each.home == (slot, address):
                    each.abort()

    async def open(self, listener: Listener) -> list[Address | UnixAddress]:
        """Listen; returns the addresses with their real ports.

        Raises OSError when one cannot be bound, TlsFileError for certificates that cannot be used.
        """
        timeout_s = self._settings.connect_timeout_s
        door = ListenerContext(
            self._broker,
            self._ticks,
            self._gate,
            listener,
            self._admission,
            connect_timeout_s=timeout_s,
        )
        context = context_of(listener)
        factory = self._factory(door, listener)
        sockets = await bind(listener.address, listener.own.unix_mode)
        listening = Listening(
            sockets,
            factory,
            self._admission,
            self._handshakes,
            handshake_s=timeout_s,
            proxied=listener.own.proxy_protocol,
            connections_max=listener.own.connections_max,
            on_refused=door.refused,
            plain=self._plain,
        )
        self._doors.append(door)
        self._listening.append((door, listening))
        listening.serve(context)
        if isinstance(listener.address, UnixAddress):
            return [listener.address]
        return [Address(sock.getsockname()[0], sock.getsockname()[1]) for sock in sockets]

    def _factory(self, door: ListenerContext, listener: Listener) -> Factory:
        served = partial(Connection, door)
        client = (
            served if self._homes is None else partial(ClientDoor, self._homes, door, cast(Served, served))
        )
        if listener.websocket is not None:
            from embermq.edge.websocket_connection import (
                WebSocketConnection,
            )  # only loaded when it is spoken

            # A protocol by its methods.
            made = cast(Factory, partial(WebSocketConnection, door, listener.websocket, client))
        else:
            made = cast(Factory, client)  # a Connection is a protocol by its methods
        if listener.tls is None:
            return made

        def accepted(place: ConnectionSlot, source: Address | None) -> asyncio.Protocol:
            self._ticks.look_at_clock()  # the handshake is part of the time to CONNECT
            return made(place, source)

        return accepted

    def reload_certificates(self) -> list[tuple[Listener, str]]:
        """Read the files of all TLS listeners again, for connections from now on; those that are open stay as they are.

        Returns the TLS listeners, with "" or with why one keeps the certificates that it has.
        """
        done: list[tuple[Listener, str]] = []
        for door, listening in self._listening:
            listener = door.listener
            if listener.tls is None:
                continue
            done.append((listener, listening.reload(listener) or self._reload_calls(listener)))
        return done

    def _reload_calls(self, listener: Listener) -> str:
        """Of the same files, where other nodes come in; "" or why not."""
        tls = self._homes.tls if self._homes is not None and listener.kind == "node" else None
        try:
            if tls is not None:
                tls.reload()
        except TlsFileError as error:
            return f"{listener.key(error.name)}: {error}"
        return ""

    @property
    def listeners(self) -> list[Listener]:
        """The listeners that are open, with the ports that they got."""
        return [door.listener for door, _ in self._listening]

    @property
    def connections(self) -> int:
        return sum(len(door.connections) for door in self._doors)

    def statistics(self) -> ServerStatistics:
        everybody = [connection for door in self._doors for connection in door.connections]
        return ServerStatistics(
            {str(door.listener): len(door.connections) for door in self._doors},
            self._admission.connections_max,
            len(self._handshakes) + len(self._node_handshakes),
            sum(connection.paused for connection in everybody),
            sum(connection.throttled for connection in everybody),
        )

    async def stop(self) -> None:
        """Stop accepting, finish acknowledgements, say DISCONNECT 0x8B, flush, close. What other nodes say to the
        clients that were handed to them is sent on meanwhile."""
        for _, listening in self._listening:
            listening.close()
        if self._broker.state.queues is not None:
            self._broker.state.queues.stop()
        await self._ticks.drain(STOP_S)
        links = [connection for door in self._doors for connection in list(door.connections)]
        for connection in links:
            connection.leave_node(self._broker.state.settings.server_reference)
        self._ticks.wake()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await asyncio.gather(*(door.empty.wait() for door in self._doors), self._take_leave())
        await self._ticks.drain(
            LAST_WRITES_S
        )  # what the ends of connections left: sessions, unacknowledged messages
        for door in self._doors:
            door.entrance.stop()
            for connection in list(door.connections):
                connection.abort()
            for each in list(door.doors):
                each.abort()
        self._plain.close()

    async def _take_leave(self) -> None:
        """Of clients that were handed on, each by its own node, which has its session; until they are gone."""
        at_home: dict[tuple[int, Address], list[ClientDoor]] = {}
        for door in self._doors:
            for each in door.doors:
                if isinstance(each, ClientDoor) and each.is_handed_on and each.home is not None:
                    at_home.setdefault(each.home, []).append(each)
        await asyncio.gather(*(self._leave_home(*home, handed) for home, handed in at_home.items()))

    async def _leave_home(self, slot: int, address: Address, handed: list[ClientDoor]) -> None:
        assert self._homes is not None, "who was handed on was handed to somebody"
        elsewhere = self._broker.state.settings.server_reference
        told = Stops(slot=slot, node=self._homes.here, elsewhere=elsewhere)
        gone = [each.gone() for each in handed]
        try:
            await ask_node(address, self._homes.tls, told, self._homes.secret(), STOP_S)
        except (OSError, EOFError, IntroductionError):  # it has gone, or stands still: nobody can tell them
            return
        await asyncio.gather(*gone)
