"""From the tables of a 1.x in PostgreSQL into Redis, Redis Cluster, the data directory: all of it, once, in order."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from pyspark.sql import SparkSession
from tests.support.broker_process import BrokerProcess
from tests.support.forked_program import run_program
from tests.support.mqtt_client import MqttClient, run
from tests.support.old_broker import OldBroker
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import RedisServer
from tests.support.sql_server import SqlServer
from tests.support.waiting import wait_for, wait_until

from embermq.adapters.sqlite.connection import apply_broker_schema, open_writer
from embermq.app.config import Settings
from embermq.formats.redis_layout import client_keys, decode_message, decode_session
from embermq.model.session_writes import QUEUE_SEQ_STEP
from embermq.mqtt.wire.packets import Pubrel
from embermq.pipeline import batch
from embermq_migrate.errors import MigrationError
from embermq_migrate.job import MigrationReport, MigrationTerms, migrate
from embermq_migrate.migration import MigrationOrder, redis_place, run_migration
from embermq_migrate.migration_file import Counts, MigrationFile, Rejected
from embermq_migrate.redis_sessions import RedisSessionTarget
from embermq_migrate.sqlite_sessions import SqliteSessionTarget

JOB_S = 600
MIGRATE = [sys.executable, "-m", "embermq", "pipeline", "migrate"]
NOW_MS = time.time_ns() // 1_000_000

BROKEN: list[tuple[str, str, dict[str, object]]] = [
    ("client_id", "missing", {"client_id": None}),
    ("client_id", "missing", {"client_id": ""}),
    ("serial_number", "null", {"serial_number": None}),
    ("serial_number", "-1", {"serial_number": -1}),
    ("serial_number", "68719476737", {"serial_number": 2**36 + 1}),
    ("serial_number", "more than once", {"serial_number": 5, "packet_id": 5}),
    ("topic", "missing", {"topic": ""}),
    ("topic", "wildcard", {"topic": "a/+/b"}),
    ("topic", "65536 bytes", {"topic": "t" * 65_536}),
    ("qos", "qos 0", {"qos": 0}),
    ("qos", "qos 3", {"qos": 3}),
    ("packet_type", "PUBACK", {"packet_type": "PUBACK"}),
    ("packet_type", "PUBREL, but qos is 1", {"packet_type": "PUBREL"}),
    ("packet_id", "packet_id 0", {"packet_id": 0}),
    ("packet_id", "packet_id 65536", {"packet_id": 65_536}),
    ("packet_id", "packet_id null", {"packet_id": None}),
    ("time", "time 0", {"time": 0}),
    ("time", "time 9223372036854775807", {"time": 2**63 - 1}),
    ("msg_expiry_interval", "4294967296", {"msg_expiry_interval": 2**32}),
    ("msg_expiry_interval", "-9223372036854775808", {"msg_expiry_interval": -(2**63)}),
    ("payload", "missing", {"payload": None}),
    ("payload", "1001 bytes", {"payload": b"x" * 1001}),
    ("user_properties", "props", {"user_properties": '{"props":[{"k":"a"}]}'}),
    ("user_properties", "props", {"user_properties": "{"}),
    ("user_properties", "props", {"user_properties": "[1]"}),
    ("user_properties", "U+0000", {"user_properties": r'{"props":[{"k":"a","v":"b\u0000"}]}'}),
    ("payload_format_indicator", "2", {"payload_format_indicator": 2}),
    ("response_topic", "wildcard", {"response_topic": "#"}),
    ("correlation_data", "65536 bytes", {"correlation_data": bytes(65_536)}),
]
"""Reason, what the detail says, and the row."""


@pytest.fixture
def old(postgres: SqlServer) -> Iterator[OldBroker]:
    url = postgres.database()
    broker = OldBroker(url)
    yield broker
    broker.close()
    postgres.drop(url)


class Runner:
    """Migrations in the tests' own Spark session; generations are handed out without end."""

    def __init__(self, spark: SparkSession, folder: Path, old: OldBroker) -> None:
        self._spark = spark
        self._next_generation = 10_000
        folder.mkdir()
        self.broker_db = folder / "broker.db"
        self.file = folder / "migration.db"
        self.source = old.url
        connection = open_writer(self.broker_db, synchronous="OFF")
        apply_broker_schema(connection)
        connection.close()

    def terms(self, target: str, **options: object) -> MigrationTerms:
        place = None if target == "sqlite" else redis_place(target)
        terms = MigrationTerms(
            source=self.source, redis=place, broker_db=str(self.broker_db), file=str(self.file)
        )
        return msgspec.structs.replace(terms, **options)

    def run(self, target: str, **options: object) -> MigrationReport:
        return migrate(self._spark, self.terms(target, **options), self._reserve, lambda *_: None)

    def _reserve(self, count: int) -> int:
        first = self._next_generation
        self._next_generation += count
        return first

    def rejects(self) -> list[Rejected]:
        file = MigrationFile(self.file)
        try:
            return list(file.rejects())
        finally:
            file.close()


