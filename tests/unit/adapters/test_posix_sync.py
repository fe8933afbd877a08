"""The log that the C library syncs, without a thread of Python's."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from errno import EINPROGRESS
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread

import pytest
import uvloop
from tests.contracts.stores import tick_writes

from embermq.adapters.segments.posix_sync import SIGNAL, PosixSync
from embermq.adapters.segments.tick_store import INLINE_BYTES_MAX, SegmentTickStore
from embermq.adapters.sqlite.checkpoint import JOURNAL_COMMITS, SqliteCheckpoint
from embermq.adapters.sqlite.connection import apply_broker_schema, open_writer, wall_ms
from embermq.adapters.sqlite.tick_tables import TickTables
from embermq.formats.log_record import encode_record
from embermq.model.message import Message
from embermq.ports.checkpoint import CheckpointPosition
from embermq.ports.errors import StoreError
from embermq.ports.tick_store import Receipt

ANSWER_S = 60.0


class Unwatched:
    """An event loop that looks at nothing."""

    def add_reader(self, *_: object) -> None: ...

    def remove_reader(self, *_: object) -> None: ...


def record(payload: bytes) -> bytes:
    return encode_record(Message("a/b", payload, 1, False, "p", 4, 1_700_000_000_000))


def opened(folder: Path) -> SegmentTickStore:
    path = folder / "broker.db"
    writer = open_writer(path, synchronous="NORMAL")
    apply_broker_schema(writer)
    loop = asyncio.get_running_loop()
    return SegmentTickStore(
        folder / "log",
        SqliteCheckpoint(TickTables(writer), path),
        durability="fsync",
        post=loop.call_soon_threadsafe,
        now_ms=wall_ms,
        reserve_bytes=4096,
        loop=loop,
    )


async def answer(store: SegmentTickStore, *payloads: bytes) -> Receipt | StoreError:
    told: asyncio.Future[Receipt | StoreError] = asyncio.get_running_loop().create_future()
    store.submit(tick_writes(records=[record(payload) for payload in payloads]), told.set_result)
    assert not told.done()
    async with asyncio.timeout(ANSWER_S):
        return await told


def no_more_threads(_thread: Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_journal_that_gets_no_thread_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = open_writer(tmp_path / "broker.db", synchronous="NORMAL")
    apply_broker_schema(writer)
    checkpoint = SqliteCheckpoint(TickTables(writer), tmp_path / "broker.db")
    monkeypatch.setattr(Thread, "start", no_more_threads)
    for number in range(JOURNAL_COMMITS + 1):
        checkpoint.commit(CheckpointPosition(1, number, number))
    assert checkpoint.applied.offset == JOURNAL_COMMITS
    checkpoint.close()


def run(scenario: Callable[[], Coroutine[object, object, None]]) -> None:
    uvloop.run(scenario())  # the broker's: its `remove_reader` returns nothing, and asyncio's a bool


def test_a_file_is_synced(tmp_path: Path) -> None:
    sync = PosixSync(Unwatched(), lambda: None)
    with (tmp_path / "file").open("wb") as file:
        for _ in range(3):
            file.write(b"x")
            file.flush()
            sync.begin(file.fileno())
            sync.wait()
    sync.close()


def test_a_signal_of_somebody_else_is_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = PosixSync(Unwatched(), lambda: None)
    told = [EINPROGRESS, EINPROGRESS, 0]
    monkeypatch.setattr(sync, "_error", lambda _request: told.pop(0))
    os.kill(os.getpid(), SIGNAL)
    assert not sync.is_over()
    with pytest.raises(BlockingIOError):
        os.read(sync.descriptor, 128)
    with (tmp_path / "file").open("wb") as file:
        sync.begin(file.fileno())
        sync.wait()
    assert not told
    sync.close()


def test_what_cannot_be_synced_is_an_error() -> None:
    sync = PosixSync(Unwatched(), lambda: None)
    reads, writes = os.pipe()
    sync.begin(writes)
    with pytest.raises(OSError, match="Invalid argument"):
        sync.wait()
    os.close(reads)
    os.close(writes)
    with pytest.raises(OSError, match="Bad file"):
        sync.begin(writes)
    sync.close()


def test_ticks_are_answered_in_order_and_large_ones_by_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is there from the start: a process may get no more threads later, and nobody would be answered."""

    async def scenario() -> None:
        store = opened(tmp_path)
        monkeypatch.setattr(Thread, "start", no_more_threads)
        begin, began = PosixSync.begin, list[int]()

        def counted(sync: PosixSync, file: int) -> None:
            began.append(file)
            begin(sync, file)

        monkeypatch.setattr(PosixSync, "begin", counted)
        for number, payload in enumerate((b"0", bytes(INLINE_BYTES_MAX), b"2", b"3")):
            assert await answer(store, payload) == Receipt(number, 1)
        assert len(began) == 3
        monkeypatch.undo()
        assert sum(store.syncs().counts) == 4  # type: ignore[union-attr]
        store.close()
        again = opened(tmp_path)
        assert again.log_end == 4
        again.close()

    run(scenario)


