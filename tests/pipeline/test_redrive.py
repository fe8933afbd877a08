"""`embermq pipeline redrive` against a real broker: what it chooses, how fast, and what a kill leaves behind."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
from array import array
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from tests.pipeline.dead_letters import (
    LEFT_OPEN,
    START_S,
    Letter,
    Redrive,
    api,
    bury,
    dead,
    queued,
    words_for,
)
from tests.pipeline.log_writer import LogWriter, record
from tests.support.broker_process import EMBERMQ, BrokerProcess
from tests.support.mqtt_client import run
from tests.support.queue_worker import queue_broker, worker
from tests.support.waiting import wait_until

from embermq.cli.main import main
from embermq.cli.pipeline import redriven
from embermq.formats.entry_rest import Rest, encode_rest
from embermq.formats.segments import FOLDER
from embermq.model.queue_rows import Attempts, DeadLetter
from embermq.pipeline.errors import RedriveError
from embermq.pipeline.jobs import redrive as job
from embermq.pipeline.jobs.putting_back import PieceDone, PuttingBack
from embermq.pipeline.jobs.redrive import LetterCount, RedriveTerms, Selection
from embermq.pipeline.places import Places
from embermq.pipeline.schema import letter_schema
from embermq.pipeline.settings import PipelineSettings
from embermq.pipeline.sources import dead_letters
from embermq.pipeline.sources.dead_letters import DeadLettersSource, LetterBounds, LetterFile, LetterRange

QUEUES = """
[[queues]]
name = "re/filter"
retry_policy.max_retries = 0
dlq_config.topic = "$queue/dlq/shared"
[[queues]]
name = "re/other"
dlq_config.topic = "$queue/dlq/shared"
[[queues]]
name = "re/none"
dlq_config.enabled = false
[[queues]]
name = "re/left"
dlq_config.topic = "$queue/dlq/mixed"
"""
ENOUGH = 6
"""Dead letters that are back when the job is killed."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with queue_broker(tmp_path_factory.mktemp("redrive"), QUEUES) as running:
        yield running


@pytest.mark.promise("pipeline-1", "pipeline-12", "queues-35")
def test_a_filter_chooses_and_a_dry_run_changes_nothing(broker: BrokerProcess, redrive: Redrive) -> None:
    ids = bury(broker, "re/filter", 12)
    bury(broker, "re/other", 2)
    wanted = (
        "reason = 'max_retries' and `group` = 'refilter' and properties['tenant'] = 'a' and last_error like 'db%'"
        " and cast(get_json_object(payload_json, '$.i') as int) > 4 and topic = '$queue/re/filter'"
    )
    before = api(broker, "dlq/shared", "dlq")
    (dry,) = redrive(broker, "re/filter", "--dry-run", "--filter", wanted)
    report = dry["report"]
    numbers = [5, 7, 11]  # 9 is of the tenant b
    assert (report["there"], report["chosen"], report["put_back"], report["dry_run"]) == (12, 3, 0, True)
    assert report["counts"] == [
        {"queue": "re/filter", "group": "refilter", "reason": reason, "chosen": chosen, "there": 6}
        for reason, chosen in (("max_retries", 3), ("rejected", 0))
    ]
    assert {one["message_id"] for one in report["samples"]} == {ids[number] for number in numbers}
    assert {(one["last_error"], one["moved_at"][-1]) for one in report["samples"]} == {("db away", "Z")}
    assert api(broker, "dlq/shared", "dlq") == before

    async def scenario() -> None:
        client = await worker(broker, "refilter-2")
        await client.consumes("$queue/re/filter")
        clock = asyncio.get_running_loop().time
        words = ("--rate", "2", "--filter", wanted)
        asked = asyncio.create_task(asyncio.to_thread(redrive, broker, "re/filter", *words))
        arrived: list[float] = []
        for number in numbers:
            message = await asyncio.wait_for(client.inbox.get(), START_S)
            arrived.append(clock())
            assert (message.id, message.count) == (ids[number], 1), "in their order, with no attempts"
            await client.acks(message)
        *told, last = await asked
        assert told == [{"done": number, "total": 3} for number in (1, 2, 3)]
        assert (last["report"]["put_back"], last["report"]["gone"], last["report"]["held"]) == (3, 0, 0)
        assert arrived[-1] - arrived[0] > 0.5, "two a second, and the first may come late"
        client.close()

    run(scenario())
    assert len(dead(broker, "re/filter")) == 9 and len(dead(broker, "re/other")) == 2


