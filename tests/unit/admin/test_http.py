"""The HTTP surface, asked over a real socket."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest
import uvloop
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.support.waiting import wait_until

from embermq.admin.errors import Refusals, Why
from embermq.admin.http import HttpServer, create_app
from embermq.admin.service import Health, Readiness
from embermq.admin.settings import HttpLimits

Answer = tuple[int, str, bytes]
ANSWER_BYTES = 32 * 1024 * 1024


class FakeService:
    """A service that says what the test wants."""

    def __init__(self) -> None:
        self.readiness = Readiness(True, {"listeners": "ok", "pipeline": "starting"})
        self.status = "ok"

    def health(self) -> Health:
        return Health(self.status, "0.1.0", 1.5)

    def ready(self) -> Readiness:
        return self.readiness

    def metrics_text(self) -> str:
        return "embermq_up 1\n"

    def pipeline_status(self) -> Mapping[str, object]:
        if self.status == "broken":
            raise RuntimeError("a secret text")
        return {"state": "running", "queries": []}


@asynccontextmanager
async def served(
    service: FakeService, api: ASGIApp | None = None, refusals: Refusals | None = None, **settings: int
) -> AsyncIterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = HttpServer(create_app(service, api), HttpLimits(**settings), refusals)
    await server.start([listener])
    try:
        yield port
    finally:
        await server.stop()


def ask(port: int, path: str, method: str = "GET") -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("content-type", ""), answer.read()
    finally:
        connection.close()


def test_the_front_page_is_there_without_a_script_too() -> None:
    status, kind, body = asked(FakeService(), "/")
    assert (status, kind) == (200, "text/html; charset=utf-8")
    assert {"health", "ready", "metrics", "api/v1/docs"} <= set(
        re.findall(r'<a href="([^"]+)"', body.decode())
    )
    assert asked(FakeService(), "/", "HEAD")[0] == 200
    assert asked(FakeService(), "/", "POST")[0] == 405


def test_all_that_the_front_page_loads_is_served_here() -> None:
    page = asked(FakeService(), "/")[2].decode()
    loaded = re.findall(r'(?:src|<link[^>]*href)="([^"]+)"', page)
    assert len(loaded) == 3
    kinds = {asked(FakeService(), f"/{path}")[:2] for path in loaded}
    assert kinds == {
        (200, "image/svg+xml"),
        (200, "text/css; charset=utf-8"),
        (200, "text/javascript; charset=utf-8"),
    }
    assert asked(FakeService(), "/dashboard/index.html")[0] == 404
    assert asked(FakeService(), "/dashboard/../http.py")[0] == 404


def asked(service: FakeService, path: str, method: str = "GET") -> Answer:
    async def scenario() -> Answer:
        async with served(service) as port:
            return await asyncio.to_thread(ask, port, path, method)

    return uvloop.run(scenario())


def test_health_is_json() -> None:
    status, kind, body = asked(FakeService(), "/health")
    assert (status, kind) == (200, "application/json")
    assert json.loads(body) == {"status": "ok", "version": "0.1.0", "uptime_s": 1.5}


def test_a_sick_broker_answers_503() -> None:
    service = FakeService()
    service.status = "stalled"
    assert asked(service, "/health")[0] == 503


@pytest.mark.parametrize(("ready", "expected"), [(True, 200), (False, 503)])
def test_ready_names_the_parts(ready: bool, expected: int) -> None:
    service = FakeService()
    service.readiness = Readiness(ready, {"log": "ok", "pipeline": "failed"})
    status, _, body = asked(service, "/ready")
    assert status == expected
    assert json.loads(body) == {"ready": ready, "parts": {"log": "ok", "pipeline": "failed"}}


def test_metrics_are_text_for_prometheus() -> None:
    assert asked(FakeService(), "/metrics") == (
        200,
        "text/plain; version=0.0.4; charset=utf-8",
        b"embermq_up 1\n",
    )


def test_pipeline_status_is_json() -> None:
    status, _, body = asked(FakeService(), "/api/v1/pipeline")
    assert (status, json.loads(body)) == (200, {"state": "running", "queries": []})


@pytest.mark.parametrize(
    ("path", "method", "status", "title"),
    [("/nowhere", "GET", 404, "Not Found"), ("/health", "POST", 405, "Method Not Allowed")],
)
def test_errors_are_problem_documents(path: str, method: str, status: int, title: str) -> None:
    found, kind, body = asked(FakeService(), path, method)
    problem = json.loads(body)
    assert (found, kind) == (status, "application/problem+json")
    assert (problem["status"], problem["title"]) == (status, title)
    assert path in problem["detail"]


def test_a_failure_inside_shows_nothing_of_itself_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    service = FakeService()
    service.status = "broken"
    status, kind, body = asked(service, "/api/v1/pipeline")
    assert (status, kind) == (500, "application/problem+json")
    assert b"secret" not in body
    assert [record.getMessage() for record in caplog.records] == ["GET /api/v1/pipeline failed"]


def test_the_event_loop_hears_that_there_is_no_memory() -> None:
    """Its handler ends the process."""
    heard: list[object] = []
    service = FakeService()

    def exhausted() -> str:
        raise MemoryError

    service.metrics_text = exhausted  # type: ignore[method-assign]

    async def scenario() -> Answer:
        handle = lambda _loop, context: heard.append(context.get("exception"))  # noqa: E731
        asyncio.get_running_loop().set_exception_handler(handle)
        async with served(service) as port:
            return await asyncio.to_thread(ask, port, "/metrics")

    assert uvloop.run(scenario())[0] == 500
    assert [type(error) for error in heard] == [MemoryError]


def test_signals_stay_with_the_process() -> None:
    async def scenario() -> object:
        before = signal.getsignal(signal.SIGTERM)
        async with served(FakeService()):
            return before is signal.getsignal(signal.SIGTERM)

    assert asyncio.run(scenario())


class SlowApi:
    """Reads the whole body, then waits until it is told to answer."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers = asyncio.Event()
        self.has_two = asyncio.Event()
        self.ended: list[str] = []

    async def both_asked(self) -> None:
        async with asyncio.timeout(30):
            await self.has_two.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += 1
        if self.asked == 2:
            self.has_two.set()
        try:
            body = await Request(scope, receive).body()
        except ClientDisconnect:
            self.ended.append("its peer has gone")
            raise
        await self.answers.wait()
        await Response(body or b"x" * ANSWER_BYTES)(scope, receive, send)


