"""The one layout of session data in Redis: names of keys, and the JSON that stands in them.

Written and read by the broker's adapter, written by the pipeline's migration. docs/stores.md shows it to people with
`redis-cli`; adapters/redis/scripts rely on what is said below about how texts begin.

A stored message is `{"packetType":"PUBLISH","packetId":7    ,"recordBytes":52,...`: type and packet id have a fixed
width, so that both can be changed in place, and the size of the record follows at a fixed place. A session begins with
its fence, `{"epoch":3,"generation":7,`; a will with `{"generation":7,`; a retained message with `{"offset":12,`.

What is broken or of another type is a LayoutError that names the key, never left out.
"""

from __future__ import annotations

from struct import error as PackError
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from embermq.formats.log_record import (
    LogRecord,
    Origin,
    decode_record,
    decode_stamps,
    encode_record,
    encode_stamps,
)
from embermq.model.client_type import ClientType
from embermq.model.message import Message
from embermq.model.session import RetainedRow, SessionRow, SubscriptionRow, WillRow
from embermq.model.session_writes import QUEUE_SEQ_STEP, QueueRow
from embermq.mqtt.wire.errors import ProtocolError
from embermq.mqtt.wire.properties import Properties

SCHEMA_KEY = "embermq:schema"
SCHEMA_VERSION = 2
LOG_KEY = "embermq:log"
"""A hash: what is known of the message log."""
IMPORT_KEY = "embermq:import"
"""What an import into an empty Redis is of, until it has ended."""
REPLAYS_KEY = "embermq:replays"
"""A hash: id of a replay -> the number of its next message, as decimal text."""
SESSION_PREFIX = "s:ol:{"
WILL_PREFIX = "s:w:{"
RETAINED_PREFIX = "t:r:{"
PARKED_PREFIX = "s:d:{"
SHARED_PREFIX = "s:g:{"
UPTO = "upto"
"""The field of `s:f:ri:{client}` beside packet ids: the end of the log up to which the set is complete."""

PUBLISH_HEAD = '{"packetType":"PUBLISH","packetId":%-5d,'
PUBREL_TYPE = '"PUBREL" '
PACKET_TYPE_AT = len('{"packetType":')

_FRACTION_DIGITS = QUEUE_SEQ_STEP.bit_length() - 1
_U16 = Annotated[int, Meta(ge=0, le=65_535)]
_U32 = Annotated[int, Meta(ge=0, le=4_294_967_295)]
_Qos = Annotated[int, Meta(ge=0, le=2)]
_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Offset = Annotated[int, Meta(ge=-1, le=2**63 - 1)]


BROKEN = (ValueError, IndexError, PackError, ProtocolError)


class LayoutError(ValueError):
    """A key holds what this layout does not have: says which key and what was wrong with it."""


# Names of keys


def key_prefix(slot: int) -> str:
    """How all keys of a slot of our cluster begin. It stands outside of the braces, so that each slot is spread over
    all masters of a Redis Cluster; those of slot 0 are the keys of a broker alone."""
    return f"slot-{slot}:" if slot else ""


def encode_name(name: str) -> str:
    """A client id or topic as it stands between the braces of a key: `%`, `{` and `}` are percent-encoded."""
    if "%" in name or "{" in name or "}" in name:
        return name.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
    return name


def decode_name(text: str) -> str:
    """The inverse of `encode_name`."""
    if "%" in text:
        return text.replace("%7B", "{").replace("%7D", "}").replace("%25", "%")
    return text


class ClientKeys(Struct, frozen=True):
    """The keys of one client, all of them in one slot. `message` is the payload keys' common beginning."""

    session: str
    subscriptions: str
    will: str
    receiving: str
    sent: str
    released: str
    messages: str
    message: str
    last_packet_id: str
    positions: str
    reader: str
    parked: str
    shared: str
    unacknowledged: str

    @property
    def all(self) -> tuple[str, ...]:
        """Every key, for scripts that replace or end a session."""
        keys = (getattr(self, name) for name in self.__struct_fields__)
        return tuple(key for key in keys if key != self.message)


def client_keys(client_id: str, prefix: str) -> ClientKeys:
    """The names for a client id, which is never empty. `prefix` is that of the slot, see `key_prefix`."""
    name = "{" + encode_name(client_id) + "}"
    return ClientKeys(
        f"{prefix}s:ol:{name}",
        f"{prefix}s:s:{name}",
        f"{prefix}s:w:{name}",
        f"{prefix}s:f:ri:{name}",
        f"{prefix}s:f:p:{name}",
        f"{prefix}s:f:r:{name}",
        f"{prefix}{name}_messages",
        f"{prefix}{name}_messages_",
        f"{prefix}{name}_last_packet_id",
        f"{prefix}{name}_positions",
        f"{prefix}s:a:{name}",
        f"{prefix}s:d:{name}",
        f"{prefix}s:g:{name}",
        f"{prefix}s:u:{name}",
    )


