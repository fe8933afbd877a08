"""The one layout of segment files, in which the embedded message log stands.

A log is the folder `log/` of a data directory: files `<number>.seg`, each the continuation of the one before, and
`end`, which says how far the log is synced. All integers are big-endian.

File header, 56 bytes:

    8s   magic           "EMBERSEG"
    u32  checksum        CRC-32C of the bytes that follow it, up to the end of the header
    u32  format          1
    u64  identity        which log it is
    u64  number          of this file
    u64  base offset     of the next record, whichever frame it is in
    u64  bytes before    bodies of all records of the log below the base offset, trimmed ones included
    u64  created         Unix time in milliseconds

Then frames, each at a multiple of 8 bytes. A frame is one tick: its records and what it changes of the state beside
them. Its header, 40 bytes:

    4s   magic           "EMBF"
    u32  checksum        CRC-32C of the bytes that follow it, up to the end of the header
    u32  body bytes      the records, one behind the other; each has its own checksum (formats/log_record.py)
    u32  state bytes     behind the body
    u32  state checksum  CRC-32C of the state
    u32  record count
    u64  base offset     of the first record, or of the next one when there is none
    u64  committed       Unix time in milliseconds

The file `end`, 49 bytes: magic "EMBE", checksum of the rest, then u64 each: number of the file, position in it, offset
of the next record, bytes of all bodies, identity; and a byte: 1 when everything below is synced, 0 when it is only
written.
"""

from struct import Struct as Layout

from google_crc32c import value as crc32c
from msgspec import Struct

FORMAT = 1
FILE_MAGIC, FRAME_MAGIC, END_MAGIC = b"EMBERSEG", b"EMBF", b"EMBE"
ALIGNMENT = 8
SUFFIX = ".seg"
END_NAME = "end"
FOLDER = "log"

_FILE = Layout(">8sIIQQQQQ")
_FRAME = Layout(">4sIIIIIQQ")
_U32 = Layout(">I")
_END = Layout(">4sIQQQQQ?")
FILE_BYTES, FRAME_BYTES, END_BYTES = _FILE.size, _FRAME.size, _END.size
_FILE_CHECKED, _FRAME_CHECKED, _END_CHECKED = 12, 8, 8


class SegmentError(ValueError):
    """A segment file, a frame or the end that cannot be understood: says which and why."""


class SegmentHead(Struct, frozen=True, gc=False):
    """Header of a segment file."""

    identity: int
    number: int
    base_offset: int
    bytes_before: int
    created_ms: int


class FrameHead(Struct, frozen=True, gc=False):
    """Header of a frame: what it holds and where that stands in the log."""

    body_bytes: int
    state_bytes: int
    state_checksum: int
    record_count: int
    base_offset: int
    committed_ms: int

    @property
    def size(self) -> int:
        """Bytes from the beginning of this frame to that of the next."""
        size = FRAME_BYTES + self.body_bytes + self.state_bytes
        return size + -size % ALIGNMENT

    @property
    def end_offset(self) -> int:
        """The offset behind its last record."""
        return self.base_offset + self.record_count


class LogEnd(Struct, frozen=True, gc=False):
    """The end of the log: file, position in it, and the offset that the next record gets."""

    number: int
    position: int
    offset: int
    bytes_total: int
    identity: int
    is_synced: bool = False


def segment_name(number: int) -> str:
    """Name of a file in the folder; names are ordered as numbers are."""
    return f"{number:012d}{SUFFIX}"


def segment_number(name: str) -> int:
    """The number of a file by its name, -1 for a file that is no segment."""
    stem, dot, suffix = name.partition(".")
    return int(stem) if dot + suffix == SUFFIX and stem.isascii() and stem.isdigit() else -1


def encode_segment_head(head: SegmentHead) -> bytes:
    """The first bytes of a segment file."""
    packed = _FILE.pack(
        FILE_MAGIC,
        0,
        FORMAT,
        head.identity,
        head.number,
        head.base_offset,
        head.bytes_before,
        head.created_ms,
    )
    return _checked(packed, _FILE_CHECKED)


def decode_segment_head(data: bytes) -> SegmentHead:
    """The head of a segment file from its first bytes. Raises SegmentError for a short, foreign or damaged
    one."""
    if len(data) < FILE_BYTES:
        raise SegmentError(f"{len(data)} bytes are no header of a segment")
    magic, checksum, version, *values = _FILE.unpack_from(data)
    if magic != FILE_MAGIC:
        raise SegmentError(f"it begins with {magic!r}, not with {FILE_MAGIC!r}")
    if checksum != crc32c(data[_FILE_CHECKED:FILE_BYTES]):
        raise SegmentError("its header is damaged")
    if version != FORMAT:
        raise SegmentError(f"it has format {version}, this version of EmberMQ knows {FORMAT}")
    return SegmentHead(*values)


def encode_frame_head(head: FrameHead) -> bytes:
    """The first bytes of a frame."""
    packed = _FRAME.pack(
        FRAME_MAGIC,
        0,
        head.body_bytes,
        head.state_bytes,
        head.state_checksum,
        head.record_count,
        head.base_offset,
        head.committed_ms,
    )
    return _checked(packed, _FRAME_CHECKED)


def decode_frame_head(data: bytes, at: int = 0) -> FrameHead | None:
    """The frame that begins at `at`; None when none does, or its header is damaged."""
    if len(data) - at < FRAME_BYTES or data[at : at + 4] != FRAME_MAGIC:
        return None
    _, checksum, *values = _FRAME.unpack_from(data, at)
    if checksum != crc32c(data[at + _FRAME_CHECKED : at + FRAME_BYTES]):
        return None
    return FrameHead(*values)


def encode_end(end: LogEnd) -> bytes:
    """The content of the file `end`."""
    packed = _END.pack(
        END_MAGIC, 0, end.number, end.position, end.offset, end.bytes_total, end.identity, end.is_synced
    )
    return _checked(packed, _END_CHECKED)


def decode_end(data: bytes) -> LogEnd | None:
    """None for bytes that are no end, or were read while they were being written."""
    if len(data) < END_BYTES:
        return None
    magic, checksum, *values = _END.unpack_from(data)
    if magic != END_MAGIC or checksum != crc32c(data[_END_CHECKED:END_BYTES]):
        return None
    return LogEnd(*values)


def _checked(packed: bytes, checked_at: int) -> bytes:
    """Put the checksum of what stands from `checked_at` on into the four bytes before."""
    checksum = crc32c(packed[checked_at:])
    return b"".join((packed[: checked_at - 4], _U32.pack(checksum), packed[checked_at:]))
