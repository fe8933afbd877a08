"""What `embermq sessions` and the pipeline's driver ask, as HTTP over a Unix socket in the data directory: who may open
it is the operator.

Imported late, as `admin.http` is.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from embermq.admin.http import json_answer, mounted, problem, problem_handlers
from embermq.admin.parked_routes import parked_routes
from embermq.admin.parked_service import ParkedService
from embermq.admin.session_routes import session_routes
from embermq.admin.session_service import LogsRefused, SessionService
from embermq.ports.errors import StoreError


class _Restore(Struct, frozen=True):
    """What the driver sends."""

    topic: str


class _Restored(Struct, frozen=True):
    """`generation`: nobody up to it reads the log; None: it is there again."""

    generation: int | None


class _RestoredLogs(Struct, frozen=True):
    """Those that are there again."""

    logs: Sequence[str]


def create_control_app(
    service: SessionService, parked: ParkedService, api: ASGIApp | None = None
) -> Starlette:
    """The application over both services, and the API of queues. Client ids are query parameters: they may hold any
    character."""

    async def pins(_: Request) -> Response:
        return json_answer(service.pins(), HTTPStatus.OK)

    async def application_logs(request: Request) -> Response:
        if request.method == "DELETE":
            names = request.query_params.getlist("name")
            return json_answer(await service.clean_application_logs(names), HTTPStatus.OK)
        return json_answer(await service.application_logs(), HTTPStatus.OK)

    async def restore(request: Request) -> Response:
        try:
            wanted = msgspec.json.decode(await request.body(), type=_Restore)
        except msgspec.MsgspecError as error:
            return problem(HTTPStatus.BAD_REQUEST, f"the body is not understood: {error}", {})
        return json_answer(_Restored(await service.restore_application_log(wanted.topic)), HTTPStatus.OK)

    async def restore_missing(_: Request) -> Response:
        return json_answer(_RestoredLogs(await service.restore_missing_application_logs()), HTTPStatus.OK)

    async def late(request: Request) -> Response:
        since = request.query_params.get("since", "")
        if not since.isdecimal():
            return problem(HTTPStatus.BAD_REQUEST, f"since is a number, not {since!r}", {})
        return json_answer(service.late_application_logs(int(since)), HTTPStatus.OK)

    async def not_now(_: Request, error: Exception) -> Response:
        return problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error), {})

    return Starlette(
        routes=[
            *session_routes(service),
            Route("/api/v1/pins", pins),
            Route("/api/v1/application-logs", application_logs, methods=["GET", "DELETE"]),
            Route("/application-logs/restore", restore, methods=["POST"]),
            Route("/application-logs/restore-missing", restore_missing, methods=["POST"]),
            Route("/application-logs/late", late),
            *parked_routes(parked),
            *([mounted(api)] if api is not None else []),
        ],
        exception_handlers=problem_handlers() | {LogsRefused: not_now, StoreError: not_now},
    )
