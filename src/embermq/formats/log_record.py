"""The one layout of a message log record: written by the broker, read by the dispatcher and by Spark.

    u32  size            bytes that follow
    u32  checksum        CRC-32C of the bytes that follow it
    u8   format          1; a reader refuses a larger *major* (high nibble), carries a larger minor
    u8   flags           bits 0-1 QoS, bit 2 retain, bits 3-5 protocol version of the publisher (3, 4, 5)
    i64  accepted_ms     Unix time at accept
    u16  topic length,     topic (UTF-8)
    u16  publisher length, publisher's client id (UTF-8)
    u32  fields length,    fields: (u8 tag, u32 length, bytes) repeated
    rest payload

Integers are big-endian. Fields a reader does not know are carried in `LogRecord.unknown_fields`, so that a
newer broker and an older job understand each other. Known tags:

    1 properties   MQTT 5 property block with its length prefix, as the publisher sent it
    2 expires_ms   i64, absolute deadline
    3 stamps       u16 count, then per matched application log: u16 length, log name; i64 session generation;
                   u8 bits 0-1 granted QoS, bit 2 retain as published; u8 count, u32 subscription identifiers
    4 origin       for QoS 2: i64 generation of the publisher's session, u16 packet id; for a will: the id is 0
    5 publisher    of a retained message, where there are rules: u16 length, publisher's user name; rest: the subject of
                   its certificate. It is carried as fields that a reader does not know are, see `publisher_in`
    6 addressed    nothing: the record is for the logs in its stamps alone, whoever has subscribed to its topic
    7 rules        names of the rules that the message comes of, the first one first, with commas between them
    8 replayed     of a message that came in as a numbered one of a replay or a rule: i64 its number, rest: the id
    9 slot         of a copy of another slot's record: u16 the slot, u64 the position there, see `slot_in`
    255 header     a foreign header of a record in Kafka, see model.kafka_record: never written here

A batch is the plain concatenation of records; record i of a batch has offset base + i. Whoever decodes a record checks
it: one that is damaged is a RecordError, wherever its bytes were kept.
"""

from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from struct import Struct as Layout
from struct import error as LayoutError

from google_crc32c import extend as extend_crc32c
from google_crc32c import value as crc32c
from msgspec import Struct

from embermq.model.message import Message
from embermq.mqtt.wire.errors import ProtocolError
from embermq.mqtt.wire.properties import (
    Properties,
    PropertyPlace,
    decode_properties,
    encode_message_properties,
)

FORMAT = 0x10
"""Major 1, minor 0."""

IDENTIFIERS_MAX = 255
"""Subscription identifiers that a stamp can hold."""

CACHED_TEXTS = 32_768
"""Topics and publishers whose bytes are remembered: they repeat."""
CACHED_CHARACTERS = 128
"""Longer ones are not: a client could fill gigabytes with topics of 64 kB that it uses once."""

LARGE_BYTES = 4096
"""A payload of as many is copied once only, into the record; for a smaller one a second checksum costs more."""

FIELD_PROPERTIES = 1
FIELD_EXPIRES = 2
FIELD_STAMPS = 3
FIELD_ORIGIN = 4
FIELD_PUBLISHER = 5
FIELD_ADDRESSED = 6
FIELD_RULES = 7
FIELD_REPLAYED = 8
FIELD_SLOT = 9
FIELD_HEADER = 255

HEAD = Layout(">IIBBq")
CHECKED_AT = 8
"""From here on the checksum counts."""
_U16 = Layout(">H")
_U32 = Layout(">I")
_FIELD = Layout(">BI")
_I64 = Layout(">q")
_STAMP_TAIL = Layout(">qBB")
_ORIGIN = Layout(">qH")
_SLOT = Layout(">HQ")
_NO_FIELDS = b"\x00\x00\x00\x00"
_CHECKED_HEAD = Layout(">BBq")
_SIZES = Layout(">II")
_FIXED_BYTES = {FIELD_EXPIRES: _I64.size, FIELD_ORIGIN: _ORIGIN.size}


