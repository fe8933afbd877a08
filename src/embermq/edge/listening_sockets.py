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

from embermq.edge.connection_limits import Admission, ConnectionSlot, Room
from embermq.edge.listener_settings import Listener
from embermq.edge.plain_sockets import PlainSockets
from embermq.edge.proxy_protocol import UNKNOWN, ProxyHeaderError, read_header
from embermq.edge.settings import Address, UnixAddress
from embermq.edge.tls import ON_FAILURE, TlsFileError, context_of
from embermq.model.counters import Counters

BACKLOG = 4_096
KERNEL_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 120), (socket.TCP_KEEPINTVL, 30), (socket.TCP_KEEPCNT, 4))
"""Seconds of silence until the kernel asks whether the peer is still there, seconds between two questions, and how many
go unanswered before the connection ends."""
ACCEPTS_A_TURN = 64
FULL_RETRY_S = 1.0
"""How long no connection is accepted after the process ran out of file descriptors."""
TLS_CLOSE_S = 5.0
"""How long a client may take to answer the end of TLS."""
HANDSHAKES_MAX = 200
"""TLS handshakes under way at a time: each takes about 1 ms of CPU, so that the last one is still in time."""
HANDSHAKE_HELD_S = 1.0
"""How long a TLS handshake keeps its place when others wait for it."""
HANDSHAKE_RETRY_S = 0.02
ROOM_LOOKS_S = (0.0, 0.0, 0.0, 0.0, 0.01, 0.01, 0.01, 0.01)
"""After how long a limit that is reached is looked at again before somebody is refused. Connections that their clients
have closed count until the event loop has read that, and stored what they sent last; a look is a turn at least."""
ROOM_WAITING_MAX = 64
"""Clients of an address with as many connections as it may have that wait for that; others are refused at once."""

Factory = Callable[[ConnectionSlot, Address | None], asyncio.Protocol]
"""Makes the protocol of a connection from its place in the counts and the address that a proxy told, None for none."""


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
        # Connections inherit all of these: one whose peer is gone without a word ends, also when its keep-alive is 0.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option, value in KERNEL_KEEP_ALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
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


