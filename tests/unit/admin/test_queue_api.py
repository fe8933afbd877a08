"""The API of queues over the desk and the core: what it answers, whom it lets in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from starlette.requests import Request
from tests.support.api_served import HERE, Ask, is_problem, served
from tests.support.queue_bench import START_MS
from tests.support.queue_desk import DeskBench

from embermq.admin.access import (
    ApiToken,
    Scope,
    TokenAccess,
    is_loopback,
    token_hash,
)
from embermq.admin.errors import AccessRefused
from embermq.admin.http_api import HttpCaller
from embermq.model.message import Message
from embermq.queues.consumer import Newcomer
from embermq.queues.names import Verb


class Tokens(dict[str, ApiToken]):
    """In memory."""

    def add(self, name: str, scope: Scope, expires_ms: int = 0) -> str:
        self[name] = ApiToken(name, scope, token_hash("emq_" + name), 0, expires_ms)
        return "emq_" + name

    def all(self) -> Tokens:
        return self


async def until(ask: Ask, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The retry of the queue q, as soon as something holds of it."""
    async with asyncio.timeout(30):
        while True:
            job: dict[str, Any] = (await ask("GET", "/queues/q/dlq/retry")).json()
            if is_so(job):
                return job
            await asyncio.sleep(0)


@pytest.mark.promise("queues-40")
def test_a_queue_is_made_changed_shown_and_deleted() -> None:
    bench = DeskBench()

    async def work(ask: Ask) -> None:
        made = await ask("PUT", "/queues/tasks%2Fimages", json={"partitions": 4})
        assert made.status_code == 201 and made.json()["settings"]["partitions"] == 4
        assert bench.commits, "answered when it is durable"
        changed = await ask("PUT", "/queues/$queue$tasks$images", json={"limits": {"message_ttl": "90s"}})
        assert changed.status_code == 200 and not changed.json()["created"]
        assert changed.json()["settings"]["partitions"] == 10
        shown = (await ask("GET", "/queues/tasks$images")).json()
        assert shown["settings"]["limits"]["message_ttl"] == "90s"
        assert shown["stats"]["name"] == "tasks/images"
        listed = (await ask("GET", "/queues", params={"match": "tasks/*"})).json()
        assert [one["name"] for one in listed] == ["tasks/images"]
        after = (await ask("GET", "/queues", params={"after": "q", "limit": 1})).json()
        assert [one["name"] for one in after] == ["tasks/images"]
        assert (await ask("DELETE", "/queues/tasks%2Fimages")).json() == {"messages": 0}
        is_problem(await ask("GET", "/queues/tasks%2Fimages"), 404, "tasks/images")
        assert [row.name for row in bench.rows.queues.values()] == ["q"]

    served(bench, work)


@pytest.mark.promise("queues-33", "queues-40")
def test_settings_that_cannot_be_are_refused_by_name() -> None:
    bench = DeskBench(queues_max=2)

    async def work(ask: Ask) -> None:
        is_problem(await ask("PUT", "/queues/a", json={"colour": 1}), 422, "colour: there is no such setting")
        is_problem(await ask("PUT", "/queues/a", json={"partitions": 0}), 422, "partitions")
        is_problem(await ask("PUT", "/queues/a", content=b"{"), 422, "no valid JSON")
        is_problem(await ask("PUT", "/queues/a", content=b"[" * 60_000), 422, "too deep")
        is_problem(await ask("PUT", "/queues/a", json=[]), 422, "JSON object")
        is_problem(await ask("PUT", "/queues/a%2F%2Fb", json={}), 422, "empty level")
        is_problem(await ask("PUT", "/queues/responses%2Fme", json={}), 422, "responses/")
        is_problem(await ask("PUT", "/queues/a", content=b"{" + b" " * 70_000 + b"}"), 413, "65536 bytes")
        is_problem(await ask("PUT", "/queues/a%00b", json={}), 422, "U+0000")
        is_problem(await ask("GET", "/queues/"), 404)
        assert (await ask("PUT", "/queues/a", json={})).status_code == 201
        is_problem(await ask("PUT", "/queues/b", json={}), 409, "queues_max is 2")
        bench.publish()
        is_problem(await ask("PUT", "/queues/q", json={"partitions": 3}), 422, "must be empty")
        assert bench.queues.queue("q").settings.partitions == 10

    served(bench, work)


