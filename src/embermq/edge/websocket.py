"""WebSocket of one client, without I/O: bytes of the network to bytes of MQTT and back (RFC 6455, MQTT section 6).

Every byte that comes in frames is read here. A frame is read as its bytes come, however they are cut: what is there of
the payload of a data frame is handed on at once, a control frame is read when it is whole.
"""

from __future__ import annotations

from typing import Final

from embermq.edge.settings import WebSocketSettings
from embermq.edge.websocket_handshake import Handshake

FRAMES_A_TURN: Final = 256
"""Frames taken before other clients get their turn: an empty one takes about a microsecond."""

_FINAL: Final = 0x80
_RESERVED: Final = 0x70
_OPCODE: Final = 0x0F
_MASKED: Final = 0x80
_LENGTH: Final = 0x7F
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
"""Opcodes; from 8 on they are those of control frames (RFC 6455, 5.2)."""
_CONTROL_BYTES_MAX: Final = 125
_KEY_BYTES: Final = 4
_REASON_CHARACTERS_MAX: Final = 100

NORMAL_CLOSURE: Final = 1000
PROTOCOL_ERROR: Final = 1002
UNSUPPORTED_DATA: Final = 1003
INVALID_DATA: Final = 1007
_OWN_CODES_FROM, _CODES_END = 3000, 5000
"""Libraries and applications have codes of their own (RFC 6455, 7.4.2)."""
_DEFINED_CODES: Final = frozenset({1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014})
"""Those below that may be sent: of RFC 6455, 7.4.1, and what was registered since."""