def test_a_sync_that_fails_ends_the_log_and_answers_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        store = opened(tmp_path)
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        store.on_end.append(lambda failure: ended.set_result(str(failure)))
        answers: SimpleQueue[Receipt | StoreError] = SimpleQueue()

        def fail(self: PosixSync) -> bool:
            if is_over(self):
                raise OSError(5, "Input/output error")
            return False

        is_over = PosixSync.is_over
        monkeypatch.setattr(PosixSync, "is_over", fail)
        store.submit(tick_writes(records=[record(b"x")]), answers.put)
        async with asyncio.timeout(ANSWER_S):
            assert await ended == "cannot write to the message log: Input/output error"
        await asyncio.sleep(0)
        assert answers.empty()
        store.close()

    run(scenario)


def test_a_library_that_takes_no_more_leaves_the_sync_to_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        store = opened(tmp_path)

        def refuse(_self: PosixSync, _file: int) -> None:
            raise BlockingIOError(11, "Resource temporarily unavailable")

        monkeypatch.setattr(PosixSync, "begin", refuse)
        assert await answer(store, b"0") == Receipt(0, 1)
        assert await answer(store, b"1") == Receipt(1, 1)
        store.close()
        again = opened(tmp_path)
        assert again.log_end == 2
        again.close()

    run(scenario)


def test_a_tick_that_is_synced_while_the_log_closes_is_there_at_the_next_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = opened(tmp_path)
        answers: list[Receipt | StoreError] = []
        store.submit(tick_writes(records=[record(b"x")]), answers.append)
        store.close()
        await asyncio.sleep(0)
        assert answers == []
        again = opened(tmp_path)
        assert again.log_end == 1
        again.close()

    run(scenario)


def test_a_thread_that_does_not_hold_the_signal_loses_none(tmp_path: Path) -> None:
    """The kernel gives it to any thread that takes signals."""
    ends = Event()

    def takes() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {SIGNAL})
        ends.wait()

    thread = Thread(target=takes)
    thread.start()

    async def scenario() -> None:
        store = opened(tmp_path)
        for number in range(20):
            assert await answer(store, b"x") == Receipt(number, 1)
        store.close()

    run(scenario)
    ends.set()
    thread.join()


def test_a_library_without_it_leaves_the_sync_to_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Library:
        def __init__(self, *_: object, **__: object) -> None:
            """It has nothing."""

    monkeypatch.setattr("ctypes.CDLL", Library)
    with pytest.raises(OSError, match="no aio_fsync here"):
        PosixSync(Unwatched(), lambda: None)

    async def scenario() -> None:
        store = opened(tmp_path)
        assert await answer(store, b"0") == Receipt(0, 1)
        store.close()

    run(scenario)
