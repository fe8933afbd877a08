"""The API of queues, asked for what cannot be, by mistake, or for much."""

from __future__ import annotations

import asyncio
from functools import partial
from urllib.parse import quote

import httpx
import pytest
from tests.support.api_served import HERE, Ask, is_problem, served
from tests.support.queue_desk import DeskBench

from embermq.admin.errors import QueueElsewhere
from embermq.admin.http_api import create_control_app
from embermq.admin.operations import SESSIONS
from embermq.queues.names import Verb
from embermq.queues.scans import at_a_time


@pytest.mark.parametrize(
    ("method", "asked", "told"),
    [
        (
            "POST",
            "/queues/q/dlq/retry?resaon=timeout",
            "resaon: is no parameter here, there are error, group, limit",
        ),
        ("GET", "/queues/q/dlq?Reason=timeout", "Reason: is no parameter here"),
        ("GET", "/queues?limit=1&limit=2", "limit: is given twice"),
        ("POST", "/queues/q/purge?group=g", "group: is no parameter here, there is none"),
        ("GET", "/queues/q?name=r", "name: is no parameter here"),
        (
            "POST",
            "/queues/q/dlq/retry?reason=timeuot",
            "reason: is 'timeuot', there are rejected, max_retries",
        ),
        ("POST", "/queues/q/dlq/retry?rate=1&limit=5", "limit: cannot be given together with a rate"),
        ("POST", "/queues/q/dlq/retry?rate=1e-300", "rate: is '1e-300', expected `float` >= 0.001"),
        ("POST", "/queues/q/dlq/retry?rate=nan", "rate: "),
        ("POST", "/queues/q/dlq/retry?rate=null", "rate: is 'null'"),
        ("POST", "/queues/q/dlq/retry?moved_after=null", "moved_after: is 'null'"),
        ("POST", "/queues/q/dlq/retry?moved_after=NULL", "moved_after: is 'NULL'"),
        ("POST", "/queues/q/dlq/retry?rate=Null", "rate: is 'Null'"),
        ("POST", "/queues/q/dlq/retry?group=%ff", "the query is not UTF-8"),
        ("GET", f"/queues?limit={'9' * 5_000}", "limit: is '9999"),
        ("GET", "/queues/q/dlq?after=nonsense", "after: 'nonsense' is no id of a dead letter of queue q"),
        ("GET", "/queues/q/dlq?after=99-1", "after: '99-1' is no id"),
        ("GET", "/queues/%ff", "not UTF-8"),
        ("PUT", "/queues/a%c3", "not UTF-8"),
    ],
)
def test_what_cannot_be_meant_does_nothing(method: str, asked: str, told: str) -> None:
    """A filter that was misspelt and left out would be one for everything."""
    bench = DeskBench()
    bench.join("c")
    bench.publish(count=2)
    for delivery in bench.take():
        bench.settle(delivery, Verb.REJECT)

    async def work(ask: Ask) -> None:
        is_problem(await ask(method, asked), 400, told)
        assert len((await ask("GET", "/queues/q/dlq")).json()) == 2
        assert len((await ask("GET", "/queues")).json()) == 2

    served(bench, work)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"ids": ["\xff"]}', "not understood: 'utf-8' codec can't decode"),
        (b'{"ids": ' + b"[" * 30_000, "not understood"),
        (b"[" * 30_000, "not understood"),
        (b'{"ids": [null]}', "Expected `str`, got `null`"),
        (b"", "not understood"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(body: bytes, told: str) -> None:
    async def work(ask: Ask) -> None:
        await ask("PUT", "/queues/q")
        is_problem(await ask("POST", "/queues/q/dlq/redrive", content=body), 400, told)

    served(DeskBench(), work)


def test_what_lies_deep_in_a_body_is_refused_at_the_control_socket_too() -> None:
    """It passes over fields that it does not know."""

    async def run() -> None:
        transport = httpx.ASGITransport(
            app=create_control_app({SESSIONS: object()}), raise_app_exceptions=False
        )
        async with httpx.AsyncClient(transport=transport, base_url=HERE) as client:
            body = b'{"topic": "t", "x": ' + b"[" * 30_000
            answer = await client.post("/api/v1/application-logs/restore", content=body)
            is_problem(answer, 400, "too deep")

    asyncio.run(run())


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_may_be_the_first_and_the_last_that_there_is(moment: str) -> None:
    async def work(ask: Ask) -> None:
        await ask("PUT", "/queues/q")
        answer = await ask("GET", f"/queues/q/dlq?moved_after={quote(moment)}")
        assert (answer.status_code, answer.json()) == (200, [])

    served(DeskBench(), work)


@pytest.mark.parametrize("name", ["a\nb", "\n", "a\r\n", "a\u2028b", "\x1b[31m", "..", "a?b#c"[:3], "é"])
def test_a_queue_of_any_name_can_be_seen_and_deleted(name: str) -> None:
    """Whoever may publish chooses it."""

    async def work(ask: Ask) -> None:
        path = f"/queues/{quote(name, safe='').replace('.', '%2E')}"
        assert (await ask("PUT", path)).status_code == 201
        assert (await ask("GET", path)).json()["settings"]["name"] == name
        as_a_page_asks = path.replace("/queues/", "/queues/%00")
        assert (await ask("GET", as_a_page_asks)).json()["settings"]["name"] == name
        assert (await ask("POST", f"{path}/purge")).json() == {"messages": 0}
        assert (await ask("DELETE", path)).status_code == 200

    served(DeskBench(), work)


def _check_here(name: str) -> None:
    if name.startswith("far"):
        raise QueueElsewhere(f"queue {name!r} belongs to slot 1")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("PUT", ""),
        ("DELETE", ""),
        ("POST", "/purge"),
        ("GET", "/dlq"),
        ("GET", "/messages"),
        ("GET", "/consumers"),
        ("GET", "/stats"),
    ],
)
def test_who_asks_for_a_queue_of_another_slot_is_told_so(method: str, path: str) -> None:
    async def work(ask: Ask) -> None:
        is_problem(await ask(method, f"/queues/far{path}"), 421, "queue 'far' belongs to slot 1")
        assert (await ask("PUT", "/queues/near")).status_code == 201
        assert "far" not in [each["name"] for each in (await ask("GET", "/queues")).json()]

    served(DeskBench(check_here=_check_here), work)


