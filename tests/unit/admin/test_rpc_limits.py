"""What of gRPC is bounded, and counted when it is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.queue_desk import DeskBench
from tests.support.rpc_client import ended
from tests.support.rpc_served import ANSWER_S, Asking, Tokens, carried_out

from embermq.admin import queue_admin_pb2 as pb
from embermq.admin.access import Caller, Everything, Scope, TokenAccess
from embermq.admin.rpc_listener import PREFACE
from embermq.admin.rpc_server import SERVICE

READ = Scope.READ
QUEUE = pb.QueueRequest(name="q")


@pytest.mark.promise("queues-41")
def test_requests_have_limits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(ask: Asking) -> None:
        for size, told in ((5_000, "more than the 4096 that one may have"), (50_000, "larger than max")):
            code, words = await ask.refused("GetQueue", pb.QueueRequest(name="n" * size))
            assert code == "RESOURCE_EXHAUSTED" and told in words
        code, _ = await ask.refused("GetQueue", QUEUE, padding="x" * 8_000)
        assert code == "RESOURCE_EXHAUSTED"
        assert await ask.begun("GetQueue") == (
            "DEADLINE_EXCEEDED",
            "the request has not come in within 1 s",
        )
        assert (await ask("GetQueueStats", QUEUE)).name == "q"

    found = carried_out(
        DeskBench(),
        tmp_path,
        work,
        message_bytes_max=4_096,
        metadata_bytes_max=4_096,
        request_timeout_s=1,
    )
    assert found == {
        "too_large": 1,
        "malformed": 1,
        "timeout": 1,
    }
    assert not caplog.records


def test_what_is_no_request_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def nothing() -> AsyncIterator[bytes]:
        for each in list[bytes]():
            yield each

    async def work(ask: Asking) -> None:
        empty = ask.channel.stream_unary(f"/{SERVICE}/GetQueue")(nothing())
        assert ((await empty.code()).name, await empty.details()) == (
            "INVALID_ARGUMENT",
            "there is no request in the call",
        )
        odd = ask.channel.unary_unary(f"/{SERVICE}/GetQueue")(b"\xff")
        assert (await odd.code()).name == "INVALID_ARGUMENT"
        assert (await ask.refused("GetQueue", pb.QueueRequest()))[0] == "INVALID_ARGUMENT"

    assert carried_out(DeskBench(), tmp_path, work) == {"malformed": 2}
    assert not caplog.records


def test_a_token_is_asked_for_before_a_body_is_read(tmp_path: Path) -> None:
    tokens = Tokens()
    secret = tokens.add(READ)

    async def work(ask: Asking) -> None:
        assert (await ask.begun("GetQueue"))[0] == "UNAUTHENTICATED"
        assert (await ask.begun("PurgeQueue", authorization=f"Bearer {secret}"))[0] == "PERMISSION_DENIED"

    found = carried_out(DeskBench(), tmp_path, work, TokenAccess(tokens, lambda: 0), request_timeout_s=600)
    assert found == {"unauthenticated": 1, "denied": 1}


class Counting(Everything):
    """Knows how many calls have begun."""

    def __init__(self) -> None:
        self.begun = asyncio.Semaphore(0)

    def check(self, caller: Caller, wanted: Scope, *, needs_token: bool = False) -> str:
        self.begun.release()
        return super().check(caller, wanted)


async def two_calls(
    ask: Asking, access: Counting
) -> tuple[list[Asking], list[asyncio.Task[tuple[str, str]]]]:
    """Begun, and held by their callers, each on a connection of its own."""
    others = [Asking(ask.port) for _ in range(2)]
    held = [asyncio.create_task(other.begun("GetQueue")) for other in others]
    async with asyncio.timeout(ANSWER_S):
        for _ in held:
            await access.begun.acquire()
    return others, held


@pytest.mark.promise("queues-41")
def test_calls_at_a_time_have_a_limit(tmp_path: Path) -> None:
    access = Counting()

    async def work(ask: Asking) -> None:
        others, held = await two_calls(ask, access)
        assert await ask.code("GetQueueStats", QUEUE) == "RESOURCE_EXHAUSTED"
        for task, other in zip(held, others, strict=True):
            task.cancel()
            await other.channel.close()

    found = carried_out(DeskBench(), tmp_path, work, access, calls_max=2, request_timeout_s=60)
    assert found["calls_max"] == 1


def test_a_call_takes_no_longer_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = DeskBench()
    monkeypatch.setattr(bench, "wake", lambda: None)

    async def work(ask: Asking) -> None:
        code, words = await ask.refused("PurgeQueue", QUEUE)
        assert (code, words) == ("DEADLINE_EXCEEDED", "it has taken longer than 1 s; some of it may be done")

    carried_out(bench, tmp_path, work, call_timeout_s=1)


@pytest.mark.promise("queues-41")
def test_connections_at_a_time_are_bounded_by_calls_under_way(tmp_path: Path) -> None:
    access = Counting()

    async def work(ask: Asking) -> None:
        others, held = await two_calls(ask, access)
        reader, writer = await asyncio.open_connection("127.0.0.1", ask.port)
        assert await ended(reader) == b""
        writer.close()
        for task, other in zip(held, others, strict=True):
            assert not task.done()
            task.cancel()
            await other.channel.close()

    found = carried_out(DeskBench(), tmp_path, work, access, connections_max=2, request_timeout_s=600)
    assert found["connections_max"] == 1


NO_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
NOT_ALL_HEADERS = b"\0\0\1\1\0\0\0\0\1\x82"


@pytest.mark.promise("queues-41")
@pytest.mark.parametrize(
    "said", [b"", PREFACE[:5], PREFACE + NO_SETTINGS, PREFACE + NO_SETTINGS + NOT_ALL_HEADERS]
)
def test_whoever_asks_takes_the_place_of_those_who_do_not(tmp_path: Path, said: bytes) -> None:
    async def work(ask: Asking) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", ask.port) for _ in range(4)]
        for _, writer in silent:
            writer.write(said)
        assert (await ask("GetQueueStats", QUEUE)).name == "q"
        heard = [asyncio.ensure_future(ended(reader)) for reader, _ in silent]
        async with asyncio.timeout(ANSWER_S):
            while sum(each.done() for each in heard) < 3:  # in whichever order the kernel handed them over
                await asyncio.wait(
                    [each for each in heard if not each.done()], return_when=asyncio.FIRST_COMPLETED
                )
        assert (await ask("GetQueueStats", QUEUE)).name == "q"
        assert sum(each.done() for each in heard) == 3
        for _, writer in silent:
            writer.close()
        await asyncio.gather(*heard)

    found = carried_out(DeskBench(), tmp_path, work, connections_max=2, request_timeout_s=600)
    assert found == {"made_room": 3}


@pytest.mark.promise("queues-41")
def test_a_connection_that_has_asked_may_be_the_one_that_goes(tmp_path: Path) -> None:
    """Clients of gRPC begin anew by themselves."""

    async def work(ask: Asking) -> None:
        assert (await ask("GetQueueStats", QUEUE)).name == "q"
        for _ in range(3):
            other = Asking(ask.port)
            assert (await other("GetQueueStats", QUEUE)).name == "q"
            await other.channel.close()
            assert (await ask("GetQueueStats", QUEUE)).name == "q"

    found = carried_out(DeskBench(), tmp_path, work, connections_max=1)
    assert found["made_room"] >= 3


def test_a_page_is_no_larger_than_clients_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embermq.admin.rpc_server.ANSWER_BYTES_MAX", 5_000)
    bench = DeskBench()
    names = [f"{number}" + "g" * 1_000 for number in range(9)]
    for name in names:
        bench.join("c", name)
    bench.publish(count=9)

    async def work(ask: Asking) -> None:
        found: list[str] = []
        while page := (
            await ask("ListGroups", pb.ListGroupsRequest(name="q", after=found[-1] if found else ""))
        ).groups:
            assert sum(each.ByteSize() for each in page) <= 5_000
            found += [each.name for each in page]
        assert found == names
        peeked = (await ask("PeekMessages", pb.PeekMessagesRequest(name="q"))).messages
        assert len(peeked) == 1 and peeked[0].ByteSize() > 5_000, "one at least"

    carried_out(bench, tmp_path, work)
