"""`embermq pipeline rejected retry`: to whom rejected records go after all, and that each goes there once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.pipeline.log_writer import NOON_MS, record
from tests.pipeline.replaying import messages_in
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import MqttClient, run
from tests.support.queue_worker import queue_broker
from tests.support.waiting import wait_for

from embermq.cli.main import main
from embermq.formats.log_record import Stamp
from embermq.mqtt.wire.packets import Subscription
from embermq.pipeline.places import Places
from embermq.pipeline.sinks.application_logs import ApplicationLogSink
from embermq.tools import rejected_retry

Retry = Callable[..., dict[str, Any]]
LATER = "record format 0x20: this reader knows major 1"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    queues = '[[queues]]\nname = "kept"\n'
    with queue_broker(
        tmp_path_factory.mktemp("retry"), queues, clients__application_ids="application-*"
    ) as one:
        yield one


@pytest.fixture
def retry(capsys: pytest.CaptureFixture[str]) -> Retry:
    """The command in this process; returns the report."""

    def retried(broker: BrokerProcess, *words: str, code: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        found = main(["pipeline", "rejected", "retry", "--data-dir", str(broker.data_dir), "--json", *words])
        told = capsys.readouterr()
        assert found == code, (told.err, told.out)
        lines = [json.loads(line) for line in told.out.splitlines()]
        report: dict[str, Any] = lines[-1]["report"] if lines else {"error": told.err}
        return report

    return retried


def reject(broker: BrokerProcess, *rows: tuple[int, str, bytes]) -> None:
    """As dispatch does. A record that can be read stands for one of a version that was later at that time."""
    sink = ApplicationLogSink(Places(broker.data_dir).applications)
    sink.file.connection.execute("DELETE FROM rejected")
    sink.file.connection.executemany(f"INSERT INTO rejected VALUES (?, ?, ?, {NOON_MS})", rows)
    sink.file.close()


def owed(topic: str, payload: bytes, *clients: str, expires_ms: int = 0) -> bytes:
    stamps = tuple(Stamp(client, 1, 1) for client in clients)
    return record(topic, payload, stamps=stamps, expires_ms=expires_ms)


@pytest.mark.promise("pipeline-4")
def test_to_those_that_it_was_for_and_to_nobody_twice(broker: BrokerProcess, retry: Retry) -> None:
    rows = [(1_000 + n, LATER, owed("lost/x", b"%d" % n, "application-1", "gone")) for n in range(3)]
    expired = (1_003, LATER, owed("lost/x", b"old", "application-1", expires_ms=1))
    other = (1_004, "a record of 9 bytes is damaged: ...", owed("lost/x", b"other", "application-1"))
    damaged = (1_005, "a record of 5 bytes is damaged: ...", b"12345")
    missing = (1_006, "missing 1006 to 1008: removed from the log before they were read", b"")
    reject(broker, *rows, expired, other, damaged, missing)

    async def scenario() -> None:
        device, application = MqttClient("dev-1"), MqttClient("application-1")
        for client in (device, application):
            await client.connect(broker.port, expiry_s=3_600)
            await client.subscribe(Subscription("lost/#", 2))
        dry = retry(broker, "--dry-run", code=3)
        assert {one["to"]: one["found"]["chosen"] for one in dry["receivers"]} == {
            "client application-1": 4,
            "client gone": 3,
        }
        told = retry(broker, "--reason", "record format NxN", code=3)
        found = told["found"]
        assert (found["rejected"], found["chosen"], found["expired"]) == (4, 3, 1)
        kept, gone = told["receivers"]
        assert (kept["put_back"], kept["refused_count"], kept["problem"]) == (3, 0, "")
        assert "there is no session of the client id 'gone'" in gone["problem"] and not gone["put_back"]
        await wait_for(lambda: len(application.messages) == 3, 60, "they are put back")
        told = retry(broker, code=3)
        assert (told["found"]["unreadable"], told["found"]["missing"]) == (1, 1)
        assert told["receivers"][0]["put_back"] == 1 and told["receivers"][0]["found"]["before"] == 3
        await wait_for(lambda: len(application.messages) == 4, 60, "the one that is left is put back")
        assert [message.payload for message in application.messages] == [b"0", b"1", b"2", b"other"]
        said = application.messages[0].properties
        assert said is not None
        named = dict(said.user_properties)
        assert named["replayed-from"] == "0:1000" and named["replayed-accepted-at"] == str(NOON_MS)
        again = retry(broker, "--client", "application-1", code=3)
        assert again["receivers"][0]["put_back"] == 0 and again["receivers"][0]["found"]["before"] == 4
        await device.ping()
        assert device.messages == [], "it had them when they were published"
        for client in (device, application):
            client.close()

    run(scenario(), 300)


@pytest.mark.promise("pipeline-12")
def test_exactly_once_wherever_it_is_interrupted(
    broker: BrokerProcess, retry: Retry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends in its midst, then between the last message and the note of what is done."""
    many = 40
    reject(broker, *((2_000 + n, LATER, owed("many/x", b"%d" % n)) for n in range(many)))
    words = ("--topic", "again/{topic}", "--rate", "100000")

    def stopped(done: int, _total: int) -> None:
        if done >= 10:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("embermq.pipeline.jobs.replay_feed.PIECE", 10)
        patched.setattr("embermq.cli.message_bar.print_progress", stopped)
        told = retry(broker, *words, code=130)
    (one,) = told["receivers"]
    assert one["interrupted"] and 0 < one["put_back"] < many
    refused = retry(broker, *words, "--reason", "damaged", code=1)
    assert "is not finished" in refused["error"]

    class Killed(Exception):
        pass

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(rejected_retry._Retry, "_remember", killed)
        with pytest.raises(Killed):
            retry(broker, *words)
    told = retry(broker, *words)
    assert told["receivers"][0]["put_back"] == many
    told = retry(broker, *words)
    assert told["receivers"][0]["found"]["before"] == many and not told["receivers"][0]["put_back"]
    found = [
        message for _, message in messages_in(Places(broker.data_dir)) if message.topic == "again/many/x"
    ]
    assert [message.payload for message in found] == [b"%d" % n for n in range(many)]
    told = retry(broker, *words, "--again", "--dry-run")
    assert told["receivers"][0]["found"]["chosen"] == many
    assert not list((broker.data_dir / "retries").rglob("*.parquet"))


def test_what_cannot_be_is_told(broker: BrokerProcess, retry: Retry) -> None:
    reject(broker, (3_000, LATER, owed("a", b"1")))
    kafka = ("--set", "stores.log=kafka://127.0.0.1:9", "--set", "stores.session=redis://127.0.0.1:9")
    for words, said, code in (
        (("--topic", "a", "--queue", "q"), "one of --client, --topic and --queue", 2),
        (("--topic", "a/+"), "--topic: topic name 'a/+' contains a wildcard", 2),
        (("--client", "nobody"), "there is no session of the client id 'nobody'", 1),
        (("--queue", "nowhere"), "there is no queue 'nowhere'", 1),
        (kafka, "127.0.0.1:9", 1),
    ):
        assert said in retry(broker, *words, code=code)["error"]
