"""Sockets without TLS, read and written without the event loop's transports: what those cost for each read and write is
more than what the broker does for a short packet.

The event loop watches one epoll descriptor, and tells of it once a turn; all sockets in it that are ready are then
read, one after the other. `PlainTransport` is a transport of asyncio by its methods.
"""

import asyncio
import select
import socket
from typing import Any, Final, cast

READ_BYTES_MAX = 256 * 1024
"""Taken from a socket at once."""
BULK_BYTES = 128 * 1024
"""After a read of so many the next one goes to bytes of its own, which saves a copy and is dearer for what is small."""
TURN_SOCKETS_MAX = 256
"""Read before the event loop looks at everything else."""
PARTS_MAX = 256
"""Buffers of one call; Linux takes 1,024."""
HIGH_BYTES = 64 * 1024
"""May wait for a socket before its protocol is told, unless it says how much."""
_IN: Final = 0x1
_OUT: Final = 0x4
"""EPOLLIN and EPOLLOUT."""

_Part = bytes | memoryview


class PlainSockets:
    """The plain sockets of one event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.epoll = select.epoll()
        self.view = memoryview(bytearray(READ_BYTES_MAX))
        """Where everybody's bytes are received, one read at a time."""
        self.transports: dict[int, PlainTransport] = {}
        """Those that epoll watches, by descriptor."""
        self.loop.add_reader(self.epoll.fileno(), self._ready)

    def serve(self, sock: socket.SocketType, peer: object, protocol: asyncio.BaseProtocol) -> None:
        """Read a socket that does not block, and write to it, for this protocol."""
        PlainTransport(self, sock, peer, protocol).begin()

    def _ready(self) -> None:
        transports = self.transports
        for descriptor, events in self.epoll.poll(0, TURN_SOCKETS_MAX):
            transport = transports.get(descriptor)
            if transport is not None:  # else what was told to another one has closed it
                transport.ready(events)

    def close(self) -> None:
        """Watch nothing any more, and abort what is still open."""
        if self.epoll.closed:
            return
        for transport in list(self.transports.values()):
            transport.abort()
        stop: Any = self.loop.remove_reader  # uvloop's returns nothing
        stop(self.epoll.fileno())
        self.epoll.close()