@pytest.mark.promise("queues-20", "queues-40")
def test_messages_consumers_groups_and_why() -> None:
    bench = DeskBench()
    bench.bodies = {
        0: Message("$queue/q", b"one", 1, False, "p", 5, START_MS),
        1: Message("$queue/q", b"\xff", 1, False, "p", 5, START_MS),
        2: None,
        3: Message("$queue/q", "ä".encode() * 40_000, 1, False, "p", 4, START_MS),
    }
    bench.join("c", prefetch=1)
    bench.publish("k")
    bench.publish(count=3)

    async def work(ask: Ask) -> None:
        peeked = (await ask("GET", "/queues/q/messages", params={"limit": 4})).json()
        assert [one.get("payload") for one in peeked[:3]] == ["one", None, None]
        assert peeked[1]["payload_base64"] == "/w==" and "payload_base64" not in peeked[2]
        assert peeked[3]["payload"] == "ä" * 32_768 and peeked[3]["payload_bytes"] == 80_000
        behind = (await ask("GET", "/queues/q/messages", params={"after": 1, "limit": 1})).json()
        assert behind[0]["about"]["sequence"] == 2
        message = (await ask("GET", f"/queues/q/messages/{peeked[0]['about']['id']}")).json()
        assert message["states"][0]["state"] == "DELIVERED" and message["states"][0]["holder"] == "c"
        is_problem(await ask("GET", "/queues/q/messages/1-99"), 404, "1-99")
        (consumer,) = (await ask("GET", "/queues/q/consumers")).json()
        assert consumer["client_id"] == "c" and len(consumer["partitions"]) == 10
        (group,) = (await ask("GET", "/queues/q/groups")).json()
        assert group["lag"] == 4
        why = (await ask("GET", "/queues/q/explain")).json()
        assert [one["code"] for one in why] == ["window_full"]
        assert (await ask("GET", "/queues/q/stats")).json()["in_flight"] == 1
        is_problem(await ask("GET", "/queues/q/messages", params={"limit": 101}), 400, "limit")
        is_problem(await ask("GET", "/queues/none/stats"), 404, "none")
        is_problem(await ask("GET", "/nothing"), 404)
        is_problem(await ask("POST", "/queues/q"), 405)

    served(bench, work)


@pytest.mark.promise("queues-40")
def test_a_purge_goes_in_pieces_and_survives_refused_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embermq.admin.queue_desk.PIECE", 10)
    bench = DeskBench()
    bench.join("c", prefetch=5)
    bench.publish(count=25)

    async def work(ask: Ask) -> None:
        bench.failing = 2
        assert (await ask("POST", "/queues/q/purge")).json() == {"messages": 25}
        assert bench.commits == 5 and not bench.rows.entries
        is_problem(await ask("DELETE", "/queues/q"), 409, "1 consumer; they have to unsubscribe")
        is_problem(await ask("DELETE", "/queues/q/groups/g"), 409, "has consumers: 'c'")
        is_problem(await ask("DELETE", "/queues/q/groups/h"), 404, "no group 'h'")
        bench.leave("c")
        assert (await ask("DELETE", "/queues/q/groups/g")).status_code == 204
        assert not bench.rows.groups

    served(bench, work)


@pytest.mark.promise("queues-35")
def test_dead_letters_are_listed_and_put_back() -> None:
    bench = DeskBench()
    bench.join("c")
    bench.publish(count=5)
    for delivery in bench.take():
        bench.settle(delivery, Verb.REJECT)

    async def work(ask: Ask) -> None:
        letters = (await ask("GET", "/queues/q/dlq")).json()
        assert len(letters) == 5 and letters[0]["reason"] == "rejected" and letters[0]["last_error"] == "why"
        page = (await ask("GET", "/queues/q/dlq", params={"after": letters[1]["id"], "limit": 2})).json()
        assert page == letters[2:4]
        assert (await ask("GET", "/queues/dlq$q/dlq")).json() == letters
        done = await ask("POST", f"/queues/q/dlq/{letters[0]['id']}/retry")
        assert done.json() == {"messages": 1}
        assert bench.take()[0].stamps.message_id == letters[0]["message_id"]
        is_problem(await ask("POST", f"/queues/q/dlq/{letters[0]['id']}/retry"), 404, letters[0]["id"])
        none_stay = {"held": 0, "orphaned": 0, "missing_queues": [], "crowded": 0, "full_queues": []}
        nothing = await ask("POST", "/queues/q/dlq/retry", params={"reason": "timeout"})
        assert nothing.json() == {"messages": 0, **none_stay}
        some = await ask("POST", "/queues/q/dlq/retry", params={"error": "w*", "limit": 2})
        assert some.json() == {"messages": 2, **none_stay}
        job = await ask("POST", "/queues/q/dlq/retry", params={"rate": 1_000})
        assert job.status_code == 202 and job.json()["matched"] == 2
        is_problem(await ask("POST", "/queues/q/dlq/retry", params={"rate": 1}), 409, "already")
        found = await until(ask, lambda job: not job["running"])
        assert found["retried"] == 2
        is_problem(await ask("GET", "/queues/q/dlq?moved_after=2026-01-01T00:00:00"), 400, "moved_after")
        assert (await ask("GET", "/queues/q/dlq?moved_after=2026-01-01T00:00:00Z")).status_code == 200
        assert (await ask("GET", "/queues/q/dlq")).json() == []
        assert [delivery.stamps.delivery_count for delivery in bench.take()] == [1, 1, 1, 1]
        is_problem(await ask("DELETE", "/queues/q/dlq/retry"), 404, "no retry runs")

    served(bench, work)


