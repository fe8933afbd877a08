"""A record of the message log as it stands in Kafka: the only place that knows its headers.

    key        MQTT topic (UTF-8)
    value      payload, untouched
    timestamp  accept time, Unix milliseconds

Headers, by name; numbers are decimal ASCII text, so that Spark takes them apart natively and a person can read them:

    v  format, "1.0": a reader refuses a larger major and carries what it does not know of a larger minor
    f  flags: bits 0-1 QoS, bit 2 retain, bits 3-5 protocol version of the publisher (3, 4, 5)
    t  accepted at, Unix milliseconds
    c  publisher's client id (UTF-8)
    p  MQTT 5 property block with its length prefix (binary), when there is one
    x  expires at, Unix milliseconds, when it does
    o  "generation;packet id": where an incoming QoS 2 PUBLISH came from, or a will (id 0)
    a  for each matched application log: "name of the log;generation;granted QoS;identifiers joined with ,", where 4 is
       added to the QoS for retain as published; names have letters, digits and . _ - only
    s  "partition;offset": in copies of a record, where it stands in the message log
    m  in a copy that has been moved from another partition of its application log: any value
    uN a field of the embedded log with tag N that this version does not know (binary)

Any other header is carried along, as a field with tag `FIELD_HEADER` of `formats.log_record`.
"""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from struct import Struct as Layout
from struct import error as LayoutError

from msgspec import Struct

from embermq.formats.log_record import (
    FIELD_EXPIRES,
    FIELD_HEADER,
    FIELD_ORIGIN,
    FIELD_PROPERTIES,
    FIELD_STAMPS,
    FORMAT,
    HEAD,
    IDENTIFIERS_MAX,
    LogRecord,
    RecordError,
    Stamp,
    decode_record,
    decode_stamps,
    encode_stamps,
    seal_record,
)
from embermq.model.message import Message
from embermq.model.position import position_of

VERSION = "1.0"
MAJOR = 1

Header = tuple[str, bytes | None]
"""Kafka has headers without a value; none of ours is."""

HEADERS_BYTES = 1024 * 1024
"""Room for what a record has besides its MQTT packet: stamps of thousands of application logs."""
STAMPS_REMEMBERED = 8_192
"""Stamps whose headers are remembered: those of a topic repeat with each of its messages."""
STAMPS_REMEMBERED_BYTES = 4_096
"""Longer ones are not."""
SHOWN_BYTES = 40
"""Of a value that is refused."""

_NUMBER_MAX = 2**63 - 1
_TOPIC_AT = HEAD.size + 2
_U16 = Layout(">H")
_U32 = Layout(">I")
_FIELD = Layout(">BI")
_I64 = Layout(">q")
_ORIGIN = Layout(">qH")
_DECIMAL = re.compile(rb"-?[0-9]{1,19}")
_LOG_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_TAGGED = re.compile(r"u(0|[1-9][0-9]{0,2})")
_SINGLE = frozenset("vftcpxos")
_KNOWN = _SINGLE | {"a"}
_VERSION_HEADER: Header = ("v", VERSION.encode())
_FLAGS: tuple[Header, ...] = tuple(("f", b"%d" % flags) for flags in range(256))
_PLAIN_NUMBER_DIGITS = 18
_PLAIN_FLAGS = {b"%d" % flags: flags for flags in range(256) if flags & 3 != 3 and 3 <= flags >> 3 & 7 <= 5}
_PLAIN_HEADERS = frozenset("vftcas")
_NULL = 0x8000


def record_bytes_max(packet_bytes_max: int) -> int:
    """What a topic has to take of one record, when the largest MQTT packet has so many bytes."""
    return packet_bytes_max + HEADERS_BYTES


class KafkaFrame(Struct, frozen=True, gc=False):
    """A record as `formats.log_record` has it. `source`: of a copy, the position of the record itself in the message
    log; None for that itself."""

    frame: bytes
    source: int | None = None


class KafkaRecord(Struct, frozen=True):
    """A record of the message log in Kafka, decoded."""

    record: LogRecord
    source: int | None = None


class Outgoing(Struct, frozen=True, gc=False):
    """What a producer is handed."""

    key: bytes
    value: bytes
    headers: list[Header]
    timestamp_ms: int


def as_it_is(log: str) -> str:
    """The stamp already has the name of the log."""
    return log