async def said(reader: asyncio.StreamReader) -> bytes:
    """All of it, until the server ends the connection."""
    async with asyncio.timeout(30):
        return await reader.read()


def test_connections_are_bounded_by_requests_under_way(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals()

    async def scenario() -> None:
        api = SlowApi()
        async with served(FakeService(), api, refusals, connections_max=2) as port:
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            for _, writer in held:
                writer.write(b"GET /api/v1/slow HTTP/1.1\r\nHost: x\r\n\r\n")
            await api.both_asked()
            assert (await asyncio.to_thread(ask, port, "/health"))[0] == 503
            api.answers.set()
            for reader, writer in held:
                assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
                writer.close()

    uvloop.run(scenario())
    assert refusals.counts[Why.CONNECTIONS_MAX] == 1
    assert not caplog.records


@pytest.mark.parametrize("begun", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\n"])
def test_whoever_asks_takes_the_place_of_those_who_do_not(begun: bytes) -> None:
    refusals = Refusals()

    async def scenario() -> None:
        async with served(FakeService(), None, refusals, connections_max=4, request_timeout_s=600) as port:
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
            for _, writer in silent:
                writer.write(begun)
            for _ in range(3):
                assert (await asyncio.to_thread(ask, port, "/health"))[0] == 200
            heard = [asyncio.ensure_future(said(reader)) for reader, _ in silent]
            ended, _ = await asyncio.wait(heard, return_when=asyncio.FIRST_COMPLETED)
            assert {await one for one in ended} == {b""}
            for _, writer in silent:
                writer.close()
            await asyncio.gather(*heard, return_exceptions=True)

    uvloop.run(scenario())
    assert refusals.counts[Why.MADE_ROOM] >= 5
    assert refusals.counts[Why.CONNECTIONS_MAX] == 0


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"GET /hea", b"408"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nX-Never: ", b"408"),
        (b"POST /api/v1/slow HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf", b"408"),
        (b"HEAD /api/v1/slow HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf", b"408"),
        (b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf", b"405"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /he", b"200"),
    ],
)
def test_a_request_that_does_not_come_in_ends(
    run: Callable[..., None], sent: bytes, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    refusals = Refusals()

    async def scenario() -> None:
        api = SlowApi()
        async with served(FakeService(), api, refusals, request_timeout_s=1, idle_timeout_s=1) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            began = time.monotonic()
            found = await said(reader)
            assert time.monotonic() - began > 0.9
            assert found.split(b" ")[1:2] == ([answer] if answer else [])
            if answer == b"408":
                assert b"the request has not come in within 1 s" in found
            assert len(api.ended) == api.asked
            writer.close()

    run(scenario())
    assert not caplog.records
    is_between = answer in (b"405", b"200")  # uvicorn sees to those
    assert refusals.counts[Why.TIMEOUT] == (not is_between)


ASKED = b"POST /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
TO_SLOW = b"POST /api/v1/slow HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize(
    ("sent", "answer", "why"),
    [
        ([b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n"], b"400", Why.MALFORMED),
        ([b"GET /health HTTP/1.1\r\n\r\n"], b"400", Why.MALFORMED),
        ([b"GET /health HTTP/1.1\r\nHost: x\r\nA b: c\r\n\r\n"], b"400", Why.MALFORMED),
        ([b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20_000], b"431", Why.TOO_LARGE),
        ([b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20_000 + b"\r\n\r\n"], b"431", Why.TOO_LARGE),
        ([b"GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: x\r\n\r\n"], b"501", Why.MALFORMED),
        ([TO_SLOW, b"no number\r\n"], b"400", Why.MALFORMED),
        ([ASKED, b"no number\r\n"], b"405", Why.MALFORMED),  # behind the answer
    ],
)
def test_what_is_no_http_is_counted_and_fills_no_log(
    run: Callable[..., None], sent: list[bytes], answer: bytes, why: Why, caplog: pytest.LogCaptureFixture
) -> None:
    refusals = Refusals()

    async def scenario() -> None:
        async with served(FakeService(), SlowApi(), refusals) as port:
            for _ in range(2):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(sent[0])
                first = await reader.readline() if sent[0] == ASKED else b""
                writer.writelines(sent[1:])
                found = first + await said(reader)
                assert found.split(b" ")[1] == answer
                assert b"application/problem+json" in found and found.count(b"HTTP/1.1") == 1
                writer.close()

    run(scenario())
    assert refusals.counts[why] == 2
    assert not caplog.records


def test_a_wish_for_another_protocol_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with served(FakeService()) as port:
            for upgrade in (b"h2c", b"websocket"):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                head = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: upgrade, close\r\nUpgrade: "
                writer.write(head + upgrade + b"\r\n\r\n")
                assert (await said(reader)).startswith(b"HTTP/1.1 200 OK\r\n")
                writer.close()

    uvloop.run(scenario())
    assert not caplog.records


def test_tokens_and_bodies_that_are_refused_are_counted() -> None:
    refusals = Refusals()

    async def api(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(status_code=int(scope["path"].rpartition("/")[2]))(scope, receive, send)

    async def scenario() -> None:
        async with served(FakeService(), api, refusals) as port:
            for status in (401, 403, 403, 404, 413, 503):
                assert (await asyncio.to_thread(ask, port, f"/api/v1/{status}"))[0] == status

    uvloop.run(scenario())
    assert {why: count for why, count in refusals.counts.items() if count} == {
        Why.UNAUTHENTICATED: 1,
        Why.DENIED: 2,
        Why.TOO_LARGE: 1,
    }


def test_a_byte_now_and_then_is_no_request() -> None:
    """Also behind a request that has been answered."""

    async def scenario() -> None:
        async with served(FakeService(), request_timeout_s=1, idle_timeout_s=600) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
            ended = asyncio.create_task(said(reader))
            while not ended.done():
                writer.write(b"G")
                await asyncio.wait({ended}, timeout=0.1)
            assert b"408" in ended.result()
            writer.close()

    uvloop.run(scenario())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_an_answer_that_nobody_takes_ends(run: Callable[..., None]) -> None:
    async def scenario() -> None:
        api = SlowApi()
        async with served(FakeService(), api, request_timeout_s=1, connections_max=2) as port:
            takers = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
            for taker in takers:
                taker.sendall(b"GET /api/v1/slow HTTP/1.1\r\nHost: x\r\n\r\n")
            await api.both_asked()
            assert (await asyncio.to_thread(ask, port, "/health"))[0] == 503
            api.answers.set()
            await asyncio.to_thread(
                wait_until, lambda: ask(port, "/health")[0] == 200, 30, "there is room again"
            )
            for taker in takers:
                taker.close()

    run(scenario())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_stop_waits_for_no_idle_connection(run: Callable[..., float]) -> None:
    async def scenario() -> float:
        async with served(FakeService(), idle_timeout_s=600) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n")
            began = time.monotonic()
        elapsed = time.monotonic() - began
        writer.close()
        return elapsed

    assert run(scenario()) < 3.5


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_who_waits_for_an_answer_when_it_stops_is_told(
    run: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        api = SlowApi()
        async with served(FakeService(), api) as port:
            waiting = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            for _, writer in waiting:
                writer.write(b"GET /api/v1/slow HTTP/1.1\r\nHost: x\r\n\r\n")
            await api.both_asked()
        for reader, writer in waiting:
            answer = await said(reader)
            assert answer.startswith(b"HTTP/1.1 503 ") and b"the broker stops" in answer
            writer.close()

    run(scenario())
    assert not any(record.exc_info for record in caplog.records)


def test_the_port_is_free_after_stop() -> None:
    async def scenario() -> int:
        async with served(FakeService()) as port:
            pass
        return port

    port = uvloop.run(scenario())
    with pytest.raises(ConnectionRefusedError):
        ask(port, "/health")
