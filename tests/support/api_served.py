"""The API of queues over the desk alone, with a client that needs no socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from starlette.applications import Starlette
from tests.support.membership_in_memory import MembershipInMemory
from tests.support.queue_desk import DeskBench

from embermq.admin.access import Access, Everything
from embermq.admin.cluster_desk import ClusterDesk
from embermq.admin.http import mounted
from embermq.admin.http_api import create_api
from embermq.admin.operations import CLUSTER, HTTP_OPERATIONS, QUEUES

Ask = Callable[..., Awaitable[httpx.Response]]
HERE = "http://127.0.0.1:8080"


def served(
    bench: DeskBench,
    work: Callable[[Ask], Awaitable[None]],
    access: Access | None = None,
    peer: str = "127.0.0.1",
) -> None:
    """Do `work` with a client of the API."""

    async def run() -> None:
        desks = {QUEUES: bench.desk, CLUSTER: ClusterDesk(MembershipInMemory("cars"), None, None)}
        api = create_api(desks, access or Everything(), HTTP_OPERATIONS)
        app = Starlette(routes=[mounted(api)])
        transport = httpx.ASGITransport(app=app, client=(peer, 5), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=HERE) as client:

            async def ask(method: str, path: str, **more: Any) -> httpx.Response:
                return await client.request(method, "/api/v1" + path, **more)

            await work(ask)

    asyncio.run(run())


def is_problem(answer: httpx.Response, status: int, *words: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    told = answer.json()
    assert told["status"] == status
    for word in words:
        assert word in told["detail"], told
