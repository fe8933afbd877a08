"""The door of gRPC, without a server behind it."""

from __future__ import annotations

import asyncio
import select
import socket
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop
from tests.support.rpc_client import ended
from tests.support.waiting import wait_for

from embermq.admin.errors import Refusals
from embermq.admin.rpc_listener import PREFACE, RpcDoor
from embermq.admin.settings import GrpcLimits


@pytest.mark.parametrize(
    "said", [b"", PREFACE[:5], b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", PREFACE[:23] + b"x"]
)
def test_who_does_not_speak_grpc_is_sent_away_before_anything_begins(said: bytes) -> None:
    begun: list[str] = []
    refused: list[Refusals] = []

    async def scenario() -> None:
        async def behind() -> str:
            begun.append("grpc")
            return ""

        door = RpcDoor(behind, GrpcLimits(request_timeout_s=1))
        refused.append(door.refusals)
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
    counts = refused[0].counts
    assert (counts["timeout"], counts["malformed"]) == ((1, 0) if PREFACE.startswith(said) else (0, 1))


def test_a_server_that_cannot_begin_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async def behind() -> str:
            raise ImportError("no grpc here")

        door = RpcDoor(behind, GrpcLimits())
        listener = socket.create_server(("127.0.0.1", 0))
        await door.open(listener)
        for _ in range(3):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(PREFACE)
            assert await ended(reader) == b""
            writer.close()
        door.close()
        await door.cut_off(1)

    uvloop.run(scenario())
    assert [record.getMessage() for record in caplog.records] == ["gRPC cannot be answered: no grpc here"], (
        "once"
    )


@pytest.mark.parametrize("told_bytes", [30_000, 8 * 1024 * 1024])
def test_who_takes_nothing_of_what_it_is_told_is_sent_away(tmp_path: Path, told_bytes: int) -> None:
    """Also when all of it has left the server behind, which has ended the connection."""

    async def scenario() -> None:
        path = str(tmp_path / "behind.sock")

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(bytes(told_bytes))
            writer.close()

        async def behind() -> str:
            return path

        loop = asyncio.get_running_loop()
        server = await asyncio.start_unix_server(serve, path)
        door = RpcDoor(behind, GrpcLimits(request_timeout_s=1))
        with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as caller:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the kernel keeps little
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            caller.setblocking(False)
            await door.open(listener)
            await loop.sock_connect(caller, listener.getsockname())
            await loop.sock_sendall(caller, PREFACE)
            try:
                await wait_for(lambda: bool(door.visitors), 30, "the caller is in")
                await wait_for(lambda: not door.visitors, 30, "it is sent away")
            finally:
                door.close()
                server.close()
                await door.cut_off(0)

    uvloop.run(scenario())


def test_nothing_is_left_of_a_caller_who_has_gone_while_the_server_did_not_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = str(tmp_path / "behind.sock")

        async def behind() -> str:
            return path

        loop = asyncio.get_running_loop()
        door = RpcDoor(behind, GrpcLimits(request_timeout_s=5))
        listener = socket.create_server(("127.0.0.1", 0))
        await door.open(listener)
        with socket.socket(socket.AF_UNIX) as server, socket.socket() as caller:
            server.bind(path)
            server.listen()
            server.setblocking(False)
            caller.setblocking(False)
            await loop.sock_connect(caller, listener.getsockname())
            await loop.sock_sendall(caller, PREFACE)
            served, _ = await loop.sock_accept(server)
            with served:
                for _ in range(100):
                    with suppress(BlockingIOError):
                        caller.send(bytes(1024 * 1024))
                    await asyncio.sleep(0.01)
                ends = select.poll()
                ends.register(served, 0)
                assert not ends.poll(0)
                for visitor in list(door.visitors):
                    visitor.cut_off()
                try:
                    await wait_for(lambda: ends.poll(0), 30, "the server hears of it")
                finally:
                    door.close()

    uvloop.run(scenario())
