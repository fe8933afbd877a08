"""gRPC behind its door: the service of queue_admin.proto over the façade [queues-41].

Imported late, when the first caller has come: grpcio costs the process some 11 MiB and seven threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, Awaitable, Callable
from http import HTTPStatus
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from embermq.admin.access import Access, AccessRefused, names_a_proxy
from embermq.admin.queue_service import NoSuchQueue, QueueRefused, QueueService
from embermq.admin.rpc_calls import CALLS, SERVICE, Call
from embermq.admin.rpc_values import RequestRefused
from embermq.admin.settings import GrpcSettings
from embermq.ports.errors import StoreError
from embermq.queues.errors import SettingsRefused

_BROWSER_NAMES = ("origin", "sec-fetch-site", "sec-fetch-mode", "x-grpc-web")
CONNECTION_AGE_MS = 3_600_000
"""After so long a connection is told to begin anew, which gRPC's clients do by themselves."""

_log = logging.getLogger(__name__)


class RpcCaller:
    """Who asks in one call. `is_near`: the connection comes from this machine."""

    def __init__(self, metadata: Any, *, is_near: bool) -> None:
        self._metadata = {name: value for name, value in metadata or () if isinstance(value, str)}
        self._is_near = is_near
        self.authorization = self._metadata.get("authorization", "")

    def is_of_this_machine(self) -> bool:
        """A proxy on this machine is not, when it says that it is one; nor is what passes on calls of browsers, which
        do not speak gRPC themselves."""
        is_browser = any(name in self._metadata for name in _BROWSER_NAMES)
        return self._is_near and not is_browser and not names_a_proxy(self._metadata)


class RpcServer:
    """Serves callers that are all near, or all not, on a Unix socket that nobody but the door connects to."""

    def __init__(
        self, service: QueueService, access: Access, settings: GrpcSettings, *, is_near: bool
    ) -> None:
        self._service = service
        self._access = access
        self._settings = settings
        self._is_near = is_near
        self._server: Any = None

    async def start(self, path: str) -> None:
        """Return when calls are answered. Raises OSError when the socket cannot be made."""
        settings = self._settings
        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=settings.calls_max,
            options=(
                ("grpc.max_receive_message_length", settings.message_bytes_max),
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
        """Finish calls under way for at most `stop_timeout_s`. May be called twice."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(self._settings.stop_timeout_s)

    def _handler(self, name: str, call: Call) -> Callable[[AsyncIterable[bytes], Any], Awaitable[bytes]]:
        async def handle(requests: AsyncIterable[bytes], context: Any) -> bytes:
            try:
                self._access.check(
                    RpcCaller(context.invocation_metadata(), is_near=self._is_near), call.scope
                )
                asked = call.request.FromString(await self._request(requests))
                async with asyncio.timeout(self._settings.call_timeout_s):
                    answer: bytes = (await call.answer(self._service, asked)).SerializeToString()
                    return answer
            except Exception as error:
                code, told = self._told(error, name)
            await context.abort(code, told)
            raise AssertionError(name)  # abort does not return

        return handle

    async def _request(self, requests: AsyncIterable[bytes]) -> bytes:
        try:
            async with asyncio.timeout(self._settings.request_timeout_s):
                async for request in requests:
                    return request
        except TimeoutError:
            limit_s = self._settings.request_timeout_s
            raise _TooSlow(f"the request has not come in within {limit_s} s") from None
        raise RequestRefused("there is no request in the call")

    def _told(self, error: Exception, name: str) -> tuple[Any, str]:
        """The status of what went wrong, and what is said of it."""
        status = grpc.StatusCode
        if isinstance(error, AccessRefused):
            is_unknown = error.status == HTTPStatus.UNAUTHORIZED
            return status.UNAUTHENTICATED if is_unknown else status.PERMISSION_DENIED, str(error)
        for kind, code in (
            (NoSuchQueue, status.NOT_FOUND),
            (QueueRefused, status.FAILED_PRECONDITION),
            (SettingsRefused, status.INVALID_ARGUMENT),
            (RequestRefused, status.INVALID_ARGUMENT),
            (StoreError, status.UNAVAILABLE),
            (_TooSlow, status.DEADLINE_EXCEEDED),
        ):
            if isinstance(error, kind):
                return code, str(error)
        if isinstance(error, DecodeError):
            return (
                status.INVALID_ARGUMENT,
                "the request is not understood: it is not the message of this call",
            )
        if isinstance(error, TimeoutError):
            limit_s = self._settings.call_timeout_s
            return status.DEADLINE_EXCEEDED, f"it has taken longer than {limit_s} s; some of it may be done"
        _log.error("%s failed", name, exc_info=error)
        return status.INTERNAL, "the broker's log says more"


class _TooSlow(Exception):
    """The caller takes its time."""