class KafkaEncoder:
    """Makes Kafka's records of encoded ones. `name_log` turns the log that a stamp has into the name of its topic."""

    def __init__(self, name_log: Callable[[str], str] = as_it_is) -> None:
        self._name_log = name_log
        self._remembered = lru_cache(STAMPS_REMEMBERED)(self._stamp_headers)

    def encode(self, frame: bytes) -> Outgoing:
        """`frame` is a record of `encode_record` with its size in front. Raises RecordError."""
        try:
            _, _, record_format, flags, accepted_ms = HEAD.unpack_from(frame)
            topic_end = _TOPIC_AT + (frame[HEAD.size] << 8 | frame[HEAD.size + 1])
            publisher_end = topic_end + 2 + (frame[topic_end] << 8 | frame[topic_end + 1])
            (fields_length,) = _U32.unpack_from(frame, publisher_end)
            if record_format >> 4 != FORMAT >> 4:
                raise RecordError(
                    f"record format {record_format:#04x}: this writer knows major {FORMAT >> 4}"
                )
            headers: list[Header] = [
                _VERSION_HEADER,
                _FLAGS[flags],
                ("t", b"%d" % accepted_ms),
                ("c", frame[topic_end + 2 : publisher_end]),
            ]
            value_at = publisher_end + 4 + fields_length
            if fields_length:
                self._add_fields(headers, frame, publisher_end + 4, value_at)
        except (LayoutError, IndexError, UnicodeDecodeError) as error:
            raise RecordError(f"cannot encode a record of {len(frame)} bytes: {error}") from error
        return Outgoing(frame[_TOPIC_AT:topic_end], frame[value_at:], headers, max(0, accepted_ms))

    def _add_fields(self, headers: list[Header], frame: bytes, at: int, end: int) -> None:
        while at < end:
            tag, length = _FIELD.unpack_from(frame, at)
            at += _FIELD.size
            value = frame[at : at + length]
            at += length
            if at > end:
                raise RecordError(
                    f"field {tag} of {length} bytes does not fit a record of {len(frame)} bytes"
                )
            if tag == FIELD_STAMPS:
                if length <= STAMPS_REMEMBERED_BYTES:
                    headers += self._remembered(value)
                else:
                    headers += self._stamp_headers(value)
            elif tag == FIELD_PROPERTIES:
                headers.append(("p", value))
            elif tag == FIELD_EXPIRES:
                headers.append(("x", b"%d" % _I64.unpack(value)[0]))
            elif tag == FIELD_ORIGIN:
                headers.append(("o", b"%d;%d" % _ORIGIN.unpack(value)))
            else:
                headers.append(_unknown_header(tag, value))

    def _stamp_headers(self, stamps: bytes) -> tuple[Header, ...]:
        return tuple(("a", self._stamp_text(stamp)) for stamp in decode_stamps(stamps))

    def _stamp_text(self, stamp: Stamp) -> bytes:
        name = self._name_log(stamp.log)
        if not _LOG_NAME.fullmatch(name):
            raise RecordError(
                f"a stamp names the log {name[:SHOWN_BYTES]!r}; a topic has 1 to 249 letters, digits and . _ -"
            )
        granted = stamp.qos | (4 if stamp.retain_as_published else 0)
        identifiers = ",".join(map(str, stamp.subscription_identifiers))
        return f"{name};{stamp.generation};{granted};{identifiers}".encode()


def kafka_bytes(outgoing: Outgoing) -> int:
    """Bytes that a record takes in Kafka at most, alone in a batch and not compressed."""
    size = 100 + len(outgoing.key) + len(outgoing.value)
    for name, value in outgoing.headers:
        size += 10 + len(name) + len(value or b"")
    return size


def read_source(headers: Iterable[Header] | None) -> int:
    """The position of the record that a copy was made of, alone. Raises RecordError."""
    for name, value in headers or ():
        if name == "s" and value is not None:
            return _read_source(value)
    raise RecordError("has no header s, where it comes from")


def decode_frame(key: bytes | None, value: bytes | None, headers: Iterable[Header] | None) -> KafkaFrame:
    """One record of the message log, or a copy of one. Raises RecordError with the header and its value."""
    single: dict[str, bytes] = {}
    stamps: list[Stamp] = []
    unknown: list[tuple[int, bytes]] = []
    found = list(headers or ())
    _check_version(found)
    for name, data in found:
        if name not in _KNOWN:
            unknown.append(_unknown_field(name, data))
        elif data is None:
            raise RecordError(f"header {name} has no value")
        elif name == "a":
            stamps.append(_read_stamp(data))
        elif name in single:
            raise RecordError(f"header {name} is there twice: {_shown(single[name])} and {_shown(data)}")
        else:
            single[name] = data
    for name in "ftc":
        if name not in single:
            raise RecordError(f"has no header {name}")
    if not key:
        raise RecordError("has no key, which is the topic of the message")
    if value is None:
        raise RecordError("has no value, which is the payload; an empty one is not none")
    head = (_read_flags(single["f"]), _number("t", single["t"]))
    frame = _frame(
        head, key, _text(single["c"], "header c"), _fields(single, stamps, unknown) + unknown, value
    )
    source = single.get("s")
    return KafkaFrame(frame, None if source is None else _read_source(source))


