"""Which calls are under way on a connection of gRPC, told by the frames that pass [RFC 9113 4.1]: the server behind the
door does not say of whom a call is."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

HEAD_BYTES = 9
DATA, HEADERS, RST_STREAM, CONTINUATION = 0x0, 0x1, 0x3, 0x9
END_STREAM, END_HEADERS = 0x1, 0x4
STREAM_MASK = 0x7FFF_FFFF  # the first bit is reserved
CALLS_MAX = 10_000
"""More than any setting lets through: the server refuses them one after another, which a peer may not let it say."""


class TooManyCalls(Exception):
    """The peer opens calls and does not hear that they are refused."""


class _Frame(Struct, frozen=True):
    kind: int
    flags: int
    stream: int


class _Frames:
    """Of one direction; their payloads are passed over."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0
        """Bytes of its payload that have not come yet."""

    def whole(self, data: bytes) -> Iterator[_Frame]:
        """Those whose last byte is in it."""
        at, end = 0, len(data)
        while at < end:
            if len(self._head) < HEAD_BYTES:
                piece = data[at : at + HEAD_BYTES - len(self._head)]
                self._head += piece
                at += len(piece)
                if len(self._head) < HEAD_BYTES:
                    return
                self._left = int.from_bytes(self._head[:3])
            step = min(self._left, end - at)
            self._left -= step
            at += step
            if not self._left:
                head, self._head = self._head, b""
                yield _Frame(head[3], head[4], int.from_bytes(head[5:]) & STREAM_MASK)


class CallsUnderWay:
    """A call begins with the whole of its headers, and ends with what the server says last of it, or when either side
    resets it."""

    def __init__(self) -> None:
        self._from_client, self._from_server = _Frames(), _Frames()
        self._open: set[int] = set()
        self._latest = 0
        self._begun = 0
        """The call whose headers have not come as a whole."""

    def __len__(self) -> int:
        return len(self._open)

    def client_says(self, data: bytes) -> None:
        """What comes behind the preface. Raises TooManyCalls."""
        for frame in self._from_client.whole(data):
            if frame.kind == HEADERS and frame.stream > self._latest:
                self._latest = self._begun = frame.stream
                self._headers(frame)
            elif frame.kind == CONTINUATION and frame.stream == self._begun:
                self._headers(frame)
            elif frame.kind == RST_STREAM:
                self._open.discard(frame.stream)

    def server_says(self, data: bytes) -> None:
        """Its answers."""
        for frame in self._from_server.whole(data):
            is_last = frame.kind in (DATA, HEADERS) and frame.flags & END_STREAM
            if is_last or frame.kind == RST_STREAM:
                self._open.discard(frame.stream)

    def _headers(self, frame: _Frame) -> None:
        if not frame.flags & END_HEADERS:
            return
        self._begun = 0
        self._open.add(frame.stream)
        if len(self._open) > CALLS_MAX:
            raise TooManyCalls(f"more than {CALLS_MAX} calls are under way on one connection")
