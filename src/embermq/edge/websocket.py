"""WebSocket of one client, without I/O: bytes of the network to bytes of MQTT and back (RFC 6455, MQTT section 6)."""

from itertools import islice

from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, Request, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from embermq.edge.settings import WebSocketSettings

SUBPROTOCOL = "mqtt"
SUBPROTOCOL_V31 = "mqttv3.1"
"""What clients of MQTT 3.1 ask for, from before the name was settled; only chosen when they do not offer the other."""
HEAD_BYTES_MAX = 8 * 1024
"""What a client may send before the empty line that ends its request."""
FRAMES_A_TURN = 32
"""Frames taken before other clients get their turn."""
_HEAD_END = b"\r\n\r\n"
_PHRASES = {400: "Bad Request", 403: "Forbidden", 404: "Not Found", 426: "Upgrade Required", 431: "Too Large"}


class WebSocket:
    """The server's end.

    `out` is what has to be written, in order, before anything of a later call. `is_over` tells that the network
    connection has to be closed after that. `more` is True when `receive(b"")` has to be called to go on.
    """

    def __init__(self, settings: WebSocketSettings) -> None:
        self._settings = settings
        self._protocol = WSConnection(ConnectionType.SERVER)
        self._head = bytearray()
        self.out: list[bytes] = []
        self._over = False
        self.more = False
        self.fault = ""
        """What the client did wrong, if it did."""

    @property
    def is_open(self) -> bool:
        """Whether frames may be sent."""
        return self._protocol.state is ConnectionState.OPEN

    def is_over(self) -> bool:
        """Whether nothing more comes of this connection."""
        return self._over

    @property
    def upgraded(self) -> bool:
        """Whether the client's request was accepted."""
        return self._protocol.connection is not None

    def receive(self, data: bytes, *, answers_pings: bool = True) -> bytes:
        """Take bytes of the network, return those of MQTT in them: frames may hold a part of a packet or several
        packets [MQTT-6.0.0-2]. A client whose pings are not answered now does not read."""
        if self._over:
            return b""
        if not self.upgraded:
            data = self._shake_hands(data)
            if not self.upgraded:
                return b""
        chunks: list[bytes] = []
        ping: Ping | None = None
        self.more = False
        if data:
            self._protocol.receive_data(data)
        taken = 0
        for event in islice(self._protocol.events(), FRAMES_A_TURN):
            taken += 1
            if isinstance(event, BytesMessage):
                chunks.append(bytes(event.data))
            elif isinstance(event, Ping):
                ping = event
            elif isinstance(event, CloseConnection):
                self._answer_close(event)
                break
            elif isinstance(event, TextMessage):
                self._fail("a text frame", CloseReason.UNSUPPORTED_DATA)  # [MQTT-6.0.0-1]
                break
        self.more = taken == FRAMES_A_TURN and not self._over
        if ping is not None and answers_pings and self.is_open:
            # Of several pings the last may be answered for all (RFC 6455, 5.5.3).
            self.out.append(self._protocol.send(ping.response()))
        return b"".join(chunks)

    def frame(self, data: bytes) -> bytes:
        """One binary frame [MQTT-6.0.0-1]; b"" when the connection is not open any more."""
        return self._protocol.send(BytesMessage(data)) if self.is_open else b""

    def close(self) -> bytes:
        """Begin the closing handshake; its end shows in `is_over`."""
        return self._protocol.send(CloseConnection(CloseReason.NORMAL_CLOSURE))

    def _answer_close(self, event: CloseConnection) -> None:
        if self.is_open:  # the library says in this way that a frame is wrong
            self._fail(event.reason or "an invalid frame", event.code)
            return
        if self._protocol.state is ConnectionState.REMOTE_CLOSING:
            self.out.append(self._protocol.send(event.response()))
        self._over = True

    def _fail(self, text: str, code: int) -> None:
        self.fault = text
        if self.is_open:
            self.out.append(self._protocol.send(CloseConnection(code, text[:100])))
        self._over = True

    def _shake_hands(self, data: bytes) -> bytes:
        """Take the request; returns what came behind it."""
        seen = max(0, len(self._head) - len(_HEAD_END))
        self._head += data
        end = self._head.find(_HEAD_END, seen)
        size = end + len(_HEAD_END) if end >= 0 else len(self._head)
        if size > HEAD_BYTES_MAX:
            self._refuse(431, f"a request has at most {HEAD_BYTES_MAX} bytes")
            return b""
        if end < 0:
            return b""
        head, rest = bytes(self._head[:size]), bytes(self._head[size:])
        self._head.clear()
        if not head.partition(b"\r\n")[0].endswith(b" HTTP/1.1"):
            self._refuse(400, "this is not HTTP/1.1")
            return b""
        try:
            self._protocol.receive_data(head)
            request = next(iter(self._protocol.events()), None)
            if isinstance(request, Request) and self._may_enter(request):
                self.out.append(
                    self._protocol.send(AcceptConnection(subprotocol=_choose(request.subprotocols)))
                )
            elif not self._over:
                self._refuse(400, "this is not a WebSocket request")
        except RemoteProtocolError as error:
            status = getattr(error.event_hint, "status_code", 400)
            self._refuse(status, str(error))
        except (LocalProtocolError, ValueError):
            self._refuse(400, "this is not a WebSocket request")
        return rest

    def _may_enter(self, request: Request) -> bool:
        headers = dict(request.extra_headers)
        origin = headers.get(b"origin", b"").decode("latin-1")
        allowed = self._settings.origins
        if request.target.partition("?")[0] != self._settings.path:
            self._refuse(404, f"MQTT is served at {self._settings.path}")
        elif not _choose(request.subprotocols):
            self._refuse(400, f"the subprotocol has to be {SUBPROTOCOL}")  # [MQTT-6.0.0-3]
        elif origin and allowed and origin not in allowed:
            self._refuse(403, "pages of this origin may not connect")
        return not self._over

    def _refuse(self, status: int, text: str) -> None:
        """Plain HTTP, for whoever speaks no WebSocket."""
        self.fault = text
        self._over = True
        body = text.encode() + b"\n"
        head = f"HTTP/1.1 {status} {_PHRASES.get(status, 'Refused')}\r\n"
        if status == 426:
            head += "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        head += f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.out.append(head.encode() + body)


def _choose(offered: list[str]) -> str:
    """The subprotocol to speak [MQTT-6.0.0-4]; "" when none will do."""
    return next((name for name in (SUBPROTOCOL, SUBPROTOCOL_V31) if name in offered), "")
