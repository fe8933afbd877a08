"""What rows of queues look like in broker.db, where they are more than their columns."""

from collections.abc import Iterable

from msgspec import msgpack

from embermq.formats.entry_rest import Rest, decode_rest, encode_rest
from embermq.model.queue_rows import Attempts, EntryRow, GroupMark, MessageState

_ENCODE = msgpack.Encoder().encode
_DECODE_ATTEMPTS = msgpack.Decoder(Attempts).decode

EntryColumns = tuple[int, int, int, int, int, str | None, bytes | None, int]
"""queue, sequence, partition, offset, expires_ms, message_key, rest, record_bytes."""


_LIFE = "\0"
"""In no name of a group: MQTT has no such character."""


def name_of_group(key: str) -> str:
    """Of what stands for a group in its row and its marks."""
    return key.partition(_LIFE)[0]


def keys_of_group(name: str) -> tuple[str, str]:
    """Keys of this name are from the first on, and below the second."""
    return name, name + "\1"


def next_key(name: str, keys: Iterable[str]) -> str:
    """For a group of this name that is made while marks of former ones stand there with these keys: the name alone when
    there are none."""
    lives = [int(key.partition(_LIFE)[2] or 0) for key in keys]
    return f"{name}{_LIFE}{max(lives) + 1}" if lives else name


def to_entry_columns(row: EntryRow, base: int) -> EntryColumns:
    """Of a tick whose records begin at `base`."""
    rest: bytes | None = None
    if row.only_group or row.origin_id or row.dead_letter is not None:
        rest = encode_rest(Rest(row.only_group, row.origin_id, row.dead_letter))
    offset = row.offset if row.record < 0 else base + row.record
    return (row.queue, row.sequence, row.partition, offset, row.expires_ms, row.key, rest, row.record_bytes)


def to_entry(columns: EntryColumns) -> EntryRow:
    """Read a row of `queue_entry` as a start does."""
    queue, sequence, partition, offset, expires_ms, key, rest, size = columns
    if rest is None:
        return EntryRow(queue, sequence, partition, offset, -1, key, expires_ms, record_bytes=size)
    more = decode_rest(rest)
    return EntryRow(
        queue,
        sequence,
        partition,
        offset,
        -1,
        key,
        expires_ms,
        more.only_group,
        more.origin_id,
        more.dead_letter,
        size,
    )


def to_attempts_column(attempts: Attempts) -> bytes | None:
    """The stored form of attempts: packed bytes, or None (NULL) when there were none."""
    return None if attempts == Attempts() else _ENCODE(attempts)


def to_mark(state: int, due_ms: int, attempts: bytes | None) -> GroupMark:
    """Read a row of `queue_mark` as a start does."""
    return GroupMark(
        MessageState(state), Attempts() if attempts is None else _DECODE_ATTEMPTS(attempts), due_ms
    )
