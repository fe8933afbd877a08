"""The layout of durable queues in Redis: names of keys, and the JSON that stands in them; records are raw bytes.

A queue begins with its fence, `{"epoch":0,"generation":3,`, as a session does; so does what is left of one that was
deleted, which says up to where the log knows nothing new of it. Groups have numbers that are never used again within a
queue: those of former ones mean nothing, whatever is left of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from embermq.formats.redis_layout import broken, encode_name
from embermq.model.queue_rows import (
    Attempts,
    DeadLetter,
    DelayedRow,
    EntryRow,
    GroupMark,
    GroupRow,
    MessageState,
    Move,
    QueueSettingsRow,
)

QUEUE_PREFIX = "q:s:{"
GENERATION_KEY = "embermq:queues"
"""A string: above the generations of all queues that ever were."""
UPTO = "upto"
"""Field of `q:p:{name}`: every record below is in the queue, or was."""
MOVED = "moved"
"""Field of `q:p:{name}`: the number of the last step in which messages went to other queues. What others have of it
under that number, or a lower one, is not here any more."""

_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Offset = Annotated[int, Meta(ge=-1, le=2**63 - 1)]


class QueueKeys(Struct, frozen=True):
    """The keys of one queue, all of them in one slot, in the order in which scripts take them. Hashes but for the queue
    itself, a string, and `dedup`, a sorted set by the time of the end."""

    queue: str
    groups: str
    entries: str
    bodies: str
    delayed: str
    marks: str
    progress: str
    dedup: str

    @property
    def all(self) -> tuple[str, ...]:
        """The keys of one queue, in the order in which scripts take them."""
        return (
            self.queue,
            self.groups,
            self.entries,
            self.bodies,
            self.delayed,
            self.marks,
            self.progress,
            self.dedup,
        )


def queue_keys(name: str, prefix: str) -> QueueKeys:
    """The names for a queue of the slot with this prefix."""
    tag = "{" + encode_name(name) + "}"
    return QueueKeys(*(f"{prefix}q:{kind}:{tag}" for kind in "sgebdmpi"))


EPOCH = 0
"""Of every queue, as long as one broker has them all."""


def queue_fence(generation: int) -> str:
    """How the JSON of a queue begins: scripts compare it, so that only the owner's writes count."""
    return f'{{"epoch":{EPOCH},"generation":{generation},'


class _Queue(Struct, frozen=True):
    epoch: _Number
    generation: _Number
    name: str
    sequences_reserved: _Number
    is_paused: bool
    settings: Raw


class _EndedQueue(Struct, frozen=True):
    epoch: _Number
    generation: _Number
    ended_at: _Number


class EndedQueue(Struct, frozen=True):
    """What is left of a queue that was deleted: every record below `ended_at` is settled."""

    generation: int
    ended_at: int


class _Group(Struct, frozen=True):
    number: _Number
    first_sequence: _Number
    idle_since_ms: _Number
    is_paused: bool = False


class _Entry(Struct, frozen=True, omit_defaults=True):
    partition: _Number
    offset: _Offset
    expires_ms: _Number
    record_bytes: _Number
    key: str | None = None
    only_group: str = ""
    origin_id: str = ""
    dead_letter: DeadLetter | None = None


class _Delayed(Struct, frozen=True, omit_defaults=True):
    offset: _Offset
    visible_ms: _Number
    expires_ms: _Number
    record_bytes: _Number
    key: str | None = None


class _StoredMark(Struct, frozen=True, omit_defaults=True):
    state: Literal["QUEUED", "RETRY", "ACKED", "DLQ"]
    due_ms: _Number = 0
    attempts: Attempts = Attempts()


class _Moved(Struct, frozen=True):
    sequence: _Number
    group: str
    to: _Number


_encode = msgspec.json.Encoder().encode
_decode_queue = msgspec.json.Decoder(_Queue).decode
_decode_ended = msgspec.json.Decoder(_EndedQueue).decode
_decode_group = msgspec.json.Decoder(_Group).decode
_decode_entry = msgspec.json.Decoder(_Entry).decode
_decode_delayed = msgspec.json.Decoder(_Delayed).decode
_decode_mark = msgspec.json.Decoder(_StoredMark).decode
_decode_moved = msgspec.json.Decoder(list[_Moved]).decode


def encode_queue(row: QueueSettingsRow) -> bytes:
    """The JSON of `q:s:{name}`."""
    return _encode(
        _Queue(EPOCH, row.generation, row.name, row.sequences_reserved, row.is_paused, Raw(row.settings))
    )


def encode_ended(generation: int, ended_at: int) -> bytes:
    """What stands in `q:s:{name}` when the queue is deleted."""
    return _encode(_EndedQueue(EPOCH, generation, ended_at))


def decode_queue(key: str, value: bytes) -> QueueSettingsRow | EndedQueue:
    """The inverse of both. Raises LayoutError."""
    try:
        if b'"ended_at":' in value[:80]:
            ended = _decode_ended(value)
            return EndedQueue(ended.generation, ended.ended_at)
        found = _decode_queue(value)
        fence = b'{"epoch":%d,"generation":%d,' % (found.epoch, found.generation)
        if not value.startswith(fence):
            raise ValueError(f"does not begin with {fence.decode()}")
    except ValueError as error:
        raise broken(key, error) from error
    return QueueSettingsRow(
        found.generation, found.name, bytes(found.settings), found.sequences_reserved, found.is_paused
    )


