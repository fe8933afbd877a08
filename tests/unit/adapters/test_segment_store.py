"""The embedded log beside a checkpoint that has no room, or was not told: nothing that was answered gets lost."""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from enum import IntEnum
from pathlib import Path
from queue import SimpleQueue
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from msgspec.structs import replace
from tests.contracts.stores import ANSWER_S, Kind, Stores, tick_writes

from embermq.adapters.segments import tick_store
from embermq.adapters.sqlite import connection
from embermq.adapters.sqlite.checkpoint import SqliteCheckpoint
from embermq.formats.log_record import encode_record
from embermq.formats.segment_reader import SegmentReader
from embermq.formats.segments import FILE_BYTES, SegmentError, segment_name
from embermq.model.client_type import ClientType
from embermq.model.message import Message
from embermq.model.queue_rows import EntryRow, QueueWrites
from embermq.model.session import SessionRow
from embermq.model.session_writes import QueueState, SessionWrites
from embermq.model.tick_writes import TickWrites
from embermq.ports.checkpoint import CheckpointPosition
from embermq.ports.errors import StoreError, StoreFull
from embermq.ports.tick_store import Receipt


def record(payload: bytes) -> bytes:
    return encode_record(Message("a/b", payload, 1, False, "p", 4, 1_700_000_000_000))


