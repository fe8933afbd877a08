"""Large queues and many groups: groups come and go in pieces, a kill in between loses nothing, and operators see who
holds a queue back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.deep_queue import DeepQueues
from tests.support.forked_program import run_program
from tests.support.mqtt_client import run
from tests.support.queue_worker import queue_broker, worker
from tests.support.waiting import wait_until

DEEP = 20_000
"""Ten pieces: the first deliveries leave with the first of them."""
HALF = DEEP // 2
QUEUES = """
[[queues]]
name = "grow/full"
limits.max_queue_depth = 3
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("growth")
    with queue_broker(folder, QUEUES, queues__groups_max=20) as running:
        yield running


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[BrokerProcess]:
    queues = DeepQueues(tmp_path / "data")
    queues.add("deep", DEEP, groups=[("late", HALF + 1)])
    queues.add("shared", DEEP, groups=[("early", 1), ("late", HALF + 1)])
    queues.close()
    with BrokerProcess(tmp_path / "data") as running:
        yield running


def api(broker: BrokerProcess, method: str, path: str, **more: Any) -> httpx.Response:
    return httpx.request(method, f"http://127.0.0.1:{broker.http_port}/api/v1{path}", timeout=30, **more)


def embermq(broker: BrokerProcess, *words: str, code: int = 0) -> str:
    done = run_program(*words, "--data-dir", broker.data_dir)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def metrics(broker: BrokerProcess) -> str:
    return httpx.get(f"http://127.0.0.1:{broker.http_port}/metrics", timeout=30).text


def group(broker: BrokerProcess, queue: str, name: str) -> dict[str, Any]:
    (found,) = [one for one in api(broker, "GET", f"/queues/{queue}/groups").json() if one["name"] == name]
    return dict(found)


@pytest.mark.promise("queues-14", "queues-18", "queues-43")
def test_killed_while_a_new_group_is_filled_nothing_is_lost(deep: BrokerProcess) -> None:
    """It is killed with the first delivery, when the group has been offered a tenth of what there is."""

    async def before() -> None:
        taker = await worker(deep, "new-1")
        await taker.consumes("$queue/deep")
        await taker.next()
        deep.kill()

    async def after() -> None:
        assert group(deep, "deep", "new")["lag"] == DEEP
        taker = await worker(deep, "new-1")
        await taker.consumes("$queue/deep", ack_mode="puback", prefetch="2000")
        found = [int(taken.payload) for taken in await taker.take(DEEP)]
        assert sorted(found) == list(range(DEEP))
        for partition in range(10):
            own = [number for number in found if number % 10 == partition]
            assert own == sorted(own), "the first come first"
        wait_until(lambda: group(deep, "deep", "new")["lag"] == 0, 30, "all settled")
        assert group(deep, "deep", "late")["lag"] == HALF

    run(before())
    deep.start()
    run(after())


@pytest.mark.promise("queues-17", "queues-43")
def test_killed_while_a_group_is_removed_others_lose_nothing(deep: BrokerProcess) -> None:
    removed = api(deep, "DELETE", "/queues/shared/groups/early")
    assert removed.status_code == 204
    deep.kill()
    deep.start()

    async def after() -> None:
        assert [one["name"] for one in api(deep, "GET", "/queues/shared/groups").json()] == ["late"]
        assert group(deep, "shared", "late")["lag"] == HALF
        taker = await worker(deep, "late-1")
        await taker.consumes("$queue/shared", ack_mode="puback", prefetch="2000")
        found = {int(taken.payload) for taken in await taker.take(HALF)}
        assert found == set(range(HALF, DEEP))

    run(after())


@pytest.mark.promise("queues-17", "queues-43")
def test_what_only_a_removed_group_owed_goes_by_itself(deep: BrokerProcess) -> None:
    assert api(deep, "DELETE", "/queues/shared/groups/early").status_code == 204
    wait_until(
        lambda: api(deep, "GET", "/queues/shared/stats").json()["messages"] == HALF, 30, "the others are gone"
    )
    assert api(deep, "PUT", "/queues/later", json={}).status_code == 201, "what came before is durable now"
    deep.kill()
    deep.start()
    assert api(deep, "GET", "/queues/shared/stats").json()["messages"] == HALF