@pytest.mark.parametrize("pattern", ["a?", "a*", "[ab][bc]", "*"])
def test_the_name_of_a_queue_is_no_pattern_among_shared_dead_letters(pattern: str) -> None:
    bench = DeskBench()
    for bench.name in (pattern, "ab"):
        bench.configure(dlq_config={"topic": "$queue/dlq/shared"})
        bench.join("c")
        bench.publish(count=2)
        for delivery in bench.take():
            bench.settle(delivery, Verb.REJECT)

    async def work(ask: Ask) -> None:
        own = f"/queues/{quote(pattern, safe='')}"
        letters = (await ask("GET", f"{own}/dlq")).json()
        assert [letter["queue"] for letter in letters] == [pattern] * 2
        others = [letter["id"] for letter in (await ask("GET", "/queues/ab/dlq")).json()]
        is_problem(await ask("POST", f"{own}/dlq/{others[0]}/retry"), 404, others[0])
        done = await ask("POST", f"{own}/dlq/redrive", json={"ids": others})
        assert (done.json()["put_back"], done.json()["gone"]) == (0, 2)
        assert (await ask("POST", f"{own}/dlq/retry")).json()["messages"] == 2
        assert [letter["id"] for letter in (await ask("GET", "/queues/dlq$shared/dlq")).json()] == others

    served(bench, work)


@pytest.mark.promise("queues-34", "queues-35")
def test_dead_letters_go_back_by_their_ids_in_one_transaction_and_once() -> None:
    bench = DeskBench()
    bench.join("c")
    bench.publish(count=5)
    for delivery in bench.take():
        bench.settle(delivery, Verb.REJECT)

    async def work(ask: Ask) -> None:
        letters = (await ask("GET", "/queues/q/dlq")).json()
        ids = [letter["id"] for letter in letters]
        commits, bench.failing = bench.commits, 2
        done = await ask("POST", "/queues/dlq$q/dlq/redrive", json={"ids": [ids[3], ids[1], ids[1], "7-7"]})
        none_stay = {"held": 0, "orphaned": 0, "missing_queues": [], "crowded": 0, "full_queues": []}
        assert done.json() == {"put_back": 2, "gone": 2, **none_stay}
        assert bench.commits == commits + 3, "answered when it is durable, after two that were refused"
        again = await ask("POST", "/queues/q/dlq/redrive", json={"ids": [ids[3], ids[0]]})
        assert again.json() == {"put_back": 1, "gone": 1, **none_stay}
        back = [row.origin_id for _, row in sorted(bench.rows.entries.items()) if row.origin_id]
        assert back == [letters[number]["message_id"] for number in (3, 1, 0)], "in the order of the ids"
        assert (await ask("GET", "/queues/q/stats")).json()["retried"] == 3
        stored = [row.dead_letter is not None for row in bench.rows.entries.values()]
        assert sorted(stored) == [False] * 3 + [True] * 2, "each in one place"
        bench.queues.join("dlq/q", "look", Newcomer("d", 1, 32), bench.now_ms)
        bench.run()
        held = await ask("POST", "/queues/q/dlq/redrive", json={"ids": ids})
        assert held.json() == {"put_back": 0, "gone": 3, **none_stay, "held": 2}
        bodies: list[dict[str, Any]] = [{}, {"id": "1"}]
        bodies += [{"ids": wrong} for wrong in ([], ["1-1"] * 1_001, [1], ["x" * 81])]
        for body in bodies:
            is_problem(
                await ask("POST", "/queues/q/dlq/redrive", json=body), 400, "the body is not understood"
            )
        is_problem(await ask("POST", "/queues/q/dlq/redrive", content=b" " * 70_000), 413, "65536 bytes")
        is_problem(await ask("POST", "/queues/no/dlq/redrive", json={"ids": ["1-1"]}), 404, "no")

    served(bench, work)