def test_what_cannot_be_is_told_in_a_sentence(broker: BrokerProcess, redrive: Redrive) -> None:
    bury(broker, "re/wrong", 2)
    for wanted, said in {
        "colour = 'red'": "--filter: there is no column `colour`; a dead letter has sequence, id, message_id, ",
        "payload_json.speed > 1 and tpic = 'x'": "--filter: ",
        "reason = ": "--filter: Syntax error at or near end of input",
        "deliveries": "--filter: ",
        "count(*) > 1": "--filter: ",
        "cast(topic as int) = 1": "dead letters in dlq/re/wrong cannot be read and judged: The value '$queue",
    }.items():
        (told,) = redrive(
            broker, "re/wrong", "--filter", wanted, code=2 if said.startswith("--filter") else 1
        )
        assert told["error"].startswith(f"embermq: {said}"), told["error"]
        assert told["error"].count("\n") == 1, told["error"]
    (told,) = redrive(broker, "re/none", code=1)
    assert "queue re/none keeps no dead letters, dlq_config.enabled is false" in told["error"]
    (told,) = redrive(broker, "re/nowhere", code=1)
    assert "there is no queue 're/nowhere'" in told["error"]
    assert len(dead(broker, "re/wrong")) == 2


@pytest.mark.promise("queues-34", "queues-35")
def test_what_comes_from_a_deleted_queue_stays_and_the_rest_goes_back(
    broker: BrokerProcess, capsys: pytest.CaptureFixture[str], redrive: Redrive
) -> None:
    address = f"http://127.0.0.1:{broker.http_port}/api/v1/queues/re$deleted"
    made = {"dlq_config": {"topic": "$queue/dlq/mixed"}}
    httpx.put(address, json=made, timeout=30).raise_for_status()
    bury(broker, "re/deleted", 3)
    ids = bury(broker, "re/left", 4)
    httpx.delete(address, timeout=30).raise_for_status()
    redrive(broker, "dlq/mixed", code=3)
    assert queued(broker, "re/left") == ids and len(dead(broker, "dlq/mixed")) == 3
    capsys.readouterr()
    assert main(words_for(broker, "dlq/mixed")) == 3
    told = capsys.readouterr().out.splitlines()
    assert "put back     0" in told
    assert (
        "orphaned     3 stay: queue re/deleted is not there any more; make it first, then they can go back"
        in told
    )
    httpx.put(address, json=made, timeout=30).raise_for_status()
    *_, last = redrive(broker, "dlq/mixed")
    assert (last["report"]["put_back"], last["report"]["orphaned"]) == (3, 0)
    assert not dead(broker, "dlq/mixed")


@LEFT_OPEN
@pytest.mark.promise("queues-34")
def test_without_a_broker_and_with_a_held_dead_letter(tmp_path: Path, redrive: Redrive) -> None:
    async def hold(broker: BrokerProcess) -> None:
        client = await worker(broker, "looks-1")
        await client.consumes("$queue/dlq/re/held", prefetch="1")
        await client.next()
        done = await asyncio.to_thread(main, words_for(broker, "re/held"))
        assert done == 3, "one stays with its consumer"
        client.close()

    with queue_broker(tmp_path, QUEUES) as broker:
        bury(broker, "re/held", 3)
        run(hold(broker))
        wait_until(
            lambda: len(dead(broker, "re/held")) == 1 == 3 - len(queued(broker, "re/held")), 30, "one is left"
        )
        broker.stop()
        (told,) = redrive(broker, "re/held", code=1)
        assert "no broker is running on" in told["error"]
        broker.start()
        broker.kill()
        (told,) = redrive(broker, "re/held", code=1)
        assert "no broker answers on" in told["error"]