def retained_key(topic: str, prefix: str) -> str:
    """A list with the retained message of a topic, if it has one."""
    return f"{prefix}{RETAINED_PREFIX}{encode_name(topic)}}}"


def name_in(key: str) -> str:
    """The client id or topic that a key is about. Raises LayoutError for a key without braces."""
    begin, end = key.find("{"), key.rfind("}")
    if begin < 0 or end <= begin + 1:
        raise LayoutError(f"key {key!r}: has no name in braces")
    return decode_name(key[begin + 1 : end])


def score_of(seq: int) -> str:
    """The place of a message in its queue as Redis has it: 1, 2, 3, a fraction for what is stored late. It is exact,
    as sequence numbers are below 2^53 and the step is a power of two, and has no exponent, which scripts do not take.
    """
    number, rest = divmod(seq, QUEUE_SEQ_STEP)
    return str(number) if not rest else f"{seq / QUEUE_SEQ_STEP:.{_FRACTION_DIGITS}f}".rstrip("0")


def seq_of(score: bytes | str | float) -> int:
    """The inverse of `score_of`. Raises ValueError."""
    return round(float(score) * QUEUE_SEQ_STEP)


def position_of(row: QueueRow) -> str:
    """A member of `{client}_positions`: what the client has had stored. Plain subscriptions give a client one copy of
    an offset; shared ones may give it several, retained messages have no offset, so these carry their place too, at the
    end. In front of it stands which shared subscription it was."""
    if row.offset < 0:
        return f"{row.offset}:{score_of(row.seq)}"
    return f"{row.offset}:{row.flags >> 3}:{score_of(row.seq)}" if row.flags & 8 else str(row.offset)


def offset_in(key: str, position: str) -> tuple[int, int]:
    """Offset of a position, -1 for a retained message, and the bits of `QueueRow.flags` from 3 on, 0 for a copy of
    plain subscriptions. Raises LayoutError."""
    offset, *shared = position.split(":")
    try:
        return int(offset), int(shared[0]) if len(shared) > 1 else len(shared)
    except ValueError as error:
        raise broken(key, error) from error


# Messages


