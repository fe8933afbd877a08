"""What `embermq sessions parked` asks, on the control socket."""

from __future__ import annotations

from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from embermq.admin.http import json_answer, problem
from embermq.admin.parked_service import ParkedCount, ParkedService

PAGE_MAX = 500


def parked_routes(service: ParkedService) -> list[Route]:
    """Over one service. What is said of no message in particular is said of all of the client's."""

    async def clients(_: Request) -> Response:
        return json_answer(service.clients(), HTTPStatus.OK)

    async def messages(request: Request) -> Response:
        client_id = _client_id(request)
        if request.method == "DELETE":
            return _counted(client_id, await service.delete(client_id, _numbers(request)))
        (after,) = _numbers(request, "after") or [0]
        found = service.page(client_id, after, PAGE_MAX)
        return _unknown(client_id) if found is None else json_answer(found, HTTPStatus.OK)

    async def message(request: Request) -> Response:
        client_id = _client_id(request)
        (number,) = _numbers(request) or [0]
        found = service.message(client_id, number)
        if found is None:
            return problem(
                HTTPStatus.NOT_FOUND, f"the client {client_id!r} has no parked message {number}", {}
            )
        return json_answer(found, HTTPStatus.OK)

    async def redrive(request: Request) -> Response:
        client_id = _client_id(request)
        return _counted(client_id, await service.redrive(client_id, _numbers(request)))

    return [
        Route("/api/v1/parked/clients", clients),
        Route("/api/v1/parked", messages, methods=["GET", "DELETE"]),
        Route("/api/v1/parked/message", message),
        Route("/api/v1/parked/redrive", redrive, methods=["POST"]),
    ]


def _client_id(request: Request) -> str:
    return request.query_params.get("client_id", "")


def _numbers(request: Request, name: str = "number") -> list[int] | None:
    """None when nothing was said."""
    given = request.query_params.getlist(name)
    return [int(text) for text in given if text.isdecimal()] if given else None


def _counted(client_id: str, count: int | None) -> Response:
    return _unknown(client_id) if count is None else json_answer(ParkedCount(count), HTTPStatus.OK)


def _unknown(client_id: str) -> Response:
    return problem(HTTPStatus.NOT_FOUND, f"there is no session of the client id {client_id!r}", {})
