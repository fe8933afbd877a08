"""A WebSocket connection around a client, in as little as a load needs: RFC 6455, binary frames, a key of zeros."""

from __future__ import annotations

import asyncio
import base64
import os
from typing import cast

BINARY_FIN = 0x82
IS_MASKED = 0x80
KEY = bytes(4)
"""Masking with it changes nothing; the broker has the same work as with any other."""
CLOSE = 8
SHORT_MAX = 125
WORD_BYTES = {126: 2, 127: 8}
HEAD_END = b"\r\n\r\n"


class WebSocket(asyncio.Protocol):
    """Between the socket and a client's protocol, for which it is the transport once `opened` is done."""

    def __init__(self, client: asyncio.Protocol, place: str) -> None:
        self._client = client
        self._place = place
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._frame_left = 0
        self._frame_is_data = False
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the upgrade."""
        self._transport = cast(asyncio.Transport, transport)
        key = base64.b64encode(os.urandom(16)).decode()
        self._transport.write(
            f"GET /mqtt HTTP/1.1\r\nHost: {self._place}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Protocol: mqtt\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        """Hand on what is in the frames."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        if not self.opened.done():
            head, end, data = data.partition(HEAD_END)
            if not end:
                self._rest = head
                return
            if not head.startswith(b"HTTP/1.1 101"):
                said = head.partition(b"\r\n")[0].decode(errors="replace")
                self.opened.set_exception(ConnectionRefusedError(f"the upgrade was answered with {said}"))
                self.abort()
                return
            self._client.connection_made(cast(asyncio.Transport, self))
            self.opened.set_result(None)
        if body := self._unframed(data):
            self._client.data_received(body)

    def connection_lost(self, exc: Exception | None) -> None:
        """Hand it on."""
        if self.opened.done():
            self._client.connection_lost(exc)
        else:
            self.opened.set_exception(exc or ConnectionResetError("it ended before the upgrade"))

    def pause_writing(self) -> None:
        """The socket is full."""
        self._client.pause_writing()

    def resume_writing(self) -> None:
        """The socket takes bytes again."""
        self._client.resume_writing()

    # the client calls these, as those of a transport

    def write(self, data: bytes) -> None:
        """One frame."""
        assert self._transport is not None
        length = len(data)
        if length <= SHORT_MAX:
            head = bytes((BINARY_FIN, IS_MASKED | length))
        else:
            size = 126 if length < 1 << 16 else 127
            head = bytes((BINARY_FIN, IS_MASKED | size)) + length.to_bytes(WORD_BYTES[size])
        self._transport.write(head + KEY + data)

    def close(self) -> None:
        """Once all is written."""
        assert self._transport is not None
        self._transport.close()

    def abort(self) -> None:
        """At once."""
        assert self._transport is not None
        self._transport.abort()

    def _unframed(self, data: bytes) -> bytes:
        """The bytes of data frames; a head that is not whole waits for the next read."""
        parts = []
        position = 0
        while position < len(data):
            if not self._frame_left:
                start = self._read_head(data, position)
                if not start:
                    self._rest = data[position:]
                    break
                position = start
            end = position + self._frame_left
            part = data[position:end]
            if self._frame_is_data:
                parts.append(part)
            self._frame_left -= len(part)
            position += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_head(self, data: bytes, position: int) -> int:
        """Where the frame's payload starts; 0 when its head is not whole."""
        if len(data) < position + 2:
            return 0
        length = data[position + 1]
        start = position + 2 + WORD_BYTES.get(length, 0)
        if len(data) < start:
            return 0
        if start > position + 2:
            length = int.from_bytes(data[position + 2 : start])
        self._frame_left = length
        self._frame_is_data = not data[position] & CLOSE
        return start
