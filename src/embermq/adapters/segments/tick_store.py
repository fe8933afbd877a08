"""The tick's way into the log: one frame, one sync, then everybody may be told; its state goes to the checkpoint.

Levels: `fsync` has the kernel sync what it wrote, so that the event loop goes on meanwhile, and the loop applies the
state to the checkpoint in the same time; what is large, and all where the kernel does not do so, is written and synced
on a thread. `os` hands the frame to the kernel; `memory` answers at once and writes
what has gathered every `MEMORY_WRITE_S`. The checkpoint commits frames that are written, and synced at the level
`fsync`, alone.

An error of a write or a sync is not retried, since nobody knows what the disk has: the broker ends, without an answer
to this tick, and the next start goes on behind the last whole frame. A disk without room is answered: nothing is synced
then. State that must be kept although the disk is full gets the room of a reserve file. While the checkpoint has no
room, what it has not committed is kept in memory and in the log, and no records are taken.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Literal

import msgspec
from google_crc32c import value as crc32c
from msgspec import Struct
from msgspec.structs import replace

from embermq.adapters.segments.kernel_sync import KernelSync, Watch
from embermq.adapters.segments.left_out import LEFT_OUT, stands_in_log, without_bodies
from embermq.adapters.segments.recovery import Tail, find_tail
from embermq.adapters.segments.writer import (
    SEGMENT_BYTES,
    SegmentWriter,
    room_in_advance,
    sync_path,
    to_store_error,
)
from embermq.formats.log_record import split_batch
from embermq.formats.segment_reader import SegmentReader
from embermq.formats.segments import (
    FRAME_BYTES,
    FrameHead,
    LogEnd,
    SegmentError,
    encode_frame_head,
    segment_name,
)
from embermq.model.durations import DurationCounts
from embermq.model.tick_writes import TickWrites
from embermq.ports.checkpoint import Checkpoint, CheckpointPosition
from embermq.ports.errors import StoreError, StoreFull
from embermq.ports.tick_store import Logged, Receipt, TickStore

CHECKPOINT_S = 1.0
CHECKPOINT_BYTES = 16 * 1024 * 1024
"""The checkpoint is so long, or so many bytes of state, behind at most: it is what a start applies again."""
STUCK_S = 1.0
"""Without room for the checkpoint it is tried again so often."""
MEMORY_WRITE_S = 0.05
MEMORY_BYTES = 1024 * 1024
INLINE_BYTES_MAX = 4 * 1024 * 1024
"""A frame of more bytes is written on a thread: copying it would hold up the event loop. For less a thread is
a quarter dearer: it waits for the interpreter, and copies what is in the cache of another core."""
RESERVE_NAME = "reserve"
RESERVE_BYTES = 16 * 1024 * 1024
"""Given back to the disk when it is full, for what sessions have to keep."""
TRIMMED_FILES_MAX = 64
"""Removed in one tick."""

Durability = Literal["fsync", "os", "memory"]
Post = Callable[[Callable[[], None]], object]
"""Runs a callable soon on the broker's thread; may be called from any thread."""


class _Frame(Struct):
    """A tick on its way. `parts` make `size` bytes."""

    parts: list[bytes]
    size: int
    count: int
    body_bytes: int
    writes: TickWrites
    """Without the records."""
    base: int


class _Work(Struct):
    """A frame that is being written and synced, and who is told."""

    frame: _Frame
    logged: Logged
    is_written: bool = False
    began_s: float = 0.0