WILL_ID = 0
"""Packet id in the origin of a will."""


class RecordError(ValueError):
    """A record that cannot be understood: says which offset in the batch and what was wrong with it."""


class Stamp(Struct, frozen=True, gc=False):
    """One matched application log, decided when the message was accepted."""

    log: str
    generation: int
    qos: int
    retain_as_published: bool = False
    subscription_identifiers: tuple[int, ...] = ()


class Origin(Struct, frozen=True, gc=False):
    """The origin of an incoming QoS 2 PUBLISH or a will: tells after a crash that it has been taken."""

    generation: int
    packet_id: int


class LogRecord(Struct, frozen=True):
    """A decoded record. `unknown_fields` holds (tag, bytes) pairs that are only carried, in their order: those of a
    newer writer, `FIELD_PUBLISHER` and `FIELD_SLOT`."""

    message: Message
    stamps: tuple[Stamp, ...] = ()
    origin: Origin | None = None
    unknown_fields: tuple[tuple[int, bytes], ...] = ()


def publisher_field(user: str, certificate: str) -> tuple[int, bytes]:
    """Who published a message, besides its client id, for the `unknown_fields` of `encode_record`."""
    return FIELD_PUBLISHER, _encode_text(user) + certificate.encode()


def publisher_in(record: LogRecord) -> tuple[str, str] | None:
    """User name and certificate of its publisher; None when the record does not tell."""
    for tag, value in record.unknown_fields:
        if tag == FIELD_PUBLISHER and len(value) >= 2:
            end = 2 + int.from_bytes(value[:2], "big")
            return value[2:end].decode(errors="replace"), value[end:].decode(errors="replace")
    return None


def slot_field(slot: int, position: int) -> tuple[int, bytes]:
    """That a record is a copy of the one at this position of another slot's log."""
    return FIELD_SLOT, _SLOT.pack(slot, position)


def slot_in(record: LogRecord) -> tuple[int, int] | None:
    """Slot and position of the record that this one is a copy of; None when it is none."""
    for tag, value in record.unknown_fields:
        if tag == FIELD_SLOT and len(value) == _SLOT.size:
            return _SLOT.unpack(value)
    return None


def is_addressed(record: LogRecord) -> bool:
    """Whether it is for the logs in its stamps alone."""
    return any(tag == FIELD_ADDRESSED for tag, _ in record.unknown_fields)


def replayed_field(replay: str, number: int) -> tuple[int, bytes]:
    """Which message of which replay it is, for the `unknown_fields` of `encode_record`."""
    return FIELD_REPLAYED, _I64.pack(number) + replay.encode()


def replayed_in(record: LogRecord) -> tuple[str, int] | None:
    """Id of the replay and number in it; None for a message that is of none."""
    for tag, value in record.unknown_fields:
        if tag == FIELD_REPLAYED and len(value) > _I64.size:
            return value[_I64.size :].decode(errors="replace"), int(_I64.unpack_from(value)[0])
    return None


def encode_stamps(stamps: tuple[Stamp, ...]) -> bytes:
    """The stamps field, ready for `encode_record`; b"" when there are none. At most 65,535 logs."""
    if not stamps:
        return b""
    parts = [_U16.pack(len(stamps))]
    for stamp in stamps:
        name = stamp.log.encode()
        flags = stamp.qos | (4 if stamp.retain_as_published else 0)
        parts += (
            _U16.pack(len(name)),
            name,
            _STAMP_TAIL.pack(stamp.generation, flags, len(stamp.subscription_identifiers)),
            *map(_U32.pack, stamp.subscription_identifiers),
        )
    return b"".join(parts)


