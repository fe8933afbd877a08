"""The API under /api/v1 as HTTP: queues, with OpenAPI and a page that shows it.

Imported late, on the first request for it: FastAPI costs the process some 15 MiB.
"""

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request
from starlette.responses import Response

from embermq.admin.access import Access, AccessRefused
from embermq.admin.api_docs import docs_page
from embermq.admin.api_schema import components
from embermq.admin.http import json_answer, problem, problem_handlers
from embermq.admin.queue_api import queue_router
from embermq.admin.queue_service import NoSuchQueue, QueueRefused, QueueService, RequestRefused
from embermq.ports.errors import StoreError
from embermq.queues.errors import SettingsRefused

PREFIX = "/api/v1"
DESCRIPTION = """\
Durable queues of EmberMQ. A queue's name is written percent-encoded, or with `$` for `/`: `tasks%2Fimages` and
`$queue$tasks$images` are the queue `tasks/images`. Errors are `application/problem+json`."""


def create_api(service: QueueService, access: Access) -> FastAPI:
    """The application, to be mounted at PREFIX."""
    api = FastAPI(
        title="EmberMQ",
        version="1",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},
        redirect_slashes=False,
    )
    api.include_router(queue_router(service, access))

    def described() -> dict[str, Any]:
        if api.openapi_schema is None:
            found = get_openapi(
                title=api.title,
                version=api.version,
                description=DESCRIPTION,
                routes=api.routes,
                servers=[{"url": PREFIX}],
            )
            parts = found.setdefault("components", {})
            parts["schemas"] = {**parts.get("schemas", {}), **components()}
            parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            found["security"] = [{"token": []}]
            api.openapi_schema = found
        return api.openapi_schema

    async def openapi(_: Request) -> Response:
        return json_answer(described(), HTTPStatus.OK)

    async def docs(_: Request) -> Response:
        return docs_page(described())

    api.openapi = described  # type: ignore[method-assign]
    api.add_route("/openapi.json", openapi, include_in_schema=False)
    api.add_route("/docs", docs, include_in_schema=False)
    for error, handler in _handlers().items():
        api.add_exception_handler(error, handler)
    return api


def _handlers() -> Mapping[Any, Callable[[Request, Any], Awaitable[Response]]]:
    async def denied(_: Request, error: AccessRefused) -> Response:
        headers = {"www-authenticate": "Bearer"} if error.status == HTTPStatus.UNAUTHORIZED else {}
        return problem(HTTPStatus(error.status), str(error), headers)

    async def missing(_: Request, error: NoSuchQueue) -> Response:
        return problem(HTTPStatus.NOT_FOUND, str(error), {})

    async def refused(_: Request, error: QueueRefused) -> Response:
        return problem(HTTPStatus.CONFLICT, str(error), {})

    async def unfit(_: Request, error: SettingsRefused) -> Response:
        return problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), {})

    async def not_understood(_: Request, error: RequestValidationError) -> Response:
        told = "; ".join(f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in error.errors()[:5])
        return problem(HTTPStatus.BAD_REQUEST, told, {})

    async def not_meant(_: Request, error: RequestRefused) -> Response:
        return problem(HTTPStatus.BAD_REQUEST, str(error), {})

    async def not_now(_: Request, error: StoreError) -> Response:
        return problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error), {})

    return {
        **problem_handlers(),
        AccessRefused: denied,
        NoSuchQueue: missing,
        QueueRefused: refused,
        SettingsRefused: unfit,
        RequestValidationError: not_understood,
        RequestRefused: not_meant,
        StoreError: not_now,
    }
