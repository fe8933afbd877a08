"""What a start finds in the segment files: where the log ends, and what the checkpoint has not had yet.

A frame is whole when its header and its state have their checksums, it continues the frame before it, and its records
have theirs. What is not whole behind the published end was being written when the broker died, and nobody was told of
it: it is cut off. Before that end it is damage. A damaged record is left where it is: whoever reads it finds out. A
damaged state, or a frame that is missing, is refused when the checkpoint has not had it, unless the operator accepts
the loss, or the log was not synced at all (level `os`): what the kernel had not written yet is told, and left out.
"""

from collections.abc import Iterator
from pathlib import Path

from google_crc32c import value as crc32c
from msgspec import Struct
from msgspec.structs import replace

from embermq.formats.log_record import RecordError, check_record, split_batch
from embermq.formats.segment_reader import Frame, SegmentReader
from embermq.formats.segments import (
    FILE_BYTES,
    SUFFIX,
    LogEnd,
    SegmentError,
    SegmentHead,
    decode_segment_head,
    segment_name,
)
from embermq.ports.checkpoint import CheckpointPosition
from embermq.ports.errors import StoreError

WAY_OUT = "put a backup in its place (embermq restore), or start with --accept-loss to go on without it"


class Tail(Struct, frozen=True):
    """`frames` are those behind the checkpoint, whole and in order. `lost` says in words what could not be read, one
    entry a place."""

    end: LogEnd
    frames: tuple[Frame, ...]
    lost: tuple[str, ...] = ()


def find_tail(folder: Path, identity: int, applied: CheckpointPosition, *, accept_loss: bool = False) -> Tail:
    """Look through the log in `folder` from what the checkpoint `applied` on. Raises StoreError for a log that is not
    the checkpoint's, that is missing, or that is damaged where it matters."""
    set_aside = _set_aside(folder, identity) if accept_loss else ()
    reader = SegmentReader(folder)
    try:
        tail = _Search(reader, folder, identity, applied, accept_loss=accept_loss).run()
        return replace(tail, lost=(*set_aside, *tail.lost))
    except SegmentError as error:
        raise StoreError(f"the message log cannot be read: {error}: {WAY_OUT}") from error
    except OSError as error:
        raise StoreError(f"the message log in {folder} cannot be read: {error.strerror}") from error
    finally:
        reader.close()


def _set_aside(folder: Path, identity: int) -> tuple[str, ...]:
    """The operator accepts a loss: name what cannot be read so that it is not read, and is not deleted. Returns what
    that is, in words."""
    names = sorted(path.name for path in folder.glob(f"*{SUFFIX}"))
    lost: list[str] = []
    for name in names:
        path = folder / name
        try:
            with path.open("rb") as file:
                head = decode_segment_head(file.read(FILE_BYTES))
        except SegmentError as error:
            path.rename(path.with_suffix(".damaged"))
            lost.append(f"{path}: {error}; it is {path.with_suffix('.damaged').name} now")
            continue
        if head.identity != identity:
            other = folder.with_name(f"{folder.name}-of-{head.identity}")
            folder.rename(other)
            return (f"{folder} belonged to another broker.db; it is {other.name} now",)
    return tuple(lost)


