"""The HTTP and gRPC surfaces of a running broker."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from embermq.admin.access import CertificateName, no_certificate
from embermq.admin.errors import Refusals
from embermq.admin.operations import HTTP_OPERATIONS
from embermq.admin.rpc_listener import RpcDoor
from embermq.admin.service import AdminService
from embermq.admin.settings import STOP_TIMEOUT_S, GrpcLimits, HttpLimits
from embermq.admin.trail import Trail
from embermq.app.api_tokens import token_access
from embermq.app.desks import Desks
from embermq.edge.api_listeners import ApiListeners, certificate_name
from embermq.edge.listener_settings import OVER_WEBSOCKET, Listener
from embermq.edge.settings import Address, UnixAddress

if TYPE_CHECKING:
    from embermq.admin.http import HttpServer
    from embermq.admin.rpc_server import RpcServer


class HttpSide:
    """Its libraries are only loaded when there is a listener for it."""

    def __init__(
        self,
        data_dir: Path,
        service: AdminService,
        desks: Desks,
        refusals: Refusals,
        trail: Trail,
        *,
        bound: Mapping[str, Sequence[Address | UnixAddress]],
    ) -> None:
        """`bound` has the listeners that are open, by kind, whenever it is looked at."""
        self._bound = bound
        self._trail = trail
        self._data_dir = data_dir
        self._service = service
        self._desks = desks
        self._refusals = refusals
        self._stops: list[Callable[[], Awaitable[None]]] = []

    async def open(self, addresses: Sequence[Address]) -> list[Address]:
        """Bind and serve; returns where. Raises OSError."""
        sockets = [bind(address) for address in addresses]
        await self._start(sockets, no_certificate)
        return [bound_to(sock) for sock in sockets]

    async def open_tls(self, listener: Listener, listeners: ApiListeners) -> list[Address]:
        """The same over TLS. Raises OSError, TlsFileError."""
        server = await self._start((), partial(certificate_name, listener))
        return await listeners.open(listener, server.connection)

    async def _start(self, sockets: Sequence[socket.socket], certificate: CertificateName) -> HttpServer:
        from embermq.admin.http import HttpServer, create_app
        from embermq.admin.http_api import create_api

        access = token_access(self._data_dir)
        api = create_api(self._desks, access, HTTP_OPERATIONS, trail=self._trail)
        app = create_app(self._service, api, self._socket_ports)
        server = HttpServer(app, HttpLimits(), self._refusals, certificate)
        await server.start(sockets)
        self._stops.append(server.stop)
        return server

    def _socket_ports(self) -> list[tuple[str, int]]:
        return [
            (kind, address.port)
            for kind in OVER_WEBSOCKET
            for address in self._bound.get(kind, ())
            if isinstance(address, Address)
        ]

    async def stop(self) -> None:
        """Finish requests under way."""
        for stop in self._stops:
            await stop()


def bind(address: Address) -> socket.socket:
    """A socket to listen on. Raises OSError."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((address.host, address.port))
    except OSError:
        sock.close()
        raise
    return sock


def bound_to(sock: socket.socket) -> Address:
    """Its address, with the port that it was given."""
    return Address(*sock.getsockname()[:2])


FILE_NAME = "grpc.sock"


class RpcSide:
    """The socket between door and server is in the data directory, which nobody else may enter."""

    def __init__(
        self,
        data_dir: Path,
        settings: GrpcLimits,
        desk: object,
        refusals: Refusals,
        trail: Trail,
    ) -> None:
        """`desk` is that of queues, None where these are switched off."""
        self._desk = desk
        self._trail = trail
        self._data_dir = data_dir
        self._settings = settings
        self._refusals = refusals
        self._door = RpcDoor(self._behind, settings, refusals)
        self._server: RpcServer | None = None
        self._turn = asyncio.Lock()
        self._folder = -1
        """Kept open: by it the socket has a path that the kernel takes, however long the directory's."""

    async def open(self, addresses: Sequence[Address]) -> list[Address]:
        """Bind and listen; returns where. Raises OSError."""
        if not self._is_ready():
            return []
        bound: list[Address] = []
        for address in addresses:
            sock = bind(address)
            await self._door.open(sock)
            bound.append(bound_to(sock))
        return bound

    async def open_tls(self, listener: Listener, listeners: ApiListeners) -> list[Address]:
        """The same over TLS. Raises OSError, TlsFileError."""
        if not self._is_ready():
            return []
        return await listeners.open(
            listener, partial(self._door.visitor, partial(certificate_name, listener))
        )

    def _is_ready(self) -> bool:
        """False when there is nothing to serve."""
        if self._desk is not None and self._folder < 0:
            self._folder = os.open(self._data_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._desk is not None

    async def stop(self) -> None:
        """Take no more calls, and finish those under way."""
        self._door.close()
        server, self._server = self._server, None
        # Who does not read its answer would hold up the server.
        waits = [server.stop()] if server is not None else []
        await asyncio.gather(self._door.cut_off(STOP_TIMEOUT_S), *waits)
        if server is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._path())
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def _path(self) -> str:
        return f"/proc/self/fd/{self._folder}/{FILE_NAME}"

    async def _behind(self) -> str:
        async with self._turn:
            if self._server is None:
                kind = await asyncio.to_thread(_rpc_server_class)  # its library takes a while to load
                server = kind(self._desk, token_access(self._data_dir), self._door, self._trail)
                with suppress(FileNotFoundError):  # of a broker that was killed
                    os.unlink(self._path())
                await server.start(self._path())
                self._server = server
        return self._path()


def _rpc_server_class() -> type[RpcServer]:
    # It would write to standard error what any stranger does, and has handlers for forks that are no use to us.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    from embermq.admin.rpc_server import RpcServer

    return RpcServer
