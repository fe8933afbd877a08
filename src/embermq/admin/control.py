"""What `embermq sessions` asks, as HTTP over a Unix socket in the data directory: who may open it is the operator.

Imported late, as `admin.http` is.
"""

from __future__ import annotations

from http import HTTPStatus

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from embermq.admin.http import json_answer, problem, problem_handlers
from embermq.admin.session_service import SessionService

PAGE_MAX = 1_000


def create_control_app(service: SessionService) -> Starlette:
    """The application over one service. Client ids are query parameters, since they may hold any character."""

    async def sessions(request: Request) -> Response:
        found = service.sessions(request.query_params.get("after", ""), PAGE_MAX)
        return json_answer(found, HTTPStatus.OK)

    async def session(request: Request) -> Response:
        client_id = request.query_params.get("client_id", "")
        if request.method == "DELETE":
            done = await service.delete(client_id)
            return Response(status_code=HTTPStatus.NO_CONTENT) if done else _unknown(client_id)
        found = service.session(client_id)
        return _unknown(client_id) if found is None else json_answer(found, HTTPStatus.OK)

    async def disconnect(request: Request) -> Response:
        client_id = request.query_params.get("client_id", "")
        done = service.disconnect(client_id)
        if done is None:
            return _unknown(client_id)
        if not done:
            return problem(HTTPStatus.CONFLICT, f"the client {client_id!r} is not connected", {})
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def pins(_: Request) -> Response:
        return json_answer(service.pins(), HTTPStatus.OK)

    return Starlette(
        routes=[
            Route("/api/v1/sessions", sessions),
            Route("/api/v1/session", session, methods=["GET", "DELETE"]),
            Route("/api/v1/session/disconnect", disconnect, methods=["POST"]),
            Route("/api/v1/pins", pins),
        ],
        exception_handlers=problem_handlers(),
    )


def _unknown(client_id: str) -> Response:
    return problem(HTTPStatus.NOT_FOUND, f"there is no session of the client id {client_id!r}", {})