class _Search:
    def __init__(
        self,
        reader: SegmentReader,
        folder: Path,
        identity: int,
        applied: CheckpointPosition,
        *,
        accept_loss: bool,
    ) -> None:
        self._reader = reader
        self._folder = folder
        self._identity = identity
        self._applied = applied
        self._accept_loss = accept_loss
        self._lost: list[str] = []
        published = reader.end()
        if published is not None and published.identity != identity:
            published = None
        is_proof = published is not None and published.is_synced
        self._published = (published.number, published.position) if published and is_proof else (0, 0)
        self._was_synced = published is None or published.is_synced
        """Else a loss of power may have taken any part of the last files."""

    def run(self) -> Tail:
        heads = self._reader.segments()
        applied = self._applied
        if not heads:
            if applied.number:
                self._lose(f"the files of the message log are missing in {self._folder}")
            return Tail(LogEnd(applied.number, 0, applied.offset, 0, self._identity), (), tuple(self._lost))
        for head in heads:
            if head.identity != self._identity and not applied.number:
                raise StoreError(
                    f"broker.db is new, and {self._folder} holds the message log of an older one, which is "
                    f"missing: {WAY_OUT}"
                )
            if head.identity != self._identity:
                raise StoreError(
                    f"{self._folder / segment_name(head.number)} belongs to another message log than broker.db: "
                    "one of the two was put here from another data directory; restore both from one backup"
                )
        numbers = [head.number for head in heads]
        first = applied.number or numbers[0]
        self._check_numbers(numbers, first)
        frames: list[Frame] = []
        start = next((head.base_offset for head in heads if head.number >= first), applied.offset)
        expected = applied.offset if applied.number else start
        position, number = (applied.position or FILE_BYTES), first
        for number in [one for one in numbers if one >= first]:
            position = applied.position if number == applied.number else FILE_BYTES
            is_last = number == numbers[-1]
            for frame in self._sound(number, position, is_last=is_last):
                if frame.head.base_offset != expected and frame.head.base_offset > expected:
                    self._note_gap(frame, expected, heads)
                frames.append(frame)
                expected = max(expected, frame.head.end_offset)
                position = frame.position + frame.head.size
        total = heads[-1].bytes_before + self._body_bytes(numbers[-1], position)
        end = LogEnd(numbers[-1], position, max(expected, heads[-1].base_offset), total, self._identity)
        return Tail(end, tuple(frames), tuple(self._lost))

    def _check_numbers(self, numbers: list[int], first: int) -> None:
        """The files from the checkpoint on, each there."""
        missing = sorted(set(range(first, numbers[-1] + 1)) - set(numbers))
        if numbers[-1] < first:
            missing = [first]
        if missing:
            self._lose(f"{self._folder / segment_name(missing[0])} of the message log is missing")

    def _note_gap(self, frame: Frame, expected: int, heads: list[SegmentHead]) -> None:
        """Offsets that no record has are left out at the beginning of a file alone."""
        begins = any(
            head.number == frame.number and head.base_offset == frame.head.base_offset for head in heads
        )
        if not begins:
            name = segment_name(frame.number)
            self._miss(f"{name} lacks the records {expected} to {frame.head.base_offset - 1}")

    def _sound(self, number: int, position: int, *, is_last: bool) -> Iterator[Frame]:
        """The frames of a file from `position` on, up to a torn tail."""
        for frame in self._reader.walk(number, position):
            name = segment_name(number)
            if is_last and frame.position != position and (number, position) >= self._published:
                return
            if frame.position != position:
                self._miss(f"{name} is damaged from position {position} to {frame.position}")
            reason = self._what_is_wrong(frame)
            if reason and is_last and (number, frame.position) >= self._published:
                return  # it was being written; nothing stands behind it
            if reason.startswith("state"):
                self._miss(f"{name} is damaged at position {frame.position}: {reason}")
                position = frame.position + frame.head.size
                continue
            yield frame
            position = frame.position + frame.head.size
        if is_last and (number, position) < self._published and number == self._published[0]:
            self._lose(f"{segment_name(number)} is damaged from position {position} on")

    def _what_is_wrong(self, frame: Frame) -> str:
        """ "" for a whole frame."""
        if crc32c(self._reader.state(frame)) != frame.head.state_checksum:
            return "state has another checksum"
        try:
            for record in split_batch(self._reader.body(frame), frame.head.record_count):
                check_record(record)
        except RecordError as error:
            return f"record: {error}"
        return ""

    def _body_bytes(self, number: int, stop: int) -> int:
        return sum(frame.head.body_bytes for frame in self._reader.walk(number, FILE_BYTES, stop))

    def _miss(self, what: str) -> None:
        """A part of a file, which a log that is not synced may lack."""
        if self._was_synced:
            self._lose(what)
        else:
            self._lost.append(what)

    def _lose(self, what: str) -> None:
        if not self._accept_loss:
            raise StoreError(f"{what}: {WAY_OUT}")
        self._lost.append(what)
