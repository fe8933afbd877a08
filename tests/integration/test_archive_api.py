"""The archive as others see it: over HTTP by tokens, and by `embermq messages --url` on another machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from tests.contracts.message_stores import NOON_MS, SETTINGS, SINK_S, message, table
from tests.support.admin_broker import AdminBroker
from tests.support.forked_program import run_program
from tests.support.sql_server import SqlServer

from embermq.admin.access import Scope
from embermq.admin.values import PAGE_BYTES_MAX, PRUNED_AT_ONCE
from embermq.pipeline.places import Places
from embermq.pipeline.sinks.message_file import MessageFile, MessageStoreSink
from embermq.pipeline.sinks.message_server import MessageServer
from embermq.pipeline.sinks.sql_server import sql_server as server_of
from embermq.pipeline.sources.log_file import embedded_log_id

COMMAND_S = 60
MANY = 1_100
OLD = PRUNED_AT_ONCE + 7
NEW_MS = NOON_MS + 3_600_000
LARGE = 3 * 1024 * 1024
BETWEEN = "2025-06-15T15:30:00Z"
"""Noon is at 15:06:40."""


@pytest.fixture(params=["sqlite", "sql"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AdminBroker]:
    """Without a pipeline: the archive is filled by its sink alone, in the data directory or on a server."""
    settings: dict[str, object] = {}
    if request.param == "sql":
        server: SqlServer = request.getfixturevalue("postgres")
        settings["stores.static"] = server.database()
    with AdminBroker(tmp_path, settings=settings) as running:
        yield running
    if request.param == "sql":
        server.drop(str(settings["stores.static"]))


def fill(broker: AdminBroker, rows: list[dict[str, object]]) -> None:
    places = Places(broker.data_dir)
    url = broker.settings.get("stores.static")
    sink: MessageStoreSink = MessageFile(places.messages)
    if url is not None:
        log_id = partial(embedded_log_id, places.broker)
        sink = MessageServer(server_of(str(url), SETTINGS, SINK_S), places.archive, log_id)
    with closing(sink):
        sink.open()
        sink.write_table(table(rows))


def typed(broker: AdminBroker, scope: Scope, *words: str) -> CompletedProcess[str]:
    token = broker.data_dir.parent / scope.value
    token.write_text(broker.tokens[scope])
    there = ("--url", f"http://127.0.0.1:{broker.http_port}", "--token-file", token)
    return run_program("messages", *words, *there, timeout_s=COMMAND_S)


@pytest.mark.promise("pipeline-11")
def test_the_archive_is_read_and_pruned_from_another_machine(broker: AdminBroker) -> None:
    topics = [message(n, topic="T" if n % 2 else "t", accepted_ms=NEW_MS + n) for n in range(2 * MANY)]
    topics[4] |= {"payload": b"\xff\x00", "properties": '{"content_type": "text/plain"}', "retain": 1}
    first = len(topics)
    old = [message(first + n, topic="old", accepted_ms=NOON_MS) for n in range(OLD)]
    fill(broker, topics + old)
    words = ("show", "--topic", "t", "--after", "3")
    done = typed(broker, Scope.OPERATE, *words, "--limit", "1000", "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["offset"] for one in found] == list(range(4, 2_004, 2)), done.stderr
    assert found[0]["payload_base64"] == "/wA=" and found[0]["properties"] == {"content_type": "text/plain"}
    assert found[1]["payload"] == "6" and "payload_base64" not in found[1]
    assert "retained  pump  0xff00" in typed(broker, Scope.OPERATE, *words, "--limit", "1").stdout
    assert typed(broker, Scope.OPERATE, "show", "--topic", "t", "--limit", "2", "--raw").stdout == "02"
    none = typed(broker, Scope.OPERATE, "show", "--topic", "none")
    assert none.returncode == 0 and "the archive has no message of topic none" in none.stderr
    assert "needs a token with the scope operate" in typed(broker, Scope.READ, *words).stderr

    assert "before: is" in broker.refused(400, "GET", "/archive/count?before=noon", Scope.READ)
    query = f"before={BETWEEN}"
    assert broker.told("GET", f"/archive/count?{query}", Scope.READ) == {"messages": OLD}
    broker.refused(403, "DELETE", f"/archive?{query}", Scope.OPERATE)
    assert broker.told("DELETE", f"/archive?{query}") == {"messages": PRUNED_AT_ONCE}
    assert broker.told("GET", f"/archive/count?{query}") == {"messages": OLD - PRUNED_AT_ONCE}
    everything = ("prune", "--older-than-hours", "0")
    left = 2 * MANY + OLD - PRUNED_AT_ONCE
    dry = typed(broker, Scope.READ, *everything, "--dry-run")
    assert f": {left:,} messages; nothing was deleted" in dry.stdout, dry.stderr
    pruned = typed(broker, Scope.ADMIN, *everything, "--json")
    assert json.loads(pruned.stdout) == {"older": left, "deleted": left}
    assert broker.told("GET", "/archive?topic=t", Scope.OPERATE) == []
    changes = broker.told("GET", "/audit?what=PruneArchive")
    assert {one["by"] for one in changes} == {"token admin"}
    assert {"before": BETWEEN} in [one["object"] for one in changes]


@pytest.mark.promise("pipeline-11")
def test_large_messages_come_in_pages_that_a_client_can_hold(broker: AdminBroker) -> None:
    fill(broker, [message(n, payload=bytes([65 + n]) * LARGE) for n in range(4)])
    page = broker.told("GET", "/archive?topic=t", Scope.OPERATE)
    assert len(page) == -(-PAGE_BYTES_MAX // LARGE) == 2
    of_properties = json.dumps({"content_type": "x" * LARGE})
    fill(broker, [message(n, topic="p", payload=b"", properties=of_properties) for n in range(4, 8)])
    assert len(broker.told("GET", "/archive?topic=p", Scope.OPERATE)) == 2
    done = typed(broker, Scope.OPERATE, "show", "--topic", "t", "--limit", "3", "--raw")
    assert [done.stdout.count(letter) for letter in "ABCD"] == [LARGE, LARGE, LARGE, 0]


def test_what_cannot_be_asked_is_refused_by_name(broker: AdminBroker) -> None:
    if "stores.static" not in broker.settings:
        assert "has no message store" in broker.refused(409, "GET", "/archive?topic=t", Scope.OPERATE)
    fill(broker, [message(1)])
    assert "topic: " in broker.refused(400, "GET", "/archive?topic=t/%23", Scope.OPERATE)
    assert "slot: 7 is none" in broker.refused(400, "GET", "/archive?topic=t&slot=7", Scope.OPERATE)
    assert typed(broker, Scope.OPERATE, "show", "--topic", "t/#").returncode == 2