@pytest.mark.promise("queues-35")
def test_nothing_begins_by_itself_any_more_when_the_broker_stops() -> None:
    bench = DeskBench()
    bench.join("c")
    bench.publish()
    bench.settle(bench.one(), Verb.REJECT)

    async def work(ask: Ask) -> None:
        bench.desk.close()
        is_problem(await ask("POST", "/queues/q/dlq/retry", params={"rate": 1}), 409, "the broker stops")

    served(bench, work)


def test_a_slow_retry_keeps_its_rate_and_can_be_ended() -> None:
    bench = DeskBench()
    bench.join("c")
    bench.publish(count=5)
    for delivery in bench.take():
        bench.settle(delivery, Verb.REJECT)

    async def work(ask: Ask) -> None:
        await ask("POST", "/queues/q/dlq/retry", params={"rate": 0.01})
        await until(ask, lambda job: job["retried"] > 0)
        assert (await ask("DELETE", "/queues/q/dlq/retry")).status_code == 204
        job = (await ask("GET", "/queues/q/dlq/retry")).json()
        assert (job["retried"], job["running"]) == (1, False)
        assert len((await ask("GET", "/queues/q/dlq")).json()) == 4

    served(bench, work)


@pytest.mark.promise("queues-35")
def test_a_queue_that_is_deleted_takes_its_retry_with_it() -> None:
    bench = DeskBench()
    bench.join("c")
    bench.publish(count=5)
    for delivery in bench.take():
        bench.settle(delivery, Verb.REJECT)
    bench.leave("c")

    async def work(ask: Ask) -> None:
        await ask("POST", "/queues/q/dlq/retry", params={"rate": 0.01})
        await until(ask, lambda job: job["retried"] > 0)
        assert (await ask("DELETE", "/queues/q")).json() == {"messages": 1}
        await ask("PUT", "/queues/q", json={})
        is_problem(await ask("GET", "/queues/q/dlq/retry"), 404, "no retry")
        is_problem(await ask("DELETE", "/queues/q/dlq/retry"), 404, "no retry runs")
        assert len((await ask("GET", "/queues/dlq$q/dlq")).json()) == 4

    served(bench, work)


def test_who_subscribes_while_a_queue_is_deleted_keeps_it() -> None:
    bench = DeskBench()
    bench.publish()
    commit = bench._commit

    def commit_meanwhile() -> None:
        bench.queues.join("q", "g", Newcomer("c", 1, 32), bench.now_ms)
        commit()

    async def work(ask: Ask) -> None:
        bench._commit = commit_meanwhile  # type: ignore[method-assign]
        is_problem(await ask("DELETE", "/queues/q"), 409, "1 consumer; they have to unsubscribe")
        assert (await ask("GET", "/queues/q/consumers")).json()[0]["client_id"] == "c"

    served(bench, work)


@pytest.mark.promise("queues-35")
def test_a_dead_letter_that_is_held_stays() -> None:
    bench = DeskBench()
    bench.join("c")
    bench.publish()
    bench.settle(bench.one(), Verb.REJECT)
    bench.queues.join("dlq/q", "look", Newcomer("d", 1, 32), bench.now_ms)
    bench.run()

    async def work(ask: Ask) -> None:
        (letter,) = (await ask("GET", "/queues/q/dlq")).json()
        is_problem(await ask("POST", f"/queues/q/dlq/{letter['id']}/retry"), 409, "is held by a consumer")

    served(bench, work)


def test_a_search_for_dead_letters_lets_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embermq.queues.inspection.LOOKED_AT_MAX", 1)
    bench = DeskBench()
    bench.join("c", prefetch=100)
    bench.publish(count=100)
    for delivery in bench.take():
        bench.settle(delivery, Verb.REJECT)

    async def turns_of(path: str, ask: Ask, method: str = "GET") -> int:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        assert (await ask(method, path)).is_success
        task.cancel()
        return turns

    async def work(ask: Ask) -> None:
        await ask("GET", "/queues")
        usual = await turns_of("/queues/q/dlq?limit=1", ask)
        assert await turns_of("/queues/q/dlq?reason=timeout", ask) >= usual + 90
        assert await turns_of("/queues/q/dlq/retry?reason=timeout", ask, "POST") >= usual + 90
        assert await turns_of("/queues/q/dlq/retry?reason=timeout&rate=1", ask, "POST") >= usual + 90

    served(bench, work)


def test_a_group_may_have_any_name() -> None:
    bench = DeskBench()
    bench.queues.open_group("q", "a b/ü", bench.now_ms)

    async def work(ask: Ask) -> None:
        is_problem(await ask("DELETE", "/queues/q/groups/a%20b"), 404, "'a b'")
        assert (await ask("DELETE", "/queues/q/groups/a%20b%2F%C3%BC")).status_code == 204
        assert (await ask("GET", "/queues/q/groups")).json() == []

    served(bench, work)


def test_a_store_that_does_not_answer_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embermq.admin.queue_desk.STORE_WAIT_S", 0.01)
    bench = DeskBench()
    bench.publish()

    async def work(ask: Ask) -> None:
        bench.failing = 10_000_000
        is_problem(await ask("POST", "/queues/q/purge"), 503, "has not confirmed it in 0.01 s")
        bench.failing = 0
        monkeypatch.setattr(bench, "ask", lambda queue, messages, then: None)
        bench.publish()
        is_problem(await ask("GET", "/queues/q/messages"), 503, "has not answered")

    served(bench, work)


def test_tokens_have_scopes() -> None:
    bench, tokens = DeskBench(), Tokens()
    access = TokenAccess(tokens, lambda: 1_000)
    secrets = {scope: tokens.add(scope.value, scope) for scope in Scope}
    over = tokens.add("over", Scope.ADMIN, expires_ms=1_000)

    async def work(ask: Ask) -> None:
        wanted = {("GET", "/queues"): 0, ("POST", "/queues/q/purge"): 1, ("PUT", "/queues/q"): 2}
        wanted["GET", "/cluster"] = 0
        for (method, path), least in wanted.items():
            for scope, rank in zip(Scope, (0, 1, 2, 0), strict=True):
                answer = await ask(method, path, headers={"authorization": f"Bearer {secrets[scope]}"})
                assert answer.status_code == (200 if rank >= least else 403), (
                    method,
                    path,
                    scope,
                    answer.text,
                )
        assert answer.json() == {"name": "cars", "place": "", "nodes": []}
        is_problem(await ask("GET", "/queues"), 401, "a token is needed")
        for wrong in (f"Bearer {over}", "Bearer nonsense", "Bearer ", "Basic x"):
            answer = await ask("GET", "/queues", headers={"authorization": wrong})
            assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
            assert "nonsense" not in answer.text

    served(bench, work, access)
    served(bench, work, access, peer="192.0.2.7")


def test_where_alerts_go_is_seen_by_who_may_change_it() -> None:
    tokens = Tokens()
    access = TokenAccess(tokens, lambda: 1_000)
    url = "https://hooks.example:8443/services/T0/hidden"

    async def work(ask: Ask) -> None:
        settings = {"dlq_config": {"enabled": True, "alert_webhook": url}}
        assert (await ask("PUT", "/queues/a", json=settings)).status_code == 201
        for scope in (None, *Scope):
            headers = {}
            if scope is not None:
                headers = {"authorization": f"Bearer {tokens.add(scope.value, scope)}"}
            shown = (await ask("GET", "/queues/a", headers=headers)).json()["settings"]["dlq_config"]
            seen = scope in (None, Scope.ADMIN)
            assert shown["alert_webhook"] == (url if seen else "https://hooks.example:8443/***"), scope

    served(DeskBench(), work, access)


