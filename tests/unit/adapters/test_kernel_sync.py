"""The log that the kernel syncs, without a thread."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import platform
from collections.abc import Callable, Coroutine
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import pytest
import uvloop
from tests.contracts.stores import tick_writes

from embermq.adapters.segments import kernel_sync
from embermq.adapters.segments.kernel_sync import KernelSync
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
    kernel = KernelSync()
    with (tmp_path / "file").open("wb") as file:
        for _ in range(3):
            file.write(b"x")
            file.flush()
            kernel.begin(file.fileno())
            kernel.wait()
    kernel.close()


def test_who_gets_no_context_keeps_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor the other way round: contexts of the kernel are counted for the whole machine."""
    monkeypatch.setitem(kernel_sync._CALLS, platform.machine(), (-1, -1, -1, -1))
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="not implemented"):
        KernelSync()
    assert os.listdir("/proc/self/fd") == before
    monkeypatch.undo()
    asked = list[object]()
    monkeypatch.setattr(os, "eventfd", no_descriptor)
    monkeypatch.setattr(KernelSync, "_checked", lambda _, result: asked.append(result))
    with pytest.raises(OSError, match="Too many open files"):
        KernelSync()
    assert not asked


def no_descriptor(*_: int) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_signal_does_not_end_a_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As io_getevents(2) tells of one: with EINTR, and nothing taken."""
    kernel = KernelSync()
    call, calls = kernel._call, list[int]()

    def interrupted(*arguments: object) -> int:
        calls.append(1)
        if len(calls) == 2:  # the first begins the sync
            ctypes.set_errno(errno.EINTR)
            return -1
        return int(call(*arguments))

    monkeypatch.setattr(kernel, "_call", interrupted)
    with (tmp_path / "file").open("wb") as file:
        kernel.begin(file.fileno())
        kernel.wait()
    assert len(calls) == 3
    kernel.close()


def test_what_cannot_be_synced_is_an_error() -> None:
    kernel = KernelSync()
    reads, writes = os.pipe()
    with pytest.raises(OSError, match="Invalid argument"):
        kernel.begin(writes)
    os.close(reads)
    os.close(writes)
    with pytest.raises(OSError, match="Bad file"):
        kernel.begin(writes)
    kernel.close()


def test_ticks_are_answered_in_order_and_large_ones_by_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is there from the start: a process may get no more threads later, and nobody would be answered."""

    async def scenario() -> None:
        store = opened(tmp_path)
        monkeypatch.setattr(Thread, "start", no_more_threads)
        begin, began = KernelSync.begin, list[int]()

        def counted(kernel: KernelSync, file: int) -> None:
            began.append(file)
            begin(kernel, file)

        monkeypatch.setattr(KernelSync, "begin", counted)
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

        def fail(self: KernelSync) -> None:
            wait(self)
            raise OSError(5, "Input/output error")

        wait = KernelSync.wait
        monkeypatch.setattr(KernelSync, "wait", fail)
        store.submit(tick_writes(records=[record(b"x")]), answers.put)
        async with asyncio.timeout(ANSWER_S):
            assert await ended == "cannot write to the message log: Input/output error"
        await asyncio.sleep(0)
        assert answers.empty()
        store.close()

    run(scenario)


def test_a_kernel_that_takes_no_more_leaves_the_sync_to_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        store = opened(tmp_path)

        def refuse(_self: KernelSync, _file: int) -> None:
            raise BlockingIOError(11, "Resource temporarily unavailable")

        monkeypatch.setattr(KernelSync, "begin", refuse)
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


@pytest.mark.parametrize(("machine", "pointer_bytes"), [("x86_64", 4), ("aarch64", 4), ("riscv64", 8)])
def test_calls_that_are_not_known_are_not_made(
    machine: str, pointer_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same number is another call for a program of 32 bits."""
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("ctypes.sizeof", lambda _type: pointer_bytes)
    with pytest.raises(OSError, match="not implemented"):
        KernelSync()