def test_a_queue_that_is_there_is_not_made_again() -> None:
    async def work(ask: Ask) -> None:
        only_new = {"if-none-match": "*"}
        assert (await ask("PUT", "/queues/n", json={"partitions": 3}, headers=only_new)).status_code == 201
        for path in ("/queues/n", "/queues/$queue$n"):
            is_problem(await ask("PUT", path, headers=only_new), 412, "there is a queue 'n' already")
        assert (await ask("GET", "/queues/n")).json()["settings"]["partitions"] == 3
        assert (await ask("PUT", "/queues/n")).status_code == 200

    served(DeskBench(), work)


def test_what_is_done_at_once_is_less_where_there_are_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message stands somewhere with each: a thousand messages of 900 groups kept clients waiting for seconds."""
    monkeypatch.setattr("embermq.admin.queue_desk.at_a_time", partial(at_a_time, standings=20))
    bench = DeskBench()
    for number in range(5):
        bench.join("c", f"g{number}")
    bench.publish(count=10)

    async def work(ask: Ask) -> None:
        page = (await ask("GET", "/queues/q/messages")).json()
        assert [one["about"]["sequence"] for one in page] == [1, 2, 3, 4]
        page = (await ask("GET", "/queues/q/messages?after=4&limit=2")).json()
        assert [one["about"]["sequence"] for one in page] == [5, 6]
        before = bench.commits
        assert (await ask("POST", "/queues/q/purge")).json() == {"messages": 10}
        assert bench.commits - before >= 3

    served(bench, work)
