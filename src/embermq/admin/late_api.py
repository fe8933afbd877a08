"""Makes the API when the first request for it comes, away from the event loop, and hands requests on to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import quote, unquote_to_bytes

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from embermq.admin.problem import Problem

QUEUES = b"/api/v1/queues/"


class LateApi:
    """`make` may take half a second; it is called once, on a thread of its own."""

    def __init__(self, make: Callable[[], ASGIApp]) -> None:
        self._make = make
        self._made: asyncio.Task[ASGIApp] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._made is None or (self._made.done() and self._made.exception() is not None):
            self._made = asyncio.create_task(asyncio.to_thread(self._make))
        api = await asyncio.shield(self._made)
        if scope["type"] == "http":
            try:
                path = named_path(scope.get("raw_path") or b"")
            except UnicodeDecodeError:
                await _no_text(scope, receive, send)
                return
            if path:
                scope = {**scope, "path": path}
        await api(scope, receive, send)


def named_path(raw_path: bytes) -> str:
    """The path of a request about a queue, its name percent-encoded so that it is one part whatever it holds; "" for
    any other path. In the name `$` stands for `/`, `%24` for itself, and a leading `$queue/` says nothing. Raises
    UnicodeDecodeError for one that is no text."""
    if not raw_path.startswith(QUEUES):
        return ""
    name, slash, rest = raw_path[len(QUEUES) :].partition(b"/")
    if not name:
        return ""
    told = unquote_to_bytes(name.replace(b"$", b"/")).decode()
    for prefix in ("/queue/", "$queue/"):
        told = told.removeprefix(prefix)
    return QUEUES.decode() + quote(told, safe="") + (slash + rest).decode(errors="replace")


async def _no_text(scope: Scope, receive: Receive, send: Send) -> None:
    status = HTTPStatus.BAD_REQUEST
    told = Problem("about:blank", status.phrase, status, "the queue's name in the path is not UTF-8")
    answer = Response(msgspec.json.encode(told), status, media_type="application/problem+json")
    await answer(scope, receive, send)
