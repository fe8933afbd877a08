"""gRPC behind its door: the service of queue_admin.proto over the desk [queues-41].

Imported late, when the first caller has come: grpcio costs the process some 11 MiB and seven threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable
from http import HTTPStatus
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from embermq.admin.access import Access, Scope, may, names_a_proxy
from embermq.admin.errors import RequestRefused, RequestTooLarge, status_of
from embermq.admin.faults import tell_of_fault
from embermq.admin.refusals import Why
from embermq.admin.rpc_calls import CALLS, SERVICE, Call
from embermq.admin.rpc_listener import RpcDoor
from embermq.admin.settings import STOP_TIMEOUT_S
from embermq.admin.trail import NO_TRAIL, Trail, recorded

_BROWSER_NAMES = ("origin", "sec-fetch-site", "sec-fetch-mode", "x-grpc-web")
CONNECTION_AGE_MS = 3_600_000
"""After so long a connection is told to begin anew, which gRPC's clients do by themselves."""

WORDS_MAX = 500
"""Characters of what is said of an error, which may hold what was asked: clients take 8 KiB of headers, where a
character may be 12 bytes."""
TOLD = 2
"""Times the limit: up to there a request is refused, and counted, by us. What is larger never comes here, and looks
like a call that its client has given up."""


class RpcCaller:
    """Who asks in one call. `is_near`: the connection comes from this machine."""

    def __init__(self, metadata: Any, *, is_near: bool, certificate: str, peer: str) -> None:
        self._metadata = {name: value for name, value in metadata or () if isinstance(value, str)}
        self._is_near = is_near
        self.certificate = certificate
        self.peer = peer
        self.authorization = self._metadata.get("authorization", "")

    def is_foreign_page(self) -> bool:
        """Pages do not speak gRPC themselves: something passes on what they ask."""
        return any(name in self._metadata for name in _BROWSER_NAMES)

    def is_of_this_machine(self) -> bool:
        """A proxy on this machine is not, when it says that it is one; nor is what passes on calls of browsers, which
        do not speak gRPC themselves."""
        return self._is_near and not self.is_foreign_page() and not names_a_proxy(self._metadata)


