"""gRPC behind its door: the service of queue_admin.proto over the desk [queues-41].

Imported late, when the first caller has come: grpcio costs the process some 11 MiB and seven threads.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar

import grpc
import msgspec
from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp
from msgspec import UNSET, Struct
from msgspec.structs import fields

from embermq.admin import queue_admin_pb2 as pb
from embermq.admin.access import Access, Scope, may, names_a_proxy
from embermq.admin.errors import RequestRefused, RequestTooLarge, Why, status_of, tell_of_fault
from embermq.admin.forwarding import do_on_any_node
from embermq.admin.operation import AdminOperation, request_of
from embermq.admin.operations import QUEUE_OPERATIONS
from embermq.admin.queue_values import PeekedMessage, RetryJob
from embermq.admin.rpc_listener import RpcDoor
from embermq.admin.settings import STOP_TIMEOUT_S
from embermq.admin.trail import NO_TRAIL, Trail, recorded
from embermq.ports.errors import StoreUnavailable
from embermq.queues.durations import Duration

SERVICE = "embermq.v1.QueueAdmin"
ANSWER_BYTES_MAX = 3 * 1024 * 1024
"""Of a page: clients take 4 MiB, unless they are told otherwise."""


class Call(Struct, frozen=True):
    """An operation with the messages that it has over gRPC."""

    operation: AdminOperation
    request: type[Message]
    response: type[Message]

    def asked(self, message: Message) -> Struct:
        """The request of the operation. Raises RequestRefused."""
        request: Struct = request_of(self.operation, said(message, self.operation.request), as_text=False)
        return request

    async def answer(self, desk: object, request: Struct, *, is_admin: bool, by: str, peer: str) -> Message:
        """Raises what the operation does, and StoreUnavailable for a list of which a part is missing."""
        done = await do_on_any_node(self.operation, desk, request, by=by, peer=peer)
        if done.missing:
            slots = ", ".join(map(str, done.missing))
            raise StoreUnavailable(f"of the cluster's slots no node has answered for: {slots}")
        found = done.answer
        if found is None:
            return self.response()
        if self.operation.without_secrets is not None and not is_admin:
            found = self.operation.without_secrets(found)
        if isinstance(found, RetryJob) and self.response is pb.RetryDeadLettersResponse:
            return pb.RetryDeadLettersResponse(messages=found.retried, job=written(pb.RetryJob, found))
        if isinstance(found, Sequence):
            return self._page(found)
        return written(self.response, found)

    def _page(self, values: Iterable[Struct]) -> Message:
        """As many as an answer holds, one at least: who asks for the next page names the last of this one."""
        (field,) = self.response.DESCRIPTOR.fields
        page: list[Message] = []
        size = 0
        for value in values:
            message = written(field.message_type._concrete_class, value)
            size += message.ByteSize()
            if page and size > ANSWER_BYTES_MAX:
                break
            page.append(message)
        return self.response(**{field.name: page})


def _calls() -> dict[str, Call]:
    methods: Any = pb.DESCRIPTOR.services_by_name["QueueAdmin"].methods_by_name
    by_name = {each.name: each for each in QUEUE_OPERATIONS}
    return {
        name: Call(by_name[name], method.input_type._concrete_class, method.output_type._concrete_class)
        for name, method in methods.items()
    }


CALLS = _calls()


M = TypeVar("M", bound=Message)
TIME_MAX_S = 253_402_300_799
"""The end of the year 9999."""


class _FieldPlan(NamedTuple):
    """A field that both sides have. `kind` is the message of a field that is one, None for what stands for itself."""

    name: str
    kind: type[Message] | None


def written(kind: type[M], value: Struct) -> M:
    """The message that says what `value` says, field by field of the same name. What is None, and what the message has
    no field for, is left out."""
    found: dict[str, Any] = {}
    any_kind: Any = kind
    for place in _places(any_kind, type(value)):
        given = getattr(value, place.name)
        if given is not None and given is not UNSET:
            found[place.name] = _written(place.kind, given)
    if isinstance(value, PeekedMessage):
        found |= _body(value)
    made: M = kind(**found)
    return made


def _body(peeked: PeekedMessage) -> dict[str, Any]:
    """What JSON has in another form."""
    found: dict[str, Any] = {"properties": msgspec.json.decode(msgspec.json.encode(peeked.properties))}
    if peeked.payload is not UNSET:
        found["payload"] = peeked.payload.encode()
    elif peeked.payload_base64 is not UNSET:
        found["payload"] = b64decode(peeked.payload_base64)
    return found


def _written(kind: type[Message] | None, given: Any) -> Any:
    if isinstance(given, Mapping):
        return dict(given)
    if kind is None:
        return str(given) if isinstance(given, Duration) else given
    if isinstance(given, datetime):
        moment = Timestamp()
        moment.FromDatetime(given)
        return moment
    return written(kind, given) if isinstance(given, Struct) else many(kind, given)


def many(kind: type[M], values: Sequence[Struct]) -> list[M]:
    """A message of `kind` for each value, in their order."""
    return [written(kind, value) for value in values]


@cache
def _places(kind: Any, struct: type[Struct]) -> tuple[_FieldPlan, ...]:
    """The fields that both have."""
    theirs = kind.DESCRIPTOR.fields_by_name
    return tuple(
        _FieldPlan(info.name, _kind(theirs[info.name])) for info in fields(struct) if info.name in theirs
    )


def _kind(field: Any) -> type[Message] | None:
    inner = field.message_type
    if inner is None or inner.GetOptions().map_entry:
        return None
    found: type[Message] = inner._concrete_class
    return found


def said(message: Any, request: type[Struct]) -> dict[str, Any]:
    """What a message says for a request: fields that are set, and those that a request must have. Raises
    RequestRefused for a time that is none."""
    found = {field.name: _said(field.name, value) for field, value in message.ListFields()}
    for info in fields(request):
        if info.required and info.encode_name not in found:
            found[info.encode_name] = _said(info.name, getattr(message, info.name))
    return found


def _said(name: str, value: Any) -> Any:
    if isinstance(value, Timestamp):
        if not 0 <= value.seconds <= TIME_MAX_S:
            raise RequestRefused(f"{name}: {value.seconds} s since 1970 is before it, or after the year 9999")
        try:
            return value.ToDatetime(UTC)
        except ValueError as error:
            raise RequestRefused(f"{name}: {error}") from None
    if isinstance(value, Message):
        return {field.name: _said(field.name, inner) for field, inner in value.ListFields()}
    return value if isinstance(value, (str, int, float, bytes)) else list(value)


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
