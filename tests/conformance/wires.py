"""The same bytes over each transport: a socket as it is, TLS, WebSocket, and WebSocket in TLS."""

from __future__ import annotations

import socket
import ssl
from typing import Literal, Protocol

from tests.support.raw_client import BINARY, CLOSE, dial, frame, upgrade_request

Transport = Literal["tcp", "tls", "ws", "wss"]
TRANSPORTS: tuple[Transport, ...] = ("tcp", "tls", "ws", "wss")
CHUNK_BYTES = 65_536


class Wire(Protocol):
    """What a client of the conformance tests needs of a socket. `recv` returns b"" at the end."""

    def sendall(self, data: bytes, /) -> None: ...

    def recv(self, size: int, /) -> bytes: ...

    def settimeout(self, seconds: float, /) -> None: ...

    def finish_sending(self) -> None: ...

    def drop(self) -> None: ...

    def close(self) -> None: ...


def open_wire(transport: Transport, port: int, tls: ssl.SSLContext | None) -> Wire:
    """A connection; WebSocket is upgraded already."""
    sock = dial(port, tls=tls if transport in ("tls", "wss") else None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return FramedWire(sock) if transport in ("ws", "wss") else PlainWire(sock)


class PlainWire:
    """Bytes as they are, TLS or not."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def sendall(self, data: bytes, /) -> None:
        self._socket.sendall(data)

    def recv(self, size: int, /) -> bytes:
        return self._socket.recv(size)

    def settimeout(self, seconds: float, /) -> None:
        self._socket.settimeout(seconds)

    def finish_sending(self) -> None:
        """Half-close, which TLS does not have: there the client only falls silent."""
        if not isinstance(self._socket, ssl.SSLSocket):
            self._socket.shutdown(socket.SHUT_WR)

    def drop(self) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self._socket.close()

    def close(self) -> None:
        self._socket.close()


class FramedWire(PlainWire):
    """Bytes in binary frames, one for each write. The broker's close frame is the end, and is answered."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._buffer = b""
        self._is_over = False
        sock.sendall(upgrade_request())
        while b"\r\n\r\n" not in self._buffer:
            data = sock.recv(CHUNK_BYTES)
            assert data, f"the connection ended after {self._buffer!r}"
            self._buffer += data
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 "), head

    def sendall(self, data: bytes, /) -> None:
        self._socket.sendall(frame(BINARY, data))

    def recv(self, size: int, /) -> bytes:
        while not self._is_over:
            found = self._next_frame()
            if found is None:
                data = self._socket.recv(size)
                if not data:
                    raise AssertionError("the connection ended without a close frame")
                self._buffer += data
                continue
            opcode, payload = found
            if opcode == CLOSE:
                self._is_over = True
                self._socket.sendall(frame(CLOSE, payload))
                assert self._socket.recv(size) == b"", "something follows the close frame"
            else:
                assert opcode == BINARY, f"a frame of kind {opcode}"
                return payload
        return b""

    def _next_frame(self) -> tuple[int, bytes] | None:
        """The first frame in the buffer, when it is complete."""
        data = self._buffer
        if len(data) < 2:
            return None
        assert data[0] & 0x80 and not data[1] & 0x80, "the server fragments or masks"
        size, start = data[1], 2
        if size > 125:
            start = 4 if size == 126 else 10
            size = int.from_bytes(data[2:start])
        if len(data) < start + size:
            return None
        self._buffer = data[start + size :]
        return data[0] & 15, data[start : start + size]
