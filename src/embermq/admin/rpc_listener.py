"""The door of gRPC: accepts connections, and hands those over that speak HTTP/2 to the server behind it.

grpcio accepts as many connections as come, and costs memory and threads from the start. The door costs a listening
socket until somebody comes. It never reads HTTP/2: which connection a call belongs to, the server asks with the name of
the socket on which the call came.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import cast

from embermq.admin.access import CertificateName, is_loopback, no_certificate
from embermq.admin.errors import Refusals, Why
from embermq.admin.settings import GrpcLimits

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What every client begins with [RFC 9113 3.4]."""
BACKLOG = 128

_log = logging.getLogger(__name__)
Behind = Callable[[], Awaitable[str]]
"""The path of the Unix socket of the server. Raises OSError."""


class RpcDoor:
    """One for all listeners. `behind` is asked for each connection that has spoken. When there are `connections_max`, a
    new one takes the place of the one that has waited longest without a call under way, as over HTTP."""

    def __init__(self, behind: Behind, settings: GrpcLimits, refusals: Refusals | None = None) -> None:
        self.behind = behind
        self.settings = settings
        self.refusals = refusals or Refusals()
        self.visitors: set[_Visitor] = set()
        self.by_peer: dict[str, _Visitor] = {}
        """Those that are connected to the server, by the name that it has for them."""
        self.handing_over: set[asyncio.Task[None]] = set()
        self._complaint = ""
        self._servers: list[asyncio.AbstractServer] = []
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    def enter(self, visitor: _Visitor) -> bool:
        """False when there is no room."""
        if len(self.visitors) >= self.settings.connections_max and not self._make_room():
            self.refusals.add(Why.CONNECTIONS_MAX)
            return False
        self.visitors.add(visitor)
        self._is_empty.clear()
        return True

    @contextmanager
    def call(self, peer: str) -> Iterator[tuple[bool, str, str]]:
        """A call is under way for the connection that the server knows as `peer`. Yields whether the connection comes
        from this machine, the name in its certificate, and its address."""
        visitor = self.by_peer.get(peer)
        if visitor is None:  # it has gone meanwhile
            yield False, "", ""
            return
        visitor.calls += 1
        try:
            yield visitor.is_near, visitor.certificate, visitor.address
        finally:
            visitor.calls -= 1
            visitor.waits_since_s = asyncio.get_running_loop().time()

    def _make_room(self) -> bool:
        waiting = [visitor for visitor in self.visitors if not visitor.calls]
        if not waiting:
            return False
        longest = min(waiting, key=lambda visitor: visitor.waits_since_s)
        self.visitors.discard(longest)
        self.refusals.add(Why.MADE_ROOM)
        longest.cut_off()
        return True

    def complain(self, error: Exception) -> None:
        """The server behind cannot be reached: told once for as long as it is so, since who comes can come often."""
        if repr(error) != self._complaint:
            self._complaint = repr(error)
            trace = None if isinstance(error, OSError) else error
            _log.error("gRPC cannot be answered: %s", error, exc_info=trace)

    def is_well(self) -> None:
        """gRPC can be answered: a complaint from before is over."""
        self._complaint = ""

    def leave(self, visitor: _Visitor) -> None:
        self.visitors.discard(visitor)
        self.by_peer.pop(visitor.peer, None)
        if not self.visitors:
            self._is_empty.set()

    async def open(self, listener: socket.socket) -> None:
        """Accept connections on a socket that is bound already. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_server(self.visitor, sock=listener, backlog=BACKLOG))

    def visitor(self, certificate_name: CertificateName = no_certificate) -> asyncio.Protocol:
        """For a connection that somebody else has accepted."""
        return _Visitor(self, certificate_name)

    def close(self) -> None:
        """Nobody comes any more; those who are there stay."""
        for server in self._servers:
            server.close()
        self._servers.clear()

    async def cut_off(self, after_s: float) -> None:
        """Those who are still there after so long, in which they may read what was said to them last."""
        with suppress(TimeoutError):
            async with asyncio.timeout(after_s):
                await self._is_empty.wait()
        for task in list(self.handing_over):
            task.cancel()
        for visitor in list(self.visitors):
            visitor.cut_off()


class _Half(asyncio.Protocol):
    """One end of a connection; what it reads is written to the other one."""

    def __init__(self, other: _Half | None = None) -> None:
        self.transport: asyncio.Transport | None = None
        self.other = other

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are of no common kind

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other._is_open:
            assert self.other.transport is not None
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other._is_open:
            assert self.other.transport is not None
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        other, self.transport, self.other = self.other, None, None
        if other is not None:
            other.end()

    def end(self) -> None:
        """Nothing comes any more for this end; it closes when it has written what there was."""
        if self.transport is not None:
            self.transport.close()

    @property
    def _is_open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()


class _Visitor(_Half):
    """Who has connected. Nothing is loaded, and nothing started, before it has said the whole of the preface.

    It ends when it does not take within `request_timeout_s` what waits for it: the server behind cannot tell, since
    it is not read meanwhile.
    """

    def __init__(self, door: RpcDoor, certificate_name: CertificateName) -> None:
        super().__init__()
        self._door = door
        self._certificate_name = certificate_name
        self.certificate = ""
        self._said = b""
        self._deadline: asyncio.TimerHandle | None = None
        self._is_handed_over = False
        self.is_near = False
        """Whether it comes from this machine."""
        self.address = ""
        self.peer = ""
        self.calls = 0
        """Under way."""
        self.waits_since_s = asyncio.get_running_loop().time()
        """When it came, or its last call ended."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.certificate = self._certificate_name(transport)
        if not self._door.enter(self):
            transport.close()
            return
        self._give_time()

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
            return
        self._said += data
        if not (self._said.startswith(PREFACE) or PREFACE.startswith(self._said)):
            self._door.refusals.add(Why.MALFORMED)
            self.cut_off()
        elif len(self._said) >= len(PREFACE) and self.transport is not None and not self._is_handed_over:
            self._is_handed_over = True
            self._rest()
            self.transport.pause_reading()
            task = asyncio.get_running_loop().create_task(self._hand_over())
            self._door.handing_over.add(task)
            task.add_done_callback(self._door.handing_over.discard)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._give_time()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._is_open:
            self._rest()

    def end(self) -> None:
        super().end()
        self._give_time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        self._door.leave(self)
        behind = self.other
        super().connection_lost(exc)
        if behind is not None and behind.transport is not None:
            behind.transport.abort()  # else it may wait for ever for a server that waits to be read

    def cut_off(self) -> None:
        """End the connection at once; what waits to be written is dropped."""
        if self.transport is not None:
            self.transport.abort()

    def _give_time(self) -> None:
        if self._deadline is None and self.transport is not None:
            limit_s = self._door.settings.request_timeout_s
            self._deadline = asyncio.get_running_loop().call_later(limit_s, self._is_too_late)

    def _is_too_late(self) -> None:
        self._door.refusals.add(Why.TIMEOUT)
        self.cut_off()

    def _rest(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    async def _hand_over(self) -> None:
        if self.transport is None:  # it has made room already
            return
        address = self.transport.get_extra_info("peername")
        self.address = str(address[0]) if address else ""
        self.is_near = is_loopback(self.address)
        own = socket.socket(socket.AF_UNIX)
        try:
            own.setblocking(False)
            own.bind("")  # the kernel chooses an abstract name that nobody else has
            self.peer = f"unix-abstract:{own.getsockname()[1:].decode()}"
            loop = asyncio.get_running_loop()
            await loop.sock_connect(own, await self._door.behind())
            _, behind = await loop.create_unix_connection(lambda: _Half(self), sock=own)
        except BaseException as error:
            own.close()
            if not isinstance(error, Exception):
                raise
            self._door.complain(error)
            self.cut_off()
            return
        self._door.is_well()
        if not self._is_open or behind.transport is None:  # one of them has left meanwhile
            self.cut_off()
            if behind.transport is not None:
                behind.transport.abort()
            return
        self.other = behind
        self._door.by_peer[self.peer] = self
        behind.transport.write(self._said)
        self._said = b""
        if self._is_open:
            self.transport.resume_reading()
