"""What `embermq sessions` asks about single sessions. Client ids are query parameters: they may hold any character."""

from __future__ import annotations

from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from embermq.admin.http import json_answer, problem
from embermq.admin.session_service import SessionService

PAGE_MAX = 1_000
USER_BYTES_MAX = 65_535
"""What MQTT takes as a user name."""


def session_routes(service: SessionService) -> list[Route]:
    """The routes over the service."""

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

    async def give(request: Request) -> Response:
        client_id = request.query_params.get("client_id", "")
        user = request.query_params.get("user", "")
        if not user or "\0" in user or len(user.encode()) > USER_BYTES_MAX:
            text = f"a user name has 1 to {USER_BYTES_MAX} bytes in UTF-8, and no U+0000"
            return problem(HTTPStatus.BAD_REQUEST, text, {})
        done = await service.give(client_id, user)
        if done is None:
            return _unknown(client_id)
        if not done:
            text = f"the session of {client_id!r} is not kept: it ends with its connection"
            return problem(HTTPStatus.CONFLICT, text, {})
        return Response(status_code=HTTPStatus.NO_CONTENT)

    return [
        Route("/api/v1/sessions", sessions),
        Route("/api/v1/session", session, methods=["GET", "DELETE"]),
        Route("/api/v1/session/disconnect", disconnect, methods=["POST"]),
        Route("/api/v1/session/give", give, methods=["POST"]),
    ]


def _unknown(client_id: str) -> Response:
    return problem(HTTPStatus.NOT_FOUND, f"there is no session of the client id {client_id!r}", {})
