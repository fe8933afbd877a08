"""The opening handshake of WebSocket, without I/O: an HTTP request and its answer (RFC 6455, section 4)."""

import base64
import hashlib

import h11

from embermq.edge.settings import WebSocketSettings

SUBPROTOCOL = "mqtt"
SUBPROTOCOL_V31 = "mqttv3.1"
"""What clients of MQTT 3.1 ask for, from before the name was settled; only chosen when they do not offer the other."""
HEAD_BYTES_MAX = 8 * 1024
"""What a client may send before the empty line that ends its request."""
VERSION = b"13"
_HEAD_END = b"\r\n\r\n"
_PHRASES = {400: "Bad Request", 403: "Forbidden", 404: "Not Found", 426: "Upgrade Required", 431: "Too Large"}
_ACCEPT_SUFFIX = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""Behind the client's key, in what the answer hashes (RFC 6455, 1.3)."""


class _Refusal(Exception):
    """The request is refused: an HTTP status, and why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Handshake:
    """Of one client: `answer` is there when its request is whole, or is refused, which `fault` says."""

    def __init__(self, settings: WebSocketSettings) -> None:
        self._settings = settings
        self._head = bytearray()
        self.answer = b""
        self.fault = ""
        """What is wrong with the request, if anything is."""

    def take(self, data: bytes) -> bytes:
        """Take bytes of the request; returns what came behind it."""
        seen = max(0, len(self._head) - len(_HEAD_END))
        self._head += data
        end = self._head.find(_HEAD_END, seen)
        size = end + len(_HEAD_END) if end >= 0 else len(self._head)
        try:
            if size > HEAD_BYTES_MAX:
                raise _Refusal(431, f"a request has at most {HEAD_BYTES_MAX} bytes")
            if end < 0:
                return b""
            head, rest = bytes(self._head[:size]), bytes(self._head[size:])
            self.answer = self._judge(head)
        except _Refusal as refusal:
            self.fault = str(refusal)
            self.answer = _refused(refusal.status, self.fault)
            return b""
        return rest

    def _judge(self, head: bytes) -> bytes:
        """The answer to a request that may enter. Raises _Refusal."""
        if not head.partition(b"\r\n")[0].endswith(b" HTTP/1.1"):
            raise _Refusal(400, "this is not HTTP/1.1")
        http = h11.Connection(h11.SERVER)
        try:
            http.receive_data(head)
            request = http.next_event()
        except h11.RemoteProtocolError as error:
            raise _Refusal(400, f"Bad HTTP message: {error}") from error
        if not isinstance(request, h11.Request):
            raise _Refusal(400, "this is not a WebSocket request")
        headers = _Headers(request)
        key = _key(request.method, headers)
        if request.target.partition(b"?")[0] != self._settings.path.encode():
            raise _Refusal(404, f"MQTT is served at {self._settings.path}")
        subprotocol = _choose(headers.listed(b"sec-websocket-protocol"))
        if not subprotocol:
            raise _Refusal(400, f"the subprotocol has to be {SUBPROTOCOL}")  # [MQTT-6.0.0-3]
        origin, allowed = headers.one(b"origin").decode("latin-1"), self._settings.origins
        if origin and allowed and origin not in allowed:
            raise _Refusal(403, "pages of this origin may not connect")
        return _accepted(key, subprotocol)


class _Headers:
    """Of a request, whose names h11 has in small letters."""

    def __init__(self, request: h11.Request) -> None:
        self._found: dict[bytes, list[bytes]] = {}
        for name, value in request.headers:
            self._found.setdefault(name, []).append(value)

    def one(self, name: bytes) -> bytes:
        """Its last value; b"" when there is none."""
        return self._found.get(name, [b""])[-1]

    def listed(self, name: bytes) -> list[str]:
        """What is listed with commas, in one header or several."""
        text = b",".join(self._found.get(name, ())).decode("latin-1")
        return [part.strip() for part in text.split(",")]


def _key(method: bytes, headers: _Headers) -> bytes:
    """The client's key, when it asks for a WebSocket (RFC 6455, 4.2.1). Raises _Refusal."""
    version = headers.one(b"sec-websocket-version")
    if method != b"GET":
        raise _Refusal(400, "Request method must be GET")
    if "upgrade" not in (token.lower() for token in headers.listed(b"connection")):
        raise _Refusal(400, "Missing header, 'Connection: Upgrade'")
    if version != VERSION:
        raise _Refusal(426 if version else 400, "Missing header, 'Sec-WebSocket-Version'")
    key = headers.one(b"sec-websocket-key")
    if not key:
        raise _Refusal(400, "Missing header, 'Sec-WebSocket-Key'")
    if headers.one(b"upgrade").lower() != b"websocket":
        raise _Refusal(400, "Missing header, 'Upgrade: websocket'")
    host = headers.one(b"host")
    if not host or not host.isascii():
        raise _Refusal(400, "this is not a WebSocket request")
    return key


def _choose(offered: list[str]) -> str:
    """The subprotocol to speak [MQTT-6.0.0-4]; "" when none will do."""
    return next((name for name in (SUBPROTOCOL, SUBPROTOCOL_V31) if name in offered), "")


def _accepted(key: bytes, subprotocol: str) -> bytes:
    """The answer that opens the WebSocket (RFC 6455, 4.2.2); extensions are never agreed to."""
    accept = base64.b64encode(hashlib.sha1(key + _ACCEPT_SUFFIX, usedforsecurity=False).digest()).decode()
    lines = (
        "HTTP/1.1 101 Switching Protocols",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Accept: {accept}",
        f"Sec-WebSocket-Protocol: {subprotocol}",
    )
    return "\r\n".join(lines).encode() + _HEAD_END


def _refused(status: int, text: str) -> bytes:
    """Plain HTTP, for whoever speaks no WebSocket."""
    body = text.encode() + b"\n"
    head = f"HTTP/1.1 {status} {_PHRASES[status]}\r\n"
    if status == 426:
        head += f"Upgrade: websocket\r\nSec-WebSocket-Version: {VERSION.decode()}\r\n"
    head += f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body