@pytest.mark.promise("queues-40")
def test_groups_and_consumers_come_page_by_page(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        clients = []
        for number in range(5):
            for place in ("b", "a"):
                client = await worker(broker, f"g{number}-{place}")
                await client.consumes("$queue/grow/pages")
                clients.append(client)
        path = "/queues/grow$pages"
        first = api(broker, "GET", f"{path}/groups", params={"limit": 3}).json()
        rest = api(broker, "GET", f"{path}/groups", params={"limit": 3, "after": "g2"}).json()
        assert [one["name"] for one in first + rest] == [f"g{number}" for number in range(5)]
        assert api(broker, "GET", f"{path}/groups", params={"after": "g4"}).json() == []
        assert api(broker, "GET", f"{path}/groups", params={"limit": 1_001}).status_code == 400

        seen, after = [], {"after_group": "", "after": ""}
        while page := api(broker, "GET", f"{path}/consumers", params={"limit": 3, **after}).json():
            assert len(page) <= 3
            seen += [(one["group"], one["client_id"]) for one in page]
            after = {"after_group": page[-1]["group"], "after": page[-1]["client_id"]}
        assert seen == [(f"g{number}", f"g{number}-{place}") for number in range(5) for place in ("a", "b")]
        shown = embermq(broker, "queues", "show", "grow/pages")
        assert all(f"g{number}-{place}" in shown for number in range(5) for place in ("a", "b"))
        for client in clients:
            client.close()

    run(scenario())


@pytest.mark.promise("queues-18", "queues-39", "queues-42a")
def test_operators_see_a_group_that_nobody_will_come_back_to_and_remove_it(broker: BrokerProcess) -> None:
    """A client id of chance is a group of its own: it holds the queue back until it is removed."""

    async def scenario() -> None:
        chance, steady = await worker(broker, "mqttjs_0a1b2c"), await worker(broker, "steady-1")
        for client in (chance, steady):
            await client.consumes("$queue/grow/full")
        chance.close()
        for number in range(3):
            await steady.enqueues("$queue/grow/full", b"%d" % number)
            await steady.acks(await steady.next())
        assert await steady.publish("$queue/grow/full", b"refused", qos=1) == 0x97

        found = group(broker, "grow$full", "mqttjs_0a1b2c")
        assert found["lag"] == 3 and found["idle_since"] < found["removed_at"]
        assert group(broker, "grow$full", "steady")["removed_at"] is None
        stats = api(broker, "GET", "/queues/grow$full/stats").json()
        assert (stats["groups"], stats["idle_groups"], stats["idle_lag"]) == (2, 1, 3)
        text = metrics(broker)
        for name, value in (("groups", 2), ("idle_groups", 1), ("idle_lag", 3)):
            assert f'mqtt_queue_{name}{{queue="$queue/grow/full"}} {value}.0\n' in text
        shown = embermq(broker, "queues", "show", "grow/full")
        assert "no consumer since" in shown and ", removed " in shown
        told = embermq(broker, "queues", "explain", "grow/full")
        assert (
            "the queue is full: 3 messages, the limit is 3; group 'mqttjs_0a1b2c' has settled least" in told
        )

        wrong = embermq(broker, "queues", "remove-group", "grow/full", "steady", "--yes", code=1)
        assert "has consumers: 'steady-1'" in wrong
        done = embermq(broker, "queues", "remove-group", "grow/full", "mqttjs_0a1b2c", "--yes")
        assert done == "removed group mqttjs_0a1b2c of grow/full\n"
        await steady.enqueues("$queue/grow/full", b"taken")
        assert (await steady.next()).payload == b"taken"
        steady.close()

    run(scenario())
