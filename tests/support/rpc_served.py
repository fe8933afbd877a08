"""gRPC as the broker serves it, over the desk alone: door, server, and a client."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import uvloop
from tests.support.queue_desk import DeskBench
from tests.support.rpc_client import OWN_CONNECTION, stub_class

from embermq.admin.access import Access, ApiToken, Everything, Scope, token_hash
from embermq.admin.errors import Refusals
from embermq.admin.rpc_listener import RpcDoor
from embermq.admin.rpc_server import SERVICE, RpcServer
from embermq.admin.settings import GrpcLimits
from embermq.admin.trail import NO_TRAIL, Trail

ANSWER_S = 60


class Tokens(dict[str, ApiToken]):
    """In memory."""

    def add(self, scope: Scope) -> str:
        self[scope] = ApiToken(scope, scope, token_hash("emq_" + scope), 0)
        return "emq_" + scope

    def all(self) -> Tokens:
        return self


class Asking:
    """A client on a port."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OWN_CONNECTION)
        self._stub = stub_class()(self.channel)

    async def __call__(self, name: str, request: Any, **metadata: str) -> Any:
        given = [(key.replace("_", "-"), value) for key, value in metadata.items()]
        return await getattr(self._stub, name)(request, timeout=ANSWER_S, metadata=given)

    async def refused(self, name: str, request: Any, **metadata: str) -> tuple[str, str]:
        try:
            answer = await self(name, request, **metadata)
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details() or ""
        raise AssertionError(f"{name} was answered: {answer}")

    async def code(self, name: str, request: Any, **metadata: str) -> str:
        """The status alone, OK or not."""
        try:
            await self(name, request, **metadata)
        except grpc.aio.AioRpcError as error:
            found: str = error.code().name
            return found
        return "OK"

    async def begun(self, name: str, **metadata: str) -> tuple[str, str]:
        """The status of a call whose request never comes."""
        call = self.channel.stream_unary(f"/{SERVICE}/{name}")(
            metadata=list(metadata.items()), timeout=ANSWER_S
        )
        return (await call.code()).name, await call.details() or ""


@asynccontextmanager
async def served(
    bench: DeskBench, folder: Path, access: Access | None, refusals: Refusals, trail: Trail, **settings: int
) -> AsyncIterator[Asking]:
    """Door and server on a port of their own."""
    given = GrpcLimits(**settings)
    path = str(folder / "grpc.sock")

    async def behind() -> str:
        if not servers:
            servers.append(RpcServer(bench.desk, access or Everything(), door, trail))
            await servers[0].start(path)
        return path

    servers: list[RpcServer] = []
    door = RpcDoor(behind, given, refusals)
    listener = socket.create_server(("127.0.0.1", 0))
    await door.open(listener)
    asking = Asking(listener.getsockname()[1])
    try:
        yield asking
    finally:
        await asking.channel.close()
        door.close()
        for server in servers:
            await server.stop()
        await door.cut_off(1.0)


def carried_out(
    bench: DeskBench,
    folder: Path,
    work: Callable[[Asking], Awaitable[None]],
    access: Access | None = None,
    *,
    trail: Trail = NO_TRAIL,
    **settings: int,
) -> dict[str, int]:
    """What was refused, by why."""
    refusals = Refusals()

    async def run() -> None:
        async with served(bench, folder, access, refusals, trail, **settings) as ask:
            await work(ask)

    uvloop.run(run())
    return {why: count for why, count in refusals.counts.items() if count}
