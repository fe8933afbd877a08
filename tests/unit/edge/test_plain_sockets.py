"""Plain sockets: what asyncio promises of a transport, for what connections use of one."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any, cast

import uvloop
from tests.support.waiting import wait_for

from embermq.edge.plain_sockets import BULK_BYTES, PARTS_MAX, READ_BYTES_MAX, PlainSockets, PlainTransport

PATIENCE_S = 60.0
LARGE = bytes(range(256)) * 16 * 1024
"""More than a socket takes."""


class Told(asyncio.Protocol):
    """Notes what it is told, in order."""

    def __init__(self, *, keeps_open: bool = False) -> None:
        self.events: list[object] = []
        self.keeps_open = keeps_open
        self.on_data: Callable[[bytes], None] = lambda _data: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(PlainTransport, transport)

    def data_received(self, data: bytes) -> None:
        self.events.append(data)
        self.on_data(data)

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.keeps_open

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append(("lost", type(exc)))


def served(sockets: PlainSockets, told: Told) -> socket.socket:
    """The other end."""
    here, there = socket.socketpair()
    for each in (here, there):
        each.setblocking(False)
    sockets.serve(here, ("peer", 1), told)
    return there


async def read_all(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    async with asyncio.timeout(PATIENCE_S):
        while len(data) < size and (part := await asyncio.get_running_loop().sock_recv(sock, 65_536)):
            data += part
    return bytes(data)


def run(scenario: Callable[[PlainSockets], Awaitable[None]]) -> None:
    async def with_sockets() -> None:
        sockets = PlainSockets()
        await scenario(sockets)
        sockets.close()
        await asyncio.sleep(0)

    uvloop.run(with_sockets())


def test_bytes_are_read_and_written_until_the_end() -> None:
    async def scenario(sockets: PlainSockets) -> None:
        told = Told()
        there = served(sockets, told)
        assert told.transport.get_extra_info("peername") == ("peer", 1)
        there.send(b"hello")
        await wait_for(lambda: told.events)
        told.transport.write(b"wor")
        told.transport.writelines([b"ld", b"", b"!"])
        assert there.recv(100) == b"world!"
        there.send(b"bye")
        there.close()
        await wait_for(lambda: len(told.events) == 4)
        assert told.events == [b"hello", b"bye", "eof", ("lost", type(None))]
        told.transport.write(b"nobody")
        told.transport.abort()
        await asyncio.sleep(0)
        assert len(told.events) == 4

    run(scenario)


def test_what_a_socket_does_not_take_waits_and_tells_of_itself() -> None:
    async def scenario(sockets: PlainSockets) -> None:
        told = Told()
        there = served(sockets, told)
        told.transport.set_write_buffer_limits(high=100_000, low=50_000)
        told.transport.write(LARGE)
        assert told.events == ["pause"]
        assert 100_000 < told.transport.get_write_buffer_size() < len(LARGE)
        told.transport.writelines([b"x" * 10] * (2 * PARTS_MAX))
        told.transport.close()
        told.transport.write(b"too late")
        assert await read_all(there, 2 * len(LARGE)) == LARGE + b"x" * 20 * PARTS_MAX
        assert told.events == ["pause", "resume", ("lost", type(None))]
        there.close()

    run(scenario)


def test_who_was_told_to_wait_is_told_to_go_on_when_more_may_wait_now() -> None:
    """An application's connection gets other limits when it may have been told already."""

    async def scenario(sockets: PlainSockets) -> None:
        told = Told()
        there = served(sockets, told)
        told.transport.write(LARGE)
        told.transport.set_write_buffer_limits(high=2 * len(LARGE), low=len(LARGE))
        assert told.events == ["pause"]
        assert await read_all(there, len(LARGE)) == LARGE
        await wait_for(lambda: told.events == ["pause", "resume"])
        there.close()

    run(scenario)


def test_more_parts_than_one_call_takes_go_out_in_order() -> None:
    async def scenario(sockets: PlainSockets) -> None:
        told = Told()
        there = served(sockets, told)
        parts = [b"%05d" % number for number in range(3 * PARTS_MAX)]
        told.transport.writelines(parts)
        assert await read_all(there, 5 * len(parts)) == b"".join(parts)
        await wait_for(lambda: not told.transport.get_write_buffer_size())
        there.close()

    run(scenario)


def test_the_end_is_said_behind_what_waits_and_reading_goes_on() -> None:
    async def scenario(sockets: PlainSockets) -> None:
        told = Told(keeps_open=True)
        there = served(sockets, told)
        told.transport.write(LARGE)
        told.transport.write_eof()
        told.transport.write(b"nothing")
        there.send(b"heard")
        assert await read_all(there, 2 * len(LARGE)) == LARGE
        there.shutdown(socket.SHUT_WR)
        await wait_for(lambda: "eof" in told.events)
        assert told.events == ["pause", b"heard", "resume", "eof"] or told.events == [
            "pause",
            "resume",
            b"heard",
            "eof",
        ]
        told.transport.resume_reading()  # there is nothing any more, and it is not asked again and again
        assert not sockets.transports
        told.transport.close()
        await wait_for(lambda: told.events[-1] == ("lost", type(None)))
        there.close()

    run(scenario)


