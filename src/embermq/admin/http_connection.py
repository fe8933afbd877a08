"""One connection of the HTTP server, none of whose states lasts for ever: uvicorn bounds only the time between two
requests."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import cast

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from embermq.admin.problem import Problem


class TimedConnection(H11Protocol):
    """Ends when a request takes longer than `request_timeout_s` to come in, headers and body, or when its peer takes
    nothing of an answer for so long. When there are `limit_concurrency` connections with it, a new one takes the place
    of the one that has waited longest without a request under way."""

    request_timeout_s = 10.0

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

    def _on_deadline(self) -> None:
        self._deadline = None
        if self.transport.is_closing() or self.flow.write_paused:
            self.transport.abort()
            return
        is_answering = self._is_answering
        if not self.cycle.response_started if is_answering else self.conn.trailing_data[0]:
            self.transport.write(_too_slow(self.request_timeout_s))
        if is_answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()
        self._look()

    def _make_room(self) -> None:
        if self.limit_concurrency is None or len(self.connections) < self.limit_concurrency:
            return
        waiting = [
            other
            for other in self.connections
            if other is not self and isinstance(other, TimedConnection) and not other._is_answering
        ]
        if waiting:
            longest = min(waiting, key=lambda other: other._began_s)
            self.connections.discard(longest)
            longest.transport.abort()


def _too_slow(limit_s: float) -> bytes:
    status = HTTPStatus.REQUEST_TIMEOUT
    told = f"the request has not come in within {limit_s:g} s"
    body = msgspec.json.encode(Problem("about:blank", status.phrase, status, told))
    head = (
        f"HTTP/1.1 {status:d} {status.phrase}\r\ncontent-type: application/problem+json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
