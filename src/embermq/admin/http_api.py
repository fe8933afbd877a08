"""Operations under /api/v1 as HTTP [queues-40], with OpenAPI and a page that shows it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from embermq.admin.access import Access, Everything, is_loopback, may, names_a_proxy
from embermq.admin.access import Scope as TokenScope
from embermq.admin.access_operations import BANS
from embermq.admin.api_schema import described, docs_page, parameters
from embermq.admin.errors import (
    STATUSES,
    AccessRefused,
    OperationRefused,
    RequestRefused,
    RequestTooLarge,
    status_of,
)
from embermq.admin.forwarding import do_on_any_node
from embermq.admin.http import json_answer, mounted, problem, problem_handlers
from embermq.admin.operation import AdminOperation, request_of
from embermq.admin.operations import OPERATIONS, QUEUES
from embermq.admin.settings import MISSING_SLOTS
from embermq.admin.trail import NO_TRAIL, Trail, is_change, object_of, recorded
from embermq.queues.settings import OFF, json_object

_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
_SAME_SITE = ("same-origin", "none")
"""What browsers say of requests that their user made, or a page of ours."""
_PROXY_VERSION = "1.0"
"""Which programs do not speak any more, and nginx does to what stands behind it."""


class HttpCaller:
    """Who asks by one HTTP request: address, token and certificate, as `access` looks at them."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.authorization = request.headers.get("authorization", "")
        self.certificate = str(request.scope.get("certificate", ""))
        self.peer = request.client.host if request.client is not None else ""
        """The address that asks, "" over a Unix socket."""

    def shown(self, token: str) -> str:
        """Who it is, for the audit trail."""
        if token:
            return f"token {token}"
        user = self._request.scope.get("os_user", "")
        return f"user {user}" if user else "this machine"

    def is_foreign_page(self) -> bool:
        """A page of somebody else's, for which a browser shows the certificate of its user."""
        request = self._request
        origin, host = request.headers.get("origin"), request.headers.get("host", "")
        if origin is not None and origin != f"{request.scope['scheme']}://{host}":
            return True
        return request.headers.get("sec-fetch-site", "none") not in _SAME_SITE

    def is_of_this_machine(self) -> bool:
        """Another page in a browser on this machine, and a proxy on it, are others. A proxy that says nothing of itself
        cannot be told from a program here."""
        request = self._request
        host = request.headers.get("host", "")
        is_proxied = request.scope.get("http_version") == _PROXY_VERSION or names_a_proxy(request.headers)
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        return (
            is_loopback(self.peer) and not is_proxied and not self.is_foreign_page() and name in _LOCAL_NAMES
        )


_log = logging.getLogger("embermq.api")

Api = ASGIApp
ONLY_NEW = ("if-none-match", "*")
STREAM_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store"}
NOT_HERE = "this broker cannot do it: it has another message log, or lacks a part"


def create_api(
    desks: Mapping[str, object],
    access: Access,
    operations: Sequence[AdminOperation] = OPERATIONS,
    *,
    trail: Trail = NO_TRAIL,
    over: str = "http",
) -> Api:
    """The application, to be mounted at /api/v1. Operations whose desk is not there are refused. `over` is what the
    trail calls this way in."""

    @cache
    def schema() -> Mapping[str, Any]:
        return described(operations)

    @cache
    def schema_as_json() -> Response:
        return json_answer(schema(), HTTPStatus.OK)

    @cache
    def schema_as_page() -> Response:
        return docs_page(schema())

    async def openapi(_: Request) -> Response:
        return _once_more(schema_as_json())

    async def docs(_: Request) -> Response:
        return _once_more(schema_as_page())

    api = Starlette(
        routes=[
            Route("/openapi.json", openapi),
            Route("/docs", docs),
            *(
                Route(
                    path,
                    _endpoint(operation, desks.get(operation.desk), access, trail, over),
                    methods=[operation.method],
                )
                for operation in operations
                for path in operation.paths
            ),
        ],
        exception_handlers={
            **problem_handlers(),
            **dict.fromkeys([AccessRefused, *(kind for kind, _ in STATUSES)], _refused),
        },
    )
    api.router.redirect_slashes = False

    async def by_raw_path(scope: Scope, receive: Receive, send: Send) -> None:
        """Names in it may hold any character, `/` and the end of a line too."""
        raw_path: bytes = scope.get("raw_path") or b""
        # It has told of what it raises, and answered: the application around it would tell of it once more.
        with suppress(Exception):
            await api({**scope, "path": raw_path.decode("ascii", "replace")}, receive, send)

    return by_raw_path


def create_control_app(desks: Mapping[str, object], trail: Trail = NO_TRAIL) -> Starlette:
    """For a socket that only the operator can open."""
    api = create_api(desks, Everything(), trail=trail, over="control")
    return Starlette(routes=[mounted(api)], exception_handlers=problem_handlers())


def _once_more(made: Response) -> Response:
    """An answer that takes long to make, and that anybody may ask for."""
    return Response(made.body, made.status_code, dict(made.headers))


