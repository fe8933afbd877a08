"""`embermq pipeline audit`: finds nothing where nothing is lost, and every loss where there is one."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.queries import log_rows
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import ConnectionEnded, MqttClient, run
from tests.support.played_pipeline import PlayedPipeline
from tests.support.queue_worker import queue_broker
from tests.support.waiting import wait_for

from embermq.cli.main import main
from embermq.formats.segment_reader import SegmentReader
from embermq.formats.segments import FRAME_BYTES, segment_name
from embermq.mqtt.wire.encoder import puback, pubcomp, pubrec
from embermq.mqtt.wire.packets import Packet, Puback, Publish, Pubrel, Subscription
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.pipeline.jobs import audit as job
from embermq.pipeline.places import Places
from embermq.pipeline.sinks.lake import Lake
from embermq.pipeline.sources.log_file import BrokerFile, LogFile
from embermq.pipeline.transforms.archive import lake_rows

Audit = Callable[..., dict[str, Any]]
KILLS = 6
SUBSCRIBED = (Subscription("t/#", 1),)


@pytest.fixture
def audit(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Audit:
    """The command in this process, with Spark that has started already; returns the last line of `--json`."""

    @contextmanager
    def started(*_: object, **__: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(job, "batch_session", started)

    def audited(data_dir: Path, *words: str, code: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        found = main(["pipeline", "audit", "--data-dir", str(data_dir), "--json", *words])
        told = capsys.readouterr()
        assert found == code, told.err or told.out
        lines = told.out.splitlines()
        return json.loads(lines[-1]) if lines else {"error": told.err}

    return audited


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    """What a broker leaves, made once: positions 0 to 6 in one topic, then 3 more, 2 in a queue, 1 for nobody.

    application-1 has acknowledged 0, 2, 3 and refused 1; 4 to 6 came for it when it was away, of which 5 has expired.
    application-2 has acknowledged 0 to 6 and gone for good. dev-1 has everything stored. The lake has all of it.
    """
    folder = tmp_path_factory.mktemp("left")
    with queue_broker(
        folder, '[[queues]]\nname = "kept"\n', clients__application_ids="application-*"
    ) as broker:
        with PlayedPipeline(broker.data_dir):
            run(_fill(broker), 300)
            broker.stop()
        places = Places(broker.data_dir)
        file = BrokerFile(places.broker)
        lake = Lake(str(places.lake), places)
        lake.open(spark, file.log_identity())
        with closing(LogFile(places.log)) as log:
            lake.write(lake_rows(log_rows(spark, places, 0, log.end() or 0)))
        lake.close()
        file.close()
        return broker.data_dir


@pytest.fixture
def data_dir(tmp_path: Path, left: Path) -> Path:
    """A copy of it, to be damaged."""
    return shutil.copytree(left, tmp_path / "data")


async def _fill(broker: BrokerProcess) -> None:
    one, two, device = MqttClient("application-1"), MqttClient("application-2"), MqttClient("dev-1")
    one.acknowledges = False
    for client in (one, two, device):
        await client.connect(broker.port, expiry_s=3_600)
        await client.subscribe(*SUBSCRIBED)
    device.abort()
    publisher = MqttClient("pub")
    await publisher.connect(broker.port)
    for number in range(4):
        await publisher.publish("t/a", b"%d" % number, qos=1)
    await wait_for(lambda: len(one.messages) == 4, 60)
    for number, message in enumerate(one.messages):
        assert message.packet_id is not None
        one.send(Puback(message.packet_id, ReasonCode.QUOTA_EXCEEDED if number == 1 else ReasonCode.SUCCESS))
    await one.ping()
    one.abort()
    for number in range(4, 7):
        expiry = Properties(message_expiry_interval=1) if number == 5 else None
        await publisher.publish("t/b", b"%d" % number, qos=1, properties=expiry)
    await wait_for(lambda: len(two.messages) == 7, 60)
    await two.ping()
    two.abort()
    last = MqttClient("application-2")
    await last.connect(broker.port, expiry_s=0)  # and its session ends
    last.close()
    for _ in range(2):
        await publisher.publish("$queue/kept", b"q", qos=1)
    await publisher.publish("else/x", b"nobody", qos=1)
    publisher.close()


@pytest.mark.promise("pipeline-1", "pipeline-12")
def test_all_is_accounted_for_and_signed(data_dir: Path, audit: Audit, tmp_path: Path) -> None:
    """`pipeline audit` accounts for all that a broker leaves, changes none of it, and signs what it says."""
    before = _tables(data_dir)
    done = audit(data_dir, "--into", str(tmp_path / "report"))
    report, folder = done["report"], Path(done["folder"])
    assert report["differences"] == [], report["differences"]
    assert report["deliveries"] == {"acknowledged": 10, "refused": 1, "waits": 3}
    (log,) = report["logs"]
    assert (report["records"], log["start"], log["end"], report["lake_compared"]) == (10, 0, 10, 10)
    (account,) = report["applications"]
    told = {name: account[name] for name in ("client", "floor", "owed", "settled", "passed", "is_checked")}
    assert told == {
        "client": "application-1",
        "floor": 4,
        "owed": 4,
        "settled": 4,
        "passed": 0,
        "is_checked": True,
    }
    assert report["stored"] == [{"client": "dev-1", "waits": 7, "under_way": 0}]
    assert report["queues"][-1] == {"queue": "kept", "accepted": 2, "entries": 2, "delayed": 0}
    assert _tables(data_dir) == before, "nothing is changed"
    rows = pl.read_parquet(folder / "deliveries.parquet").filter(pl.col("client") == "application-1")
    assert dict(rows.group_by("outcome").agg(pl.col("messages").sum()).iter_rows()) == {
        "acknowledged": 3,
        "refused": 1,
        "waits": 3,
    }
    page = (folder / "audit.html").read_text()
    assert (
        "Every message is accounted for." in page
        and "<svg" in page
        and "http" not in page.replace("http-equiv", "")
    )

    key = str(data_dir / "audit.pub")
    verified = audit(tmp_path / "elsewhere", "--verify", str(folder), "--key", key)
    assert verified["statement"]["differences"] == 0 and (data_dir / "audit.key").stat().st_mode & 0o77 == 0
    forged = shutil.copytree(folder, tmp_path / "forged")
    (forged / "audit.html").write_text(page.replace("accounted", "fine"))
    assert "audit.html is not what was signed" in audit(data_dir, "--verify", str(forged), code=1)["error"]
    shutil.copy(folder / "audit.html", forged)
    (forged / "more").touch()
    assert "more was added" in audit(data_dir, "--verify", str(forged), code=1)["error"]
    (forged / "more").unlink()
    statement = (forged / "statement.json").read_text()
    (forged / "statement.json").write_text(statement.replace('"differences": 0', '"differences": 1'))
    assert "was not signed with the key" in audit(data_dir, "--verify", str(forged), code=1)["error"]
    assert "is there already" in audit(data_dir, "--into", str(folder), code=1)["error"]


@pytest.mark.promise("pipeline-1", "pipeline-12")
def test_each_loss_is_found_where_it_is(data_dir: Path, audit: Audit, spark: SparkSession) -> None:
    """The same audit names each thing that is taken away from applications, devices and the lake, and nothing else."""
    places = Places(data_dir)
    with closing(sqlite3.connect(places.applications, isolation_level=None)) as connection:
        (generation,) = connection.execute(
            'SELECT generation FROM application_log WHERE "offset" = 6 ORDER BY generation LIMIT 1'
        ).fetchone()
        connection.execute('DELETE FROM application_log WHERE generation = ? AND "offset" = 6', (generation,))
    with closing(sqlite3.connect(places.broker, isolation_level=None)) as connection:
        connection.execute("UPDATE device_queue SET record = x'00' WHERE \"offset\" = 2")
        # The broker says that all below the floor is settled, and has sent one less.
        connection.execute("UPDATE application_position SET settled = settled - 1")
    spark.sql(f"DELETE FROM delta.`{places.lake}` WHERE `offset` = 3")
    report = audit(data_dir, "--dry-run", code=3)["report"]
    assert _found(report) == [
        ("not accounted for", "application-1", None, 1),
        ("damaged", "dev-1", 2, 1),
        ("not in the lake", "", 3, 1),
        ("lost", "application-1", 6, 1),
    ]
    assert report["deliveries"]["lost"] == 1
    assert not (data_dir / "audits").exists()


@pytest.mark.in_faults
def test_what_is_damaged_is_told_and_a_part_is_audited_by_itself(data_dir: Path, audit: Audit) -> None:
    _damage(Places(data_dir), 8)  # of the queue; it hides whether others have had a message there
    report = audit(data_dir, "--dry-run", code=3)["report"]
    assert ("unreadable", "", 8, 1) in _found(report)
    assert ("queued without its message", "kept", 8, 1) in _found(report)
    assert audit(data_dir, "--from", "4", "--to", "6", "--dry-run")["report"]["deliveries"] == {
        "acknowledged": 2,
        "waits": 2,
    }


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-12", "application-8")
def test_kills_at_random_moments_leave_no_difference(tmp_path: Path, audit: Audit) -> None:
    """The count of what was sent agrees with the log, whatever was resent, out of order or not acknowledged."""
    dice = random.Random(tmp_path.name)
    broker = queue_broker(tmp_path, "", clients__application_ids="application-*")
    with broker, PlayedPipeline(broker.data_dir):
        for _ in range(KILLS):
            run(_until_killed(broker, dice), 300)
            broker.start()
        run(_drained(broker), 300)
        broker.stop()
    report = audit(broker.data_dir, "--dry-run")["report"]
    assert report["differences"] == []
    one, two = report["applications"]
    assert (one["client"], one["is_checked"], two["is_checked"]) == ("application-1", True, True)
    assert (
        one["floor"] == report["logs"][0]["end"]
        and one["settled"] == one["owed"] == report["records"] > KILLS
    )


async def _until_killed(broker: BrokerProcess, dice: random.Random) -> None:
    """One application acknowledges all, the other one some, out of order."""
    one, two, publisher = MqttClient("application-1"), MqttClient("application-2"), MqttClient("pub")
    two.on_packet = partial(_acknowledge_some, two, dice)
    two.acknowledges = False
    for client in (one, two):
        await client.connect(broker.port, clean_start=False, expiry_s=3_600)
        await client.subscribe(Subscription("t/#", 2))
    await publisher.connect(broker.port)
    kill_at = dice.randrange(5, 60)
    with suppress(ConnectionEnded):
        for number in range(60):
            if number == kill_at:
                asyncio.get_running_loop().call_later(dice.random() / 50, broker.kill)
            await publisher.publish("t/a", b"x", qos=dice.choice((1, 2)))
        await wait_for(lambda: not publisher.is_open, 60)
    for client in (one, two, publisher):
        client.abort()


def _acknowledge_some(client: MqttClient, dice: random.Random, packet: Packet) -> None:
    if isinstance(packet, Publish) and packet.packet_id and dice.random() < 0.7:
        answer = puback if packet.qos == 1 else pubrec
        asyncio.get_running_loop().call_later(dice.random() / 20, _say, client, answer(packet.packet_id))
    elif isinstance(packet, Pubrel) and dice.random() < 0.7:
        _say(client, pubcomp(packet.packet_id))


def _say(client: MqttClient, answer: bytes) -> None:
    if client.is_open:
        client.send_bytes(answer)


async def _drained(broker: BrokerProcess) -> None:
    one, publisher = MqttClient("application-1"), MqttClient("pub")
    await one.connect(broker.port, clean_start=False, expiry_s=3_600)
    await publisher.connect(broker.port)
    await publisher.publish("t/last", b"last", qos=1)
    await wait_for(lambda: any(message.topic == "t/last" for message in one.messages), 60)
    await one.ping()
    one.abort()
    publisher.close()


def test_what_cannot_be_is_told_in_a_sentence(tmp_path: Path, audit: Audit) -> None:
    assert "is not the data directory of a broker" in audit(tmp_path, code=1)["error"]
    (tmp_path / "broker.db").touch()
    assert "neither an offset of the log nor a time" in audit(tmp_path, "--from", "x", code=2)["error"]
    assert "--to: 3 is not behind --from, 3" in audit(tmp_path, "--from", "3", "--to", "3", code=2)["error"]
    assert "is no public key" in audit(tmp_path, "--verify", str(tmp_path), code=1)["error"]


def _found(report: dict[str, Any]) -> list[tuple[str, str, int | None, int]]:
    return [(one["kind"], one["who"], one["offset"], one["messages"]) for one in report["differences"]]


def _tables(data_dir: Path) -> list[str]:
    found: list[str] = []
    for name in ("broker.db", "applications.db"):
        with closing(sqlite3.connect(data_dir / name)) as connection:
            found += connection.iterdump()
    return found


def _damage(places: Places, offset: int) -> None:
    reader = SegmentReader(places.log)
    frame = next(reader.frames(offset))
    reader.close()
    with (places.log / segment_name(frame.number)).open("r+b") as file:
        file.seek(frame.position + FRAME_BYTES)
        file.write(b"\xff" * frame.head.body_bytes)
