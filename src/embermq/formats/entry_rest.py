"""What few entries of durable queues have besides their columns, as it is in broker.db: the only place that knows."""

from msgspec import Struct, msgpack

from embermq.model.queue_rows import DeadLetter


class Rest(Struct, frozen=True, array_like=True):
    """See `EntryRow`."""

    only_group: str
    origin_id: str
    dead_letter: DeadLetter | None


_ENCODE = msgpack.Encoder().encode
_DECODE = msgpack.Decoder(Rest).decode


def encode_rest(rest: Rest) -> bytes:
    """The value of the column `rest` of `queue_entry`."""
    return _ENCODE(rest)


def decode_rest(value: bytes) -> Rest:
    """The other way; raises msgspec.MsgspecError."""
    return _DECODE(value)