def encode_group(row: GroupRow, number: int) -> bytes:
    """The value of a field of `q:g:{name}`; the field is the group."""
    return _encode(_Group(number, row.first_sequence, row.idle_since_ms, row.is_paused))


def decode_group(key: str, queue: int, group: str, value: bytes) -> tuple[int, GroupRow]:
    """The inverse of `encode_group`: the group's number and its row. Raises LayoutError."""
    try:
        found = _decode_group(value)
    except ValueError as error:
        raise broken(f"{key}, field {group}", error) from error
    row = GroupRow(queue, group, found.first_sequence, found.idle_since_ms, found.is_paused)
    return found.number, row


def encode_entry(row: EntryRow, offset: int) -> bytes:
    """The value of a field of `q:e:{name}`; the field is the sequence."""
    return _encode(
        _Entry(
            row.partition,
            offset,
            row.expires_ms,
            row.record_bytes,
            row.key,
            row.only_group,
            row.origin_id,
            row.dead_letter,
        )
    )


def decode_entry(key: str, queue: int, sequence: int, value: bytes) -> EntryRow:
    """The inverse of `encode_entry`. Raises LayoutError."""
    try:
        found = _decode_entry(value)
    except ValueError as error:
        raise broken(f"{key}, field {sequence}", error) from error
    return EntryRow(
        queue,
        sequence,
        found.partition,
        found.offset,
        -1,
        found.key,
        found.expires_ms,
        found.only_group,
        found.origin_id,
        found.dead_letter,
        found.record_bytes,
    )


def encode_delayed(row: DelayedRow, offset: int) -> bytes:
    """The value of a field of `q:d:{name}`; the field is the ticket."""
    return _encode(_Delayed(offset, row.visible_ms, row.expires_ms, row.record_bytes, row.key))


def decode_delayed(key: str, queue: int, ticket: int, value: bytes) -> DelayedRow:
    """The inverse of `encode_delayed`. Raises LayoutError."""
    try:
        found = _decode_delayed(value)
    except ValueError as error:
        raise broken(f"{key}, field {ticket}", error) from error
    return DelayedRow(
        queue,
        ticket,
        found.offset,
        -1,
        found.key,
        found.visible_ms,
        found.expires_ms,
        found.record_bytes,
    )


def mark_field(sequence: int, group: int) -> str:
    """A field of `q:m:{name}`; `group` is the group's number."""
    return f"{sequence}:{group}"


def read_mark_field(key: str, field: bytes) -> tuple[int, int]:
    """The inverse of `mark_field`. Raises LayoutError."""
    sequence, _, group = field.partition(b":")
    try:
        return int(sequence), int(group)
    except ValueError as error:
        raise broken(f"{key}, field {field!r}", error) from error


_NAMES: dict[int, str] = {state: state.name for state in MessageState}


def encode_mark(mark: GroupMark) -> bytes:
    """The value of a field of `q:m:{name}`."""
    return _encode(_StoredMark(_NAMES[mark.state], mark.due_ms, mark.attempts))  # type: ignore[arg-type]  # one of the four


def decode_mark(key: str, field: bytes, value: bytes) -> GroupMark:
    """The inverse of `encode_mark`. Raises LayoutError."""
    try:
        found = _decode_mark(value)
    except ValueError as error:
        raise broken(f"{key}, field {field!r}", error) from error
    return GroupMark(MessageState[found.state], found.attempts, found.due_ms)


MOVED_PREFIX = b"from:"


def moved_field(source: int, number: int, first: int) -> str:
    """A field of `q:p:{name}`: what came from another queue, by its generation, in its step of this number; `first` is
    the sequence of the first of these."""
    return f"from:{source}:{number}:{first}"


def encode_moved(moves: list[Move]) -> bytes:
    """The value of such a field."""
    return _encode([_Moved(move.sequence, move.group, move.target_sequence) for move in moves])


class Moved(Struct, frozen=True):
    """What came from the queue of generation `source` in its step of this number."""

    source: int
    number: int
    moves: list[Move]


def decode_moved(key: str, target: int, field: bytes, value: bytes) -> Moved:
    """The inverse of `moved_field` and `encode_moved`. Raises LayoutError."""
    try:
        _, source, number, _ = (int(part) if part.isdigit() else 0 for part in field.split(b":"))
        found = _decode_moved(value)
    except ValueError as error:
        raise broken(f"{key}, field {field!r}", error) from error
    return Moved(source, number, [Move(source, each.sequence, each.group, target, each.to) for each in found])


def read_progress(key: str, fields: Mapping[bytes, bytes]) -> tuple[int, int]:
    """UPTO and MOVED of `q:p:{name}`. Raises LayoutError."""
    try:
        return int(fields.get(UPTO.encode(), 0)), int(fields.get(MOVED.encode(), 0))
    except ValueError as error:
        raise broken(key, error) from error
