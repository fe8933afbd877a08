"""Looking into a data directory without the broker."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from embermq.formats.segment_reader import SegmentReader
from embermq.formats.segments import FOLDER


def log_extent(data_dir: Path) -> tuple[int, int]:
    """(first offset, offset after the last one) of the message log. Fails when there is a hole in it."""
    start = end = -1
    with closing(SegmentReader(data_dir / FOLDER)) as reader:
        for frame in reader.frames(0):
            head = frame.head
            assert end in (-1, head.base_offset), f"after offset {end} the log goes on at {head.base_offset}"
            start = head.base_offset if start < 0 else start
            end = head.end_offset
    return max(start, 0), max(end, 0)