def session(generation: int) -> SessionRow:
    name = f"c{generation}"
    return SessionRow(name, generation, 1, ClientType.DEVICE, "", 5, 60, True, 0, 1_700_000_000_000)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], Stores]]:
    """Opens stores whose checkpoint is not committed on its own."""
    monkeypatch.setattr(tick_store, "CHECKPOINT_S", 3_600.0)
    found: list[Stores] = []

    def open_stores(folder: Path, kind: Kind = "fsync") -> Stores:
        folder.mkdir(exist_ok=True)
        found.append(Stores(kind, folder))
        return found[-1]

    yield open_stores
    for stores in found:
        stores.close()


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets the next commits of the checkpoint fail as on a full disk."""
    commit = SqliteCheckpoint.commit
    failing = 0

    def commit_or_fail(self: SqliteCheckpoint, position: CheckpointPosition) -> None:
        nonlocal failing
        if failing:
            failing -= 1
            self.undo()
            raise StoreFull("no room")
        commit(self, position)

    def fail(times: int) -> None:
        nonlocal failing
        failing = times

    monkeypatch.setattr(SqliteCheckpoint, "commit", commit_or_fail)
    return fail


def generations(stores: Stores) -> list[int]:
    return sorted(stored.row.generation for stored in stores.sessions.load().sessions)


@pytest.mark.parametrize("times", [1, 2])
def test_a_start_on_a_full_disk_forgets_nothing_of_the_log(
    opened: Callable[[Path], Stores], no_room: Callable[[int], None], tmp_path: Path, times: int
) -> None:
    before = opened(tmp_path / "before")
    before.write(records=[record(b"0")], sessions=[session(1)], receiving=[(1, 7, 0)])
    shutil.copytree(before.folder, tmp_path / "after")  # as after the death of the process
    no_room(times)
    after = opened(tmp_path / "after")
    assert generations(after) == [1]
    after.reopen()
    (stored,) = after.sessions.load().sessions
    assert (stored.row.generation, stored.receiving) == (1, (7,))


def test_a_start_without_room_for_its_checkpoint_takes_records_when_there_is_room(
    opened: Callable[[Path], Stores],
    no_room: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    no_room(2)
    stores = opened(tmp_path)
    answers = stores.submit(tick_writes(records=[record(b"0")]))
    stores.answer()
    assert isinstance(answers[0], StoreFull)
    monkeypatch.setattr(tick_store, "STUCK_S", 0.0)
    assert stores.write(records=[record(b"1")]) == Receipt(0, 1)


def queued(sequence: int) -> QueueWrites:
    return QueueWrites(entries={(1, sequence): EntryRow(1, sequence, 0, -1, 0, None, 0)})


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_body_that_a_queue_needs_outlives_its_file_also_on_a_full_disk(
    opened: Callable[[Path], Stores],
    no_room: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    times: int,
) -> None:
    stores = opened(tmp_path)
    needed = record(b"needed")
    stores.write(records=[needed], queues=queued(1))
    stores.write(records=[record(b"1")])
    stores.log.trim(1)
    no_room(times)
    monkeypatch.setattr(tick_store, "STUCK_S", 0.0)
    for _ in range(4):
        stores.write(receipts=[b"a tick"])
    assert stores.log.statistics().start_offset == 1
    assert stores.body(3, {0: 1}) == {0: needed}
    stores.reopen()
    assert stores.body(3, {0: 1}) == {0: needed}


def test_a_tick_that_is_taken_back_takes_its_floor_along(
    opened: Callable[[Path], Stores], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stores = opened(tmp_path)
    stores.write(records=[record(b"0")], dispatcher_floor=1)
    monkeypatch.setattr(tick_store, "CHECKPOINT_S", 0.0)
    stores.store.settle()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as failing:
        failing.setattr(os, "pwritev", full)
        answers = stores.submit(tick_writes(dispatcher_floor=9))
        stores.answer()
    assert isinstance(answers[0], StoreFull)
    assert stores.segments.dispatcher_floor == 1


def test_files_that_cannot_be_looked_at_stop_the_trimming_alone(
    opened: Callable[[Path], Stores], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stores = opened(tmp_path)
    stores.write(records=[record(b"0")], sessions=[session(1)], queues=queued(1))
    stores.write(records=[record(b"1")])

    def unreadable(*_: object) -> None:
        raise SegmentError("its header is damaged")

    with monkeypatch.context() as failing:
        failing.setattr(SegmentReader, "frames", unreadable)
        stores.log.trim(1)
        answers = stores.submit(tick_writes(sessions=[session(2)]))
        stores.answer()
        assert isinstance(answers[0], StoreError)
        stores.write(sessions=[session(3)])
    assert stores.log.statistics().start_offset == 0
    stores.reopen()
    assert generations(stores) == [1, 3]


def test_what_a_start_finds_behind_the_checkpoint_is_synced_before_it_counts(
    opened: Callable[[Path], Stores], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = opened(tmp_path / "before")
    before.write(records=[record(b"0")])
    folder = tmp_path / "after"
    shutil.copytree(before.folder, folder)
    end = before.segments._writer.end
    tail = folder / "log" / f"{end.number:012d}.seg"
    os.truncate(tail, end.position)  # nothing is to be cut
    synced: set[int] = set()
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    opened(folder)
    assert tail.stat().st_ino in synced


@pytest.mark.parametrize("kind", ["os", "fsync"])
def test_a_hole_in_an_earlier_file_is_refused_where_files_are_synced(
    opened: Callable[..., Stores], tmp_path: Path, kind: Kind
) -> None:
    before = opened(tmp_path / "before", kind)
    for number in range(3):
        before.segments._writer._segment_bytes = 2**20  # several ticks in one file
        before.write(sessions=[session(number + 1)])
    before.segments._writer._segment_bytes = 1
    before.write(sessions=[session(4)])
    folder = tmp_path / "after"
    shutil.copytree(before.folder, folder)
    first = SegmentReader(folder / "log")
    hole = list(first.walk(1, FILE_BYTES))[1]
    first.close()
    with (folder / "log" / segment_name(1)).open("r+b") as file:
        file.seek(hole.position)
        file.write(bytes(hole.head.size))
    if kind == "fsync":
        with pytest.raises(StoreError, match="is damaged from position"):
            opened(folder, kind)
        return
    after = opened(folder, kind)
    assert generations(after) == [1, 3, 4]
    assert len(after.segments.lost) == 1


TEXTS = ("", "null", "true", "1", "a/b", "é\u0001" * 40)
NUMBERS = (-1, 0, 1, 255, 65_536, 2**41, 2**63 - 1)


def drawn(hint: Any, chance: random.Random) -> Any:
    """A value of a type that ticks have."""
    origin, arguments = get_origin(hint), get_args(hint)
    several = range(chance.randrange(4))
    if origin in (list, set):
        return origin(drawn(arguments[0], chance) for _ in several)
    if origin in (dict, Mapping):
        return {drawn(arguments[0], chance): drawn(arguments[1], chance) for _ in several}
    if origin is tuple and arguments[-1] is ...:
        return tuple(drawn(arguments[0], chance) for _ in several)
    if origin is tuple:
        return tuple(drawn(one, chance) for one in arguments)
    if origin is UnionType:
        return drawn(chance.choice(arguments), chance)
    if issubclass(hint, IntEnum):
        return chance.choice(list(hint))
    if issubclass(hint, msgspec.Struct):
        hints = get_type_hints(hint)
        return hint(**{name: drawn(hints[name], chance) for name in hint.__struct_fields__})
    simple: dict[Any, tuple[Any, ...]] = {
        NoneType: (None,),
        bool: (False, True),
        int: NUMBERS,
        str: TEXTS,
        bytes: (b"", b"\x00\xff" * 20),
    }
    return chance.choice(simple[hint])


@pytest.mark.parametrize("seed", range(40))
def test_a_tick_is_read_from_the_log_as_it_was_written(seed: int) -> None:
    writes = drawn(TickWrites, random.Random(seed))
    data = msgspec.msgpack.encode(writes)
    again = msgspec.msgpack.Decoder(TickWrites, strict=False).decode(data)
    assert again == writes


def state_of(stores: Stores) -> dict[str, list[str]]:
    """Everything in broker.db but where the log was, the times of receipts and of what was not acknowledged, and how
    many receipts gathered for a row."""
    stores.tables.write()
    tables = stores.writer.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    found = {}
    for (table,) in tables:
        rows = stores.writer.execute(f"SELECT * FROM {table}").fetchall()
        if table == "receipt_batch":
            rows = [(b"".join(body for _, _, body in rows),)]
        if table == "sqlite_sequence":
            rows = [row for row in rows if row[0] != "receipt_batch"]
        if table == "application_unacknowledged":
            rows = [row[:3] for row in rows]
        found[table] = sorted(repr(row) for row in rows if not str(row[0]).startswith("log_"))
    return found


class Lives:
    """What has been stored and has ended: a place in a queue is given once, and nothing comes after its end."""

    def __init__(self) -> None:
        self.offsets: dict[tuple[int, int], int] = {}
        self.ended: set[tuple[int, int]] = set()
        self.floor = 0

    def keep(self, session: SessionWrites) -> None:
        """Leave what can happen to stored deliveries."""
        rows, session.queue_rows = session.queue_rows, []
        for row in rows:
            place = (row.generation, row.seq)
            if place not in self.offsets:
                self.offsets[place] = row.offset
                session.queue_rows.append(replace(row, state=row.state % 2, record=row.record or b"record"))
        marks, session.queue_marks = session.queue_marks, []
        for mark in marks:
            place = (mark.generation, mark.seq)
            if place in self.offsets and place not in self.ended:
                session.queue_marks.append(
                    replace(mark, offset=self.offsets[place], state=1 + mark.state % 3)
                )
                if session.queue_marks[-1].state == QueueState.DONE:
                    self.ended.add(place)
        there = self.offsets.keys() - self.ended
        session.queue_dropped = [one for one in session.queue_dropped if one in there]
        self.ended.update(session.queue_dropped)


def some_tick(chance: random.Random, lives: Lives) -> TickWrites:
    """Of few sessions and queues, so that ticks meet; its stored messages fit the tables."""
    writes: TickWrites = drawn(TickWrites, chance)
    writes.records = [record(b"x") for _ in range(chance.randrange(3))]
    if not writes.records:
        writes.session.retained = []
    writes.session.retained = [replace(one, record_index=0) for one in writes.session.retained]
    lives.keep(writes.session)
    lives.floor = max(lives.floor, writes.dispatcher_floor)
    writes.dispatcher_floor = chance.choice((-1, lives.floor))
    return writes


@pytest.mark.parametrize("seed", range(12))
def test_state_is_that_of_the_ticks_that_were_answered_well(
    seed: int,
    opened: Callable[[Path], Stores],
    no_room: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Whatever was refused between them, however often the checkpoint was taken back, and when it is applied again."""
    chance = random.Random(seed)
    monkeypatch.setitem(globals(), "NUMBERS", (0, 1, 2, 3, 5, 255))
    monkeypatch.setattr(tick_store, "STUCK_S", 0.0)
    stores = opened(tmp_path / "stores")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    accepted: list[TickWrites] = []
    lives = Lives()
    for _ in range(14):
        writes = some_tick(chance, lives)
        monkeypatch.setattr(tick_store, "CHECKPOINT_S", chance.choice((0.0, 3_600.0)))
        no_room(chance.choice((0, 0, 1, 2, 3)))
        with monkeypatch.context() as failing:
            if chance.random() < 0.25:
                failing.setattr(os, "pwritev", full)
            answers = stores.submit(deepcopy(writes))
            stores.answer()
        accepted += [writes] if isinstance(answers[0], Receipt) else []
    no_room(0)
    monkeypatch.setattr(tick_store, "CHECKPOINT_S", 3_600.0)
    wanted = opened(tmp_path / "wanted")
    for writes in accepted:
        wanted.submit(writes)
        wanted.answer()
    shutil.copytree(wanted.folder, tmp_path / "killed")
    killed = opened(tmp_path / "killed")
    assert killed.segments.replayed == len([writes for writes in accepted if not writes.is_empty()])
    assert state_of(killed) == state_of(wanted)
    assert state_of(stores) == state_of(wanted)
    stores.reopen()
    assert state_of(stores) == state_of(wanted)