def decode_kafka_record(
    key: bytes | None, value: bytes | None, headers: Iterable[Header] | None
) -> KafkaRecord:
    """The same as a value; the property block is looked into as well. Raises RecordError."""
    plain = _plain_record(key, value, headers)
    if plain is not None:
        return plain
    found = decode_frame(key, value, headers)
    return KafkaRecord(decode_record(found.frame), found.source)


def _plain_record(
    key: bytes | None, value: bytes | None, headers: Iterable[Header] | None
) -> KafkaRecord | None:
    """A record that has what most have and nothing else, in a third of the time; None for all others, broken ones
    too."""
    listed = list(headers or ())
    found = dict(listed)
    accepted, publisher = found.get("t"), found.get("c")
    flags, stamp, source = _PLAIN_FLAGS.get(found.get("f") or b""), found.get("a"), found.get("s")
    if (
        len(found) != len(listed)
        or found.get("v") != _VERSION_HEADER[1]
        or not _PLAIN_HEADERS.issuperset(found)
        or not key
        or value is None
        or len(key) > 0xFFFF
        or accepted is None
        or publisher is None
        or flags is None
        or ("a" in found and stamp is None)
        or ("s" in found and source is None)
        or not (accepted.isdigit() and len(accepted) <= _PLAIN_NUMBER_DIGITS)
        or len(publisher) > 0xFFFF
    ):
        return None
    try:
        topic, client_id = key.decode(), publisher.decode()
    except UnicodeDecodeError:
        return None
    message = Message(topic, value, flags & 3, bool(flags & 4), client_id, flags >> 3 & 7, int(accepted))
    record = LogRecord(message, () if stamp is None else (_read_stamp(stamp),))
    return KafkaRecord(record, None if source is None else _read_source(source))


def _frame(
    head: tuple[int, int], key: bytes, publisher: bytes, fields: list[tuple[int, bytes]], payload: bytes
) -> bytes:
    flags, accepted_ms = head
    topic = _text(key, "the key")
    body = b"".join(_FIELD.pack(tag, len(value)) + value for tag, value in fields)
    rest = b"".join(
        (
            _U16.pack(len(topic)),
            topic,
            _U16.pack(len(publisher)),
            publisher,
            _U32.pack(len(body)),
            body,
            payload,
        )
    )
    return seal_record((FORMAT, flags, accepted_ms), rest)


def _fields(
    single: dict[str, bytes], stamps: list[Stamp], unknown: list[tuple[int, bytes]]
) -> list[tuple[int, bytes]]:
    """Those that are known, in the order in which `encode_record` writes them."""
    fields: list[tuple[int, bytes]] = []
    if "p" in single:
        fields.append((FIELD_PROPERTIES, single["p"]))
    if "x" in single:
        fields.append((FIELD_EXPIRES, _I64.pack(_number("x", single["x"]))))
    if len(stamps) > 0xFFFF:
        raise RecordError(f"has {len(stamps)} headers a, at most 65535 can be")
    if stamps:
        fields.append((FIELD_STAMPS, encode_stamps(tuple(stamps))))
    if "o" in single:
        fields.append((FIELD_ORIGIN, _read_origin(single["o"])))
    return fields


def _check_version(headers: list[Header]) -> None:
    version = next((value for name, value in headers if name == "v"), None)
    if version is None:
        raise RecordError("has no header v, its format")
    major, dot, minor = version.partition(b".")
    if not (dot and major.isdigit() and minor.isdigit() and len(version) <= SHOWN_BYTES):
        raise RecordError(f"header v is {_shown(version)}, not major.minor")
    if int(major) > MAJOR:
        raise RecordError(f"has format {version.decode()}: this reader knows major {MAJOR}")


def _number(name: str, value: bytes | None, minimum: int = -_NUMBER_MAX - 1) -> int:
    if value is not None and _DECIMAL.fullmatch(value):
        number = int(value)
        if minimum <= number <= _NUMBER_MAX:
            return number
    raise RecordError(f"header {name} is {_shown(value)}, not a number from {minimum} to {_NUMBER_MAX}")


