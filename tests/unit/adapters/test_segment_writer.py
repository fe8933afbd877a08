"""Which pages of what was written the page cache may let go of."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from embermq.adapters.segments.writer import CACHED_BYTES, STEP_BYTES, SegmentWriter
from embermq.formats.segments import LogEnd, segment_name

FRAME_BYTES = 1024 * 1024


@pytest.fixture
def advised(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """File, start and size of what the system was told, which takes it or not."""
    found: list[tuple[str, int, int]] = []

    def take(descriptor: int, start: int, size: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_DONTNEED
        found.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, start, size))
        raise OSError("this file system takes no advice")

    monkeypatch.setattr(os, "posix_fadvise", take)
    return found


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[SegmentWriter]:
    found = made(tmp_path, synced=True)
    yield found
    found.close(cut=True)


def made(folder: Path, *, synced: bool) -> SegmentWriter:
    return SegmentWriter(folder / "log", LogEnd(0, 0, 0, 0, 7), lambda: 0, synced=synced)


def write(writer: SegmentWriter, size: int) -> None:
    for _ in range(size // FRAME_BYTES):
        writer.make_room(FRAME_BYTES)
        writer.write([bytes(FRAME_BYTES)], FRAME_BYTES)
        writer.advance(FRAME_BYTES, 1, FRAME_BYTES)


def test_what_was_written_last_stays_in_the_page_cache_and_what_is_older_does_not(
    writer: SegmentWriter, advised: list[tuple[str, int, int]]
) -> None:
    file = segment_name(1)
    write(writer, CACHED_BYTES)
    assert advised == []
    write(writer, STEP_BYTES)
    assert advised == [(file, 0, STEP_BYTES)]
    write(writer, 2 * STEP_BYTES)
    assert advised == [(file, step * STEP_BYTES, STEP_BYTES) for step in range(3)]


def test_a_file_that_is_full_leaves_the_page_cache(
    writer: SegmentWriter, advised: list[tuple[str, int, int]]
) -> None:
    write(writer, CACHED_BYTES + STEP_BYTES)
    advised.clear()
    writer.roll()
    assert advised == [(segment_name(1), 0, 0)]
    write(writer, CACHED_BYTES + STEP_BYTES)
    assert advised[1:] == [(segment_name(2), 0, STEP_BYTES)]


def test_nothing_that_is_not_synced_is_let_go_of(tmp_path: Path, advised: list[tuple[str, int, int]]) -> None:
    writer = made(tmp_path, synced=False)
    write(writer, CACHED_BYTES + STEP_BYTES)
    writer.roll()
    writer.close(cut=True)
    assert advised == []