class SegmentTickStore(TickStore):
    """See the module. `now_ms` is the broker's time; `post` brings results back to the broker's thread; `on_end` is
    told, there, why nothing can be logged any more. `lost` says what the start had to do without. Raises StoreError."""

    def __init__(
        self,
        folder: Path,
        checkpoint: Checkpoint,
        *,
        durability: Durability,
        post: Post,
        now_ms: Callable[[], int],
        accept_loss: bool = False,
        segment_bytes: int = SEGMENT_BYTES,
        reserve_bytes: int = RESERVE_BYTES,
        loop: Watch | None = None,
    ) -> None:
        """With `loop`, which runs on the broker's thread, the kernel syncs where it can."""
        self.folder = folder
        self.on_end: list[Callable[[StoreError], None]] = []
        self.trim_below = 0
        self._checkpoint = checkpoint
        self._durability = durability
        self._post = post
        self._now_ms = now_ms
        self._busy = False
        self._failure: StoreError | None = None
        """Why nothing can be logged any more."""
        self._is_stuck = False
        """There was no room for the last commit of the checkpoint."""
        self._encoder = msgspec.msgpack.Encoder()
        self._reader = SegmentReader(folder)
        self._reserve = folder / RESERVE_NAME
        self._has_reserve = self._reserve.exists()
        self._reserve_bytes = reserve_bytes
        self._unapplied_since_s = 0.0
        self._uncommitted: list[_Frame] = []
        """Applied since the last commit of the checkpoint."""
        self._uncommitted_bytes = 0
        self._unwritten: list[_Frame] = []
        """Of the level `memory`."""
        self._kept_to = 0
        """Of the file that is to go next: what is needed below is copied."""
        if not checkpoint.applied.number:
            checkpoint.sync()  # files that name its identity must not outlive it
        tail = find_tail(folder, checkpoint.identity, checkpoint.applied, accept_loss=accept_loss)
        self.lost = tail.lost
        self._sync_files({frame.number for frame in tail.frames})  # what follows builds upon them
        self._writer = self._open_writer(tail.end, synced=durability == "fsync", segment_bytes=segment_bytes)
        self.replayed = self._replay(tail)  # now that readers see the whole log
        self._take_reserve()
        self._begin_checkpoint()
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._syncer: Thread | None = None
        if durability == "fsync":  # now, since later there may be none to be had
            self._syncer = Thread(target=self._write_forever, name="message log", daemon=True)
            self._syncer.start()
        self._loop = loop
        self._kernel = self._kernel_sync() if durability == "fsync" else None
        self._syncing: _Work | None = None
        """What the kernel syncs now."""

    @property
    def _ended(self) -> bool:
        return self._failure is not None

    @property
    def busy(self) -> bool:
        return self._busy

    @property
    def log_end(self) -> int:
        """The offset that the next committed record gets."""
        return self._writer.end.offset + sum(frame.count for frame in self._unwritten)

    @property
    def dispatcher_floor(self) -> int:
        """Every record below it is delivered, stored or owed to nobody, and that is handed to the store."""
        return self._checkpoint.dispatcher_floor

    @property
    def owes(self) -> bool:
        return self.trim_below > 0

    def syncs(self) -> DurationCounts | None:
        return self._writer.syncs.snapshot() if self._durability == "fsync" else None

    def begin_at(self, offset: int) -> None:
        """Give no record an offset below this one: readers have confirmed what a power loss took from the log. Called
        before the first tick. Raises StoreError."""
        try:
            self._writer.skip_to(offset)
        except OSError as error:
            raise to_store_error(error, "cannot begin a file of the message log") from error
        self._begin_checkpoint()

    def submit(self, writes: TickWrites, logged: Logged) -> None:
        if self._busy:
            raise RuntimeError("a tick is already being committed")
        if self._ended:
            return
        self._busy = True
        self._catch_up(now=False)
        try:
            self._trim()
            frame = self._frame(writes)
            if frame is None:
                self._succeed(0, logged)
                return
            self._make_room(frame)
        except StoreError as error:
            self._answer(error, logged)
            return
        if self._durability == "fsync":
            if self._begin(_Work(frame, logged)):
                self._apply(frame)  # while the disk syncs
        elif self._durability == "os":
            try:
                if self._write(frame):
                    self._apply(frame)
                    self._succeed(frame.count, logged)
            except StoreFull as error:
                self._answer(error, logged)
        else:
            self._unwritten.append(frame)
            self._apply(frame)
            self._succeed(frame.count, logged)

    def flush(self) -> None:
        """Let readers see everything that was answered for."""
        if self._unwritten and not self._ended:
            self._write_gathered()

    def settle(self) -> None:
        if not self._busy and not self._ended:
            self._catch_up(now=False)

    def close(self) -> None:
        if self._syncer is not None:
            self._work.put(None)
            self._syncer.join()
        if self._kernel is not None:
            self._end_kernel_sync(self._kernel)
        is_whole = not self._busy and not self._ended
        if is_whole:
            self._catch_up(now=True)
        # For what the thread has posted: it comes when nothing is open any more.
        self._failure = self._failure or StoreError("the message log is closed")
        self._reader.close()
        self._writer.close(cut=is_whole)  # a tick that was not answered may be there: the next start looks
        self._checkpoint.close()

    # The way of a frame.

    def _frame(self, writes: TickWrites) -> _Frame | None:
        """None when there is nothing to write."""
        if writes.is_empty():
            return None
        records = writes.records
        rest = replace(writes, records=[])
        base, count = self.log_end, len(records)
        state = b"" if rest.is_empty() else self._encoder.encode(without_bodies(rest, records))
        body_bytes = sum(map(len, records))
        now_ms = self._now_ms()
        head = FrameHead(body_bytes, len(state), crc32c(state), count, base, now_ms)
        pad = head.size - FRAME_BYTES - body_bytes - len(state)
        parts = [encode_frame_head(head), *records, state + bytes(pad)]
        return _Frame(parts, head.size, count, body_bytes, rest, base)

    def _make_room(self, frame: _Frame) -> None:
        waiting = sum(one.size for one in self._unwritten)
        if frame.count and (self._is_stuck or not self._take_reserve()):
            raise StoreFull("no room for the message log: the disk is full")
        try:
            self._writer.make_room(waiting + frame.size)
        except StoreFull:
            if frame.count or not self._give_reserve():
                raise
            self._writer.make_room(waiting + frame.size)

    def _write(self, frame: _Frame) -> bool:
        """On the caller's thread. False when the log has ended with it. Raises StoreFull."""
        try:
            self._writer.write(frame.parts, frame.size)
        except OSError as error:
            self._end(to_store_error(error, "cannot write to the message log"))
            return False
        self._writer.advance(frame.size, frame.count, frame.body_bytes)
        return True

    # Syncing.

    def _kernel_sync(self) -> KernelSync | None:
        if self._loop is None:
            return None
        try:
            kernel = KernelSync()
        except OSError:
            return None
        self._loop.add_reader(kernel.descriptor, self._kernel_is_done)
        return kernel

    def _begin(self, work: _Work) -> bool:
        """Begin to write and sync. False when it could not be written: that is answered, or the log has ended."""
        frame = work.frame
        if self._kernel is not None and frame.size <= INLINE_BYTES_MAX:
            try:
                self._writer.write(frame.parts, frame.size)
            except StoreFull as error:
                self._answer(error, work.logged)
                return False
            except OSError as error:
                self._end(to_store_error(error, "cannot write to the message log"))
                return False
            work.is_written, work.began_s = True, time.perf_counter()
            try:
                self._kernel.begin(self._writer.descriptor)
                self._syncing = work
                return True
            except OSError:
                pass  # it has no room for one more: nothing has begun
        self._work.put(work)
        return True

    def _kernel_is_done(self) -> None:
        work, self._syncing = self._syncing, None
        assert work is not None and self._kernel is not None
        try:
            self._kernel.wait()
        except OSError as error:
            self._end(to_store_error(error, "cannot write to the message log"))
            return
        self._writer.syncs.add(time.perf_counter() - work.began_s)
        self._written(work.frame, work.logged, None)

    def _end_kernel_sync(self, kernel: KernelSync) -> None:
        if self._loop is not None:
            self._loop.remove_reader(kernel.descriptor)
        if self._syncing is not None:
            with suppress(OSError):  # nobody is answered any more
                kernel.wait()
        kernel.close()

    def _write_forever(self) -> None:
        while (work := self._work.get()) is not None:
            frame, logged = work.frame, work.logged
            failure: StoreError | None = None
            try:
                if not work.is_written:
                    self._writer.write(frame.parts, frame.size)
                self._writer.sync()
            except StoreFull as error:
                failure = error
            except OSError as error:
                failure = to_store_error(error, "cannot write to the message log")
                self._post(partial(self._end, failure))
                return
            except MemoryError:
                raise  # ends the process, by the handler of threads
            except Exception as error:  # without this thread no publisher would ever be answered again
                failure = StoreError(f"cannot write to the message log: {error!r}")
                self._post(partial(self._end, failure))
                raise
            self._post(partial(self._written, frame, logged, failure))

    def _written(self, frame: _Frame, logged: Logged, failure: StoreError | None) -> None:
        if self._ended:
            return
        if failure is not None:
            self._uncommitted.pop()  # it was applied in the meantime
            self._apply_again()
        else:
            self._writer.advance(frame.size, frame.count, frame.body_bytes)
        self._busy = False
        if not self._ended:
            logged(failure or Receipt(frame.base, frame.count))

    def _succeed(self, count: int, logged: Logged) -> None:
        receipt = Receipt(self.log_end - count, count)
        self._answer(receipt, logged)

    def _answer(self, answer: Receipt | StoreError, logged: Logged) -> None:
        def finish() -> None:
            self._busy = False
            logged(answer)

        self._post(finish)

    def _end(self, failure: StoreError) -> None:
        """Nothing is written any more, and nobody is answered."""
        if self._failure is None:
            self._failure = failure
            for call in self.on_end:
                call(failure)

    # The checkpoint.

    def _apply(self, frame: _Frame) -> None:
        if not self._uncommitted:
            self._unapplied_since_s = time.monotonic()
        self._uncommitted.append(frame)
        self._uncommitted_bytes += frame.size - frame.body_bytes
        try:
            self._checkpoint.apply(frame.writes, frame.base)
        except StoreError as error:
            self._end(error)  # nothing is written here: the disk is not the cause

    def _apply_again(self) -> None:
        """The checkpoint has taken back what was applied since its last commit, or shall do so: once more. What was
        copied out of the log in the meantime is copied again before a file goes."""
        self._kept_to = 0
        try:
            self._checkpoint.undo()
            for frame in self._uncommitted:
                self._checkpoint.apply(frame.writes, frame.base)
        except StoreError as error:
            self._end(error)

    def _catch_up(self, *, now: bool) -> None:
        """Between frames: write what the level `memory` has gathered, commit the checkpoint when it is due."""
        if not self._uncommitted and not self._is_stuck:
            return
        late_s = time.monotonic() - self._unapplied_since_s
        gathered = sum(frame.size for frame in self._unwritten)
        if gathered and (now or late_s >= MEMORY_WRITE_S or gathered >= MEMORY_BYTES):
            self._write_gathered()
        wait_s = STUCK_S if self._is_stuck else CHECKPOINT_S
        is_much = self._uncommitted_bytes >= CHECKPOINT_BYTES and not self._is_stuck
        if not self._unwritten and not self._ended and (now or late_s >= wait_s or is_much):
            self._commit_checkpoint()

    def _write_gathered(self) -> None:
        while self._unwritten:
            try:
                if not self._write(self._unwritten[0]):
                    return
            except StoreFull:
                return  # its room was taken: what takes it away may give it back
            del self._unwritten[0]

    def _commit_checkpoint(self) -> bool:
        """False when there was no room for it, or the log has ended with it."""
        end = self._writer.end
        position = CheckpointPosition(end.number, end.position, end.offset)
        for has_reserve in (True, False):
            try:
                self._checkpoint.commit(position)
            except StoreFull:
                self._apply_again()
                if has_reserve and self._give_reserve():
                    continue
                self._is_stuck, self._unapplied_since_s = True, time.monotonic()
                return False
            except StoreError as error:
                self._end(error)
                return False
            break
        self._is_stuck = False
        self._uncommitted, self._uncommitted_bytes = [], 0
        return True

    def _begin_checkpoint(self) -> None:
        """Before the first tick, when nobody listens yet for the end. Raises StoreError."""
        self._commit_checkpoint()
        if self._failure is not None:
            raise self._failure

    def _replay(self, tail: Tail) -> int:
        """Apply what the checkpoint has not had. Returns how many frames that were."""
        decoder = msgspec.msgpack.Decoder(TickWrites, strict=False)  # numbers of SQLite stand for bool
        try:
            for frame in tail.frames:
                state = self._reader.state(frame)
                if state:
                    writes = self._with_bodies(decoder.decode(state), frame.head.base_offset)
                    head = frame.head
                    self._apply(
                        _Frame([], head.size, head.record_count, head.body_bytes, writes, head.base_offset)
                    )
        except msgspec.DecodeError as error:
            raise StoreError(f"the message log holds a state that cannot be understood: {error}") from error
        if self._failure is not None:
            raise self._failure
        return len(tail.frames)

    def _with_bodies(self, writes: TickWrites, base: int) -> TickWrites:
        """The reverse of `without_bodies`, for a tick whose records begin at offset `base`."""
        retained = writes.session.retained
        for index, one in enumerate(retained):
            if one.record == LEFT_OUT:
                offset = base + one.record_index
                found = self._records(offset, offset + 1)
                retained[index] = replace(one, record=found[0][1] if found else b"")
        rows = writes.session.queue_rows
        for index, row in enumerate(rows):
            if not row.record and stands_in_log(row):
                found = self._records(row.offset, row.offset + 1)
                rows[index] = replace(row, record=found[0][1] if found else b"")
        return writes

    # The disk.

    def _sync_files(self, numbers: set[int]) -> None:
        """What is found in them may be in the kernel alone: the broker died before its sync."""
        for number in sorted(numbers):
            try:
                sync_path(self.folder / segment_name(number))
            except OSError as error:
                raise to_store_error(error, "cannot sync the message log") from error

    def _open_writer(self, end: LogEnd, *, synced: bool, segment_bytes: int) -> SegmentWriter:
        try:
            return SegmentWriter(self.folder, end, self._now_ms, synced=synced, segment_bytes=segment_bytes)
        except StoreFull:
            if not self._give_reserve():
                raise
            return SegmentWriter(self.folder, end, self._now_ms, synced=synced, segment_bytes=segment_bytes)

    def _take_reserve(self) -> bool:
        """Have the reserve. False when there is no room for it: nothing but state is logged then."""
        if self._has_reserve:
            return True
        half = self._reserve.with_suffix(".new")
        try:
            descriptor = os.open(half, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, room_in_advance(self.folder, self._reserve_bytes))
            finally:
                os.close(descriptor)
            half.rename(self._reserve)
        except OSError:
            half.unlink(missing_ok=True)
            return False
        self._has_reserve = True
        return True

    def _give_reserve(self) -> bool:
        """False when it was given already."""
        if not self._has_reserve:
            return False
        self._has_reserve = False
        self._reserve.unlink(missing_ok=True)
        return True

    def _trim(self) -> None:
        """Raises StoreError; what stands in the way of trimming is tried again when somebody asks for it."""
        if not self.trim_below:
            return
        try:
            self._remove_files()
        except (OSError, SegmentError) as error:
            self.trim_below = 0
            raise _trimming_failed(error) from error

    def _remove_files(self) -> None:
        """Remove files whose records are not needed any more; what one tick leaves the next one does."""
        self.flush()
        if self._unwritten or self._ended:
            return
        heads = self._reader.segments()
        if self.trim_below >= self._writer.end.offset > heads[-1].base_offset:
            self._writer.roll()
            heads = self._reader.segments()
        gone: list[Path] = []
        for head, following in pairwise(heads):
            end = following.base_offset
            if end > self.trim_below or len(gone) == TRIMMED_FILES_MAX:
                break
            try:
                start = max(head.base_offset, self._kept_to)
                self._kept_to = self._checkpoint.keep_bodies(start, end, self._records)
            except (StoreError, OSError, SegmentError):
                self._apply_again()
                raise
            if self._kept_to < end:
                return
            gone.append(self.folder / segment_name(head.number))
        if not gone:
            self.trim_below = 0
            return
        kept_to = self._kept_to
        if not self._commit_checkpoint() or self._kept_to != kept_to:
            return  # the files stay until what is needed of them is committed
        self._checkpoint.sync()
        for path in gone:
            path.unlink(missing_ok=True)

    def _records(self, start: int, end: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        for frame in self._reader.frames(start):
            if frame.head.base_offset >= end:
                break
            records = split_batch(self._reader.body(frame), frame.head.record_count)
            for offset, record in enumerate(records, frame.head.base_offset):
                if start <= offset < end and record:
                    found.append((offset, record))
        return found


def _trimming_failed(error: OSError | SegmentError) -> StoreError:
    doing = "cannot trim the message log"
    return to_store_error(error, doing) if isinstance(error, OSError) else StoreError(f"{doing}: {error}")