class RpcServer:
    """Serves the connections of a door, on a Unix socket that nobody but the door connects to."""

    def __init__(
        self,
        desk: object,
        access: Access,
        door: RpcDoor,
        trail: Trail = NO_TRAIL,
    ) -> None:
        self._trail = trail
        self._desk = desk
        self._access = access
        self._door = door
        self._settings = door.settings
        self._refusals = door.refusals
        self._calls = 0
        """Under way, of those who may make them."""
        self._server: Any = None

    async def start(self, path: str) -> None:
        """Return when calls are answered. Raises OSError when the socket cannot be made."""
        settings = self._settings
        self._server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", settings.message_bytes_max * TOLD),
                ("grpc.max_metadata_size", settings.metadata_bytes_max),
                ("grpc.absolute_max_metadata_size", settings.metadata_bytes_max),
                ("grpc.max_concurrent_streams", settings.calls_max),
                ("grpc.max_connection_idle_ms", settings.idle_timeout_s * 1_000),
                ("grpc.max_connection_age_ms", CONNECTION_AGE_MS),
                ("grpc.max_connection_age_grace_ms", settings.call_timeout_s * 1_000),
                ("grpc.compression_enabled_algorithms_bitset", 1),  # none: requests are small
                ("grpc.server_handshake_timeout_ms", settings.request_timeout_s * 1_000),
            ),
        )
        handlers = {
            # What is one request for the client is a stream of one here, so that a token is asked for before a body is
            # read, and a body that does not come has a limit.
            name: grpc.stream_unary_rpc_method_handler(self._handler(name, call))
            for name, call in CALLS.items()
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            self._server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:
            raise OSError(f"gRPC cannot listen on {path}: {error}") from error
        await self._server.start()

    async def stop(self) -> None:
        """Finish calls under way for at most `STOP_TIMEOUT_S`. May be called twice."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(STOP_TIMEOUT_S)

    def _handler(self, name: str, call: Call) -> Callable[[AsyncIterable[bytes], Any], Awaitable[bytes]]:
        async def handle(requests: AsyncIterable[bytes], context: Any) -> bytes:
            try:
                with self._door.call(context.peer()) as (is_near, certificate, peer):
                    metadata = context.invocation_metadata()
                    caller = RpcCaller(metadata, is_near=is_near, certificate=certificate, peer=peer)
                    token = self._access.check(caller, call.operation.scope)
                    return await self._answered(call, requests, caller, token)
            except Exception as error:
                code, told, why = self._told(error, name)
            try:
                await context.abort(code, _short(told))
            finally:
                if why is not None:
                    self._refusals.add(why)
            raise AssertionError(name)  # abort does not return

        return handle

    async def _answered(
        self, call: Call, requests: AsyncIterable[bytes], caller: RpcCaller, token: str
    ) -> bytes:
        if self._calls >= self._settings.calls_max:
            raise _TooMany(f"{self._calls} calls are under way, as many as there may be")
        self._calls += 1
        try:
            asked = call.request.FromString(await self._request(requests))
            async with asyncio.timeout(self._settings.call_timeout_s):
                is_admin = may(self._access, caller, Scope.ADMIN)
                request, by = call.asked(asked), f"token {token}" if token else "this machine"
                async with recorded(
                    self._trail, call.operation, request, by=by, peer=caller.peer, over="grpc"
                ):
                    answer = await call.answer(
                        self._desk, request, is_admin=is_admin, by=by, peer=caller.peer
                    )
                written: bytes = answer.SerializeToString()
                return written
        finally:
            self._calls -= 1

    async def _request(self, requests: AsyncIterable[bytes]) -> bytes:
        try:
            async with asyncio.timeout(self._settings.request_timeout_s):
                async for request in requests:
                    return self._within_limit(request)
        except TimeoutError:
            limit_s = self._settings.request_timeout_s
            raise _TooSlow(f"the request has not come in within {limit_s} s") from None
        raise _NoRequest("there is no request in the call")

    def _within_limit(self, request: bytes) -> bytes:
        limit = self._settings.message_bytes_max
        if len(request) > limit:
            raise RequestTooLarge(
                f"the request has {len(request)} bytes, more than the {limit} that one may have"
            )
        return request

    def _told(self, error: Exception, name: str) -> tuple[Any, str, Why | None]:
        """The status of what went wrong, what is said of it, and as what it is counted."""
        code = grpc.StatusCode
        status = status_of(error)
        if status is not None:
            return CODES[status], str(error), _WHY.get(type(error)) or _WHY.get(status)
        if isinstance(error, _TooMany):
            return code.RESOURCE_EXHAUSTED, str(error), Why.CALLS_MAX
        if isinstance(error, _TooSlow):
            return code.DEADLINE_EXCEEDED, str(error), Why.TIMEOUT
        if isinstance(error, DecodeError):
            told = "the request is not understood: it is not the message of this call"
            return code.INVALID_ARGUMENT, told, Why.MALFORMED
        if isinstance(error, TimeoutError):
            told = f"it has taken longer than {self._settings.call_timeout_s} s; some of it may be done"
            return code.DEADLINE_EXCEEDED, told, None
        tell_of_fault(name, error)
        return code.INTERNAL, "the broker's log says more", None


def _short(told: str) -> str:
    return told if len(told) <= WORDS_MAX else f"{told[:WORDS_MAX]}…"


class _TooSlow(Exception):
    """The caller takes its time."""


class _TooMany(Exception):
    """Calls at a time."""


class _NoRequest(RequestRefused):
    """The caller has ended the call before it said what it asks."""


CODES = {
    HTTPStatus.BAD_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    HTTPStatus.UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED,
    HTTPStatus.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    HTTPStatus.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    HTTPStatus.CONFLICT: grpc.StatusCode.FAILED_PRECONDITION,
    HTTPStatus.PRECONDITION_FAILED: grpc.StatusCode.ALREADY_EXISTS,
    HTTPStatus.MISDIRECTED_REQUEST: grpc.StatusCode.FAILED_PRECONDITION,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.UNPROCESSABLE_ENTITY: grpc.StatusCode.INVALID_ARGUMENT,
    HTTPStatus.SERVICE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
}
_WHY = {
    HTTPStatus.UNAUTHORIZED: Why.UNAUTHENTICATED,
    HTTPStatus.FORBIDDEN: Why.DENIED,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: Why.TOO_LARGE,
    _NoRequest: Why.MALFORMED,
}