@pytest.fixture
def runner(spark: SparkSession, tmp_path: Path, old: OldBroker) -> Runner:
    return Runner(spark, tmp_path / "data", old)


def counted(counts: Counts) -> dict[str, object]:
    """Counts that are not 0; all that was read is accounted for."""
    found = {name: value for name, value in msgspec.structs.asdict(counts).items() if value}
    ends = ("written", "there", "taken_over", "expired", "over_limit", "rejected")
    assert counts.read == sum(getattr(counts, name) for name in ends), found
    assert counts.rejected == sum(counts.reasons.values())
    return found


def connected(server: RedisServer) -> Any:
    """A client of the server; its answers have too many types."""
    return redis.Redis(port=server.port)


def digest(server: RedisServer) -> tuple[bytes, int, list[int]]:
    """Of everything that is stored; how many keys; when some thousand of them go."""
    client = connected(server)
    keys = sorted(client.scan_iter(match="*device-1*_messages_*", count=10_000))[::10]
    pipe = client.pipeline(transaction=False)
    for key in keys:
        pipe.execute_command("PEXPIRETIME", key)
    deadlines = pipe.execute()
    client.close()
    return server.ask("DEBUG", "DIGEST"), server.ask("DBSIZE"), deadlines


def command(old: OldBroker, target: str, data_dir: Path, *words: str) -> subprocess.Popen[str]:
    """`embermq pipeline migrate`, with the addresses where no list of processes shows them."""
    return subprocess.Popen(
        [*MIGRATE, "--from", "env:OLD", "--to", "env:NEW", "--data-dir", str(data_dir), *words],
        env=os.environ | {"OLD": old.url, "NEW": target},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def migrated_here(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[OldBroker, str, Path], MigrationReport]:
    """What the command does, in the Spark that is here already."""

    def migrated(old: OldBroker, target: str, data_dir: Path) -> MigrationReport:
        spark = request.getfixturevalue("spark")
        monkeypatch.setattr(batch, "batch_session", lambda *_: nullcontext(spark))
        order = MigrationOrder(
            source=old.url,
            schema="public",
            target=target,
            dry_run=False,
            rejects=None,
            message_ttl_s=None,
            session_expiry_s=None,
            zero_expires=False,
            tasks=2,
        )
        return run_migration(order, Settings(data_dir=str(data_dir)), lambda *_: None)

    return migrated


def pieces_done(data_dir: Path) -> int:
    """How many the run has finished; 0 before it began."""
    if not (data_dir / "migration.db").exists():
        return 0
    file = MigrationFile(data_dir / "migration.db")
    try:
        return len(file.done(1))
    finally:
        file.close()


@pytest.mark.in_faults
@pytest.mark.promise("device-12")
def test_200_000_messages_through_a_kill_into_redis(
    runner: Runner, old: OldBroker, redis_server: RedisServer, tmp_path: Path
) -> None:
    clients, messages = 400, 500
    old.fill(clients=clients, messages=messages, now_ms=NOW_MS, first=65_300)  # packet ids wrap on the way
    data_dir = tmp_path / "broker"
    first = command(old, redis_server.url, data_dir)
    wait_until(
        lambda: pieces_done(data_dir) >= 2 or first.poll() is not None, JOB_S, "two pieces", poll_s=0.05
    )
    assert first.poll() is None, first.communicate()
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    done = pieces_done(data_dir)
    assert 2 <= done < 10

    runner.broker_db, runner.file = data_dir / "broker.db", data_dir / "migration.db"
    report = runner.run(redis_server.url)
    assert report.resumed and report.pieces == 10 and report.pieces_done_before >= done
    total = clients * messages
    assert report.counts.read == total == report.counts.written + report.counts.there
    assert report.counts.clients == clients and not report.counts.rejected and not report.counts.renumbered
    check_order(old, redis_server)

    before = digest(redis_server)
    assert len(before[2]) > 1_000
    again = runner.run(redis_server.url)
    assert not again.resumed
    assert counted(again.counts) == {
        "clients": clients,
        "clients_there": clients,
        "read": total,
        "there": total,
    }
    assert digest(redis_server) == before, "the second run changed something"


def check_order(old: OldBroker, server: RedisServer) -> None:
    """Every client's messages by serial number, with their packet ids; every payload and property of some clients."""
    rows: dict[str, list[tuple[int, int]]] = {}
    for client_id, serial, packet_id in old.run(
        "SELECT client_id, serial_number, packet_id FROM device_publish_msg ORDER BY client_id, serial_number"
    ):
        rows.setdefault(client_id, []).append((serial, packet_id))
    client = connected(server)
    generations = set()
    for client_id, expected in rows.items():
        keys = client_keys(client_id, "")
        prefix = len(keys.message)
        members = client.zrange(keys.messages, 0, -1, withscores=True)
        assert [(int(score) - 1, int(member[prefix:])) for member, score in members] == expected
        assert client.get(keys.last_packet_id) == b"%d" % expected[-1][1]
        row = decode_session(keys.session, client.get(keys.session))
        assert (row.client_id, row.connected, row.epoch) == (client_id, False, 0)
        generations.add(row.generation)
    assert len(generations) == len(rows)
    for client_id in ("device-7", "device-399"):
        check_messages(old, client, client_id)
    client.close()


def check_messages(old: OldBroker, client: Any, client_id: str) -> None:
    keys = client_keys(client_id, "")
    owed = {int(packet_id) for packet_id in client.smembers(keys.released)}
    assert owed
    for row in old.run("SELECT * FROM device_publish_msg WHERE client_id = %s", (client_id,)):
        serial, topic, time_ms, packet_id, packet_type, qos, payload, pairs, retain, expiry_s, *rest = row[1:]
        key = f"{keys.message}{packet_id}"
        stored = decode_message(key, client.get(key), generation=1, seq=1, state=0)
        text = json.loads(client.get(key))
        assert stored.packet_id == packet_id and stored.offset == -1
        assert text["packetType"] == packet_type and (packet_type == "PUBREL") == (packet_id in owed)
        assert (text["topicName"], text["time"], text["packetId"], text["qos"]) == (
            topic,
            time_ms,
            packet_id,
            qos,
        )
        assert text["clientId"] == client_id and text.get("retained", False) == retain
        assert text.get("messageExpiryInterval") == expiry_s
        assert text.get("userProperties", []) == ([["n", str(serial)]] if pairs else [])
        found = [text.get(name) for name in ("payloadFormatIndicator", "contentType", "responseTopic")]
        assert found == rest[:3]
        assert msgspec.json.decode(msgspec.json.encode(text["payload"]), type=bytes) == payload
        deadline_ms = client.execute_command("PEXPIRETIME", key)
        if packet_type == "PUBLISH":
            assert deadline_ms == time_ms + (expiry_s or 604_800) * 1000


@pytest.mark.promise("device-12")
def test_broken_rows_are_left_out_with_the_reason(
    runner: Runner, old: OldBroker, redis_server: RedisServer
) -> None:
    old.run("ALTER TABLE device_publish_msg DROP CONSTRAINT device_publish_msg_pkey")
    for column in ("client_id", "serial_number", "topic", "time", "qos", "payload"):
        old.run(f"ALTER TABLE device_publish_msg ALTER {column} DROP NOT NULL")
    old.run("ALTER TABLE device_publish_msg ALTER msg_expiry_interval TYPE bigint")
    for number, (_, _, values) in enumerate(BROKEN):
        old.add(**({"serial_number": 100 + number, "packet_id": 100 + number, "time": NOW_MS} | values))
    good: list[dict[str, object]] = [
        {"serial_number": 5, "packet_id": 5},
        {"serial_number": 6, "packet_id": 65_535, "packet_type": None, "user_properties": "null"},
        {
            "serial_number": 7,
            "packet_id": 7,
            "msg_expiry_interval": -1,
        },  # 4,294,967,295 in 32 bits with a sign
        {"serial_number": 8, "packet_id": 8, "msg_expiry_interval": 0},  # an early 1.x: none
        {"serial_number": 9, "packet_id": 5},  # the one of 5
    ]
    for values in good:
        old.add(**({"time": NOW_MS} | values))
    old.add(serial_number=10, packet_id=10, time=NOW_MS - 10_000, msg_expiry_interval=5)
    old.add(serial_number=11, packet_id=11, time=NOW_MS - 8 * 86_400_000)

    report = runner.run(redis_server.url, payload_bytes_max=1000)
    found = counted(report.counts)
    assert found | {"reasons": None} == {
        "clients": 1,
        "clients_written": 1,
        "read": len(BROKEN) + len(good) + 2,
        "written": len(good),
        "expired": 2,
        "rejected": len(BROKEN),
        "renumbered": 1,
        "reasons": None,
    }
    rejects = runner.rejects()
    for reason, detail, values in BROKEN:
        wanted = [row for row in rejects if row.reason == reason and detail in row.detail]
        assert wanted, f"{values}: no {reason} with {detail!r} among {rejects}"
    assert all(row.client_id in ("device-0", "", None) and row.detail for row in rejects)
    client = connected(redis_server)
    keys = client_keys("device-0", "")
    members = [member.rpartition(b"_")[2] for member in client.zrange(keys.messages, 0, -1)]
    assert members == [b"5", b"65535", b"7", b"8", b"6"], (
        "by serial number; the second 5 took the next free id"
    )
    assert json.loads(client.get(f"{keys.message}7"))["messageExpiryInterval"] == 0xFFFF_FFFF
    assert "messageExpiryInterval" not in json.loads(client.get(f"{keys.message}8"))
    client.close()


def test_the_oldest_over_the_limit_of_a_client_stay_behind_but_no_pubrel(
    runner: Runner, old: OldBroker, redis_server: RedisServer
) -> None:
    for serial in range(10):
        kind = "PUBREL" if serial == 1 else "PUBLISH"
        old.add(serial_number=serial, packet_id=serial + 1, time=NOW_MS, qos=2, packet_type=kind)
    report = runner.run(redis_server.url, queue_limit=4)
    assert (report.counts.over_limit, report.counts.written) == (5, 5)
    client = connected(redis_server)
    scores = [
        score for _, score in client.zrange(client_keys("device-0", "").messages, 0, -1, withscores=True)
    ]
    assert [int(score) - 1 for score in scores] == [1, 6, 7, 8, 9]
    client.close()


def test_a_dry_run_writes_nothing_and_early_tables_lack_columns(
    runner: Runner, old: OldBroker, redis_server: RedisServer
) -> None:
    old.fill(clients=3, messages=4, now_ms=NOW_MS)
    old.run("ALTER TABLE device_publish_msg DROP COLUMN correlation_data, DROP COLUMN msg_expiry_interval")
    report = runner.run(redis_server.url, dry=True)
    assert report.dry_run and report.columns_absent == ("msg_expiry_interval", "correlation_data")
    assert (report.counts.written, report.counts.clients_written) == (12, 3)
    assert redis_server.ask("DBSIZE") == 0


@pytest.mark.promise("device-12")
def test_clients_that_are_here_already(runner: Runner, old: OldBroker, redis_server: RedisServer) -> None:
    """One has connected since its migration: left alone. One was never migrated: told. One is new: taken."""
    old.fill(clients=2, messages=3, now_ms=NOW_MS)
    runner.run(redis_server.url)
    client = connected(redis_server)
    key = client_keys("device-0", "").session
    client.set(key, client.get(key).replace(b'"epoch":0', b'"epoch":1'))
    client.delete(client_keys("device-0", "").messages)  # it has acknowledged them all
    other = client_keys("stranger", "").session
    client.set(
        other, client.get(key).replace(b"device-0", b"stranger").replace(b'"generation":1', b'"generation":9')
    )
    old.add(client_id="stranger", serial_number=0, packet_id=1, time=NOW_MS)
    old.add(client_id="late", serial_number=0, packet_id=1, time=NOW_MS)
    old.add(client_id="device-1", serial_number=3, packet_id=60_000, time=NOW_MS)
    report = runner.run(redis_server.url)
    found = counted(report.counts)
    assert (found["taken_over"], found["there"], found["written"], found["rejected"]) == (3, 3, 2, 1)
    assert [(row.client_id, row.reason) for row in runner.rejects()] == [("stranger", "session")]
    assert not client.exists(client_keys("device-0", "").messages)
    assert client.zcard(client_keys("device-1", "").messages) == 4
    client.close()

    file = sqlite3.connect(runner.file)
    file.execute("UPDATE run SET finished_ms = 0")
    file.commit()
    file.close()
    report = runner.run(redis_server.url, queue_limit=9_000)
    assert not report.resumed and report.counts.reasons == {"session": 4}, "other options, and yet half done"


@pytest.mark.promise("device-12")
@pytest.mark.in_faults
def test_into_a_cluster(runner: Runner, old: OldBroker, redis_cluster: RedisCluster) -> None:
    old.fill(clients=50, messages=20, now_ms=NOW_MS)
    old.add(client_id="a{b}%c", serial_number=0, packet_id=1, time=NOW_MS)
    report = runner.run(redis_cluster.url)
    assert report.counts.written == 1001
    again = runner.run(redis_cluster.url)
    assert counted(again.counts) == {"clients": 51, "clients_there": 51, "read": 1001, "there": 1001}
    target = RedisSessionTarget(redis_place(redis_cluster.url))
    known = target.known([f"device-{number}" for number in range(50)] + ["a{b}%c", "nobody"])
    target.close()
    assert len(known) == 51 and all(len(one.places) == 20 for name, one in known.items() if "{" not in name)


@pytest.mark.parametrize("store", ["sqlite", "redis"])
@pytest.mark.promise("device-12")
def test_a_broker_on_the_result_delivers_in_order_with_the_packet_ids(
    old: OldBroker,
    servers: dict[str, object],
    tmp_path: Path,
    store: str,
    migrated_here: Callable[[OldBroker, str, Path], MigrationReport],
) -> None:
    """QoS 2 that the client has confirmed goes on with PUBREL; everything else comes as it was numbered. The one is
    brought over by the command, the other by what the command does, in the Spark that is here already."""

    def packet_id_of(serial: int) -> int:
        return (serial + 65_520) % 65_534 + 1

    for serial in range(30):
        kind = "PUBREL" if serial in (3, 4) else "PUBLISH"
        old.add(
            serial_number=serial,
            packet_id=packet_id_of(serial),
            time=NOW_MS,
            qos=2 if serial < 10 else 1,
            packet_type=kind,
            payload=b"%d" % serial,
            user_properties='{"props":[{"k":"a","v":"b"}]}',
        )
    data_dir = tmp_path / "broker"
    target = str(servers["stores.session"]) if store == "redis" else "sqlite"
    if store == "sqlite":
        with command(old, target, data_dir, "--json") as process:
            try:
                output, errors = process.communicate(timeout=JOB_S)
            finally:
                process.kill()  # what it would leave is told of in a test of another file
        assert process.returncode == 0 and not errors, errors
        report = msgspec.json.decode(output, type=MigrationReport)
    else:
        report = migrated_here(old, target, data_dir)
    assert report.counts.written == 30
    assert report.target == (
        str(servers["stores.session"]) if store == "redis" else str(data_dir / "broker.db")
    )

    async def read() -> None:
        client = MqttClient("device-0")
        connack = await client.connect(broker.port, clean_start=False, expiry_s=100)
        assert connack.session_present
        await wait_for(lambda: len(client.messages) == 28, 20, "28 messages")
        released = [packet.packet_id for packet in client.received if isinstance(packet, Pubrel)][:2]
        assert released == [packet_id_of(3), packet_id_of(4)]
        sent = [(int(message.payload), message.packet_id) for message in client.messages]
        assert sent == [(serial, packet_id_of(serial)) for serial in range(30) if serial not in (3, 4)]
        assert not any(message.dup for message in client.messages)
        client.close()

    settings = {} if store == "sqlite" else servers
    with BrokerProcess(data_dir, settings=settings) as broker:
        run(read())


@pytest.mark.in_faults
def test_what_stands_in_the_way_is_told_before_anything_is_written(
    old: OldBroker, redis_server: RedisServer, tmp_path: Path
) -> None:
    data_dir = tmp_path / "broker"
    password = old.url.partition(":")[2].partition("@")[0].rpartition(":")[2]

    def refused(source: str, target: str, *words: str) -> str:
        done = run_program(
            *("pipeline", "migrate", "--from", source, "--to", target, "--data-dir"), data_dir, *words
        )
        assert done.returncode in (1, 2) and not done.stdout
        assert "Traceback" not in done.stderr and password not in done.stderr
        assert "secret" not in done.stderr, done.stderr
        return done.stderr

    wrong = old.url.replace(password, "secret")
    assert "password authentication failed" in refused(wrong, "sqlite")
    assert "cannot reach postgresql://127.0.0.1:1/x" in refused(
        "postgresql://a:secret@127.0.0.1:1/x", "sqlite"
    )
    assert "cannot be understood" in refused("postgresql://a:%secret@127.0.0.1:x/y?z", "sqlite")
    assert "postgresql://" in refused("mysql://a:secret@127.0.0.1/x", "sqlite")
    assert "no environment variable NOWHERE" in refused("env:NOWHERE", "sqlite")
    assert "cannot read" in refused(f"file:{tmp_path}/none", "sqlite")
    assert "127.0.0.1:1" in refused(old.url, "redis://:secret@127.0.0.1:1")
    assert "begins with http, not with one of redis://" in refused(old.url, "http://:secret@127.0.0.1:1")
    assert "neither 1..4294967295 nor never" in refused(old.url, "sqlite", "--session-expiry", "0")
    redis_server.ask("SET", "embermq:schema", '{"version":2,"log":"77"}')
    redis_server.ask("HSET", "embermq:log", "closed", "0")
    assert "its broker is running, or has not ended in order" in refused(old.url, redis_server.url)
    redis_server.ask("SET", "embermq:schema", '{"version":9,"log":"77"}')
    assert "layout version 9" in refused(old.url, redis_server.url)
    redis_server.flush()
    redis_server.ask("SET", "s:ol:{other}", "{}")
    assert "has key 's:ol:{other}' but no embermq:schema" in refused(old.url, redis_server.url)
    with BrokerProcess(data_dir) as broker:
        assert f"in use by another broker (process {broker.pid})" in refused(old.url, "sqlite")
    old.run("ALTER TABLE device_publish_msg DROP COLUMN packet_type")
    assert "device_publish_msg has no column packet_type" in refused(old.url, "sqlite")
    old.run("DROP TABLE device_session_ctx")
    assert "no table device_session_ctx in the schema public" in refused(old.url, "sqlite")


def test_a_store_that_goes_away_ends_the_job_with_one_sentence(
    runner: Runner, old: OldBroker, redis_server: RedisServer
) -> None:
    old.fill(clients=4, messages=5, now_ms=NOW_MS)
    redis_server.ask("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(
        MigrationError,
        match=r"cannot write to redis://127.0.0.1:.*: command not allowed",
    ):
        runner.run(redis_server.url)
    redis_server.ask("CONFIG", "SET", "maxmemory", "0")
    report = runner.run(redis_server.url)
    assert report.resumed and report.counts.written == 20


@pytest.mark.in_faults
def test_sqlite_again_changes_nothing(runner: Runner, old: OldBroker) -> None:
    old.fill(clients=5, messages=40, now_ms=NOW_MS)
    first = runner.run("sqlite", piece_rows=80)
    assert (first.counts.written, first.pieces) == (200, 3)
    target = SqliteSessionTarget(runner.broker_db, read_only=True)
    known = target.known(["device-2"])["device-2"]
    target.close()
    assert list(known.places) == [(serial + 1) * QUEUE_SEQ_STEP for serial in range(40)]
    again = runner.run("sqlite", piece_rows=80)
    assert counted(again.counts) == {"clients": 5, "clients_there": 5, "read": 200, "there": 200}
