"""Looking at the segment files of a data directory, while its broker runs or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from google_crc32c import value as crc32c
from msgspec import Struct

from embermq.app.errors import UserError
from embermq.formats.log_record import LogRecord, RecordError, check_record, decode_record, split_batch
from embermq.formats.segment_reader import Frame, SegmentReader
from embermq.formats.segments import FILE_BYTES, FOLDER, SegmentError, segment_name


class FileReport(Struct, frozen=True):
    """One segment file: offsets [start, end), frames and bytes of bodies. `damage` says each damaged place in words."""

    name: str
    start: int
    end: int
    frames: int
    body_bytes: int
    damage: tuple[str, ...]


class ShownRecord(Struct, frozen=True):
    """A record of the log; `record` is None when it is damaged, then `problem` says how."""

    offset: int
    committed_ms: int
    record: LogRecord | None
    problem: str = ""


def verify_log(data_dir: Path) -> Iterator[FileReport]:
    """Every file, in order, each when it has been read. Raises UserError for a log that is not there or cannot be read.
    Files that retention removes meanwhile are left out."""
    folder = _folder(data_dir)
    with closing(SegmentReader(folder)) as reader:
        try:
            end = reader.end()
            for head in reader.segments():
                stop = end.position if end is not None and end.number == head.number else None
                try:
                    yield _verify_file(reader, head.number, head.base_offset, stop)
                except FileNotFoundError:
                    continue
        except SegmentError as error:
            raise UserError(str(error)) from error


def _verify_file(reader: SegmentReader, number: int, base_offset: int, stop: int | None) -> FileReport:
    damage: list[str] = []
    position, offset, frames, body_bytes = FILE_BYTES, base_offset, 0, 0
    for frame in reader.walk(number, FILE_BYTES, stop):
        if frame.position != position:
            damage.append(f"position {position} to {frame.position}: no frame can be read")
        damage += _problems(reader, frame)
        frames += 1
        body_bytes += frame.head.body_bytes
        position, offset = frame.position + frame.head.size, frame.head.end_offset
    if stop is not None and position < stop:
        damage.append(f"position {position} to {stop}: no frame can be read")
    return FileReport(segment_name(number), base_offset, offset, frames, body_bytes, tuple(damage))


def _problems(reader: SegmentReader, frame: Frame) -> Iterator[str]:
    if crc32c(reader.state(frame)) != frame.head.state_checksum:
        yield f"position {frame.position}: the state of the frame has another checksum"
    records = split_batch(reader.body(frame), frame.head.record_count)
    for offset, record in enumerate(records, frame.head.base_offset):
        try:
            check_record(record)
        except RecordError as error:
            yield f"offset {offset}: {error}"


def read_log(data_dir: Path, from_offset: int) -> Iterator[ShownRecord]:
    """The records from an offset on. Raises UserError for a log that is not there or cannot be read."""
    with closing(SegmentReader(_folder(data_dir))) as reader:
        try:
            for frame in reader.frames(from_offset):
                records = split_batch(reader.body(frame), frame.head.record_count)
                for offset, record in enumerate(records, frame.head.base_offset):
                    if offset >= from_offset:
                        yield _entry(offset, frame.head.committed_ms, record)
        except SegmentError as error:
            raise UserError(str(error)) from error


def _entry(offset: int, committed_ms: int, record: bytes) -> ShownRecord:
    try:
        return ShownRecord(offset, committed_ms, decode_record(record))
    except RecordError as error:
        return ShownRecord(offset, committed_ms, None, str(error))


def _folder(data_dir: Path) -> Path:
    folder = data_dir / FOLDER
    if not folder.is_dir():
        raise UserError(f"{data_dir} has no embedded message log; name a data directory with --data-dir")
    return folder