def encode_record(
    message: Message,
    stamps: bytes = b"",
    origin: Origin | None = None,
    unknown_fields: tuple[tuple[int, bytes], ...] = (),
) -> bytes:
    """One record with its size in front. `stamps` comes from `encode_stamps`."""
    if (
        message.properties is None
        and not stamps
        and origin is None
        and not message.expires_ms
        and not unknown_fields
    ):
        fields = _NO_FIELDS
    else:
        fields = _encode_fields(message, stamps, origin, unknown_fields)
    topic = _text(message.topic) if len(message.topic) <= CACHED_CHARACTERS else _encode_text(message.topic)
    name = message.publisher
    publisher = _text(name) if len(name) <= CACHED_CHARACTERS else _encode_text(name)
    payload = message.payload
    flags = message.qos | (4 if message.retain else 0) | (message.version << 3)
    head = _CHECKED_HEAD.pack(FORMAT, flags, message.accepted_ms)
    if len(payload) < LARGE_BYTES:
        checked = b"".join((head, topic, publisher, fields, payload))
        return _SIZES.pack(len(checked) + 4, crc32c(checked)) + checked
    before = b"".join((head, topic, publisher, fields))
    size = len(before) + len(payload) + 4
    return b"".join((_SIZES.pack(size, extend_crc32c(crc32c(before), payload)), before, payload))


def seal_record(head: tuple[int, int, int], rest: bytes) -> bytes:
    """A record from (format, flags, accept time) and what follows them, with size and checksum in front."""
    checked = _CHECKED_HEAD.pack(*head) + rest
    return _SIZES.pack(len(checked) + 4, crc32c(checked)) + checked


def check_record(frame: bytes) -> None:
    """Raises RecordError for a record whose bytes are not the ones that were written."""
    if len(frame) < HEAD.size:
        raise RecordError(f"{len(frame)} bytes are no record")
    size, checksum = _SIZES.unpack_from(frame)
    if size + 4 != len(frame):
        raise RecordError(f"record size {size} does not fit a frame of {len(frame)} bytes")
    if crc32c(frame[CHECKED_AT:]) != checksum:
        raise RecordError(f"a record of {len(frame)} bytes is damaged: its checksum is not {checksum:#010x}")


def is_sound(frame: bytes) -> bool:
    """Whether the bytes are the ones that were written."""
    try:
        check_record(frame)
    except RecordError:
        return False
    return True


def readable_topic(frame: bytes) -> str:
    """The topic of a damaged record, as far as it can be told, "" when it cannot."""
    start = HEAD.size + 2
    topic = frame[start : start + int.from_bytes(frame[HEAD.size : start], "big")]
    try:
        text = topic.decode()
    except UnicodeDecodeError:
        return ""
    return repr(text) if text else ""


def split_batch(batch: bytes, count: int) -> list[bytes]:
    """The `count` records of a batch, each with its size in front. Where the batch is so damaged that it cannot be cut
    any more, the rest are b"", which decode as damaged ones."""
    found: list[bytes] = []
    with suppress(RecordError):
        found.extend(iter_frames(batch))
    return found[:count] + [b""] * (count - len(found))


def _encode_text(text: str) -> bytes:
    """UTF-8 with its length in front."""
    encoded = text.encode()
    return _U16.pack(len(encoded)) + encoded


_text = lru_cache(CACHED_TEXTS)(_encode_text)


def _encode_fields(
    message: Message, stamps: bytes, origin: Origin | None, unknown_fields: tuple[tuple[int, bytes], ...]
) -> bytes:
    fields: list[tuple[int, bytes]] = []
    if message.properties is not None:
        fields.append((FIELD_PROPERTIES, encode_message_properties(message.properties)))
    if message.expires_ms:
        fields.append((FIELD_EXPIRES, _I64.pack(message.expires_ms)))
    if stamps:
        fields.append((FIELD_STAMPS, stamps))
    if origin is not None:
        fields.append((FIELD_ORIGIN, _ORIGIN.pack(origin.generation, origin.packet_id)))
    fields.extend(unknown_fields)
    body = b"".join(_FIELD.pack(tag, len(value)) + value for tag, value in fields)
    return _U32.pack(len(body)) + body


