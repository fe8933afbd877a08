"""A blocking client that sends any bytes over any socket: for transports, and for what no real client would send."""

from __future__ import annotations

import base64
import os
import socket
import ssl
from typing import TypeVar

from embermq.mqtt.wire.decoder import Decoder, Role
from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import Connack, Connect, Packet, Pingreq, Pingresp
from embermq.mqtt.wire.version import ProtocolVersion

ANSWER_S = 60.0
CHUNK_BYTES = 65_536
Wanted = TypeVar("Wanted", bound=Packet)


def connect_packet(
    client_id: str = "", *, username: str | None = None, password: bytes | None = None
) -> bytes:
    """CONNECT of MQTT 5."""
    return encode(
        Connect(client_id, ProtocolVersion.V5, True, 0, username, password, None, None), ProtocolVersion.V5
    )


def dial(port: int, host: str = "127.0.0.1", *, tls: ssl.SSLContext | None = None) -> socket.socket:
    """A connected socket, TLS already spoken if a context is given."""
    sock = socket.create_connection((host, port), ANSWER_S)
    return sock if tls is None else tls.wrap_socket(sock, server_hostname="localhost")


class OpenSockets:
    """Sockets that a test opens, to be closed at its end."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def keep(self, sock: socket.socket) -> socket.socket:
        """Close it with the others."""
        self._sockets.append(sock)
        return sock

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()


def dial_unix(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(ANSWER_S)
    sock.connect(path)
    return sock


class RawClient:
    """MQTT over a socket as it is."""

    def __init__(self, sock: socket.socket, version: ProtocolVersion = ProtocolVersion.V5) -> None:
        self.sock = sock
        self.version = version
        self._decoder = Decoder(Role.CLIENT, packet_bytes_max=268_435_460, version=version)
        self._packets: list[Packet] = []

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def receive(self) -> bytes:
        """Some bytes of MQTT; b"" at the end of the connection."""
        try:
            return self.sock.recv(CHUNK_BYTES)
        except (ConnectionResetError, BrokenPipeError, ssl.SSLError):
            return b""

    def expect(self, kind: type[Wanted]) -> Wanted:
        """The next packet, which has to be of that kind."""
        packet = self.next()
        assert isinstance(packet, kind), packet
        return packet

    def next(self) -> Packet:
        """The next packet of any kind."""
        while not self._packets:
            data = self.receive()
            assert data, "the connection ended before the next packet"
            self._packets += self._decoder.feed(data)
            assert self._decoder.error is None, self._decoder.error
        return self._packets.pop(0)

    def enter(
        self, client_id: str = "", *, username: str | None = None, password: bytes | None = None
    ) -> int:
        """CONNECT; returns the reason code."""
        self.send(connect_packet(client_id, username=username, password=password))
        return self.expect(Connack).reason_code

    def ping(self) -> None:
        self.send(encode(Pingreq(), ProtocolVersion.V5))
        self.expect(Pingresp)

    def ping_through(self) -> None:
        """The same, passing over what is before the answer."""
        self.send(encode(Pingreq(), ProtocolVersion.V5))
        while not isinstance(self.next(), Pingresp):
            pass

    def read_to_end(self) -> bytes:
        """Everything until the broker closes the connection."""
        found = b""
        while data := self.receive():
            found += data
        return found

    def close(self) -> None:
        self.sock.close()


BINARY, TEXT, CONTINUATION, CLOSE, PING, PONG = 2, 1, 0, 8, 9, 10


def frame(
    opcode: int, payload: bytes, *, final: bool = True, masked: bool = True, reserved: int = 0
) -> bytes:
    """One WebSocket frame (RFC 6455, 5.2), right or wrong."""
    head = bytes([(0x80 if final else 0) | reserved << 4 | opcode])
    mask_bit = 0x80 if masked else 0
    size = len(payload)
    if size < 126:
        head += bytes([mask_bit | size])
    elif size < 65_536:
        head += bytes([mask_bit | 126]) + size.to_bytes(2)
    else:
        head += bytes([mask_bit | 127]) + size.to_bytes(8)
    if not masked:
        return head + payload
    key = os.urandom(4)
    return head + key + bytes(byte ^ key[index % 4] for index, byte in enumerate(payload))


def upgrade_request(
    path: str = "/mqtt", *, subprotocol: str | None = "mqtt", extra: str = "", method: str = "GET"
) -> bytes:
    """The HTTP request that begins a WebSocket."""
    nonce = base64.b64encode(os.urandom(16)).decode()
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {nonce}",
        "Sec-WebSocket-Version: 13",
    ]
    if subprotocol is not None:
        lines.append(f"Sec-WebSocket-Protocol: {subprotocol}")
    return "\r\n".join([*lines, extra] if extra else lines).encode() + b"\r\n\r\n"


class RawWebSocket(RawClient):
    """MQTT in frames; `sent_frames` and `receive_frame` for what else is in them."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._buffer = b""
        self.head = b""

    def upgrade(self, request: bytes | None = None) -> bytes:
        """Send a request; returns the head of the answer, up to the empty line."""
        self.sock.sendall(request if request is not None else upgrade_request())
        return self.read_head()

    def read_head(self) -> bytes:
        while b"\r\n\r\n" not in self._buffer:
            data = super().receive()
            assert data, f"the connection ended after {self._buffer!r}"
            self._buffer += data
        self.head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        return self.head

    def send(self, data: bytes) -> None:
        self.sock.sendall(frame(BINARY, data))

    def receive(self) -> bytes:
        opcode, payload = self.receive_frame()
        assert opcode in (BINARY, CLOSE, -1), opcode
        return payload if opcode == BINARY else b""

    def receive_frame(self) -> tuple[int, bytes]:
        """Opcode and payload; opcode -1 at the end of the connection."""
        head = self._take(2)
        if not head:
            return -1, b""
        assert head[0] & 0x80 and not head[1] & 0x80, "the server fragments or masks"
        size = head[1]
        if size == 126:
            size = int.from_bytes(self._take(2))
        elif size == 127:
            size = int.from_bytes(self._take(8))
        return head[0] & 15, self._take(size)

    def expect_close(self) -> int:
        """The status of the close frame, behind whatever frames."""
        while True:
            opcode, payload = self.receive_frame()
            assert opcode != -1, "the connection ended without a close frame"
            if opcode == CLOSE:
                return int.from_bytes(payload[:2])

    def rest(self) -> bytes:
        """Everything until the end, frames or not."""
        found = self._buffer
        while data := super().receive():
            found += data
        return found

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = super().receive()
            if not data:
                return b""
            self._buffer += data
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken
