"""Queues of a running broker as operators see them: the API with tokens, the command, metrics, settings."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.forked_program import run_program
from tests.support.mqtt_client import run
from tests.support.queue_worker import Worker, queue_broker, worker
from tests.support.waiting import wait_until

from embermq.mqtt.wire.packets import Puback, Publish

QUEUES = """
[[queues]]
name = "op/file"
partitions = 3
limits.max_queue_depth = 50
[[queues]]
name = "op/retry"
partitions = 1
retry_policy.max_retries = 0
"""
RULES = """
[[rule]]
deny = "publish"
topics = "$admin/queue/op/closed/config"
[[rule]]
allow = "publish"
client_id = "operator"
topics = "$admin/queue/#"
[[rule]]
allow = "all"
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with queue_broker(tmp_path_factory.mktemp("operating"), QUEUES) as running:
        yield running


def api(broker: BrokerProcess, method: str, path: str, **more: Any) -> httpx.Response:
    return httpx.request(method, f"http://127.0.0.1:{broker.http_port}/api/v1{path}", timeout=30, **more)


def embermq(broker: BrokerProcess, *words: str, code: int = 0, given: str = "") -> str:
    done = run_program(*words, "--data-dir", broker.data_dir, stdin=given)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


async def subscribes(broker: BrokerProcess, topic_filter: str) -> None:
    client = await worker(broker, "founder")
    await client.consumes(topic_filter)
    client.close()


def metrics(broker: BrokerProcess) -> str:
    return httpx.get(f"http://127.0.0.1:{broker.http_port}/metrics", timeout=30).text


def sample(text: str, name: str) -> float:
    """The value of one line of the metrics, its labels in the order of their names."""
    (found,) = [line.rpartition(" ")[2] for line in text.splitlines() if line.rpartition(" ")[0] == name]
    return float(found)


async def rejected(broker: BrokerProcess, queue: str, count: int) -> None:
    """Dead letters: a consumer rejects `count` messages, and goes."""
    client = await worker(broker, f"rejects{queue.replace('/', '')}-1")
    await client.consumes(f"$queue/{queue}")
    await client.enqueues(f"$queue/{queue}", *[b"bad"] * count)
    for message in await client.take(count):
        assert (await client.says("reject", message, reason="no good"))[0] == 0
    client.close()


@pytest.mark.promise("queues-33", "queues-40")
def test_queues_are_configured_by_file_and_by_http(broker: BrokerProcess) -> None:
    shown = api(broker, "GET", "/queues/op%2Ffile").json()
    assert shown["settings"]["partitions"] == 3 and shown["settings"]["limits"]["max_queue_depth"] == 50
    assert shown["settings"]["retry_policy"]["max_backoff"] == "5m"
    made = api(broker, "PUT", "/queues/$queue$op$http", json={"ordering": "strict"})
    assert made.status_code == 201 and made.json()["settings"]["partitions"] == 1
    refused = api(broker, "PUT", "/queues/op$http", json={"partitions": 2, "ordering": "strict"})
    assert refused.status_code == 422
    assert refused.headers["content-type"] == "application/problem+json"
    assert "partitions: is 2, ordering strict has 1" in refused.json()["detail"]
    assert api(broker, "DELETE", "/queues/op$http").json() == {"messages": 0}
    assert api(broker, "GET", "/queues/op$http").status_code == 404


@pytest.mark.promise("queues-10")
def test_partitions_change_only_while_the_queue_is_empty(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        client = await worker(broker, "parts-1")
        await client.consumes("$queue/op/parts")
        await client.enqueues("$queue/op/parts", b"m")
        message = await client.next()
        refused = api(broker, "PUT", "/queues/op$parts", json={"partitions": 4})
        assert refused.status_code == 422
        assert "10 cannot become 4 while the queue holds 1 messages; it must be empty" in refused.text
        await client.acks(message)
        assert api(broker, "PUT", "/queues/op$parts", json={"partitions": 4}).status_code == 200
        (consumer,) = api(broker, "GET", "/queues/op$parts/consumers").json()
        assert consumer["partitions"] == [0, 1, 2, 3]
        await client.enqueues("$queue/op/parts", *[b"m"] * 4)
        assert {taken.partition for taken in await client.take(4)} == {0, 1, 2, 3}
        client.close()

    run(scenario())


@pytest.mark.promise("queues-40")
def test_the_front_page_names_what_is_served(broker: BrokerProcess) -> None:
    port = broker.http_port
    page = httpx.get(f"http://127.0.0.1:{port}/", timeout=30)
    assert page.status_code == 200
    named = re.findall(r'<a href="([^"]+)"', page.text)
    assert {"health", "metrics", "api/v1/docs"} <= set(named)
    for path in named:
        assert httpx.get(f"http://127.0.0.1:{port}/{path}", timeout=30).status_code == 200, path


@pytest.mark.promise("queues-31")
def test_a_lower_depth_is_reached_at_once_where_the_head_is_dropped(broker: BrokerProcess) -> None:
    """Without a publish; what is above it is with the dead letters, the oldest first."""

    async def scenario() -> None:
        client = await worker(broker, "shrinker")
        assert api(broker, "PUT", "/queues/op%2Fshrinks", json={"partitions": 1}).status_code == 201
        await client.enqueues("$queue/op/shrinks", *(b"%d" % number for number in range(300)))
        limits = {"max_queue_depth": 20, "overflow": "drop-head"}
        changed = api(broker, "PUT", "/queues/op%2Fshrinks", json={"partitions": 1, "limits": limits})
        assert changed.status_code == 200
        wait_until(lambda: api(broker, "GET", "/queues/op%2Fshrinks/stats").json()["depth"] == 20)
        assert api(broker, "GET", "/queues/dlq%2Fop%2Fshrinks/stats").json()["depth"] == 280
        await client.consumes("$queue/op/shrinks", prefetch="100")
        assert [taken.payload for taken in await client.take(20)] == [
            b"%d" % number for number in range(280, 300)
        ]

    run(scenario())


@pytest.mark.promise("queues-31")
def test_a_lower_depth_outlives_a_kill_with_what_was_held(tmp_path: Path) -> None:
    with queue_broker(tmp_path, "") as broker:

        async def scenario() -> None:
            client = await worker(broker, "holder")
            await client.consumes("$queue/shrinks", prefetch="50", consumer_group="g")
            await client.enqueues("$queue/shrinks", *(b"%d" % number for number in range(100)))
            assert len(await client.take(50)) == 50
            limits = {"max_queue_depth": 20, "overflow": "drop-head"}
            assert api(broker, "PUT", "/queues/shrinks", json={"limits": limits}).status_code == 200
            wait_until(lambda: api(broker, "GET", "/queues/shrinks/stats").json()["depth"] == 50)

        run(scenario())
        broker.kill()
        broker.start()
        wait_until(lambda: api(broker, "GET", "/queues/shrinks/stats").json()["depth"] == 20)
        dead = api(broker, "GET", "/queues/shrinks/dlq?limit=1000").json()
        assert len(dead) == 80 and {letter["reason"] for letter in dead} == {"overflow"}


@pytest.mark.promise("queues-32", "queues-33")
def test_another_prefetch_holds_for_consumers_that_named_none(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/op/prefetch"
        assert (
            api(broker, "PUT", "/queues/op$prefetch", json={"performance": {"prefetch": 1}}).status_code
            == 201
        )
        plain, own = await worker(broker, "plain-1"), await worker(broker, "own-1")
        few = await worker(broker, "few-1", receive_maximum=2)
        await plain.consumes(topic)
        await few.consumes(topic)
        await own.consumes(topic, prefetch="2")
        await plain.enqueues(topic, *[b"m"] * 5)
        assert [len(await each.take(count)) for each, count in ((plain, 1), (few, 1), (own, 2))] == [1, 1, 2]
        assert (
            api(broker, "PUT", "/queues/op$prefetch", json={"performance": {"prefetch": 4}}).status_code
            == 200
        )
        assert [len(await each.take(count)) for each, count in ((plain, 3), (few, 1))] == [3, 1]
        await plain.gets_nothing(few, own)
        for each in (plain, few, own):
            each.close()

    run(scenario())


@pytest.mark.promise("queues-20", "queues-40", "queues-42a")
def test_a_message_its_consumer_and_why_nothing_comes(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        client = await worker(broker, "why-1")
        await client.consumes("$queue/op/why", prefetch="1")
        await client.enqueues("$queue/op/why", b"one", b"two", partition_key="k")
        held = await client.next()
        seen = api(broker, "GET", f"/queues/op$why/messages/{held.id}").json()
        (state,) = seen["states"]
        assert (state["group"], state["state"], state["holder"]) == ("why", "DELIVERED", "why-1")
        assert state["lease_until"] and seen["key"] == "k"
        told = embermq(broker, "queues", "explain", "op/why")
        assert "'why-1' may have no more: 1 unsettled, the prefetch is 1" in told
        assert (await client.says("nack", held, delay="1h"))[0] == 0
        told = embermq(broker, "queues", "explain", "op/why")
        assert f"key 'k' by message {held.id}, which is tried again at" in told
        (state,) = api(broker, "GET", f"/queues/op$why/messages/{held.id}").json()["states"]
        assert state["state"] == "RETRY" and state["next_retry"]
        peeked = json.loads(embermq(broker, "queues", "peek", "op/why", "--json"))
        assert [one["payload"] for one in peeked] == ["one", "two"]
        client.close()
        wait_until(
            lambda: "no consumer since" in embermq(broker, "queues", "explain", "op/why"),
            30,
            "it has left",
            poll_s=0.3,
        )
        assert "there is no queue 'op/none'" in embermq(broker, "queues", "explain", "op/none", code=1)

    run(scenario())


@pytest.mark.promise("queues-40")
def test_a_purge_is_durable_when_it_is_answered(tmp_path: Path) -> None:
    async def fill(broker: BrokerProcess) -> None:
        client = await worker(broker, "fill-1")
        await client.consumes("$queue/op/purge")
        await client.enqueues("$queue/op/purge", *[b"m"] * 40)
        await client.take(32)
        client.close()

    with queue_broker(tmp_path, QUEUES) as broker:
        run(fill(broker))
        api(broker, "PUT", "/queues/op$gone", json={})
        assert api(broker, "POST", "/queues/op$purge/purge").json() == {"messages": 40}
        wait_until(
            lambda: api(broker, "DELETE", "/queues/op$gone").status_code in (200, 404),
            30,
            "it can be deleted",
        )
        broker.kill()
        broker.start()
        assert api(broker, "GET", "/queues/op$purge/stats").json()["depth"] == 0
        assert api(broker, "GET", "/queues/op$gone").status_code == 404


@pytest.mark.promise("queues-35")
def test_dead_letters_of_a_queue_that_was_deleted_go_back_when_it_is_made_again(
    broker: BrokerProcess,
) -> None:
    async def scenario() -> None:
        await rejected(broker, "op/deleted", 2)
        embermq(broker, "queues", "delete", "op/deleted")
        asked = ("queues", "dlq", "retry", "dlq/op/deleted")
        (first, _) = api(broker, "GET", "/queues/dlq$op$deleted/dlq").json()
        said = embermq(broker, *asked, first["id"], code=1)
        assert "comes from queue op/deleted, which is not there any more; make it first" in said
        for words in (("--all",), ("--all", "--rate", "9")):
            told = embermq(broker, *asked, *words, code=3)
            assert told == (
                "2 stay: queue op/deleted is not there any more; make it first, then they can go back\n"
            )
        assert api(broker, "GET", "/queues/op$deleted").status_code == 404
        assert len(api(broker, "GET", "/queues/dlq$op$deleted/dlq").json()) == 2
        embermq(broker, "queues", "create", "op/deleted")
        assert embermq(broker, "queues", "dlq", "retry", "dlq/op/deleted", "--all") == "put back 2 messages\n"
        client = await worker(broker, "rejectsopdeleted-2")
        await client.consumes("$queue/op/deleted")
        assert [message.payload for message in await client.take(2)] == [b"bad"] * 2
        client.close()

    run(scenario())


@pytest.mark.promise("queues-35")
def test_dead_letters_whose_group_has_no_room_stay_and_the_others_go(tmp_path: Path) -> None:
    async def rejects(broker: BrokerProcess) -> None:
        client = await worker(broker, "full")
        for group in ("a", "b"):
            await client.consumes(f"$share/{group}/$queue/full")
        await client.enqueues("$queue/full", b"1", b"2")
        for taken in await client.take(4):
            assert await client.says("reject", taken, group_id=taken.properties["group-id"]) == (0, "")
        for group in ("a", "b"):
            await client.unsubscribe(f"$share/{group}/$queue/full")
        client.close()

    with queue_broker(tmp_path, "", queues__groups_max=2) as broker:
        run(rejects(broker))
        assert api(broker, "DELETE", "/queues/full/groups/b").status_code == 204
        run(subscribes(broker, "$share/c/$queue/full"))
        told = embermq(broker, "queues", "dlq", "retry", "full", "--all", code=3)
        assert "2 stay: their consumer groups were removed, and full can have no more groups" in told
        assert api(broker, "GET", "/queues/full/stats").json()["depth"] == 2
        left = api(broker, "GET", "/queues/full/dlq").json()
        assert [letter["group"] for letter in left] == ["b", "b"]
        alone = api(broker, "POST", f"/queues/full/dlq/{left[0]['id']}/retry")
        assert alone.status_code == 409 and "queues.groups_max is 2" in alone.text
        wait_until(lambda: not api(broker, "GET", "/queues/full/consumers").json())
        embermq(broker, "queues", "remove-group", "full", "c")
        assert "put back 2 messages" in embermq(broker, "queues", "dlq", "retry", "full", "--all")


@pytest.mark.promise("queues-35")
def test_a_retry_of_shared_dead_letters_leaves_those_that_have_no_queue_and_those_that_are_held(
    broker: BrokerProcess,
) -> None:
    async def scenario() -> None:
        shared = {"dlq_config": {"topic": "$queue/dlq/op/shared"}}
        for name in ("here", "gone"):
            api(broker, "PUT", f"/queues/op$shared$op${name}", json=shared)
        for name in ("gone", "here", "gone"):
            await rejected(broker, f"op/shared/op/{name}", 1)
        embermq(broker, "queues", "delete", "op/shared/op/gone")
        asked = ("queues", "dlq", "retry", "dlq/op/shared", "--all")
        told = embermq(broker, *asked, code=3)
        assert told.startswith("2 stay: queue op/shared/op/gone is not there any more; ")
        assert api(broker, "GET", "/queues/op$shared$op$here/stats").json()["depth"] == 1
        letters = api(broker, "GET", "/queues/dlq$op$shared/dlq").json()
        assert [letter["queue"] for letter in letters] == ["op/shared/op/gone"] * 2
        embermq(broker, "queues", "create", "op/shared/op/gone")
        client = await worker(broker, "looks-1")
        await client.consumes("$queue/dlq/op/shared", prefetch="1")
        await client.next()
        assert embermq(broker, *asked, code=3) == "1 stay: consumers of the dead letters have them\n"
        assert api(broker, "GET", "/queues/op$shared$op$gone/stats").json()["depth"] == 1
        client.close()

    run(scenario())


@pytest.mark.promise("queues-35")
def test_dead_letters_are_listed_and_go_back_alone_all_by_filter_and_at_a_rate(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        await rejected(broker, "op/retry", 6)
        letters = json.loads(embermq(broker, "queues", "dlq", "list", "op/retry", "--json"))
        assert len(letters) == 6 and {letter["last_error"] for letter in letters} == {"no good"}
        assert {letter["group"] for letter in letters} == {"rejectsopretry"}
        assert api(broker, "GET", "/queues/op$retry/dlq").json() == letters, "nobody has consumed them"
        client = await worker(broker, "rejectsopretry-1")
        other = await worker(broker, "other-1")
        await client.consumes("$queue/op/retry")
        await other.consumes("$queue/op/retry")
        one = embermq(broker, "queues", "dlq", "retry", "op/retry", letters[2]["id"])
        assert one == "put back 1 message\n"
        back = await client.next()
        assert back.id == letters[2]["message_id"] and back.count == 1
        await client.acks(back)
        gone = embermq(broker, "queues", "dlq", "retry", "op/retry", letters[2]["id"], "1-1", code=1)
        assert gone.endswith("; put back before it: 0 messages\n")
        none = embermq(broker, "queues", "dlq", "retry", "op/retry", "--all", "--reason", "timeout")
        assert none == "put back 0 messages\n"
        two = api(broker, "POST", "/queues/op$retry/dlq/retry", params={"error": "no*", "limit": 2})
        assert two.json() == {
            "messages": 2,
            "held": 0,
            "orphaned": 0,
            "missing_queues": [],
            "crowded": 0,
            "full_queues": [],
        }
        job = embermq(broker, "queues", "dlq", "retry", "op/retry", "--all", "--rate", "1000")
        assert job == "putting back 3 messages, 1000 a second\n"
        rest = await client.take(5)
        assert {taken.id for taken in rest} == {letter["message_id"] for letter in letters} - {back.id}
        await other.gets_nothing()
        assert api(broker, "GET", "/queues/op$retry/dlq").json() == []
        client.close()
        other.close()

    run(scenario())


@pytest.mark.promise("queues-39")
def test_metrics_of_queues(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        client = await worker(broker, "metric-1")
        await client.consumes("$queue/op/metric")
        await client.enqueues("$queue/op/metric", b"a", b"b", b"c")
        first, second, _ = await client.take(3)
        await client.acks(first)
        assert (await client.says("reject", second))[0] == 0
        text = metrics(broker)
        queue = '{queue="$queue/op/metric"}'
        for name, value in {
            f"mqtt_queue_depth{queue}": 1,
            f"mqtt_queue_enqueue_total{queue}": 3,
            f"mqtt_queue_dequeue_total{queue}": 3,
            f"mqtt_queue_ack_total{queue}": 1,
            f"mqtt_queue_nack_total{queue}": 0,
            f"mqtt_queue_in_flight{queue}": 1,
            f"mqtt_queue_blocked_keys{queue}": 0,
            'mqtt_queue_dlq_total{queue="$queue/op/metric",reason="rejected"}': 1,
            'mqtt_queue_active_consumers{group="metric",queue="$queue/op/metric"}': 1,
            'mqtt_queue_lag{group="metric",queue="$queue/op/metric"}': 1,
            f"mqtt_queue_delivery_latency_seconds_count{queue}": 3,
        }.items():
            assert sample(text, name) == value, name
        assert sample(text, f"mqtt_queue_oldest_age_seconds{queue}") < 60
        for quantile in ("0.5", "0.95", "0.99"):
            name = f'mqtt_queue_delivery_latency_seconds{{quantile="{quantile}",queue="$queue/op/metric"}}'
            assert 0 <= sample(text, name) < 60
        client.close()

    run(scenario())


@pytest.mark.promise("queues-40")
def test_tokens_open_the_api_to_those_who_have_one(tmp_path: Path) -> None:
    with queue_broker(tmp_path, QUEUES) as broker:
        assert api(broker, "GET", "/queues").status_code == 200
        elsewhere = api(broker, "GET", "/queues", headers={"x-forwarded-for": "192.0.2.7"})
        assert elsewhere.status_code == 403 and "embermq tokens create" in elsewhere.text
        read = embermq(broker, "tokens", "create", "dashboard").strip()
        admin = embermq(broker, "tokens", "create", "deploy", "--scope", "admin", "--expires", "30d").strip()
        stored = broker.data_dir / "api-tokens.json"
        assert stat.S_IMODE(os.stat(stored).st_mode) == 0o600
        assert read not in stored.read_text() and admin not in stored.read_text()
        assert api(broker, "GET", "/queues").status_code == 401

        def by(token: str, method: str, path: str) -> int:
            return api(broker, method, path, headers={"authorization": f"Bearer {token}"}).status_code

        assert by(read, "GET", "/queues/op$file") == 200
        assert by(read, "POST", "/queues/op$file/purge") == 403
        assert by(admin, "POST", "/queues/op$file/purge") == 200
        listed = embermq(broker, "tokens", "list")
        assert "dashboard" in listed and "deploy" in listed and read not in listed
        assert "there is a token 'deploy' already" in embermq(broker, "tokens", "create", "deploy", code=1)
        assert embermq(broker, "tokens", "revoke", "deploy") == "revoked deploy\n"
        assert by(admin, "GET", "/queues") == 401
        assert "op/file" in embermq(broker, "queues", "list"), "the command needs no token"
        assert httpx.get(f"http://127.0.0.1:{broker.http_port}/health").status_code == 200
        assert read not in broker.output() and admin not in broker.output()


def test_the_command_makes_changes_shows_and_deletes(broker: BrokerProcess, tmp_path: Path) -> None:
    settings = tmp_path / "q.json"
    settings.write_text('{"partitions": 2, "performance": {"prefetch": 5}}')
    assert embermq(broker, "queues", "create", "op/cli", "--settings", str(settings)) == "created op/cli\n"
    for again in ("op/cli", "$queue/op/cli"):
        assert "already" in embermq(broker, "queues", "create", again, code=1)
    assert json.loads(embermq(broker, "queues", "show", "op/cli", "--json"))["settings"]["partitions"] == 2
    odd = "[" * 200 + "\n"
    assert embermq(broker, "queues", "create", odd) == "created " + "[" * 200 + "\\n\n"
    assert embermq(broker, "queues", "delete", odd) == "deleted " + "[" * 200 + "\\n with 0 messages\n"
    for words in (
        ("create", "a\udcff"),
        ("list", "--match", "\udcff"),
        ("dlq", "list", "op/cli", "--group", "\udcff"),
    ):
        assert "UTF-8" in embermq(broker, "queues", *words, code=2)
    shown = embermq(broker, "queues", "show", "op/cli")
    assert "performance.prefetch" in shown and "retry_policy.max_backoff" in shown
    changed = embermq(
        broker, "queues", "configure", "op/cli", "--settings", "-", given='{"ordering": "none"}'
    )
    assert changed == "configured op/cli\n"
    assert json.loads(embermq(broker, "queues", "show", "op/cli", "--json"))["settings"]["ordering"] == "none"
    wrong = embermq(
        broker, "queues", "configure", "op/cli", "--settings", "-", given='{"ordering": 1}', code=2
    )
    assert "ordering" in wrong and wrong.count("\n") == 1
    listed = embermq(broker, "queues", "list", "--match", "op/cl*").splitlines()
    assert len(listed) == 2 and listed[1].split()[0] == "op/cli"
    assert embermq(broker, "queues", "purge", "op/cli") == "deleted 0 messages\n"
    assert embermq(broker, "queues", "delete", "op/cli") == "deleted op/cli with 0 messages\n"


@pytest.mark.promise("queues-10", "queues-33")
def test_a_file_that_wants_what_cannot_be_now_leaves_the_queue_as_it_is(tmp_path: Path) -> None:
    async def scenario(broker: BrokerProcess) -> None:
        client = await worker(broker, "left-1")
        await client.enqueues("$queue/op/file", b"m")
        client.close()

    with queue_broker(tmp_path, QUEUES) as broker:
        run(scenario(broker))
        broker.stop()
        (tmp_path / "queues.toml").write_text('[[queues]]\nname = "op/file"\npartitions = 7\n')
        broker.start()
        assert "queues.file: settings of queue op/file: partitions: 3 cannot become 7" in broker.output()
        assert api(broker, "GET", "/queues/op$file").json()["settings"]["partitions"] == 3


@pytest.mark.promise("queues-33")
def test_settings_by_a_publish_of_those_whom_a_rule_allows_it(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)

    async def said(client: Worker, topic: str, body: bytes) -> tuple[int, str]:
        packet_id = client.next_id()
        answer = client.expect(Puback, packet_id)
        client.send(Publish(topic, body, 1, packet_id, False, False, None))
        told = await answer
        text = told.properties.reason_string if told.properties is not None else None
        return told.reason_code, text or ""

    async def scenario(broker: BrokerProcess) -> None:
        operator, other = await worker(broker, "operator"), await worker(broker, "other")
        topic = "$admin/queue/op/topic/config"
        assert await said(operator, topic, b'{"partitions": 4}') == (0, "created")
        named = b'{"name": "$queue/op/topic", "partitions": 5}'
        assert await said(operator, "$admin/queue/$queue/op/topic/config", named) == (0, "configured")
        assert api(broker, "GET", "/queues/op$topic").json()["settings"]["partitions"] == 5
        for client, where, body, code, words in (
            (other, topic, b"{}", 0x87, "needs a rule that allows it"),
            (operator, "$admin/queue/$queue/op/closed/config", b"{}", 0x87, "needs a rule that allows it"),
            (operator, topic, b'{"colour": 1}', 0x99, "colour: there is no such setting"),
            (operator, topic, b"[", 0x99, "no valid JSON"),
            (operator, "$admin/queue/op/topic", b"{}", 0x90, "<name>/config"),
            (operator, "$admin/queue/op//b/config", b"{}", 0x99, "empty level"),
        ):
            answer = await said(client, where, body)
            assert answer[0] == code and words in answer[1], answer
        assert api(broker, "GET", "/queues/op$topic").json()["settings"]["partitions"] == 5
        await operator.enqueues("$queue/op/first", b"m")
        broker.kill()
        broker.start()
        assert api(broker, "GET", "/queues/op$topic").json()["settings"]["partitions"] == 5

    with queue_broker(tmp_path, QUEUES, authorization__rules=rules) as broker:
        run(scenario(broker))


@pytest.mark.promise("queues-33", "queues-40")
def test_the_topic_of_a_queue_names_it_everywhere(broker: BrokerProcess, tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text('{"name": "$queue/op/form", "partitions": 3}')
    made = api(broker, "PUT", "/queues/$queue$op$form", content=settings.read_bytes())
    assert (made.status_code, made.json()["settings"]["name"]) == (201, "op/form")
    assert "configured" in embermq(
        broker, "queues", "configure", "$queue/op/form", "--settings", str(settings)
    )
    (found,) = json.loads(embermq(broker, "queues", "list", "--match", "$queue/op/for?", "--json"))
    assert (found["name"], found["partitions"]) == ("op/form", 3)
    other = api(broker, "PUT", "/queues/op$form", json={"name": "$queue/op/other"})
    assert (other.status_code, other.json()["detail"]) == (
        422,
        "settings of queue op/form: name: is 'op/other'",
    )


@pytest.mark.promise("queues-33")
def test_queues_that_nobody_makes_by_using_them(tmp_path: Path) -> None:
    async def scenario(broker: BrokerProcess) -> None:
        client = await worker(broker, "user-1")
        assert await client.publish("$queue/op/new", b"m", qos=1) == 0x87
        assert (await client.consumes("$queue/op/new")).reason_codes[0] >= 0x80
        assert await client.publish("$queue/op/file", b"m", qos=1) == 0
        assert await client.publish("$admin/queue/op/new/config", b"{}", qos=1) == 0x87, "there are no rules"
        made = api(broker, "PUT", "/queues/op$new", json={})
        assert made.status_code == 201
        assert await client.publish("$queue/op/new", b"m", qos=1) == 0
        assert api(broker, "PUT", "/queues/op$more", json={}).status_code == 409, "queues_max"
        client.close()

    with queue_broker(tmp_path, QUEUES, queues__auto_create="false", queues__queues_max=3) as broker:
        run(scenario(broker))


@pytest.mark.promise("queues-13", "queues-40")
def test_a_consumer_whose_queue_was_deleted_is_served_when_it_is_made_again(tmp_path: Path) -> None:
    made_by_hand = {"queues__auto_create": "false", "queues__disconnect_grace_ms": 100}
    with queue_broker(tmp_path, QUEUES, **made_by_hand) as broker:

        async def scenario() -> None:
            assert api(broker, "PUT", "/queues/op$again", json={}).status_code == 201
            away = await worker(broker, "again-1", clean_start=False, expiry_s=100)
            await away.consumes("$queue/op/again")
            away.abort()
            await away.ended
            wait_until(
                lambda: api(broker, "DELETE", "/queues/op$again").status_code == 200, 30, "the grace is over"
            )
            back = await worker(broker, "again-1", clean_start=False, expiry_s=100)
            await back.gets_nothing()
            assert api(broker, "GET", "/queues/op$again").status_code == 404, "it may not make queues"
            assert api(broker, "PUT", "/queues/op$again", json={}).status_code == 201
            await back.enqueues("$queue/op/again", b"m")
            await back.acks(await back.next())

        run(scenario())