@pytest.mark.parametrize(
    ("error", "told"),
    [(MemoryError(), []), (RuntimeError("odd"), ["cannot write to the message log: RuntimeError('odd')"])],
)
def test_the_thread_that_writes_does_not_end_alone(
    opened: Callable[[Path], Stores],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    error: Exception,
    told: list[str],
) -> None:
    """A lack of memory is for the handler of threads, which ends the process with an exit code of its own."""
    stores = opened(tmp_path / "log")
    ended: list[str] = []
    uncaught: SimpleQueue[BaseException | None] = SimpleQueue()

    def fail(*_: object) -> None:
        raise error

    stores.segments.on_end.append(lambda failure: ended.append(str(failure)))
    monkeypatch.setattr(threading, "excepthook", lambda found: uncaught.put(found.exc_value))
    monkeypatch.setattr(os, "pwritev", fail)
    answers = stores.submit(tick_writes(records=[record(b"x")]))
    assert uncaught.get(timeout=ANSWER_S) is error
    if told:
        stores.posted.get(timeout=ANSWER_S)()
    assert (ended, answers) == (told, [])


def test_a_tick_that_is_written_while_the_log_closes_is_there_at_the_next_start_and_answers_nobody(
    opened: Callable[[Path], Stores], tmp_path: Path
) -> None:
    stores = opened(tmp_path / "log")
    answers = stores.submit(tick_writes(records=[record(b"x")]))
    stores.close()
    stores.posted.get(timeout=ANSWER_S)()
    assert answers == []
    assert opened(tmp_path / "log").segments.log_end == 1


def test_a_checkpoint_that_another_program_holds_is_said_so(
    opened: Callable[[Path], Stores], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The log has it: the next start goes on, and says the same while the file is held."""
    monkeypatch.setattr(connection, "BUSY_TIMEOUT_MS", 50)
    monkeypatch.setattr(tick_store, "CHECKPOINT_S", 0.0)
    folder = tmp_path / "log"
    stores = opened(folder)
    stores.write(records=[record(b"kept")], sessions=[session(5)])
    stores.segments.settle()
    other = connection.open_writer(folder / "broker.db", synchronous="NORMAL")
    other.execute("BEGIN IMMEDIATE")
    ended: list[str] = []
    stores.segments.on_end.append(lambda failure: ended.append(str(failure)))
    while not ended:
        stores.submit(tick_writes(records=[record(b"x")]))
        stores.posted.get(timeout=ANSWER_S)()
    assert "another program has held the file" in ended[0]
    stores.close()
    with pytest.raises(StoreError, match="another program has held the file"):
        opened(folder)
    other.execute("ROLLBACK")
    other.close()
    assert generations(opened(folder)) == [5]