class Introduction:
    """A client on its way in: its PROXY header is read, then the event loop has its socket, for TLS a while longer."""

    def __init__(self, sock: socket.socket, began_s: float) -> None:
        self.began_s = began_s
        self.dropped = False
        self.task: asyncio.Task[None] | None = None
        self._sock = sock
        self._is_the_loops = False

    def hand_to_loop(self) -> None:
        """The event loop has the socket from now on."""
        self._is_the_loops = True

    def end_behind_alert(self) -> None:
        """TLS has refused it, and the event loop is about to write why: say then that nothing more comes."""
        asyncio.get_running_loop().call_soon(self._say_no_more)

    def _say_no_more(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def drop(self) -> None:
        """End it. What the event loop has is told by way of its socket: to cancel the task when the connection has just
        been made would leave one that never hears of its end."""
        self.dropped = True
        if self._is_the_loops:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        elif self.task is not None:
            self.task.cancel()


class Handshakes:
    """TLS handshakes under way on all listeners, oldest first.

    While there are as many as there may be, who comes waits in the system's backlog; one that takes longer than
    `HANDSHAKE_HELD_S` then makes room for it.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._under_way: dict[asyncio.Task[None], Introduction] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, task: asyncio.Task[None], introduction: Introduction) -> None:
        """Count the task until it is done."""
        self._under_way[task] = introduction
        task.add_done_callback(self._under_way.pop)

    def count_failure(self) -> None:
        """Count a TLS handshake that came to nothing."""
        self._counters.tls_handshakes_failed += 1

    def wait_s(self) -> float:
        """How long nobody should be accepted; 0.0 when there is room, which the oldest may have to make."""
        if len(self._under_way) < HANDSHAKES_MAX:
            return 0.0
        now_s = asyncio.get_running_loop().time()
        for introduction in self._under_way.values():
            if introduction.dropped:
                continue
            if now_s - introduction.began_s >= HANDSHAKE_HELD_S:
                introduction.drop()
                self._counters.tls_handshakes_dropped += 1
                return 0.0
            break
        return HANDSHAKE_RETRY_S


class Listening:
    """Accepts clients on bound sockets: counts them, reads the PROXY header and speaks TLS where there are such, and
    hands the rest to what `factory` makes."""

    def __init__(
        self,
        sockets: list[socket.socket],
        factory: Factory,
        admission: Admission,
        handshakes: Handshakes,
        *,
        handshake_s: float,
        proxied: bool,
        connections_max: int = 0,
        on_refused: Callable[[str, str], None],
        plain: PlainSockets | None = None,
    ) -> None:
        """`plain` has the sockets of clients without TLS; None where all speak it."""
        self.sockets = sockets
        self._plain = plain
        self._factory = factory
        self._admission = admission
        self._handshakes = handshakes
        self._handshake_s = handshake_s
        self._proxied = proxied
        self._room = Room(connections_max)
        self._on_refused = on_refused
        self._context: ssl.SSLContext | None = None
        self._listens = False
        self._introductions: dict[asyncio.Task[None], Introduction] = {}
        self._waiting_for_room = 0
        self._closed = False

    def serve(self, context: ssl.SSLContext | None) -> None:
        """Accept from now on; called again, with another context for those who come then. Raises OSError."""
        self._context = context
        if not self._listens:
            self._listens = True
            for sock in self.sockets:
                sock.listen(BACKLOG)
            for sock in self.sockets:
                self._watch(sock)

    def reload(self, listener: Listener) -> str:
        """Read the files of TLS again, for those who come from now on. Returns "", or why they stay what they are."""
        try:
            self.serve(context_of(listener))
        except TlsFileError as error:
            return f"{listener.key(error.name)}: {error}"
        return ""

    def close(self) -> None:
        """Accept nobody any more, and drop those who have not been introduced."""
        self._closed = True
        loop = asyncio.get_running_loop()
        for sock in self.sockets:
            loop.remove_reader(sock)
        for introduction in self._introductions.values():
            introduction.drop()
        _close(self.sockets)

    def _watch(self, sock: socket.socket) -> None:
        if not self._closed:
            asyncio.get_running_loop().add_reader(sock, self._accept, sock)

    def _rest(self, listening: socket.socket, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        loop.call_later(wait_s, self._watch, listening)

    def _wait_for_room(self, listening: socket.socket, looks_s: tuple[float, ...]) -> None:
        """Accept nobody until there is room, or every end that had come has been read."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        if self._closed:
            return
        if looks_s and self._admission.is_full(self._room):
            loop.call_later(looks_s[0], self._wait_for_room, listening, looks_s[1:])
            return
        self._watch(listening)
        self._accept(listening, looks_s)

    def _accept(self, listening: socket.socket, looks_s: tuple[float, ...] = ROOM_LOOKS_S) -> None:
        """`looks_s` is how often it may still be looked for room: when some was found, for the others as well."""
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPTS_A_TURN):
            if looks_s and self._admission.is_full(self._room):
                self._wait_for_room(listening, looks_s)
                return
            if self._context is not None and (wait_s := self._handshakes.wait_s()):
                self._rest(listening, wait_s)
                return
            try:
                sock, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._rest(listening, FULL_RETRY_S)
                self._on_refused(str(listening.getsockname()), f"no connection is accepted: {error}")
                return
            place = self._admission.arrive(self._room)
            if place is None:
                sock.close()
                continue
            sock.setblocking(False)
            host = _host_of(peer)
            if self._context is None and not (self._proxied or self._admission.is_full_for(host)):
                self._serve_plain(sock, peer, place, None, host)  # without a task, as most do
                continue
            introduction = Introduction(sock, loop.time())
            task = loop.create_task(self._introduce(sock, peer, place, introduction))
            introduction.task = task
            self._introductions[task] = introduction
            task.add_done_callback(self._introduced)
            if self._context is not None:
                self._handshakes.begin(task, introduction)

    def _serve_plain(
        self, sock: socket.socket, peer: object, place: ConnectionSlot, source: Address | None, host: str
    ) -> None:
        """Of a client that does not speak TLS nothing has to be waited for any more."""
        assert self._plain is not None, "only who listens with TLS alone has none"
        if self._admission.locate(place, host):
            self._plain.serve(sock, peer, self._factory(place, source))
        else:
            sock.close()

    def _introduced(self, task: asyncio.Task[None]) -> None:
        """A connection over TLS keeps its introduction, which is not to keep the task as well."""
        self._introductions.pop(task).task = None

    async def _introduce(
        self, sock: socket.socket, peer: object, place: ConnectionSlot, introduction: Introduction
    ) -> None:
        loop = asyncio.get_running_loop()
        source: Address | None = None
        host = _host_of(peer)
        try:
            if self._proxied:
                async with asyncio.timeout(self._handshake_s):
                    source = await read_header(partial(_read_exactly, sock))
                host = source.host if source is not None and source != UNKNOWN else ""
            await self._room_for(host)
            context = self._context
            if context is None:
                self._serve_plain(sock, peer, place, source, host)
                return
            if not self._admission.locate(place, host):
                sock.close()
                return
            introduction.hand_to_loop()
            # The transport keeps what is set here until it is closed.
            ON_FAILURE.set(partial(self._tls_failed, introduction, str(source or _named(peer))))
            await loop.connect_accepted_socket(
                partial(self._factory, place, source),
                sock,
                ssl=context,
                ssl_handshake_timeout=self._handshake_s,
                ssl_shutdown_timeout=TLS_CLOSE_S,
            )
        except ProxyHeaderError as error:
            self._on_refused(_named(peer), f"PROXY protocol: {error}")
            self._drop(sock, place)
        except (OSError, EOFError):  # gone, or too slow
            self._drop(sock, place)
        except asyncio.CancelledError:
            self._drop(sock, place)
            raise

    async def _room_for(self, host: str) -> None:
        """Return when this address may have another connection, or every end that had come has been read."""
        if not self._admission.is_full_for(host) or self._waiting_for_room >= ROOM_WAITING_MAX:
            return
        self._waiting_for_room += 1
        try:
            for wait_s in ROOM_LOOKS_S:
                await asyncio.sleep(wait_s)
                if not self._admission.is_full_for(host):
                    return
        finally:
            self._waiting_for_room -= 1

    def _tls_failed(self, introduction: Introduction, peer: str, text: str, alerted: bool) -> None:
        self._handshakes.count_failure()
        self._on_refused(peer, f"TLS: {text}")
        if alerted:
            introduction.end_behind_alert()

    def _drop(self, sock: socket.socket, place: ConnectionSlot) -> None:
        sock.close()
        self._admission.leave(place)


def _host_of(peer: object) -> str:
    """The address; "" for a client of a Unix socket."""
    return str(peer[0]) if isinstance(peer, tuple) else ""


def _named(peer: object) -> str:
    """Address and port; a client of a Unix socket has no name."""
    return str(Address(peer[0], peer[1])) if isinstance(peer, tuple) else "a local client"


async def _read_exactly(sock: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size:
        chunk = await loop.sock_recv(sock, size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return data