def _read_flags(value: bytes) -> int:
    flags = _number("f", value, 0)
    if flags > 0xFF or flags & 3 == 3 or not 3 <= flags >> 3 & 7 <= 5:
        raise RecordError(f"header f is {flags}: no QoS and protocol version that MQTT has")
    return flags


def _read_origin(value: bytes) -> bytes:
    generation, semicolon, packet_id = value.partition(b";")
    if semicolon and _DECIMAL.fullmatch(generation) and packet_id.isdigit():
        number, identifier = int(generation), int(packet_id[:6])
        if -_NUMBER_MAX - 1 <= number <= _NUMBER_MAX and identifier <= 0xFFFF:
            return _ORIGIN.pack(number, identifier)
    raise RecordError(f"header o is {_shown(value)}, not generation;packet id")


def _read_source(value: bytes) -> int:
    partition, semicolon, offset = value.partition(b";")
    if semicolon and partition.isdigit() and offset.isdigit() and len(partition) < 11 and len(offset) < 20:
        with suppress(ValueError):
            return position_of(int(partition), int(offset))
    raise RecordError(f"header s is {_shown(value)}, not partition;offset")


@lru_cache(STAMPS_REMEMBERED)
def _read_stamp(value: bytes) -> Stamp:
    parts = value.split(b";")
    if len(parts) == 4:
        name, generation, granted, identifiers = parts
        found = identifiers.split(b",") if identifiers else []
        if (
            _LOG_NAME.fullmatch(name.decode("ascii", "replace"))
            and _DECIMAL.fullmatch(generation)
            and -_NUMBER_MAX - 1 <= int(generation) <= _NUMBER_MAX
            and granted in (b"0", b"1", b"2", b"4", b"5", b"6")
            and len(found) <= IDENTIFIERS_MAX
            and all(one.isdigit() and len(one) < 11 and int(one) <= 0xFFFF_FFFF for one in found)
        ):
            qos = int(granted)
            return Stamp(name.decode(), int(generation), qos & 3, bool(qos & 4), tuple(map(int, found)))
    raise RecordError(f"header a is {_shown(value)}, not log;generation;granted QoS;identifiers")


def _text(value: bytes, what: str) -> bytes:
    """Checked to be UTF-8 of at most 65,535 bytes."""
    if len(value) > 0xFFFF:
        raise RecordError(f"{what} has {len(value)} bytes, at most 65535 can be")
    try:
        value.decode()
    except UnicodeDecodeError as error:
        raise RecordError(f"{what} is {_shown(value)}: not UTF-8 at byte {error.start}") from error
    return value


def _unknown_header(tag: int, value: bytes) -> Header:
    if tag == FIELD_HEADER:
        foreign = _foreign_header(value)
        if foreign is not None:
            return foreign
    return (f"u{tag}", value)


def _foreign_header(field: bytes) -> Header | None:
    """What `_unknown_field` made of a header; None when it was not that."""
    if len(field) < 2:
        return None
    (length,) = _U16.unpack_from(field)
    end = 2 + (length & ~_NULL)
    if end > len(field) or (length & _NULL and end != len(field)):
        return None
    try:
        name = field[2:end].decode()
    except UnicodeDecodeError:
        return None
    if not name or "\0" in name or name in _KNOWN or _tag_of(name) is not None:
        return None
    return (name, None if length & _NULL else field[end:])


def _unknown_field(name: str, value: bytes | None) -> tuple[int, bytes]:
    tag = _tag_of(name)
    if tag is not None and value is not None:
        return tag, value
    encoded = name.encode()
    if len(encoded) >= _NULL:
        raise RecordError(f"a header has a name of {len(encoded)} bytes, at most {_NULL - 1} can be")
    if value is None:
        return FIELD_HEADER, _U16.pack(len(encoded) | _NULL) + encoded
    return FIELD_HEADER, _U16.pack(len(encoded)) + encoded + value


def _tag_of(name: str) -> int | None:
    """The tag of a field that has become a header; those that this version knows have headers of their own."""
    match = _TAGGED.fullmatch(name)
    tag = int(match[1]) if match else 0
    return tag if FIELD_ORIGIN < tag <= 0xFF else None


def _shown(value: bytes | None) -> str:
    if value is None:
        return "nothing"
    return repr(value)[1:] if len(value) <= SHOWN_BYTES else repr(value[:SHOWN_BYTES])[1:] + "..."