def test_a_socket_that_is_not_read_keeps_its_bytes() -> None:
    async def scenario(sockets: PlainSockets) -> None:
        told, other = Told(), Told()
        there, its = served(sockets, told), served(sockets, other)
        told.transport.pause_reading()
        there.send(b"later")
        for _ in range(3):  # epoll tells of it once, and watches it no more
            its.send(b"x")
            await wait_for(lambda: other.events)
            other.events.clear()
        assert not told.events
        assert list(sockets.transports.values()) == [other.transport]
        told.transport.resume_reading()
        await wait_for(lambda: told.events == [b"later"])
        there.close()
        its.close()

    run(scenario)


def test_a_reset_ends_the_connection_once() -> None:
    async def scenario(sockets: PlainSockets) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        there = socket.create_connection(listening.getsockname())
        here, peer = listening.accept()
        here.setblocking(False)
        told = Told()
        sockets.serve(here, peer, told)
        told.transport.pause_reading()
        there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        there.close()
        told.transport.write(b"x")
        told.transport.write(b"x")
        told.transport.resume_reading()
        await wait_for(lambda: told.events)
        await asyncio.sleep(0)
        (event,) = told.events
        assert event in (("lost", ConnectionResetError), ("lost", BrokenPipeError))
        assert here.fileno() == -1
        assert not sockets.transports
        listening.close()

    run(scenario)


def test_a_connection_that_another_one_ends_is_not_read_in_the_same_turn() -> None:
    async def scenario(sockets: PlainSockets) -> None:
        both = Told(), Told()
        ends = [served(sockets, told) for told in both]
        for told, other in (both, both[::-1]):
            told.on_data = lambda _data, other=other: other.transport.abort()  # type: ignore[misc]
        for end in ends:
            end.send(b"x")
        await wait_for(lambda: all(told.events for told in both))
        first, second = sorted(both, key=lambda told: -len(told.events))
        assert (first.events, second.events) == ([b"x"], [("lost", type(None))])
        for end in ends:
            end.close()

    run(scenario)


class FullEpoll:
    """Watches as many sockets as the system allows."""

    def register(self, _descriptor: int, _events: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_socket_that_cannot_be_watched_ends_its_connection() -> None:
    async def scenario(sockets: PlainSockets) -> None:
        told, epoll = Told(), sockets.epoll
        sockets.epoll = cast(select.epoll, FullEpoll())
        there = served(sockets, told)
        assert told.events == []  # it hears of it when it has been told all of its beginning
        await wait_for(lambda: told.events == [("lost", OSError)])
        assert told.transport.is_closing()
        assert there.recv(10) == b""
        there.close()
        sockets.epoll = epoll

    run(scenario)


def test_an_error_of_the_protocol_ends_its_connection_alone() -> None:
    async def scenario(sockets: PlainSockets) -> None:
        failed: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failed.append(context))
        told, other = Told(), Told()
        there, its = served(sockets, told), served(sockets, other)

        def fail(_data: bytes) -> None:
            raise RuntimeError("wrong")

        told.on_data = fail
        there.send(b"x")
        its.send(b"y")
        await wait_for(lambda: len(told.events) == 2 and other.events)
        assert told.events == [b"x", ("lost", type(None))]
        assert other.events == [b"y"]
        assert [str(context["exception"]) for context in failed] == ["wrong"]
        there.close()
        its.close()

    run(scenario)


def test_a_large_read_comes_in_parts() -> None:
    async def scenario(sockets: PlainSockets) -> None:
        told = Told()
        there = served(sockets, told)
        await asyncio.get_running_loop().sock_sendall(there, LARGE)
        await wait_for(lambda: sum(map(len, cast(list[bytes], told.events))) == len(LARGE))
        assert max(len(cast(bytes, event)) for event in told.events) <= READ_BYTES_MAX
        assert b"".join(cast(list[bytes], told.events)) == LARGE
        there.close()

    run(scenario)


def test_reads_behind_large_ones_are_whole_and_end_as_others_do() -> None:
    async def scenario(sockets: PlainSockets) -> None:
        told = Told()
        there = served(sockets, told)

        async def arrives(data: bytes) -> None:
            told.events.clear()
            told.transport.pause_reading()
            assert there.send(data) == len(data)
            told.transport.resume_reading()
            await wait_for(lambda: b"".join(cast(list[bytes], told.events)) == data)

        for data in (b"a" * BULK_BYTES, b"b" * BULK_BYTES, b"small", b"smaller", b"c" * BULK_BYTES):
            await arrives(data)
        there.close()
        await wait_for(lambda: told.events[-2:] == ["eof", ("lost", type(None))])

    run(scenario)


def test_closing_all_ends_what_is_open() -> None:
    async def scenario(sockets: PlainSockets) -> None:
        told = Told()
        there = served(sockets, told)
        sockets.close()
        sockets.close()
        await wait_for(lambda: told.events == [("lost", type(None))])
        assert there.recv(10) == b""
        there.close()

    run(scenario)
