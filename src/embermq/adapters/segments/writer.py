"""Appending to segment files."""

import errno
import mmap
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from embermq.formats.segments import (
    END_BYTES,
    END_NAME,
    FILE_BYTES,
    LogEnd,
    SegmentHead,
    encode_end,
    encode_segment_head,
    segment_name,
)
from embermq.model.durations import Durations
from embermq.ports.errors import StoreError, StoreFull

SEGMENT_BYTES = 64 * 1024 * 1024
SEGMENT_AGE_MS = 6 * 3_600_000
"""A file that is older is not continued, so that retention by age can let go of it."""
STEP_BYTES = 4 * 1024 * 1024
"""Room that is taken from the disk in advance: extending a file costs more than writing into it."""
CACHED_FILES = 2
"""Closed files that stay in the page cache for their readers. The pages of those before are let go of, and what comes
next takes them: to take pages that a virtual machine has not had yet costs ten times as much."""
DISK_SHARE = 64
"""Of a small file system only such a part is taken in advance."""
PARTS_MAX = 512
"""Buffers of one call; Linux takes 1,024."""
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def to_store_error(error: OSError, doing: str) -> StoreError:
    """The port's error for one of the system: StoreFull when there is no room, else StoreError. `doing`
    begins its text."""
    text = f"{doing}: {error.strerror or error}"
    return StoreFull(text) if error.errno in _FULL else StoreError(text)


def room_in_advance(folder: Path, wanted: int) -> int:
    """So many bytes, or fewer on a small file system."""
    found = os.statvfs(folder)
    return min(wanted, found.f_blocks * found.f_frsize // DISK_SHARE)


class SegmentWriter:
    """Writes frames behind one another, and says in the file `end` how far they are. One thread at a time."""

    def __init__(
        self,
        folder: Path,
        end: LogEnd,
        now_ms: Callable[[], int],
        *,
        synced: bool,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """Continue behind `end` with a new file. Raises StoreError."""
        self._folder = folder
        self._now_ms = now_ms
        self._synced = synced
        self._segment_bytes = segment_bytes
        self._identity = end.identity
        self._number = end.number
        self._offset = end.offset
        self._bytes_total = end.bytes_total
        self._position = 0
        self._room = 0
        self._created_ms = 0
        self._descriptor = -1
        self.syncs = Durations()
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            sync_path(folder.parent)
            self._step_bytes = room_in_advance(folder, STEP_BYTES)
            self._end = _map_end(folder / END_NAME)
            _cut(folder / segment_name(end.number), end.position)
            self._begin_file()
            self.publish()
        except OSError as error:
            raise to_store_error(error, f"cannot begin a file of the message log in {folder}") from error

    @property
    def end(self) -> LogEnd:
        """Behind the last frame that was written."""
        return LogEnd(
            self._number, self._position, self._offset, self._bytes_total, self._identity, self._synced
        )

    def make_room(self, size: int) -> None:
        """Before a frame of `size` bytes: take room for it from the disk, in the next file where this one is full or
        old. Raises StoreFull when there is none; nothing has changed then."""
        try:
            is_over = (
                self._position + size > self._segment_bytes
                or self._now_ms() - self._created_ms > SEGMENT_AGE_MS
            )
            if is_over and self._position > FILE_BYTES:
                self.roll()
            self._allocate(self._position + size)
        except OSError as error:
            raise to_store_error(error, "no room for the message log") from error

    @property
    def descriptor(self) -> int:
        """Of the file that is written."""
        return self._descriptor

    def write(self, parts: Sequence[bytes], size: int) -> None:
        """Append a frame, for which there is room. Raises StoreFull when there is none all the same (a file system that
        copies on write, a limit of the process): the frame does not count then. Any other error is an OSError, after
        which nothing may be written any more."""
        if len(parts) > PARTS_MAX:
            parts = (b"".join(parts),)
        try:
            written = os.pwritev(self._descriptor, parts, self._position)
            if written != size:
                rest = b"".join(parts)
                while written < size:
                    written += os.pwrite(self._descriptor, rest[written:], self._position + written)
        except OSError as error:
            if error.errno in _FULL:
                raise to_store_error(error, "no room for the message log") from error
            raise

    def sync(self) -> None:
        """Have what was written on disk. Raises OSError."""
        began_s = time.perf_counter()
        os.fdatasync(self._descriptor)
        self.syncs.add(time.perf_counter() - began_s)

    def advance(self, size: int, record_count: int, body_bytes: int) -> None:
        """The frame that was written last counts, and readers may see it."""
        self._position += size
        self._offset += record_count
        self._bytes_total += body_bytes
        self.publish()

    def publish(self) -> None:
        """Tell readers how far the log goes."""
        self._end[:END_BYTES] = encode_end(self.end)

    def skip_to(self, offset: int) -> None:
        """The next record gets this offset at least."""
        if offset > self._offset:
            self._offset = offset
            self.roll()

    def roll(self) -> None:
        """Go on in a new file. Raises OSError."""
        before = (self._descriptor, self._number, self._position)
        self._begin_file()
        descriptor, _, position = before
        os.ftruncate(descriptor, position)
        if self._synced:
            os.fsync(descriptor)
        os.close(descriptor)
        if self._synced:
            _drop_pages(self._folder / segment_name(self._number - 1 - CACHED_FILES))
        self.publish()

    def close(self, *, cut: bool) -> None:
        """Release the files. `cut`: give back the room behind the last frame that counts."""
        if cut:
            os.ftruncate(self._descriptor, self._position)
        os.close(self._descriptor)
        self._end.flush()
        self._end.close()

    def _begin_file(self) -> None:
        number = self._number + 1
        now_ms = self._now_ms()
        path = self._folder / segment_name(number)
        half = path.with_suffix(".new")
        descriptor = os.open(half, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            head = SegmentHead(self._identity, number, self._offset, self._bytes_total, now_ms)
            os.pwrite(descriptor, encode_segment_head(head), 0)
            os.fsync(
                descriptor
            )  # at every level: a file without its header could not be told from a damaged one
            half.rename(path)
            sync_path(self._folder)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor, self._number, self._position = descriptor, number, FILE_BYTES
        self._room, self._created_ms = FILE_BYTES, now_ms

    def _allocate(self, needed: int) -> None:
        if needed <= self._room:
            return
        wanted = max(needed, min(self._room + self._step_bytes, self._segment_bytes))
        try:
            os.posix_fallocate(self._descriptor, self._room, wanted - self._room)
        except OSError as error:
            if error.errno not in _FULL or wanted == needed:
                raise
            wanted = needed  # the last of the disk
            os.posix_fallocate(self._descriptor, self._room, wanted - self._room)
        self._room = wanted


def sync_path(path: Path) -> None:
    """Make a file durable, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _drop_pages(path: Path) -> None:
    """Give back what the page cache has of a file; one that is gone has none, and a system may take no advice."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _map_end(path: Path) -> mmap.mmap:
    """The file `end`, which readers of other processes look at without waiting for anything."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(descriptor).st_size < END_BYTES:
            os.posix_fallocate(descriptor, 0, END_BYTES)
        return mmap.mmap(descriptor, END_BYTES)
    finally:
        os.close(descriptor)


def _cut(path: Path, position: int) -> None:
    """Remove what stands behind the last whole frame of a file that is not continued."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if os.fstat(descriptor).st_size > position:
            os.ftruncate(descriptor, position)
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