def iter_frames(batch: bytes) -> Iterator[bytes]:
    """Cut a batch into records, each with its size in front, without decoding them.

    Raises RecordError when the batch ends inside a record.
    """
    start, end = 0, len(batch)
    while start < end:
        if start + 4 > end:
            raise RecordError(f"the batch ends inside the size of a record, at byte {start} of {end}")
        stop = start + 4 + int.from_bytes(batch[start : start + 4], "big")
        if stop > end:
            raise RecordError(
                f"the record at byte {start} needs {stop - start} bytes, {end - start} are left"
            )
        yield batch[start:stop]
        start = stop


def may_have_stamps(batch: bytes) -> bool:
    """Whether a record of a batch has stamps, or does not look like one. No checksum is looked at."""
    try:
        at, end = 0, len(batch)
        while at < end:
            field = at + HEAD.size
            at += 4 + _U32.unpack_from(batch, at)[0]
            for _ in ("topic", "publisher"):
                field += 2 + _U16.unpack_from(batch, field)[0]
            fields_end = field + 4 + _U32.unpack_from(batch, field)[0]
            field += 4
            while field < fields_end:
                tag, length = _FIELD.unpack_from(batch, field)
                if tag == FIELD_STAMPS:
                    return True
                field += _FIELD.size + length
            if fields_end > at:
                return True
    except LayoutError:
        return True
    return at != end


def decode_record(frame: bytes) -> LogRecord:
    """Decode one record with its size in front. Raises RecordError with what was wrong."""
    try:
        return _decode(frame)
    except (LayoutError, IndexError, UnicodeDecodeError, ProtocolError) as error:
        raise RecordError(f"cannot decode a record of {len(frame)} bytes: {error}") from error


def record_expires_ms(frame: bytes) -> int:
    """When the message of a record expires, 0 for never, without decoding the rest. Raises RecordError."""
    try:
        at = HEAD.size
        for _ in ("topic", "publisher"):
            at += 2 + _U16.unpack_from(frame, at)[0]
        end = at + 4 + _U32.unpack_from(frame, at)[0]
        at += 4
        while at < end:
            tag, length = _FIELD.unpack_from(frame, at)
            at += _FIELD.size
            if tag == FIELD_EXPIRES:
                return int(_I64.unpack_from(frame, at)[0])
            at += length
    except LayoutError as error:
        raise RecordError(f"cannot decode a record of {len(frame)} bytes: {error}") from error
    return 0


def _decode(frame: bytes) -> LogRecord:
    check_record(frame)
    _, _, record_format, flags, accepted_ms = HEAD.unpack_from(frame)
    if record_format >> 4 != FORMAT >> 4:
        raise RecordError(f"record format {record_format:#04x}: this reader knows major {FORMAT >> 4}")
    (topic_length,) = _U16.unpack_from(frame, HEAD.size)
    at = HEAD.size + 2
    topic = frame[at : at + topic_length].decode()
    at += topic_length
    (publisher_length,) = _U16.unpack_from(frame, at)
    at += 2
    publisher = frame[at : at + publisher_length].decode()
    at += publisher_length
    (fields_length,) = _U32.unpack_from(frame, at)
    at += 4
    fields_end = at + fields_length
    if fields_end > len(frame):
        raise RecordError(f"fields of {fields_length} bytes do not fit a frame of {len(frame)} bytes")
    properties: Properties | None = None
    expires_ms = 0
    stamps: tuple[Stamp, ...] = ()
    origin: Origin | None = None
    unknown: list[tuple[int, bytes]] = []
    while at < fields_end:
        tag, length = _FIELD.unpack_from(frame, at)
        at += _FIELD.size
        if at + length > fields_end:
            raise RecordError(
                f"field {tag} of {length} bytes does not fit the fields of {fields_length} bytes"
            )
        value = frame[at : at + length]
        at += length
        if tag == FIELD_PROPERTIES:
            properties, _ = decode_properties(value, 0, PropertyPlace.PUBLISH)
        elif tag == FIELD_EXPIRES:
            (expires_ms,) = _I64.unpack(value)
        elif tag == FIELD_STAMPS:
            stamps = decode_stamps(value)
        elif tag == FIELD_ORIGIN:
            origin = Origin(*_ORIGIN.unpack(value))
        else:
            unknown.append((tag, value))
    message = Message(
        topic,
        frame[fields_end:],
        flags & 3,
        bool(flags & 4),
        publisher,
        flags >> 3 & 7,
        accepted_ms,
        expires_ms,
        properties,
    )
    return LogRecord(message, stamps, origin, tuple(unknown))


