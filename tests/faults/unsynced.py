"""Losing what was not synced: builds unsynced.c, and takes unsynced writes back after a kill."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec

SOURCE = Path(__file__).with_name("unsynced.c")
SECTOR_BYTES = 512
_HEAD = struct.Struct("<QQQQQ")
_TRUNCATION = 1


class Write(msgspec.Struct, frozen=True):
    """One write that no sync followed: where, over what, what; `size` is the file's size before."""

    offset: int
    size: int
    old: bytes
    new: bytes
    truncates: bool


class ForgetfulDisk:
    """The files of one data directory, with what was not synced remembered outside of it."""

    def __init__(self, data_dir: Path, work_dir: Path) -> None:
        self.data_dir = data_dir.resolve()
        self._journals = work_dir / "unsynced-journals"
        self._journals.mkdir()
        self._library = work_dir / "unsynced.so"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-o", self._library, SOURCE, "-ldl", "-lpthread"],
            check=True,
            timeout=60,
        )

    @property
    def env(self) -> dict[str, str]:
        """What the broker's process needs in its environment."""
        return {
            "LD_PRELOAD": str(self._library),
            "UNSYNCED_DIR": str(self.data_dir),
            "UNSYNCED_JOURNAL": str(self._journals),
        }

    def unsynced_writes(self) -> int:
        """How many writes are waiting for a sync."""
        return sum(len(list(_writes(journal))) for journal in self._journals.iterdir())

    def lose(self, survives: Random | None = None) -> int:
        """The power fails: every file is what it was at its last sync. Returns the number of writes taken back.

        With `survives`, each sector that was written may have reached the disk nevertheless, or not.
        """
        lost = 0
        for journal in self._journals.iterdir():
            path = self.data_dir / journal.name.replace("@", "/")
            if path.suffix == ".new" and not path.exists():
                path = path.with_suffix(".seg")  # it was renamed
            if path.exists():
                lost += _take_back(path, list(_writes(journal)), survives)
            os.truncate(journal, 0)
        return lost


def _writes(journal: Path) -> Iterator[Write]:
    """The kill may have cut the last record: its write was not made then."""
    data = journal.read_bytes()
    at = 0
    while at + _HEAD.size <= len(data):
        offset, size, old_length, new_length, flags = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        end = at + old_length + new_length
        if end > len(data):
            return
        old, new = data[at : at + old_length], data[at + old_length : end]
        yield Write(offset, size, old, new, bool(flags & _TRUNCATION))
        at = end


def _take_back(path: Path, writes: list[Write], survives: Random | None) -> int:
    descriptor = os.open(path, os.O_RDWR)
    try:
        for write in reversed(writes):
            os.pwrite(descriptor, write.old, write.offset)
            os.ftruncate(descriptor, write.size)
        if survives is not None:
            for write in writes:
                _survive(descriptor, write, survives)
    finally:
        os.close(descriptor)
    return len(writes)


def _survive(descriptor: int, write: Write, survives: Random) -> None:
    if write.truncates:
        if survives.random() < 0.5:
            os.ftruncate(descriptor, write.offset)
        return
    for start in range(0, len(write.new), SECTOR_BYTES):
        if survives.random() < 0.5:
            os.pwrite(descriptor, write.new[start : start + SECTOR_BYTES], write.offset + start)
