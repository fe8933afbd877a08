"""Sockets that listen: on addresses and on Unix sockets, for clients or for a proxy that announces them."""

import asyncio
import errno
import os
import socket
import ssl
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from embermq.server.proxy_protocol import ProxyHeaderError, read_header
from embermq.server.settings import Address, UnixAddress

BACKLOG = 4_096
ACCEPTS_A_TURN = 64
FULL_RETRY_S = 1.0
"""How long no connection is accepted after the process ran out of file descriptors."""
TLS_CLOSE_S = 5.0
"""How long a client may take to answer the end of TLS."""

Factory = Callable[[Address | None], asyncio.Protocol]
"""Makes the protocol of a connection; is given the address that a proxy told, else None."""


async def bind(address: Address | UnixAddress, unix_mode: str) -> list[socket.socket]:
    """Sockets for an address; a name may have several. Raises OSError."""
    if isinstance(address, UnixAddress):
        return [_bind_unix(address.path, unix_mode)]
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    found: list[socket.socket] = []
    failure: OSError | None = None
    port = address.port
    for family, kind, protocol, _, place in dict.fromkeys(infos):
        try:
            found.append(_bind_tcp(socket.socket(family, kind, protocol), (place[0], port, *place[2:])))
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                _close(found)
                raise
            failure = error  # a name may stand for IPv6 too where there is none
        else:
            port = found[0].getsockname()[1]
    if not found and failure is not None:
        raise failure
    return found


def _bind_tcp(sock: socket.socket, place: tuple[object, ...]) -> socket.socket:
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(place)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _bind_unix(path: str, mode: str) -> socket.socket:
    """A socket that a dead broker left is taken over; a living one's is not."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        with socket.socket(socket.AF_UNIX) as knocking:
            try:
                knocking.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
            else:
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), path)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(path)
        if mode:
            os.chmod(path, int(mode, 8))
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        with suppress(OSError):
            if sock.family == socket.AF_UNIX:
                os.unlink(sock.getsockname())
        sock.close()


class Listening:
    """Accepts clients on bound sockets, which stay bound over a change of certificates."""

    def __init__(self, sockets: list[socket.socket], factory: Factory, handshake_s: float) -> None:
        self.sockets = sockets
        self._factory = factory
        self._handshake_s = handshake_s
        self._servers: list[asyncio.Server] = []

    async def serve(self, context: ssl.SSLContext | None) -> None:
        """Accept from now on; called again, with another context for those who come then. Raises OSError and leaves
        everything as it was."""
        loop = asyncio.get_running_loop()
        servers: list[asyncio.Server] = []
        try:
            for sock in self.sockets:
                server = await loop.create_server(
                    partial(self._factory, None),
                    sock=sock.dup(),
                    backlog=BACKLOG,
                    ssl=context,
                    ssl_handshake_timeout=self._handshake_s if context is not None else None,
                    ssl_shutdown_timeout=TLS_CLOSE_S if context is not None else None,
                )
                servers.append(server)
        except OSError:
            for server in servers:
                server.close()
            raise
        before, self._servers = self._servers, servers
        for server in before:
            server.close()

    def close(self) -> None:
        """Accept nobody any more."""
        for server in self._servers:
            server.close()
        _close(self.sockets)


class ProxiedListening:
    """The same where each connection begins with a PROXY header, before TLS if there is any."""

    def __init__(
        self,
        sockets: list[socket.socket],
        factory: Factory,
        handshake_s: float,
        on_refused: Callable[[str, str], None],
    ) -> None:
        self.sockets = sockets
        self._factory = factory
        self._handshake_s = handshake_s
        self._on_refused = on_refused
        self._context: ssl.SSLContext | None = None
        self._listens = False
        self._introductions: set[asyncio.Task[None]] = set()
        self._closed = False

    async def serve(self, context: ssl.SSLContext | None) -> None:
        """Accept from now on; called again, with another context for those who come then."""
        self._context = context
        if not self._listens:
            self._listens = True
            for sock in self.sockets:
                sock.listen(BACKLOG)
                self._watch(sock)

    def close(self) -> None:
        """Accept nobody any more, and drop those who have not been announced."""
        self._closed = True
        loop = asyncio.get_running_loop()
        for sock in self.sockets:
            loop.remove_reader(sock)
        for task in self._introductions:
            task.cancel()
        _close(self.sockets)

    def _watch(self, sock: socket.socket) -> None:
        if not self._closed:
            asyncio.get_running_loop().add_reader(sock, self._accept, sock)

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPTS_A_TURN):
            try:
                sock, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                loop.remove_reader(listening)
                loop.call_later(FULL_RETRY_S, self._watch, listening)
                self._on_refused(str(listening.getsockname()), f"no connection is accepted: {error}")
                return
            sock.setblocking(False)
            task = loop.create_task(self._introduce(sock, str(peer)))
            self._introductions.add(task)
            task.add_done_callback(self._introductions.discard)

    async def _introduce(self, sock: socket.socket, proxy: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._handshake_s):
                source = await read_header(partial(_read_exactly, sock))
            context = self._context
            await loop.connect_accepted_socket(
                partial(self._factory, source),
                sock,
                ssl=context,
                ssl_handshake_timeout=self._handshake_s if context is not None else None,
                ssl_shutdown_timeout=TLS_CLOSE_S if context is not None else None,
            )
        except ProxyHeaderError as error:
            self._on_refused(proxy, f"PROXY protocol: {error}")
            sock.close()
        except (OSError, EOFError):  # gone, or too slow
            sock.close()
        except asyncio.CancelledError:
            sock.close()
            raise


async def _read_exactly(sock: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size:
        chunk = await loop.sock_recv(sock, size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return data