class MessageBody(Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """What a log record holds, spelled out. `time` and `message_expires_ms` are Unix milliseconds."""

    topic_name: str
    payload: bytes
    publisher: str
    time: _Number
    version: Annotated[int, Meta(ge=0, le=7)]
    message_qos: _Qos = 0
    message_retain: bool = False
    message_expires_ms: _Number = 0
    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    stamps: bytes = b""
    origin: tuple[_Number, _U16] | None = None
    unknown_fields: tuple[tuple[int, bytes], ...] = ()

    def record(self) -> bytes:
        """The log record, byte for byte as it was."""
        properties: Properties | None = None
        if (
            self.user_properties
            or self.content_type is not None
            or self.payload_format_indicator is not None
            or self.message_expiry_interval is not None
            or self.response_topic is not None
            or self.correlation_data is not None
        ):
            properties = Properties(
                payload_format_indicator=self.payload_format_indicator,
                message_expiry_interval=self.message_expiry_interval,
                content_type=self.content_type,
                response_topic=self.response_topic,
                correlation_data=self.correlation_data,
                user_properties=self.user_properties,
            )
        message = Message(
            self.topic_name,
            self.payload,
            self.message_qos,
            self.message_retain,
            self.publisher,
            self.version,
            self.time,
            self.message_expires_ms,
            properties,
        )
        origin = Origin(*self.origin) if self.origin is not None else None
        return encode_record(message, self.stamps, origin, self.unknown_fields)


class _Delivery(MessageBody, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """What a stored delivery adds. `client_id` is the receiver's; `expires_ms` its deadline in the queue, `qos`,
    `retained` and `identifiers` what is sent; `share_crc32` is of the name of the shared subscription by which it came.
    """

    qos: _Qos
    expires_ms: _Number
    client_id: str
    retained: bool
    shared: bool = False
    share_crc32: _U32 = 0
    identifiers: tuple[int, ...] = ()


class _StoredMessage(_Delivery, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    packet_type: str
    packet_id: _U16
    record_bytes: _Number
    offset: _Offset


class _Retained(MessageBody, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    offset: _Offset


_encode = msgspec.json.Encoder().encode
_decode_stored = msgspec.json.Decoder(_StoredMessage).decode
_decode_retained = msgspec.json.Decoder(_Retained).decode


def encode_tail(row: QueueRow, client_id: str, record: LogRecord) -> bytes:
    """The JSON of a stored delivery without its head, which has the packet id: from `"recordBytes":` on. `record` is
    the row's, decoded."""
    flags = row.flags
    delivery = _Delivery(
        qos=flags & 3,
        retained=bool(flags & 4),
        shared=bool(flags & 8),
        share_crc32=flags >> 4,
        expires_ms=row.expires_ms,
        client_id=client_id,
        identifiers=row.identifiers,
        **_spelled(record),
    )
    return b'"recordBytes":%d,"offset":%d,' % (len(row.record), row.offset) + _encode(delivery)[1:]


_NO_PROPERTIES = Properties()


def _spelled(record: LogRecord) -> dict[str, Any]:
    """The fields of `MessageBody`."""
    message = record.message
    properties = message.properties or _NO_PROPERTIES
    return {
        "topic_name": message.topic,
        "payload": message.payload,
        "publisher": message.publisher,
        "time": message.accepted_ms,
        "version": message.version,
        "message_qos": message.qos,
        "message_retain": message.retain,
        "message_expires_ms": message.expires_ms,
        "payload_format_indicator": properties.payload_format_indicator,
        "message_expiry_interval": properties.message_expiry_interval,
        "content_type": properties.content_type,
        "response_topic": properties.response_topic,
        "correlation_data": properties.correlation_data,
        "user_properties": properties.user_properties,
        "stamps": encode_stamps(record.stamps),
        "origin": _origin(record),
        "unknown_fields": record.unknown_fields,
    }


def message_body(record: bytes) -> MessageBody:
    """A log record, spelled out. Raises RecordError."""
    return MessageBody(**_spelled(decode_record(record)))


def _origin(record: LogRecord) -> tuple[int, int] | None:
    return (record.origin.generation, record.origin.packet_id) if record.origin is not None else None


def decode_message(key: str, value: bytes, *, generation: int, seq: int, state: int) -> QueueRow:
    """A stored delivery from its JSON, `PUBLISH_HEAD` and `encode_tail`. Raises LayoutError."""
    try:
        found = _decode_stored(value)
        if found.packet_type not in ("PUBLISH", "PUBREL"):
            raise ValueError(f"packetType {found.packet_type!r} is neither PUBLISH nor PUBREL")
        decode_stamps(found.stamps)
        record = found.record()
    except BROKEN as error:
        raise broken(key, error) from error
    return QueueRow(
        generation,
        seq,
        found.offset,
        found.packet_id,
        state,
        found.qos | found.retained << 2 | found.shared << 3 | found.share_crc32 << 4,
        found.expires_ms,
        found.identifiers,
        record,
    )


def encode_retained(row: RetainedRow) -> bytes:
    """The JSON of a retained message. Raises RecordError."""
    body = message_body(row.record)
    return b'{"offset":%d,' % row.offset + _encode(body)[1:]


def decode_retained(key: str, value: bytes) -> RetainedRow:
    """The inverse of `encode_retained`. Raises LayoutError."""
    try:
        found = _decode_retained(value)
        return RetainedRow(found.topic_name, found.offset, found.record())
    except BROKEN as error:
        raise broken(key, error) from error


def encode_received(offset: int, record: bytes) -> bytes:
    """The value of a field of `s:f:ri:{client}`; the field is the packet id. Where there is no `record` only its
    position is known. Raises RecordError."""
    head = b'{"offset":%d' % offset
    if not record:
        return head + b"}"
    return head + b"," + _encode(message_body(record))[1:]


# Sessions


class _Session(Struct, frozen=True, omit_defaults=True):
    epoch: _Number
    generation: _Number
    client_id: str
    client_type: str
    username: str
    certificate: str
    version: int
    clean: bool
    server_id: str
    status: str
    expiry_interval_s: Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
    expires_ms: _Number
    created_ms: _Number


class _Subscription(Struct, frozen=True, omit_defaults=True):
    options: Annotated[int, Meta(ge=0, le=255)]
    identifier: _Number
    since_offset: _Number
    queue: str = ""


class _StoredWill(Struct, frozen=True):
    generation: _Number
    client_id: str
    delay_s: Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
    due_ms: _Number
    username: str
    certificate: str
    message: MessageBody
    since_offset: int = -1


class Schema(Struct, frozen=True):
    """What `embermq:schema` says of the whole store: the layout's version, and the id of the log that it belongs to."""

    version: int
    log: str


_decode_session = msgspec.json.Decoder(_Session).decode
_decode_subscription = msgspec.json.Decoder(_Subscription).decode
_decode_will = msgspec.json.Decoder(_StoredWill).decode
_decode_schema = msgspec.json.Decoder(Schema).decode


def session_fence(epoch: int, generation: int) -> str:
    """How the JSON of a session begins: scripts compare it, so that only the owner's writes count."""
    return f'{{"epoch":{epoch},"generation":{generation},'


def encode_session(row: SessionRow, server_id: str = "") -> bytes:
    """The JSON of `s:ol:{client}`; `server_id` says which broker has the client."""
    status = "online" if row.connected else "offline"
    return _encode(
        _Session(
            row.epoch,
            row.generation,
            row.client_id,
            row.client_type.name,
            row.username,
            row.certificate,
            row.version,
            False,
            server_id,
            status,
            row.expiry_interval_s,
            row.expires_ms,
            row.created_ms,
        )
    )


def decode_session(key: str, value: bytes) -> SessionRow:
    """The inverse of `encode_session`. Raises LayoutError."""
    try:
        found = _decode_session(value)
        if found.client_type not in ClientType.__members__:
            raise ValueError(
                f"client_type {found.client_type!r} is none of {', '.join(ClientType.__members__)}"
            )
        if found.status not in ("online", "offline"):
            raise ValueError(f"status {found.status!r} is neither online nor offline")
        fence = session_fence(found.epoch, found.generation).encode()
        if not value.startswith(fence):
            raise ValueError(f"does not begin with {fence.decode()}")
    except ValueError as error:
        raise broken(key, error) from error
    return SessionRow(
        found.client_id,
        found.generation,
        found.epoch,
        ClientType[found.client_type],
        found.username,
        found.version,
        found.expiry_interval_s,
        found.status == "online",
        found.expires_ms,
        found.created_ms,
        found.certificate,
    )


def encode_subscription(row: SubscriptionRow) -> bytes:
    """The value of a field of `s:s:{client}`; the field is the filter."""
    return _encode(_Subscription(row.options, row.identifier, row.since_offset, row.queue))


def decode_subscription(key: str, topic_filter: str, value: bytes) -> SubscriptionRow:
    """The inverse of `encode_subscription`. Raises LayoutError."""
    try:
        found = _decode_subscription(value)
    except ValueError as error:
        raise broken(f"{key}, field {topic_filter}", error) from error
    return SubscriptionRow(topic_filter, found.options, found.identifier, found.since_offset, found.queue)


def encode_will(generation: int, row: WillRow) -> bytes:
    """The JSON of `s:w:{client}`. Raises RecordError."""
    message = message_body(row.record)
    return _encode(
        _StoredWill(
            generation,
            row.client_id,
            row.delay_s,
            row.due_ms,
            row.username,
            row.certificate,
            message,
            row.since_offset,
        )
    )


def decode_will(key: str, value: bytes) -> tuple[int, WillRow]:
    """The inverse of `encode_will`. Raises LayoutError."""
    try:
        found = _decode_will(value)
        record = found.message.record()
    except BROKEN as error:
        raise broken(key, error) from error
    row = WillRow(
        found.client_id,
        found.delay_s,
        record,
        found.due_ms,
        found.username,
        found.certificate,
        found.since_offset,
    )
    return found.generation, row


def encode_schema(log_id: str) -> bytes:
    """The value of `embermq:schema` that this version writes."""
    return _encode(Schema(SCHEMA_VERSION, log_id))


def decode_schema(value: bytes) -> Schema:
    """The value of `embermq:schema`. Raises LayoutError for another version, or for what is no such value."""
    try:
        return _decode_schema(value)
    except ValueError as error:
        raise broken(SCHEMA_KEY, error) from error


class Place(Struct, frozen=True):
    """Where a message in flight stands: the beginning of a value of `s:f:p:{client}`, which scripts complete with the
    message as it was when it was sent, for people."""

    score: Annotated[float, Meta(ge=0)]
    offset: _Offset
    qos: _Qos


_decode_place = msgspec.json.Decoder(Place).decode


def encode_place(seq: int, offset: int, qos: int) -> bytes:
    """The beginning of the value of a field of `s:f:p:{client}`, as JSON; the field is the packet id."""
    return b'{"score":%s,"offset":%d,"qos":%d}' % (score_of(seq).encode(), offset, qos)


def decode_place(key: str, packet_id: int, value: bytes) -> Place:
    """The inverse of `encode_place`. Raises LayoutError."""
    try:
        return _decode_place(value)
    except ValueError as error:
        raise broken(f"{key}, field {packet_id}", error) from error


def broken(key: str, error: Exception) -> LayoutError:
    """What a key holds is not what it should be."""
    return LayoutError(f"key {key!r}: {error}")
