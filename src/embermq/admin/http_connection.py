"""One connection of the HTTP server, none of whose states lasts for ever: uvicorn bounds only the time between two
requests. What is refused is counted; uvicorn would write a line for each, which strangers could fill a log with."""

from __future__ import annotations

import asyncio
import logging
import pwd
import socket
import sys
from asyncio import BaseTransport
from http import HTTPStatus
from struct import Struct
from typing import Any, cast

import h11
import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from embermq.admin.access import CertificateName, no_certificate
from embermq.admin.errors import Problem, Refusals, Why
from embermq.admin.settings import HEADER_BYTES_MAX

_CREDENTIALS = Struct("3i")
"""Process, user and group, as the kernel tells of who has connected."""
TASKS_PER_CONNECTION = 2
"""One that answers, and one whose peer has gone, or that has just answered."""
_WHY = {
    HTTPStatus.UNAUTHORIZED: Why.UNAUTHENTICATED,
    HTTPStatus.FORBIDDEN: Why.DENIED,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: Why.TOO_LARGE,
}

_log = logging.getLogger(__name__)
_uvicorns = logging.getLogger("uvicorn.error.connections")
_uvicorns.setLevel(logging.ERROR)


class TimedConnection(H11Protocol):
    """Ends when a request takes longer than `request_timeout_s` to come in, headers and body, or when its peer takes
    nothing of an answer for so long. When there are more than `connections_max` with it, a new one takes the place of
    the one that has waited longest without a request under way; when each has one, its request is answered with 503."""

    request_timeout_s = 10.0
    connections_max = 64
    refusals = Refusals()
    certificate_name: CertificateName = staticmethod(no_certificate)

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.logger = _uvicorns
        self._application = self.app
        self.app = self._answer

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What the application says, and count what it refuses."""
        if (
            len(self.connections) > self.connections_max
            or len(self.tasks) > self.connections_max * TASKS_PER_CONNECTION
        ):
            self.refusals.add(Why.CONNECTIONS_MAX)
            told = f"{self.connections_max} requests are under way, as many as there may be"
            await _unavailable(told)(scope, receive, send)
            return

        if _head_bytes(scope) > HEADER_BYTES_MAX:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            self.refusals.add(Why.TOO_LARGE)
            told = f"what stands before the body has more than {HEADER_BYTES_MAX} bytes"
            await _problem(status, told)(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] in _WHY:
                self.refusals.add(_WHY[message["status"]])
            await send(message)

        scope["certificate"] = self.certificate_name(self.transport)
        scope["os_user"] = _os_user(self.transport)
        try:
            await self._application(scope, receive, counted)
        except asyncio.CancelledError:  # the broker stops, and has waited for long enough
            if not self.cycle.response_started:
                told = "the broker stops; what was asked may be done, or a part of it"
                await _unavailable(told)(scope, receive, send)
        except Exception:  # the application has told of it and answered: uvicorn would tell of it once more
            _log.debug("answered with 500")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._began_s = self.loop.time()
        self._deadline: asyncio.TimerHandle | None = None
        self._make_room()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._look()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._look()

    @property
    def _is_answering(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # there is none before the first request
        return cycle is not None and not cycle.response_complete

    def _look(self) -> None:
        """Whether it waits for its peer now, and uvicorn does not see to it. What comes meanwhile moves no deadline."""
        is_between = self.timeout_keep_alive_task is not None
        is_reading = self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and not is_between
        if not is_reading and not self.flow.write_paused and not self.transport.is_closing():
            self._rest()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.request_timeout_s, self._on_deadline)

    def _rest(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP, or too much of it; called while that error is handled."""
        error = sys.exception()
        status = HTTPStatus(getattr(error, "error_status_hint", HTTPStatus.BAD_REQUEST))
        is_large = status is HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        self.refusals.add(Why.TOO_LARGE if is_large else Why.MALFORMED)
        _log.debug("%s sent what is no HTTP: %s", self.client, error)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # else its answer has begun, or ended
            self.transport.write(_refusal(status, str(error or msg)))
        self._end()

    def _end(self) -> None:
        """Nothing more is said to it; whoever still answers is told so."""
        if self._is_answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def _on_deadline(self) -> None:
        self._deadline = None
        self.refusals.add(Why.TIMEOUT)
        if self.transport.is_closing() or self.flow.write_paused:
            self.transport.abort()
            return
        is_answering = self._is_answering
        if not self.cycle.response_started if is_answering else self.conn.trailing_data[0]:
            told = f"the request has not come in within {self.request_timeout_s:g} s"
            self.transport.write(_refusal(HTTPStatus.REQUEST_TIMEOUT, told))
        self._end()
        self._look()

    def _make_room(self) -> None:
        if len(self.connections) <= self.connections_max:
            return
        waiting = [
            other
            for other in self.connections
            if other is not self and isinstance(other, TimedConnection) and not other._is_answering
        ]
        if waiting:
            longest = min(waiting, key=lambda other: other._began_s)
            self.connections.discard(longest)
            self.refusals.add(Why.MADE_ROOM)
            longest.transport.abort()


def _os_user(transport: BaseTransport) -> str:
    """Who is at the other end of a Unix socket: name or number of the system's user, "" over TCP."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family != socket.AF_UNIX:
        return ""
    _, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _head_bytes(scope: Scope) -> int:
    """Of a request, about: h11 bounds a head that comes in pieces alone."""
    line = len(scope["raw_path"]) + len(scope["query_string"])
    return line + sum(len(name) + len(value) + len(": \r\n") for name, value in scope["headers"])


def _unavailable(told: str) -> Response:
    return _problem(HTTPStatus.SERVICE_UNAVAILABLE, told)


def _problem(status: HTTPStatus, told: str) -> Response:
    body = msgspec.json.encode(Problem("about:blank", status.phrase, status, told))
    return Response(body, status, {"connection": "close"}, media_type="application/problem+json")


def _refusal(status: HTTPStatus, told: str) -> bytes:
    body = msgspec.json.encode(Problem("about:blank", status.phrase, status, told))
    head = (
        f"HTTP/1.1 {status:d} {status.phrase}\r\ncontent-type: application/problem+json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
