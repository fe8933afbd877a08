"""Clients of QueueAdmin, as anybody makes one: from queue_admin.proto, by protoc."""

from __future__ import annotations

import asyncio
import importlib.util
import tempfile
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import grpc
from grpc_tools import protoc

SOURCE = Path(__file__).resolve().parents[2] / "src"
PROTO = "embermq/admin/queue_admin.proto"
ANSWER_S = 60.0
OWN_CONNECTION = (("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1))
"""Channels to one port share one otherwise."""


@cache
def stub_class() -> Any:
    """What protoc makes for clients in Python."""
    with tempfile.TemporaryDirectory() as folder:
        well_known = files("grpc_tools") / "_proto"
        words = ["protoc", f"--proto_path={SOURCE}", f"--proto_path={well_known}"]
        assert protoc.main([*words, f"--grpc_python_out={folder}", PROTO]) == 0
        place = Path(folder) / PROTO.replace(".proto", "_pb2_grpc.py")
        spec = importlib.util.spec_from_file_location("queue_admin_stub", place)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module.QueueAdminStub


class RpcClient:
    """One channel; a context manager. Calls are made by name, and wait for their answers."""

    def __init__(
        self,
        port: int,
        token: str = "",
        host: str = "127.0.0.1",
        tls: grpc.ChannelCredentials | None = None,
    ) -> None:
        target = f"{host}:{port}"
        self.channel = (
            grpc.secure_channel(target, tls, options=OWN_CONNECTION)
            if tls is not None
            else grpc.insecure_channel(target, options=OWN_CONNECTION)
        )
        self._stub = stub_class()(self.channel)
        self._metadata = [("authorization", f"Bearer {token}")] if token else []

    def __enter__(self) -> RpcClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def __call__(self, name: str, request: Any, *metadata: tuple[str, str]) -> Any:
        """Raises grpc.RpcError."""
        call = getattr(self._stub, name)
        return call(request, timeout=ANSWER_S, metadata=[*self._metadata, *metadata])

    def refused(self, name: str, request: Any, *metadata: tuple[str, str]) -> tuple[str, str]:
        """The status of a call that must not be answered, and its words."""
        try:
            answer = self(name, request, *metadata)
        except grpc.RpcError as error:
            return error.code().name, error.details() or ""
        raise AssertionError(f"{name} was answered: {answer}")


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What comes until the connection ends."""
    async with asyncio.timeout(ANSWER_S):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