class WebSocket:
    """The server's end.

    `out` is what has to be written, in order, before anything of a later call. `is_over` tells that the network
    connection has to be closed after that. `more` is True when `receive(b"")` has to be called to go on.
    """

    def __init__(self, settings: WebSocketSettings) -> None:
        self._handshake: Handshake | None = Handshake(settings)
        self.out: list[bytes] = []
        self._over = False
        self._has_closed = False
        self.more = False
        self.fault = ""
        """What the client did wrong, if it did."""
        self._pending = b""
        """Bytes of a frame whose head, or all of it for a control frame, is not there yet."""
        self._left = 0
        """Payload bytes of a data frame that are still to come, unmasked with `_key` from its first byte on."""
        self._key = b""
        self._is_begun = False
        """A message in several frames is under way (RFC 6455, 5.4)."""

    @property
    def is_open(self) -> bool:
        """Whether frames may be sent."""
        return self._handshake is None and not self._has_closed and not self._over

    def is_over(self) -> bool:
        """Whether nothing more comes of this connection."""
        return self._over

    @property
    def upgraded(self) -> bool:
        """Whether the client's request was accepted."""
        return self._handshake is None

    def receive(self, data: bytes, *, answers_pings: bool = True) -> bytes:
        """Take bytes of the network, return those of MQTT in them: frames may hold a part of a packet or several
        packets [MQTT-6.0.0-2]. A client whose pings are not answered now does not read."""
        if self._over:
            return b""
        if self._handshake is not None:
            data = self._shake_hands(self._handshake, data)
            if self._handshake is not None:
                return b""
        if self._pending:
            data = self._pending + data
            self._pending = b""
        return self._read(data, answers_pings)

    def _shake_hands(self, handshake: Handshake, data: bytes) -> bytes:
        """Take the request; returns what came behind it."""
        rest = handshake.take(data)
        if handshake.answer:
            self.out.append(handshake.answer)
            self.fault = handshake.fault
            if self.fault:
                self._over = True
            else:
                self._handshake = None
        return rest

    def _read(self, data: bytes, answers_pings: bool) -> bytes:
        found: list[bytes] = []
        ping: bytes | None = None
        at = frames = 0
        size = len(data)
        self.more = False
        while at < size:
            if self._left:
                end = min(size, at + self._left)
                found.append(self._payload(data[at:end]))
                at = end
                continue
            if frames == FRAMES_A_TURN:
                self.more = True
                break
            start = self._read_head(data, at)
            if start <= 0:
                break
            frames += 1
            opcode = data[at] & _OPCODE
            if opcode == _TEXT:
                self._refuse_text(self._payload(data[start : start + self._left]))
                break
            if opcode < _CLOSE:
                at = start
                continue
            at = start + (data[at + 1] & _LENGTH)
            if opcode == _PING:
                ping = unmasked(data[start:at], data[start - _KEY_BYTES : start])
            elif opcode == _CLOSE:
                self._take_close(unmasked(data[start:at], data[start - _KEY_BYTES : start]))
                break
        if self._over:
            self._pending = b""
        elif at < size:
            self._pending = data[at:] if at else data
        if ping is not None and answers_pings and self.is_open:
            # Of several pings the last may be answered for all (RFC 6455, 5.5.3).
            self.out.append(control_frame(_PONG, ping))
        return found[0] if len(found) == 1 else b"".join(found)

    def _read_head(self, data: bytes, at: int) -> int:
        """Read the head of the frame at `at`, and see that a control frame is whole. Returns where its payload begins;
        0 when more bytes are needed, -1 when the frame is refused."""
        size = len(data)
        if at + 2 > size:
            return 0
        first, second = data[at], data[at + 1]
        opcode, length = first & _OPCODE, second & _LENGTH
        wrong = self._objection(first, second)
        if wrong:
            return self._fail(wrong, PROTOCOL_ERROR)
        start = at + 2
        if length > _CONTROL_BYTES_MAX:
            length_bytes = 2 if length == 126 else 8
            start += length_bytes
            if start > size:
                return 0
            length = int.from_bytes(data[start - length_bytes : start], "big")
            if length < 126 or (length_bytes == 8 and length < 65_536):  # RFC 6455, 5.2: the shortest form
                return self._fail("a length that is not in its shortest form", PROTOCOL_ERROR)
            if length >> 63:
                return self._fail("a length of more than 63 bits", PROTOCOL_ERROR)
        start += _KEY_BYTES
        if start > size or (opcode >= _CLOSE and start + length > size):
            return 0
        if opcode < _CLOSE:
            self._left, self._key = length, data[start - _KEY_BYTES : start]
            self._is_begun = not first & _FINAL
        return start

    def _objection(self, first: int, second: int) -> str:
        """What is wrong with a frame by its first two bytes; "" when nothing is."""
        opcode = first & _OPCODE
        if first & _RESERVED:  # RFC 6455, 5.2: no extension was agreed to
            return "a reserved bit is set"
        if opcode > _PONG or _BINARY < opcode < _CLOSE:
            return f"opcode {opcode} is reserved"
        if not second & _MASKED:  # RFC 6455, 5.1
            return "a frame that is not masked"
        if opcode >= _CLOSE:  # RFC 6455, 5.5
            if not first & _FINAL:
                return "a control frame in several parts"
            return "a control frame of more than 125 bytes" if second & _LENGTH > _CONTROL_BYTES_MAX else ""
        if self._is_begun != (opcode == _CONTINUATION):  # RFC 6455, 5.4
            return "a message inside of another" if self._is_begun else "a continuation of nothing"
        return ""

    def _payload(self, masked: bytes) -> bytes:
        """The next bytes of the payload of a data frame."""
        key = self._key
        self._left -= len(masked)
        turned = len(masked) & 3
        if turned and self._left:
            self._key = key[turned:] + key[:turned]
        return unmasked(masked, key)

    def _refuse_text(self, begun: bytes) -> None:
        """MQTT is in binary frames [MQTT-6.0.0-1]; text that is none is told apart (RFC 6455, 8.1)."""
        try:
            begun.decode()
        except UnicodeDecodeError as error:
            if not self._left or error.reason != "unexpected end of data":
                self._fail("a text frame that is not UTF-8", INVALID_DATA)
                return
        self._fail("a text frame", UNSUPPORTED_DATA)

    def _take_close(self, payload: bytes) -> None:
        """The client closes, or answers our close (RFC 6455, 5.5.1 and 7.1.5)."""
        code = NORMAL_CLOSURE
        if payload:
            code = int.from_bytes(payload[:2], "big")
            if len(payload) == 1 or not (code in _DEFINED_CODES or _OWN_CODES_FROM <= code < _CODES_END):
                self._fail("a close frame with a status that cannot be", PROTOCOL_ERROR)
                return
            try:
                payload[2:].decode()
            except UnicodeDecodeError:
                self._fail("a close frame with a reason that is not UTF-8", INVALID_DATA)
                return
        if self.is_open:
            self.out.append(_close_frame(code, ""))
        self._over = True

    def _fail(self, text: str, code: int) -> int:
        """The client broke the protocol: say so and end (RFC 6455, 7.1.7). Returns -1."""
        self.fault = text
        if self.is_open:
            self.out.append(_close_frame(code, text))
        self._over = True
        return -1

    def frame(self, data: bytes) -> bytes:
        """One binary frame [MQTT-6.0.0-1]; b"" when the connection is not open any more."""
        return frame_head(_BINARY, len(data)) + data if self.is_open else b""

    def frame_parts(self, parts: list[bytes]) -> list[bytes]:
        """One binary frame of all parts, as parts; none when the connection is not open any more."""
        return [frame_head(_BINARY, sum(map(len, parts))), *parts] if self.is_open else []

    def close(self) -> bytes:
        """Begin the closing handshake; its end shows in `is_over`."""
        self._has_closed = True
        return _close_frame(NORMAL_CLOSURE, "")


def unmasked(data: bytes, key: bytes) -> bytes:
    """Payload without its mask, or with it: each byte combined with one of the key, in turn (RFC 6455, 5.3)."""
    size = len(data)
    mask = int.from_bytes((key * ((size >> 2) + 1))[:size], "little")
    return (int.from_bytes(data, "little") ^ mask).to_bytes(size, "little")


def frame_head(opcode: int, size: int) -> bytes:
    """What stands before a payload of so many bytes: a whole message, not masked (RFC 6455, 5.1 and 5.2)."""
    if size <= _CONTROL_BYTES_MAX:
        return bytes((_FINAL | opcode, size))
    if size < 65_536:
        return bytes((_FINAL | opcode, 126, size >> 8, size & 0xFF))
    return bytes((_FINAL | opcode, 127)) + size.to_bytes(8, "big")


def control_frame(opcode: int, payload: bytes) -> bytes:
    """A close, ping or pong; at most 125 bytes."""
    return frame_head(opcode, len(payload)) + payload


def _close_frame(code: int, reason: str) -> bytes:
    return control_frame(_CLOSE, code.to_bytes(2, "big") + reason[:_REASON_CHARACTERS_MAX].encode())