def _endpoint(
    operation: AdminOperation, desk: object, access: Access, trail: Trail, over: str
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        if desk is None:
            raise OperationRefused(OFF if operation.desk == QUEUES else NOT_HERE)
        caller = HttpCaller(request)
        token = access.check(caller, operation.scope, needs_token=operation.needs_token)
        asked = request_of(operation, await _said(operation, request), as_text=True)
        by, peer = caller.shown(token), caller.peer
        async with recorded(trail, operation, asked, by=by, peer=peer, over=over):
            done = await do_on_any_node(operation, desk, asked, by=by, peer=peer)
        answer = done.answer
        decides = operation.scope in (TokenScope.ADMIN, TokenScope.RULES) or operation.desk == BANS
        if decides and is_change(operation):
            about = msgspec.json.encode(object_of(operation, asked)).decode()
            told = {"operation": operation.name, "object": about, "token": token, "by": by}
            _log.info("operation done", extra=told)
        if operation.without_secrets is not None and not may(access, caller, TokenScope.ADMIN):
            answer = operation.without_secrets(answer)
        if operation.is_stream:
            pieces = _while_allowed(answer, partial(access.check, caller, operation.scope))
            return StreamingResponse(pieces, headers=STREAM_HEADERS)
        status = operation.status(answer) if operation.status is not None else next(iter(operation.answers))
        if status == HTTPStatus.NO_CONTENT:
            return Response(status_code=status)
        content = msgspec.json.encode(answer, enc_hook=str)  # durations as they are written
        headers = {MISSING_SLOTS: ",".join(map(str, done.missing))} if done.missing else None
        return Response(content, status, headers, media_type="application/json")

    return endpoint


async def _while_allowed(pieces: AsyncIterator[bytes], check: Callable[[], str]) -> AsyncIterator[bytes]:
    """Until the token is over or revoked."""
    async for piece in pieces:
        try:
            check()
        except AccessRefused:
            return
        yield piece


async def _said(operation: AdminOperation, request: Request) -> dict[str, Any]:
    """Raises RequestRefused, and SettingsRefused for a body that is no object."""
    said: dict[str, Any] = {name: _part(name, text) for name, text in request.path_params.items()}
    _add_query(said, operation, request)
    if operation.body is not None:
        body = await _body(request, operation.body_bytes_max)
        if operation.body_as:
            said[operation.body_as] = json_object(said.get("name", ""), body or b"{}")
        else:
            try:
                given = msgspec.json.decode(body, type=operation.body)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise RequestRefused(f"the body is not understood: {error}") from None
            except RecursionError:
                raise RequestRefused(
                    "the body is not understood: lists or objects in one another too deep"
                ) from None
            said |= msgspec.to_builtins(given)
    if "only_new" in operation.request.__struct_fields__:
        said["only_new"] = request.headers.get(ONLY_NEW[0]) == ONLY_NEW[1]
    if "caller" in operation.request.__struct_fields__:
        said["caller"] = HttpCaller(request).peer
    return said


@cache
def _known(operation_name: str) -> dict[str, Any]:
    (operation,) = (each for each in OPERATIONS if each.name == operation_name)
    return {each.name: each for each in parameters(operation) if not each.is_in_path}


def _add_query(said: dict[str, Any], operation: AdminOperation, request: Request) -> None:
    """What is misspelt would be left out, and a filter that is left out is one for everything."""
    known = _known(operation.name)
    for name, text in _query(request):
        if name not in known:
            there_are = f"there are {', '.join(sorted(known))}" if known else "there is none"
            raise RequestRefused(f"{name[:80]}: is no parameter here, {there_are}")
        place = said.setdefault(known[name].inside, {}) if known[name].inside else said
        if known[name].is_list:
            place.setdefault(name, []).append(text)
        elif name in place:
            raise RequestRefused(f"{name}: is given twice")
        elif text.lower() == "null" and not known[name].is_text:  # would be no filter
            raise RequestRefused(f"{name}: is {text!r}")
        else:
            place[name] = text


def _query(request: Request) -> list[tuple[str, str]]:
    """Starlette puts something else for bytes that are not UTF-8, which may then be the name of another."""
    try:
        return parse_qsl(
            request.scope["query_string"].decode("latin-1"), keep_blank_values=True, errors="strict"
        )
    except UnicodeDecodeError:
        raise RequestRefused("the query is not UTF-8") from None


def _part(name: str, raw: str) -> str:
    """In the name of a queue `$` stands for `/`, `%24` for itself, and a leading `$queue/` says nothing. U+0000, which
    is in no name, may stand in front: browsers take `.` and `..` for steps, percent-encoded too."""
    raw = raw.removeprefix("%00")
    try:
        if name != "name":
            return unquote_to_bytes(raw).decode()
        return unquote_to_bytes(raw.replace("$", "/")).decode().removeprefix("/queue/")
    except UnicodeDecodeError:
        raise RequestRefused(f"the {name} in the path is not UTF-8") from None


async def _body(request: Request, bytes_max: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > bytes_max:
            raise RequestTooLarge(f"the body has more than {bytes_max} bytes")
    return bytes(body)


async def _refused(_: Request, error: Exception) -> Response:
    status = status_of(error)
    assert status is not None
    headers = {
        HTTPStatus.UNAUTHORIZED: {"www-authenticate": "Bearer"},
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE: {"connection": "close"},
    }
    return problem(status, str(error), headers.get(status, {}))
