"""Torn and damaged files: what is intact is used, what is not is said in one line, nothing is guessed."""

from __future__ import annotations

import shutil
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from tests.faults.data_files import log_extent
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_for

from embermq.protocol.packets import Subscription

MESSAGES = 120
COPIES = 6
"""Each starts a broker."""
WAL_HEAD_BYTES = 32
FRAME_HEAD_BYTES = 24
FILES = ("broker.db", "broker.db-wal", "users.db", "users.db-wal")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a broker that was killed after `MESSAGES` acknowledged messages of its one subscriber."""
    data_dir = tmp_path_factory.mktemp("killed") / "data"
    with BrokerProcess(data_dir) as broker:

        async def scenario() -> None:
            subscriber = MqttClient("absent")
            await subscriber.connect(broker.port, expiry_s=3_600)
            await subscriber.subscribe(Subscription("torn/#", 2))
            subscriber.close()
            publisher = MqttClient("publisher")
            await publisher.connect(broker.port)
            for number in range(MESSAGES):
                assert await publisher.publish("torn/topic", b"%d" % number, qos=1 + number % 2) == 0

        run(scenario())
        broker.kill()
    return data_dir


def copy_of(killed: Path, to: Path) -> Path:
    shutil.copytree(killed, to, ignore=shutil.ignore_patterns("*-shm", "broker.lock", "control.sock"))
    return to


def intact_messages(data_dir: Path) -> int:
    """What SQLite itself still finds, looked at in a copy of the copy."""
    beside = data_dir.with_name(data_dir.name + "-beside")
    shutil.copytree(data_dir, beside)
    with closing(sqlite3.connect(beside / "broker.db")) as connection:
        found = connection.execute("SELECT SUM(record_count) FROM log_batch").fetchone()[0]
    shutil.rmtree(beside)
    return int(found) if found else 0


def frames_of(wal: bytes) -> int:
    """Whole frames, a page each, of a write-ahead log."""
    (page_bytes,) = struct.unpack_from(">I", wal, 8)
    return (len(wal) - WAL_HEAD_BYTES) // (FRAME_HEAD_BYTES + int(page_bytes))


def judge(data_dir: Path) -> None:
    """The broker starts on it, and its subscriber gets every message up to the last intact commit, in order."""
    intact = intact_messages(data_dir)
    with BrokerProcess(data_dir) as broker:

        async def scenario() -> None:
            subscriber = MqttClient("absent")
            connack = await subscriber.connect(broker.port, clean_start=False, expiry_s=3_600)
            assert connack.session_present
            await wait_for(lambda: len(subscriber.messages) >= intact)
            await subscriber.ping()
            assert [int(message.payload) for message in subscriber.messages] == list(range(intact))
            assert await subscriber.publish("torn/topic", b"%d" % intact, qos=1) == 0
            await wait_for(lambda: len(subscriber.messages) == intact + 1)

        run(scenario())
        broker.kill()
    assert log_extent(data_dir) == (0, intact + 1)


@pytest.mark.promise("repositories-1", "device-1")
def test_a_torn_tail_costs_what_was_after_the_last_intact_commit_only(
    killed: Path, tmp_path: Path, seed: int
) -> None:
    wal = (killed / "broker.db-wal").read_bytes()
    assert frames_of(wal) > MESSAGES
    random = Random(seed)
    kept: list[int] = []
    for number in range(COPIES):
        data_dir = copy_of(killed, tmp_path / f"copy-{number}")
        cut = random.randrange(len(wal) // 3, len(wal))
        torn = wal[:cut]
        if number % 3 == 1:  # the rest is there, but not what it was
            torn += random.randbytes(len(wal) - cut)
        elif number % 3 == 2:  # one bit
            damaged = bytearray(wal)
            damaged[cut] ^= 1 << random.randrange(8)
            torn = bytes(damaged)
        (data_dir / "broker.db-wal").write_bytes(torn)
        kept.append(intact_messages(data_dir))
        judge(data_dir)
    assert any(0 < count < MESSAGES for count in kept), kept


def test_an_untouched_copy_holds_everything(killed: Path, tmp_path: Path) -> None:
    data_dir = copy_of(killed, tmp_path / "copy")
    assert intact_messages(data_dir) == MESSAGES
    judge(data_dir)


def refusal_of(data_dir: Path) -> str:
    """The one line with which the broker refuses to start."""
    broker = BrokerProcess(data_dir)
    try:
        broker.launch()
        assert broker.wait() == 1
        said = broker.output()
    finally:
        broker.close()
    assert "Traceback" not in said
    assert len(said.splitlines()) == 1, said
    return said


@pytest.mark.parametrize("damage", ["not a database", "zeroes", "pages"])
def test_a_damaged_database_is_refused_in_one_line(damage: str, killed: Path, tmp_path: Path) -> None:
    data_dir = copy_of(killed, tmp_path / "copy")
    with closing(sqlite3.connect(data_dir / "broker.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    path = data_dir / "broker.db"
    whole = path.read_bytes()
    if damage == "not a database":
        path.write_bytes(b"this is not a database" * 400)
    elif damage == "zeroes":
        path.write_bytes(bytes(len(whole)))
    else:
        path.write_bytes(whole[:4096] + Random(1).randbytes(len(whole) - 4096))
    said = refusal_of(data_dir)
    assert said.startswith("embermq: ")
    assert "broker.db" in said


@pytest.mark.promise("pipeline-8")
def test_records_that_this_version_cannot_read_are_refused_in_one_line(killed: Path, tmp_path: Path) -> None:
    """Whole pages, so that SQLite notices nothing, but not what was written."""
    data_dir = copy_of(killed, tmp_path / "copy")
    with closing(sqlite3.connect(data_dir / "broker.db")) as connection, connection:
        connection.execute("UPDATE log_batch SET body = zeroblob(body_bytes)")
        connection.execute("UPDATE meta SET value = 0 WHERE name = 'dispatcher_floor'")
    assert "record" in refusal_of(data_dir)


def test_a_newer_schema_is_refused_by_its_number(killed: Path, tmp_path: Path) -> None:
    data_dir = copy_of(killed, tmp_path / "copy")
    with closing(sqlite3.connect(data_dir / "broker.db")) as connection, connection:
        connection.execute("UPDATE meta SET value = 1000 WHERE name = 'schema_version'")
    assert "1000" in refusal_of(data_dir)