@pytest.mark.in_faults
@pytest.mark.promise("queues-34", "queues-35", "pipeline-12")
def test_the_command_is_killed_and_another_one_goes_on(broker: BrokerProcess, redrive: Redrive) -> None:
    """The only one that starts Spark by itself, as people do."""
    ids = bury(broker, "re/killed", 40)
    words = [
        str(EMBERMQ),
        *words_for(broker, "re/killed"),
        "--json",
        "--rate",
        "20",
        "--filter",
        "payload is not null",
    ]
    first = subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    assert first.stdout is not None
    told = [json.loads(next(first.stdout)) for _ in range(ENOUGH // 2)]
    os.kill(first.pid, signal.SIGKILL)
    first.stdout.close()
    assert first.wait() == -signal.SIGKILL
    assert told[-1] == {"done": ENOUGH, "total": 40}
    left, back = dead(broker, "re/killed"), queued(broker, "re/killed")
    assert ENOUGH <= len(back) < 40 and back + left == ids, "each in one place, in their order"
    *_, last = redrive(broker, "re/killed")
    report = last["report"]
    assert (report["chosen"], report["put_back"], report["gone"]) == (len(left), len(left), 0)
    assert queued(broker, "re/killed") == ids and not dead(broker, "re/killed")
    (again,) = redrive(broker, "re/killed")
    assert (again["report"]["there"], queued(broker, "re/killed")) == (0, ids), "a third one changes nothing"


def has_at_most(broker: BrokerProcess, left: int) -> bool:
    return len(dead(broker, "re/crash")) <= left


@LEFT_OPEN
@pytest.mark.promise("queues-34", "queues-35", "pipeline-12")
def test_the_broker_is_killed_and_the_command_goes_on(tmp_path: Path, redrive: Redrive) -> None:
    found: list[Letter] = []
    with queue_broker(tmp_path, QUEUES) as broker:
        ids = bury(broker, "re/crash", 60)
        asking = Thread(target=lambda: found.extend(redrive(broker, "re/crash", "--rate", "40")), daemon=True)
        asking.start()
        for left in (50, 25):
            wait_until(partial(has_at_most, broker, left), START_S, f"{left} are left")
            broker.kill()
            broker.start()
            some = set(queued(broker, "re/crash"))
            assert some.isdisjoint(letters := dead(broker, "re/crash")), "none in both"
            assert some.union(letters) <= set(ids)
        asking.join(START_S)
        assert not asking.is_alive() and not dead(broker, "re/crash")
        assert sorted(queued(broker, "re/crash")) == sorted(ids), "none in neither, none twice"
    notices = [line["notice"] for line in found if "notice" in line]
    assert len(notices) >= 1 and all("it is asked again for 60 s" in notice for notice in notices)
    report = found[-1]["report"]
    assert (report["chosen"], report["put_back"] + report["gone"], report["held"]) == (60, 60, 0)


@pytest.mark.promise("pipeline-12")
def test_ctrl_c_ends_it_with_a_report(
    log: LogWriter, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "batch_session", lambda *_: nullcontext())
    log.connection.execute("INSERT INTO queue VALUES (4, 'dlq/q', '{}', 100, 0)")
    log.connection.executemany(
        "INSERT INTO queue_entry VALUES (4, ?, 0, 0, 0, NULL, NULL, 0)", [(number,) for number in (3, 9)]
    )
    counts = (LetterCount(queue="q", group="", reason="expired", chosen=5, there=7),)

    def chosen(*_: object) -> Selection:
        return Selection(array("q", [3, 4, 5, 6, 9]), counts)

    monkeypatch.setattr(job, "select_letters", chosen)
    asked: list[str] = []

    class Door:
        def put_back(self, letter_ids: Sequence[str]) -> PieceDone:
            asked.extend(letter_ids)
            missing = (f"q{len(asked)}",)
            stay = PieceDone(put_back=0, held=0, gone=0, orphaned=1, missing_queues=missing)
            return replace(stay, put_back=len(letter_ids) - 2, crowded=1, full_queues=("full",))

    def progress(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    going = PuttingBack(Door(), rate=1_000_000, patience_s=1, progress=progress, notice=lambda _: None)
    monkeypatch.setattr("embermq.pipeline.jobs.putting_back.PIECE", 3)
    report = job.redrive(PipelineSettings(), places.broker, RedriveTerms(letters_in="dlq/q"), going)
    assert asked == ["4-3", "4-4", "4-5"]
    assert (report.interrupted, report.chosen, report.put_back) == (True, 5, 1)
    assert (report.orphaned, report.missing_queues) == (1, ("q3",))
    assert (report.crowded, report.full_queues) == (1, ("full",))
    lines = redriven(report)
    assert "dead letters 7 in dlq/q" in lines and "interrupted  2 are dead letters still" in lines
    assert any(
        line.startswith("crowded      1 stay: their consumer groups were removed, and full") for line in lines
    )
    assert lines[-1].split() == ["q", "-", "expired", "5", "7"]


def test_a_damaged_file_is_told_before_spark_starts(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    class Nobody:
        def put_back(self, letter_ids: Sequence[str]) -> PieceDone:
            raise AssertionError(letter_ids)

    monkeypatch.setattr(job, "batch_session", lambda *_: pytest.fail("nothing to read"))
    places.data_dir.mkdir()
    places.broker.write_bytes(b"no database" * 1_000)
    going = PuttingBack(Nobody(), rate=None, patience_s=1, progress=lambda *_: None, notice=lambda _: None)
    with pytest.raises(RedriveError, match=r"broker\.db cannot be read: file is not a database"):
        job.redrive(PipelineSettings(), places.broker, RedriveTerms(letters_in="dlq/q"), going)


@pytest.mark.promise("queues-35", "pipeline-4")
def test_messages_are_read_wherever_their_bodies_are(broker: BrokerProcess, tmp_path: Path) -> None:
    bury(broker, "re/bodies", 5)
    copied = tmp_path / "broker.db"
    broker_db = broker.data_dir / "broker.db"
    file = LetterFile(broker_db)
    file.wait_for_log(START_S)
    file.close()
    with closing(sqlite3.connect(broker_db)) as source, closing(sqlite3.connect(copied)) as target:
        source.backup(target)
    shutil.copytree(broker_db.with_name(FOLDER), copied.with_name(FOLDER))
    in_the_log = rows_of(copied)
    assert [row["payload"] for row in in_the_log][:2] == [b"\xff no JSON", b'{"i": 1}']
    assert {row["content_type"] for row in in_the_log} == {"text/x"} and in_the_log[0]["error"] is None
    file = LetterFile(copied)
    with closing(sqlite3.connect(copied)) as connection, connection:
        offsets = [row[0] for row in connection.execute('SELECT DISTINCT "offset" FROM queue_entry')]
        connection.executemany(
            "INSERT OR REPLACE INTO queue_body VALUES (?, ?)",
            [(offset, file.record(offset)) for offset in offsets],
        )
    shutil.rmtree(copied.with_name(FOLDER))
    assert rows_of(copied) == in_the_log, "with a log in Kafka, and behind the trim"
    with closing(sqlite3.connect(copied)) as connection, connection:
        connection.execute("DELETE FROM queue_body")
    gone = rows_of(copied)
    assert [row["id"] for row in gone] == [row["id"] for row in in_the_log]
    assert {(row["payload"], row["error"]) for row in gone} == {(None, "the record is not there any more")}
    file.close()


def rows_of(path: Path) -> list[dict[str, Any]]:
    file = LetterFile(path)
    bounds = file.bounds("dlq/re/bodies")
    file.close()
    assert bounds is not None
    options = {
        "path": str(path),
        "generation": str(bounds.generation),
        "start": str(bounds.start),
        "end": str(bounds.end),
        "tasks": "2",
        "queue": "",
        "with_messages": "1",
    }
    reader = DeadLettersSource(options).reader(letter_schema(with_messages=True))
    pieces = reader.partitions()
    assert [(piece.start, piece.end) for piece in pieces if isinstance(piece, LetterRange)] == [
        (bounds.start, bounds.end)
    ]
    batches = [batch for piece in pieces for batch in reader.read(piece)]
    return [row for batch in batches if not isinstance(batch, tuple) for row in batch.to_pylist()]


@pytest.mark.promise("queues-35")
def test_a_batch_of_the_log_is_read_once_a_page_in_whatever_order_its_messages_died(
    log: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    bases = [log.append([record(payload=b"%d" % (10 * batch + n)) for n in range(10)]) for batch in range(5)]
    scattered = [base + n for n in range(10) for base in bases]
    letter = DeadLetter("re/bodies", "g", "rejected", "1-1", Attempts(deliveries=1), 7)
    log.connection.execute("INSERT INTO queue VALUES (4, 'dlq/re/bodies', '{}', 100, 0)")
    log.connection.executemany(
        "INSERT INTO queue_entry VALUES (4, ?, 0, ?, 0, NULL, ?, 0)",
        [(n, offset, encode_rest(Rest("", "", letter))) for n, offset in enumerate(scattered, 1)],
    )
    loaded: list[int] = []
    load = LetterFile._load

    def counted(file: LetterFile, offset: int) -> None:
        loaded.append(offset)
        load(file, offset)

    monkeypatch.setattr(LetterFile, "_load", counted)
    found = {row["sequence"]: row["payload"] for row in rows_of(log.places.broker)}
    assert found == {n: b"%d" % offset for n, offset in enumerate(scattered, 1)}
    assert loaded == bases


@pytest.mark.promise("queues-35")
@pytest.mark.parametrize(
    "blocks",
    [
        [0],
        [0, 10**15],
        [0, 10**15, 10**16, 10**17],
        [0, *(10**15 + week * 604_800_000_000 for week in range(5))],
    ],
    ids=["none", "one", "growing", "even"],
)
def test_tasks_share_the_dead_letters_whatever_gaps_restored_backups_left(
    log: LogWriter, monkeypatch: pytest.MonkeyPatch, blocks: list[int]
) -> None:
    """A restore goes on at a number of microseconds: by numbers alone one task would have everything from before."""
    monkeypatch.setattr(dead_letters, "PIECE_SEQUENCES", 10)
    there = [number + block for block in blocks for number in range(1, 101, 3)]
    letter = DeadLetter("re/gaps", "g", "rejected", "1-1", Attempts(deliveries=1), 7)
    rest = encode_rest(Rest("", "", letter))
    log.connection.executemany(
        "INSERT INTO queue_entry VALUES (?, ?, 0, ?, 0, NULL, ?, 0)",
        [(queue, number, number, rest) for queue in (4, 5) for number in there],
    )
    options = {
        "path": str(log.places.broker),
        "generation": "4",
        "start": "1",
        "end": str(there[-1] + 1),
        "tasks": "4",
        "queue": "",
        "with_messages": "0",
    }
    reader = DeadLettersSource(options).reader(letter_schema(with_messages=False))
    pieces = reader.partitions()
    found = [
        [
            row["sequence"]
            for batch in reader.read(piece)
            if not isinstance(batch, tuple)
            for row in batch.to_pylist()
        ]
        for piece in pieces
    ]
    assert [number for piece in found for number in piece] == there
    assert len(found) == 4 and max(map(len, found)) <= min(map(len, found)) + 2


def test_a_queue_whose_dead_letters_have_gone_meanwhile_is_one_piece(
    log: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "PIECE_SEQUENCES", 1)
    file = LetterFile(log.places.broker)
    assert file.runs(LetterBounds(4, 1, 10**15)) == []
    log.connection.execute("INSERT INTO queue_entry VALUES (4, 7, 0, 7, 0, NULL, NULL, 0)")
    log.connection.execute("INSERT INTO queue_entry VALUES (4, ?, 0, 7, 0, NULL, NULL, 0)", (10**16,))
    assert file.runs(LetterBounds(4, 1, 10**15)) == [(7, 8)], "what came later is not of this run"
    file.close()
