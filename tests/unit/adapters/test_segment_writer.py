"""Which files of the log the page cache may let go of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from embermq.adapters.segments.writer import CACHED_FILES, SegmentWriter
from embermq.formats.segments import LogEnd, segment_name


@pytest.fixture
def let_go(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files whose pages the system was told to let go of, which takes it or not."""
    found: list[str] = []

    def take(descriptor: int, start: int, size: int, advice: int) -> None:
        assert (start, size, advice) == (0, 0, os.POSIX_FADV_DONTNEED)
        found.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        raise OSError("this file system takes no advice")

    monkeypatch.setattr(os, "posix_fadvise", take)
    return found


def written(folder: Path, files: int, *, synced: bool) -> SegmentWriter:
    writer = SegmentWriter(folder / "log", LogEnd(0, 0, 0, 0, 7), lambda: 0, synced=synced)
    for _ in range(files):
        writer.make_room(1)
        writer.write([b"x"], 1)
        writer.advance(1, 1, 1)
        writer.roll()
    return writer


def test_closed_files_stay_in_the_page_cache_and_those_before_do_not(
    tmp_path: Path, let_go: list[str]
) -> None:
    writer = written(tmp_path, CACHED_FILES, synced=True)
    assert let_go == []
    for _ in range(2):
        writer.roll()
    assert let_go == [segment_name(1), segment_name(2)]
    writer.close(cut=True)


def test_a_file_that_retention_has_removed_is_passed_over(tmp_path: Path, let_go: list[str]) -> None:
    writer = written(tmp_path, CACHED_FILES, synced=True)
    (tmp_path / "log" / segment_name(1)).unlink()
    writer.roll()
    assert let_go == []
    writer.close(cut=True)


def test_nothing_that_is_not_synced_is_let_go_of(tmp_path: Path, let_go: list[str]) -> None:
    written(tmp_path, CACHED_FILES + 2, synced=False).close(cut=True)
    assert let_go == []
