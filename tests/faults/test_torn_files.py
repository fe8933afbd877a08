"""Torn and damaged files: what is intact is used, what is not is said in one line, nothing is guessed."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from tests.faults.data_files import log_extent
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_for, wait_until

from embermq.formats.segment_reader import Frame, SegmentReader
from embermq.formats.segments import ALIGNMENT, END_NAME, FILE_BYTES, FOLDER, FRAME_BYTES, segment_name
from embermq.mqtt.wire.packets import Subscription

MESSAGES = 120
CHECKPOINT_S = 60.0
COPIES = 6
"""Each starts a broker."""
LARGE = 20
"""Each so many-th message is so large that it is not written again with the state beside it."""


def payload(number: int) -> bytes:
    return b"%d" % number + b" " * (5_000 if number % LARGE == 0 else 0)


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
                if number == MESSAGES // 2:  # the damage of some tests is in what the checkpoint has
                    await wait_for(
                        lambda: stored_in(data_dir) == MESSAGES // 2, CHECKPOINT_S, "the checkpoint"
                    )
                assert await publisher.publish("torn/topic", payload(number), qos=1 + number % 2) == 0

        run(scenario())
        broker.kill()
    return data_dir


def stored_in(data_dir: Path) -> int:
    """How many messages the checkpoint has for the subscriber."""
    with closing(sqlite3.connect(f"file:{data_dir / 'broker.db'}?mode=ro", uri=True)) as connection:
        (count,) = connection.execute("SELECT COUNT(*) FROM device_queue").fetchone()
    return int(count)


def copy_of(killed: Path, to: Path, *, first_checkpoint: bool = False) -> Path:
    """`first_checkpoint`: broker.db as it was before the first tick, so that all of it stands in the log alone."""
    shutil.copytree(killed, to, ignore=shutil.ignore_patterns("*-shm", "broker.lock", "control.sock"))
    if first_checkpoint:
        with closing(sqlite3.connect(to / "broker.db")) as connection, connection:
            for table in ("session", "subscription", "receiving", "device_queue", "retained"):
                connection.execute(f"DELETE FROM {table}")
            connection.execute("DELETE FROM meta WHERE name LIKE 'log_%' AND name != 'log_id'")
            connection.execute("DELETE FROM meta WHERE name IN ('dispatcher_floor', 'generation_reserved')")
    return to


def newest_segment(data_dir: Path) -> Path:
    return max((data_dir / FOLDER).glob("*.seg"), key=lambda path: path.stat().st_size)


def frames_of(data_dir: Path) -> list[Frame]:
    """All frames of the log, those without records too."""
    with closing(SegmentReader(data_dir / FOLDER)) as reader:
        numbers = [head.number for head in reader.segments()]
        return [frame for number in numbers for frame in reader.walk(number, FILE_BYTES)]


def judge(data_dir: Path, intact: int, *options: str, end: int | None = None) -> None:
    """The broker starts on it, and its subscriber gets every message up to the last intact one, in order."""
    with BrokerProcess(data_dir, arguments=options) as broker:

        async def scenario() -> None:
            subscriber = MqttClient("absent")
            connack = await subscriber.connect(broker.port, clean_start=False, expiry_s=3_600)
            assert connack.session_present
            await wait_for(lambda: len(subscriber.messages) >= intact)
            await subscriber.ping()
            assert [message.payload for message in subscriber.messages] == list(map(payload, range(intact)))
            assert await subscriber.publish("torn/topic", b"more", qos=1) == 0
            await wait_for(lambda: len(subscriber.messages) == intact + 1)

        run(scenario())
        broker.kill()
    assert log_extent(data_dir)[1] == (intact if end is None else end) + 1


@pytest.mark.promise("repositories-1", "device-1")
def test_a_torn_tail_costs_what_was_after_the_last_whole_frame_only(killed: Path, tmp_path: Path) -> None:
    """As a loss of power leaves it: the end that was published last is not on the disk either."""
    path = newest_segment(killed)
    whole = path.read_bytes()
    frames = frames_of(killed)
    used = frames[-1].position + frames[-1].head.size
    ends = [frame.position + frame.head.size for frame in frames]
    random = Random(used)
    kept: list[int] = []
    for number in range(COPIES):
        data_dir = copy_of(killed, tmp_path / f"copy-{number}", first_checkpoint=True)
        (data_dir / FOLDER / END_NAME).unlink()
        cut = random.randrange(used // 3, used)
        cut += next(
            (end - cut for end in ends if 0 < end - cut < ALIGNMENT), 0
        )  # what fills a frame up is no loss
        torn = whole[:cut]
        if number % 3 == 1:  # the rest is there, but not what it was
            torn += random.randbytes(len(whole) - cut)
        elif number % 3 == 2:  # it was preallocated, and never written
            torn += bytes(len(whole) - cut)
        (data_dir / FOLDER / path.name).write_bytes(torn)
        intact = sum(frame.head.record_count for frame in frames if frame.position + frame.head.size <= cut)
        kept.append(intact)
        judge(data_dir, intact)
    assert any(0 < count < MESSAGES for count in kept), kept


@pytest.mark.parametrize("first_checkpoint", [False, True])
def test_an_untouched_copy_holds_everything(first_checkpoint: bool, killed: Path, tmp_path: Path) -> None:
    judge(copy_of(killed, tmp_path / "copy", first_checkpoint=first_checkpoint), MESSAGES)


def test_a_checkpoint_without_its_journal_is_filled_from_the_log(killed: Path, tmp_path: Path) -> None:
    data_dir = copy_of(killed, tmp_path / "copy")
    (data_dir / "broker.db-wal").unlink()
    judge(data_dir, MESSAGES)


def damaged(data_dir: Path, position: int) -> None:
    """One bit of the log is another one."""
    path = newest_segment(data_dir)
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(content)


@pytest.mark.promise("device-1", "pipeline-8")
def test_a_damaged_state_that_the_checkpoint_lacks_is_refused_unless_accepted(
    killed: Path, tmp_path: Path
) -> None:
    data_dir = copy_of(killed, tmp_path / "copy", first_checkpoint=True)
    frames = frames_of(data_dir)
    early = next(frame for frame in frames[5:] if frame.head.state_bytes)
    damaged(data_dir, early.position + FRAME_BYTES + early.head.body_bytes)
    said = refusal_of(data_dir)
    assert newest_segment(data_dir).name in said and "--accept-loss" in said and "embermq restore" in said
    with BrokerProcess(data_dir, arguments=("--accept-loss",)) as broker:
        assert "lost, and accepted" in broker.output()
        broker.stop()
    again = copy_of(killed, tmp_path / "again")
    damaged(again, early.position + FRAME_BYTES + early.head.body_bytes)
    judge(again, MESSAGES)  # the checkpoint has had it


def test_a_damaged_header_in_the_middle_is_damage_and_no_torn_tail(killed: Path, tmp_path: Path) -> None:
    data_dir = copy_of(killed, tmp_path / "copy", first_checkpoint=True)
    frames = frames_of(data_dir)
    damaged(data_dir, frames[len(frames) // 2].position + 9)
    assert "is damaged from position" in refusal_of(data_dir)


@pytest.mark.promise("device-1")
def test_one_damaged_record_is_left_out_and_the_others_come(killed: Path, tmp_path: Path) -> None:
    """Of a queue whose messages stand in the log alone."""
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir) as broker:

        async def fill() -> None:
            publisher = MqttClient("publisher")
            await publisher.connect(broker.port)
            for number in range(30):
                assert await publisher.publish("$queue/tasks", b"%d" % number, qos=1) == 0

        run(fill())
        broker.kill()
        frame = [frame for frame in frames_of(data_dir) if frame.head.record_count][10]
        damaged(data_dir, frame.position + FRAME_BYTES + frame.head.body_bytes - 1)
        broker.start()

        async def drain() -> None:
            consumer = MqttClient("consumer")
            await consumer.connect(broker.port)
            await consumer.subscribe(Subscription("$queue/tasks", 1))
            await wait_for(lambda: len(consumer.messages) >= 29)
            got = sorted(int(message.payload) for message in consumer.messages)
            left_out = frame.head.base_offset
            assert got == [number for number in range(30) if number != left_out]

        run(drain())
        wait_until(lambda: "a damaged record is left out" in broker.output())
        assert "$queue/tasks" in broker.output()
        broker.stop()


@pytest.mark.parametrize("missing", ["broker.db", "empty broker.db", "log"])
def test_lost_state_is_refused_by_name(missing: str, killed: Path, tmp_path: Path) -> None:
    data_dir = copy_of(killed, tmp_path / "copy")
    if missing == "log":
        shutil.rmtree(data_dir / FOLDER)
    else:
        for path in data_dir.glob("broker.db*"):
            path.unlink()
        if missing == "empty broker.db":
            (data_dir / "broker.db").touch()
    said = refusal_of(data_dir)
    assert ("message log" if missing == "log" else "broker.db") in said and "--accept-loss" in said
    with BrokerProcess(data_dir, arguments=("--accept-loss",)) as broker:
        broker.stop()


def test_a_directory_that_had_another_log_is_refused(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir) as broker:
        broker.stop()
    for path in data_dir.glob("broker.db*"):
        path.unlink()
    shutil.rmtree(data_dir / FOLDER)
    assert "had another message log before" in refusal_of(data_dir)


def test_files_of_another_directory_are_refused(killed: Path, tmp_path: Path) -> None:
    data_dir = tmp_path / "other"
    with BrokerProcess(data_dir) as broker:
        broker.stop()
    shutil.rmtree(data_dir / FOLDER)
    shutil.copytree(killed / FOLDER, data_dir / FOLDER)
    assert f"{segment_name(1)} belongs to another message log" in refusal_of(data_dir)


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


def test_a_newer_schema_is_refused_by_its_number(killed: Path, tmp_path: Path) -> None:
    data_dir = copy_of(killed, tmp_path / "copy")
    with closing(sqlite3.connect(data_dir / "broker.db")) as connection, connection:
        connection.execute("UPDATE meta SET value = 1000 WHERE name = 'schema_version'")
    assert "1000" in refusal_of(data_dir)


def test_a_large_retained_message_is_applied_again_from_its_record(tmp_path: Path) -> None:
    """Its body stands in the log once; the first one is deleted in a later tick."""
    data_dir = tmp_path / "data"
    large = b"k" * 5_000
    with BrokerProcess(data_dir) as broker:

        async def publish() -> None:
            client = MqttClient("publisher")
            await client.connect(broker.port)
            for topic, payload in (("gone", large), ("kept", large), ("small", b"s"), ("gone", b"")):
                assert await client.publish(topic, payload, qos=1, retain=True) < 0x80

        run(publish())
        broker.kill()
    copy = copy_of(data_dir, tmp_path / "copy", first_checkpoint=True)
    with BrokerProcess(copy) as broker:

        async def look() -> None:
            client = MqttClient("late")
            await client.connect(broker.port)
            await client.subscribe(Subscription("#", 1))
            await wait_for(lambda: len(client.messages) >= 2)
            await client.ping()
            assert sorted((one.topic, one.payload) for one in client.messages) == [
                ("kept", large),
                ("small", b"s"),
            ]

        run(look())
        broker.stop()
