"""What operators do to a queue while it is at work, over the API."""

from __future__ import annotations

import pytest
from tests.support.api_served import Ask, is_problem, served
from tests.support.queue_bench import START_MS
from tests.support.queue_desk import DeskBench

from embermq.model.message import Message
from embermq.queues.names import Verb
from embermq.queues.settling import Outcome


@pytest.mark.promise("queues-12", "queues-40")
def test_delayed_messages_are_listed_and_one_message_is_deleted_by_its_id() -> None:
    bench = DeskBench()
    bench.bodies = {
        number: Message("$queue/q", b"%d" % number, 1, False, "p", 5, START_MS) for number in range(5)
    }
    bench.join("c", prefetch=1)
    bench.publish(visible_ms=START_MS + 60_000)
    bench.publish("k", visible_ms=START_MS + 1_000)
    bench.publish("k", count=2)

    async def work(ask: Ask) -> None:
        first, second = (await ask("GET", "/queues/q/delayed")).json()
        assert (first["payload"], second["payload"], second["about"]["key"]) == ("0", "1", "k")
        assert first["about"]["visible"] == "1970-01-01T00:17:40Z" and first["about"]["partition"] is None
        after = first["about"]["sequence"]
        assert (await ask("GET", "/queues/q/delayed", params={"after": after})).json() == [second]
        assert (await ask("GET", f"/queues/q/messages/{first['about']['id']}")).json() == first["about"]
        assert (await ask("DELETE", f"/queues/q/messages/{first['about']['id']}")).status_code == 204
        is_problem(await ask("DELETE", f"/queues/q/messages/{first['about']['id']}"), 404, "has no message")
        bench.wait("2s")
        assert not bench.rows.delayed
        held = bench.one()
        visible = (await ask("GET", f"/queues/q/messages/{second['about']['id']}")).json()
        assert visible["visible"] is None and visible["id"] == second["about"]["id"], "it keeps its id"
        assert (await ask("DELETE", f"/queues/q/messages/{held.stamps.message_id}")).status_code == 204
        assert bench.settle(held, Verb.ACK) is Outcome.ALREADY_SETTLED
        bench.run()
        assert bench.one().offset == 3, "its key is free"
        assert (await ask("DELETE", f"/queues/q/messages/{second['about']['id']}")).status_code == 204
        stats = (await ask("GET", "/queues/q/stats")).json()
        assert (stats["purged"], stats["messages"], stats["delayed"]) == (3, 1, 0)
        assert {row.offset for row in bench.rows.entries.values()} == {3}

    served(bench, work)


@pytest.mark.promise("queues-40", "queues-42a")
def test_queues_and_groups_are_paused_and_resumed() -> None:
    bench = DeskBench()
    bench.join("c")

    async def work(ask: Ask) -> None:
        for path in ("/queues/q", "/queues/q/groups/g"):
            assert (await ask("POST", f"{path}/pause")).status_code == 204
            bench.publish()
            bench.wait("1s")
            assert not bench.sent
            assert "paused" in {each["code"] for each in (await ask("GET", "/queues/q/explain")).json()}
            assert (await ask("POST", f"{path}/resume")).status_code == 204
            bench.run()
            assert len(bench.take()) == 1
        is_problem(await ask("POST", "/queues/q/groups/none/pause"), 404, "no group 'none'")
        is_problem(await ask("POST", "/queues/none/pause"), 404, "none")
        is_problem(await ask("POST", "/queues/q/pause?group=g"), 400, "group: is no parameter here")

    served(bench, work)
