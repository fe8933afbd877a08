"""The door of gRPC, without a server behind it."""

from __future__ import annotations

import asyncio
import socket

import pytest
import uvloop
from tests.support.rpc_client import ended

from embermq.admin.rpc_door import PREFACE, RpcDoor
from embermq.admin.settings import GrpcSettings


@pytest.mark.parametrize(
    "said", [b"", PREFACE[:5], b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", PREFACE[:23] + b"x"]
)
def test_who_does_not_speak_grpc_is_sent_away_before_anything_begins(said: bytes) -> None:
    begun: list[bool] = []

    async def scenario() -> None:
        async def behind(is_near: bool) -> str:
            begun.append(is_near)
            return ""

        door = RpcDoor(behind, GrpcSettings(request_timeout_s=1))
        listener = socket.create_server(("127.0.0.1", 0))
        await door.open(listener)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        for byte in said:
            writer.write(bytes([byte]))
        assert await ended(reader) == b""
        writer.close()
        door.close()
        await door.cut_off(0)

    uvloop.run(scenario())
    assert begun == []


def test_a_server_that_cannot_begin_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async def behind(_: bool) -> str:
            raise ImportError("no grpc here")

        door = RpcDoor(behind, GrpcSettings())
        listener = socket.create_server(("127.0.0.1", 0))
        await door.open(listener)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(PREFACE)
        assert await ended(reader) == b""
        writer.close()
        door.close()
        await door.cut_off(1)

    uvloop.run(scenario())
    assert [record.getMessage() for record in caplog.records] == ["gRPC cannot be answered"]
