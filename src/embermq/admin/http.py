"""HTTP: the dashboard at `/`, `/health`, `/ready`, `/metrics`, `/api/v1/pipeline`, on the broker's own event loop.

Imported late, since Starlette and uvicorn cost the process several MiB.

The dashboard at /: a page with its script and style, which `dashboard/` is built into (`scripts/dashboard`). It holds
nothing of this broker: what it shows it asks the API for, with a token that whoever looks gives it.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from embermq.admin.access import CertificateName, no_certificate
from embermq.admin.errors import Problem, Refusals, tell_of_fault
from embermq.admin.http_connection import TimedConnection
from embermq.admin.service import AdminService
from embermq.admin.settings import HEADER_BYTES_MAX, STOP_TIMEOUT_S, HttpLimits

PAGE = "index.html"
BELOW = "/dashboard/"
TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'{sockets};"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
"""Nothing from elsewhere, nothing inline, nothing that is made into code, in nobody's frame. `sockets` are the broker's
own listeners for WebSocket, under the name by which the page was asked for."""
HOST = re.compile(r"([A-Za-z0-9.-]{1,253})(:\d{1,5})?")
"""What may stand in a policy; it has no way to write an IPv6 address."""
SocketPorts = Callable[[], Sequence[tuple[str, int]]]
"""`ws` or `wss` and the port of each listener that is open."""


def no_sockets() -> Sequence[tuple[str, int]]:
    """There is no listener for WebSocket."""
    return ()


def dashboard_routes(ports: SocketPorts) -> Iterator[Route]:
    """One for each file; they are read once, about 100 KB."""
    for found in (files("embermq.admin") / "page").iterdir():
        path = "/" if found.name == PAGE else BELOW + found.name
        yield Route(path, _served(found.read_bytes(), TYPES[found.name.rpartition(".")[2]], ports))


def _served(content: bytes, kind: str, ports: SocketPorts) -> Callable[[Request], Awaitable[Response]]:
    headers = {
        "content-type": kind,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-cache",  # asked for again each time, so that an upgrade is seen at once
    }

    of_content = sha256(content)

    async def answer(request: Request) -> Response:
        policy = POLICY.format(sockets=_sockets(request, ports()))
        digest = of_content.copy()
        digest.update(policy.encode())  # a browser keeps the policy with the page
        etag = f'"{digest.hexdigest()[:32]}"'
        told = {**headers, "content-security-policy": policy, "etag": etag}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=told)
        return Response(content, headers=told)

    return answer


def _sockets(request: Request, ports: Sequence[tuple[str, int]]) -> str:
    host = HOST.fullmatch(request.headers.get("host", ""))
    return "".join(f" {kind}://{host[1]}:{port}" for kind, port in ports) if host is not None else ""


METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BACKLOG = 128
LAST_WORD_S = 0.1


def create_app(
    service: AdminService, api: ASGIApp | None = None, ports: SocketPorts = no_sockets
) -> Starlette:
    """The application over one service; what the service raises becomes a 500 without its text. `api` is what is below
    /api/v1 otherwise, `ports` where the dashboard may speak MQTT."""

    async def health(_: Request) -> Response:
        found = service.health()
        return json_answer(found, HTTPStatus.OK if found.is_ok else HTTPStatus.SERVICE_UNAVAILABLE)

    async def ready(_: Request) -> Response:
        found = service.ready()
        return json_answer(found, HTTPStatus.OK if found.ready else HTTPStatus.SERVICE_UNAVAILABLE)

    async def metrics(_: Request) -> Response:
        return Response(service.metrics_text(), headers={"content-type": METRICS_TYPE})

    async def pipeline(_: Request) -> Response:
        return json_answer(service.pipeline_status(), HTTPStatus.OK)

    return Starlette(
        routes=[
            *dashboard_routes(ports),
            Route("/health", health),
            Route("/ready", ready),
            Route("/metrics", metrics),
            Route("/api/v1/pipeline", pipeline),
            *([mounted(api)] if api is not None else []),
        ],
        exception_handlers=problem_handlers(),
    )


def mounted(api: ASGIApp) -> Mount:
    """The API where it belongs. Names in its paths may have any character, a line's end too, at which the pattern of a
    mount stops by itself."""
    found = Mount("/api/v1", app=api)
    found.path_regex = re.compile(found.path_regex.pattern, re.DOTALL)
    return found


def problem_handlers() -> dict[Any, Any]:
    """What an application answers when a request cannot be, or its service fails."""

    async def refused(request: Request, error: Exception) -> Response:
        status = HTTPStatus(error.status_code) if isinstance(error, HTTPException) else HTTPStatus.BAD_REQUEST
        detail = {
            HTTPStatus.NOT_FOUND: f"there is nothing at {request.url.path}",
            HTTPStatus.METHOD_NOT_ALLOWED: f"{request.method} is not possible at {request.url.path}",
        }.get(status, status.description)
        headers = error.headers if isinstance(error, HTTPException) else None
        return problem(status, detail, dict(headers or {}))

    async def gone(_: Request, __: Exception) -> Response:
        return Response(status_code=HTTPStatus.REQUEST_TIMEOUT)  # nobody reads it

    async def failed(request: Request, error: Exception) -> Response:
        tell_of_fault(f"{request.method} {request.url.path}", error)
        return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "the broker's log says more", {})

    return {HTTPException: refused, ClientDisconnect: gone, Exception: failed}


class HttpServer:
    """Serves an application on sockets that are bound already, on the running event loop. `certificate_name` says who a
    client's certificate says it is.

    It installs no signal handler and writes no access log; the sockets are closed by `stop`.
    """

    def __init__(
        self,
        app: Starlette,
        settings: HttpLimits,
        refusals: Refusals | None = None,
        certificate_name: CertificateName = no_certificate,
    ) -> None:
        self._settings = settings
        self._server = _QuietServer(
            uvicorn.Config(
                app,
                http=_connection_class(settings, refusals or Refusals(), certificate_name),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=settings.idle_timeout_s,
                timeout_graceful_shutdown=STOP_TIMEOUT_S,
                h11_max_incomplete_event_size=HEADER_BYTES_MAX,
            )
        )
        self._sockets: list[socket.socket] = []
        self._serving: asyncio.Task[None] | None = None

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Return when requests are answered. Raises OSError when a socket cannot be listened on."""
        self._sockets = list(sockets)
        self._serving = asyncio.create_task(self._server.serve(self._sockets), name="http")
        started = asyncio.create_task(self._server.is_up.wait())
        await asyncio.wait({self._serving, started}, return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if self._serving.done():
            self._serving.result()

    def connection(self) -> asyncio.Protocol:
        """For a connection that somebody else has accepted, once it is started."""
        server = self._server
        made: asyncio.Protocol = server.config.http_protocol_class(  # type: ignore[call-arg]
            config=server.config, server_state=server.server_state, app_state={}
        )
        return made

    async def stop(self) -> None:
        """Finish what is under way for at most `STOP_TIMEOUT_S`, then cut the rest off. May be called twice."""
        serving, self._serving = self._serving, None
        if serving is None:
            return
        self._server.should_exit = True
        # uvicorn looks at its flags every 0.1 s, and waits that long for connections before it counts its own limit.
        await asyncio.wait({serving}, timeout=STOP_TIMEOUT_S + 1.0)
        self._server.force_exit = True
        serving.cancel()
        await asyncio.wait({serving}, timeout=1.0)
        cut_off = set(self._server.server_state.tasks)
        if cut_off:  # they say so to their peers
            await asyncio.wait(cut_off, timeout=LAST_WORD_S)
            await asyncio.sleep(LAST_WORD_S)
        for connection in list(self._server.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()
        for listener in self._sockets:
            listener.close()


def _connection_class(
    settings: HttpLimits, refusals: Refusals, certificate_name: CertificateName
) -> type[TimedConnection]:
    given = {
        "certificate_name": staticmethod(certificate_name),
        "request_timeout_s": settings.request_timeout_s,
        "connections_max": settings.connections_max,
        "refusals": refusals,
    }
    return type("Connection", (TimedConnection,), given)


class _QuietServer(uvicorn.Server):
    """uvicorn without its hold on the process: signals belong to app."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()


def json_answer(content: object, status: HTTPStatus) -> Response:
    """`content` is what msgspec can write."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def problem(status: HTTPStatus, detail: str, headers: dict[str, str]) -> Response:
    """An error answer with its reason in words."""
    body = msgspec.json.encode(Problem("about:blank", status.phrase, status, detail))
    return Response(body, status, headers, media_type="application/problem+json")