class PlainTransport:
    """One socket."""

    __slots__ = (
        "_at_eof",
        "_closing",
        "_descriptor",
        "_ends",
        "_high",
        "_is_bulk",
        "_low",
        "_paused",
        "_peer",
        "_protocol",
        "_reading",
        "_socket",
        "_sockets",
        "_waiting",
        "_waiting_bytes",
        "_watched",
    )

    def __init__(
        self, sockets: PlainSockets, sock: socket.SocketType, peer: object, protocol: asyncio.BaseProtocol
    ) -> None:
        self._sockets = sockets
        self._socket = sock
        self._descriptor = sock.fileno()
        self._peer = peer
        self._protocol: asyncio.Protocol | None = cast(asyncio.Protocol, protocol)
        self._watched = 0
        """What epoll watches for; 0 is not in it."""
        self._reading = False
        self._at_eof = False
        self._closing = False
        self._ends = False
        """Whether nothing more is sent after what waits."""
        self._paused = False
        """Whether the protocol was told to write no more."""
        self._is_bulk = False
        """Whether the last read had so many bytes."""
        self._high = HIGH_BYTES
        self._low = HIGH_BYTES // 4
        self._waiting: list[_Part] | None = None
        """What the socket has not taken."""
        self._waiting_bytes = 0

    def begin(self) -> None:
        """Tell the protocol, then read."""
        protocol = self._protocol
        assert protocol is not None
        try:
            protocol.connection_made(cast(asyncio.Transport, self))
        except Exception as error:
            self._fail(error)
            return
        self.resume_reading()

    # What the network tells

    def ready(self, events: int) -> None:
        """Called with the events of epoll."""
        if events & ~_OUT:  # something to read, its end, or an error, which a read or a write tells of
            if self._reading:
                self._read()
            else:
                self._watch(self._watched & ~_IN)
        if events & ~_IN and self._watched & _OUT:
            self._write_on()

    def _read(self) -> None:
        protocol = self._protocol
        try:
            if self._is_bulk:
                data = self._socket.recv(READ_BYTES_MAX)
            else:
                view = self._sockets.view
                size = self._socket.recv_into(view)
                data = bytes(view[:size])
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(error)
            return
        self._is_bulk = len(data) >= BULK_BYTES
        if protocol is None:
            return
        try:
            if data:
                protocol.data_received(data)
            else:
                self._end(protocol)
        except Exception as error:
            self._fail(error)

    def _end(self, protocol: asyncio.Protocol) -> None:
        self._at_eof = True
        self._reading = False
        self._watch(self._watched & ~_IN)
        if not protocol.eof_received():
            self.close()

    def _write_on(self) -> None:
        waiting = self._waiting
        if waiting is None:
            return
        rest = self._send(waiting)
        if self._waiting is None:  # the connection has ended
            return
        self._waiting = rest
        self._waiting_bytes = sum([len(part) for part in rest])
        if not rest:
            self._written()
        if self._paused and self._waiting_bytes <= self._low and self._protocol is not None:
            self._paused = False
            self._protocol.resume_writing()

    def _send(self, parts: list[_Part]) -> list[_Part]:
        """Returns what the socket has not taken."""
        try:
            sent = self._socket.sendmsg(parts[:PARTS_MAX])
        except (BlockingIOError, InterruptedError):
            return parts
        except OSError as error:
            self._lose(error)
            return []
        for whole, part in enumerate(parts):
            if sent < len(part):
                rest = parts[whole:]
                if sent:
                    rest[0] = memoryview(part)[sent:]
                return rest
            sent -= len(part)
        return []

    def _written(self) -> None:
        self._waiting = None
        self._watch(self._watched & ~_OUT)
        if self._closing:
            self._sockets.loop.call_soon(self._over, None)
        elif self._ends:
            self._shut()

    def _lose(self, error: OSError | None) -> None:
        """The connection has ended; the protocol hears of it next, once."""
        if self._closing and self._waiting is None:
            return
        self._closing = True
        self._reading = False
        self._waiting, self._waiting_bytes = None, 0
        self._watch(0)
        self._sockets.loop.call_soon(self._over, error)

    def _fail(self, error: Exception) -> None:
        """The protocol has."""
        told = {"message": "a connection failed", "exception": error, "transport": self}
        self._sockets.loop.call_exception_handler(told)
        self._lose(None)

    def _over(self, error: OSError | None) -> None:
        protocol, self._protocol = self._protocol, None
        try:
            if protocol is not None:
                protocol.connection_lost(error)
        finally:
            self._socket.close()

    def _watch(self, events: int) -> None:
        watched, sockets, descriptor = self._watched, self._sockets, self._descriptor
        if events == watched:
            return
        if not events:
            del sockets.transports[descriptor]
            sockets.epoll.unregister(descriptor)
        elif watched:
            sockets.epoll.modify(descriptor, events)
        else:
            try:
                sockets.epoll.register(descriptor, events)
            except OSError as error:  # the system watches as many as it may, or is out of memory
                self._lose(error)
                return
            sockets.transports[descriptor] = self
        self._watched = events

    # What the protocol asks

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """What comes is for this one from now on."""
        self._protocol = cast(asyncio.Protocol, protocol)

    def pause_reading(self) -> None:
        """Do not read until `resume_reading`. Epoll goes on watching until it has something, which may be never."""
        self._reading = False

    def resume_reading(self) -> None:
        if not (self._reading or self._at_eof or self._closing):
            self._reading = True
            self._watch(self._watched | _IN)

    def write(self, data: bytes) -> None:
        if self._closing or self._ends or not data:
            return
        rest: _Part = data
        if self._waiting is None:
            try:
                sent = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self._lose(error)
                return
            if sent == len(data):
                return
            if sent:
                rest = memoryview(data)[sent:]
        self._wait([rest])

    def writelines(self, parts: list[bytes]) -> None:
        if self._closing or self._ends:
            return
        rest: list[_Part] = [part for part in parts if part]
        if self._waiting is None and rest:
            rest = self._send(rest)
        if rest:
            self._wait(rest)

    def _wait(self, parts: list[_Part]) -> None:
        """Have them written when the socket takes more."""
        if self._waiting is None:
            self._waiting = []
        self._waiting += parts
        self._waiting_bytes += sum([len(part) for part in parts])
        self._watch(self._watched | _OUT)
        self._tell_of_more()

    def _tell_of_more(self) -> None:
        if self._waiting_bytes > self._high and not self._paused and self._protocol is not None:
            self._paused = True
            self._protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Send nothing after what waits."""
        if self._closing or self._ends:
            return
        self._ends = True
        if self._waiting is None:
            self._shut()

    def _shut(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._lose(error)

    def close(self) -> None:
        """End when what waits has been written."""
        if self._closing:
            return
        self._closing = True
        self._reading = False
        if self._waiting is None:
            self._watch(0)
            self._sockets.loop.call_soon(self._over, None)
        else:
            self._watch(_OUT)

    def abort(self) -> None:
        """End now."""
        self._lose(None)

    def is_closing(self) -> bool:
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low
        self._tell_of_more()

    def get_write_buffer_size(self) -> int:
        return self._waiting_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`peername` and `socket`."""
        if name == "peername":
            return self._peer
        return self._socket if name == "socket" else default
