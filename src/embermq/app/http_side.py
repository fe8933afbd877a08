"""The HTTP surface of a running broker."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from embermq.admin.access import CertificateName, no_certificate
from embermq.admin.operations import HTTP_OPERATIONS
from embermq.admin.refusals import Refusals
from embermq.admin.service import AdminService
from embermq.admin.settings import HttpLimits
from embermq.admin.trail import Trail
from embermq.app.api_tokens import token_access
from embermq.app.desks import Desks
from embermq.edge.api_listeners import ApiListeners, certificate_name
from embermq.edge.listener_settings import OVER_WEBSOCKET, Listener
from embermq.edge.settings import Address, UnixAddress

if TYPE_CHECKING:
    from embermq.admin.http import HttpServer


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