def test_without_a_token_this_machine_alone_gets_in() -> None:
    access = TokenAccess(Tokens(), lambda: 0)

    async def inside(ask: Ask) -> None:
        assert (await ask("GET", "/queues")).status_code == 200
        assert (await ask("PUT", "/queues/a", json={})).status_code == 201
        assert (await ask("GET", "/queues", headers={"origin": HERE})).status_code == 200
        for headers in (
            {"origin": "http://evil.example"},
            {"host": "evil.example"},
            {"x-forwarded-for": "192.0.2.7"},
            {"x-forwarded-proto": "https"},
            {"x-original-forwarded-for": "192.0.2.7"},
            {"x-original-host": "evil.example"},
            {"forwarded": "for=192.0.2.7"},
            {"cf-connecting-ip": "192.0.2.7"},
            {"x-real-ip": "192.0.2.7"},
            {"true-client-ip": "192.0.2.7"},
            {"x-envoy-external-address": "192.0.2.7"},
            {"via": "1.1 proxy"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
            {"origin": "null"},
            {"origin": HERE.replace("http:", "https:")},
            {"origin": HERE.removeprefix("http")},
        ):
            is_problem(await ask("GET", "/queues", headers=headers), 403, "embermq tokens create")
            # What a page sends without asking the broker first, and what it would ask about.
            for method, path in (("POST", "/queues/a/purge"), ("PUT", "/queues/b"), ("DELETE", "/queues/a")):
                simple = {**headers, "content-type": "text/plain"}
                is_problem(await ask(method, path, headers=simple, content=b"{}"), 403)
        assert (await ask("GET", "/queues", headers={"sec-fetch-site": "none"})).status_code == 200
        is_problem(await ask("GET", "/queues", headers={"authorization": "Bearer x"}), 401)

    async def outside(ask: Ask) -> None:
        is_problem(await ask("GET", "/queues"), 403, "for this machine alone")
        is_problem(await ask("POST", "/queues/q/purge"), 403)

    served(DeskBench(), inside, access)
    served(DeskBench(), outside, access, peer="192.0.2.7")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:192.0.2.7", False),
        ("192.0.2.7", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("localhost", False),  # peers have addresses
        ("", False),
    ],
)
def test_addresses_of_this_machine(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_a_proxy_that_speaks_http_1_0_is_not_this_machine() -> None:
    def request(version: str) -> Request:
        headers = [(b"host", b"127.0.0.1:8080")]
        scope = {"type": "http", "http_version": version, "headers": headers, "client": ("127.0.0.1", 5)}
        return Request(scope)

    access = TokenAccess(Tokens(), lambda: 0)
    assert access.check(HttpCaller(request("1.1")), Scope.ADMIN) == ""
    with pytest.raises(AccessRefused, match="needs a token"):
        access.check(HttpCaller(request("1.1")), Scope.ADMIN, needs_token=True)
    with pytest.raises(AccessRefused, match="this machine alone"):
        access.check(HttpCaller(request("1.0")), Scope.READ)


def test_tokens_that_cannot_be_read_let_nobody_in(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def all(self) -> dict[str, ApiToken]:
            raise OSError("damaged")

    async def work(ask: Ask) -> None:
        is_problem(await ask("GET", "/queues"), 403, "cannot be read")
        is_problem(await ask("GET", "/queues"), 403, "cannot be read")

    served(DeskBench(), work, TokenAccess(Broken(), lambda: 0))
    assert [record.getMessage() for record in caplog.records if "damaged" in record.getMessage()] == [
        "nobody may use the API, its tokens cannot be read: damaged"
    ]


@pytest.mark.promise("queues-40")
def test_openapi_and_its_page() -> None:
    async def work(ask: Ask) -> None:
        described = (await ask("GET", "/openapi.json")).json()
        paths = described["paths"]
        for path in (
            "stats",
            "consumers",
            "messages/{message_id}",
            "dlq",
            "dlq/redrive",
            "dlq/{id}/retry",
            "dlq/retry",
        ):
            assert f"/queues/{{name}}/{path}" in paths
        assert {"get", "put", "delete"} <= paths["/queues/{name}"].keys()
        schemas = described["components"]["schemas"]
        assert schemas["Limits"]["properties"]["message_ttl"]["type"] == "string"
        references = {
            found.rpartition("/")[2]
            for found in _references(described)
            if found.startswith("#/components/schemas/")
        }
        assert references <= schemas.keys()
        page = await ask("GET", "/docs")
        assert page.status_code == 200 and "/api/v1/queues/{name}/dlq/retry" in page.text
        assert "http://" not in page.text and "https://" not in page.text and "<script" not in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]

    served(DeskBench(), work)


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for each in value.values() for found in _references(each)]
    return [found for each in value for found in _references(each)] if isinstance(value, list) else []


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("a%2Fb/stats", "a/b"),
        ("a$b/stats", "a/b"),
        ("a%24b/stats", "a$b"),
        ("$queue$a$b/stats", "a/b"),
        ("%24queue%2Fa/stats", "a"),
        ("a%2Fstats/stats", "a/stats"),
        ("%24queue%2F%24queue%2Fa/stats", "$queue/a"),
    ],
)
def test_names_in_paths(raw: str, name: str) -> None:
    async def work(ask: Ask) -> None:
        is_problem(await ask("GET", f"/queues/{raw}"), 404, f"there is no queue {name!r}")

    served(DeskBench(), work)
