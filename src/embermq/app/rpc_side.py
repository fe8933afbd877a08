"""The gRPC surface of a running broker: one door, and behind it a server for this machine and one for others, each made
when the first of its callers comes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from embermq.admin.refusals import Refusals
from embermq.admin.rpc_door import RpcDoor
from embermq.admin.settings import STOP_TIMEOUT_S, GrpcSettings
from embermq.app.http_side import bind, bound_to
from embermq.app.queue_admin import QueueAdmin
from embermq.server.settings import Address

if TYPE_CHECKING:
    from embermq.admin.rpc_server import RpcServer

FILE_NAMES = {True: "grpc-near.sock", False: "grpc-far.sock"}


class RpcSide:
    """The sockets between door and servers are in the data directory, which nobody else may enter."""

    def __init__(
        self, data_dir: Path, settings: GrpcSettings, queues: QueueAdmin, refusals: Refusals
    ) -> None:
        self._data_dir = data_dir
        self._settings = settings
        self._queues = queues
        self._refusals = refusals
        self._door = RpcDoor(self._behind, settings, refusals)
        self._servers: dict[bool, RpcServer] = {}
        self._turn = asyncio.Lock()
        self._folder = -1
        """Kept open: by it the sockets have paths that the kernel takes, however long the directory's."""

    async def open(self, addresses: Sequence[Address]) -> list[Address]:
        """Bind and listen; returns where. Raises OSError."""
        if self._queues.desk is None:
            return []
        if self._folder < 0:
            self._folder = os.open(self._data_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        bound: list[Address] = []
        for address in addresses:
            sock = bind(address)
            await self._door.open(sock)
            bound.append(bound_to(sock))
        return bound

    async def stop(self) -> None:
        """Finish calls under way."""
        self._door.close()
        # Who does not read its answer would hold up the one that has it.
        waits = [server.stop() for server in self._servers.values()]
        await asyncio.gather(self._door.cut_off(STOP_TIMEOUT_S), *waits)
        for is_near in self._servers:
            with suppress(FileNotFoundError):
                os.unlink(self._path(is_near))
        self._servers.clear()
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def _path(self, is_near: bool) -> str:
        return f"/proc/self/fd/{self._folder}/{FILE_NAMES[is_near]}"

    async def _behind(self, is_near: bool) -> str:
        async with self._turn:
            if is_near not in self._servers:
                server = await self._queues.rpc_server(is_near=is_near, refusals=self._refusals)
                with suppress(FileNotFoundError):  # of a broker that was killed
                    os.unlink(self._path(is_near))
                await server.start(self._path(is_near))
                self._servers[is_near] = server
        return self._path(is_near)