def decode_stamps(value: bytes) -> tuple[Stamp, ...]:
    """The inverse of `encode_stamps`."""
    if not value:
        return ()
    (count,) = _U16.unpack_from(value)
    at = 2
    stamps: list[Stamp] = []
    for _ in range(count):
        (length,) = _U16.unpack_from(value, at)
        at += 2
        log = value[at : at + length].decode()
        at += length
        generation, flags, identifiers = _STAMP_TAIL.unpack_from(value, at)
        at += _STAMP_TAIL.size
        ids = tuple(_U32.unpack_from(value, at + 4 * i)[0] for i in range(identifiers))
        at += 4 * identifiers
        stamps.append(Stamp(log, generation, flags & 3, bool(flags & 4), ids))
    return tuple(stamps)


class RecordHead(Struct, frozen=True, gc=False):
    """What routing needs of a record, read without touching its payload. `stamps` is for `decode_stamps`."""

    topic: str
    publisher: str
    flags: int
    accepted_ms: int
    payload_bytes: int
    stamps: bytes
    properties: bytes


def decode_route(frame: bytes) -> RecordHead:
    """Read the head of one record with its size in front. Raises RecordError as `decode_record` does.

    The property block and the stamps are handed on undecoded, as they stand in the record.
    """
    try:
        check_record(frame)
        _, _, record_format, flags, accepted_ms = HEAD.unpack_from(frame)
        if record_format >> 4 != FORMAT >> 4:
            decode_record(frame)  # says what is wrong
        topic_start = HEAD.size + 2
        topic_end = topic_start + int.from_bytes(frame[HEAD.size : topic_start], "big")
        publisher_end = topic_end + 2 + int.from_bytes(frame[topic_end : topic_end + 2], "big")
        at = publisher_end + 4
        (fields_length,) = _U32.unpack_from(frame, publisher_end)
        fields_end = at + fields_length
        if fields_end > len(frame):
            raise RecordError(f"fields of {fields_length} bytes do not fit a frame of {len(frame)} bytes")
        stamps = properties = b""
        while at < fields_end:
            tag, length = _FIELD.unpack_from(frame, at)
            at += _FIELD.size
            if at + length > fields_end:
                raise RecordError(
                    f"field {tag} of {length} bytes does not fit the fields of {fields_length} bytes"
                )
            if tag == FIELD_STAMPS:
                stamps = frame[at : at + length]
            elif tag == FIELD_PROPERTIES:
                properties = frame[at : at + length]
            elif length != _FIXED_BYTES.get(tag, length):
                raise RecordError(f"field {tag} has {length} bytes, must have {_FIXED_BYTES[tag]}")
            at += length
        return RecordHead(
            frame[topic_start:topic_end].decode(),
            frame[topic_end + 2 : publisher_end].decode(),
            flags,
            accepted_ms,
            len(frame) - fields_end,
            stamps,
            properties,
        )
    except (LayoutError, IndexError, UnicodeDecodeError) as error:
        raise RecordError(f"cannot decode a record of {len(frame)} bytes: {error}") from error
