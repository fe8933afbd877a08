"""The data types of the wire [MQTT 5.0, 1.5]: integers, strings, binary data, variable byte integers.

Readers take a whole packet body, so the end of ``data`` is the end of what may be read: reading past it is a
malformed packet. They return the value and the position after it. Writers raise `EncodeError`.
"""

from __future__ import annotations

from typing import Final

from embermq.mqtt.wire.errors import EncodeError, MalformedPacket

VARINT_MAX: Final = 268_435_455
TEXT_BYTES_MAX: Final = 65_535


def read_u8(data: bytes, start: int) -> tuple[int, int]:
    """One byte."""
    if start >= len(data):
        raise _truncated(data, start, 1)
    return data[start], start + 1


def read_u16(data: bytes, start: int) -> tuple[int, int]:
    """A two byte integer [MQTT 5.0, 1.5.2]."""
    end = start + 2
    if end > len(data):
        raise _truncated(data, start, 2)
    return data[start] << 8 | data[start + 1], end


def read_u32(data: bytes, start: int) -> tuple[int, int]:
    """A four byte integer [MQTT 5.0, 1.5.3]."""
    end = start + 4
    if end > len(data):
        raise _truncated(data, start, 4)
    return int.from_bytes(data[start:end], "big"), end


def read_varint(data: bytes, start: int) -> tuple[int, int]:
    """A variable byte integer of at most 4 bytes in its shortest form [MQTT-1.5.5-1]."""
    value = shift = 0
    position = start
    for position in range(start, start + 4):
        if position >= len(data):
            raise _truncated(data, start, position - start + 1)
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    else:
        raise MalformedPacket("variable byte integer of more than 4 bytes", "MQTT-1.5.5-1")
    if shift and value >> shift == 0:
        raise MalformedPacket(
            f"variable byte integer {value} is not in its shortest form: {position - start + 1} bytes",
            "MQTT-1.5.5-1",
        )
    return value, position + 1


def read_binary(data: bytes, start: int) -> tuple[bytes, int]:
    """Binary data with a two byte length [MQTT 5.0, 1.5.6]."""
    size, begin = read_u16(data, start)
    end = begin + size
    if end > len(data):
        raise _truncated(data, begin, size)
    return data[begin:end], end


def read_text(data: bytes, start: int) -> tuple[str, int]:
    """A UTF-8 string with a two byte length; no surrogates, no U+0000 [MQTT-1.5.4-1] [MQTT-1.5.4-2]."""
    raw, end = read_binary(data, start)
    return decode_text(raw), end


def decode_text(raw: bytes) -> str:
    """The string of well-formed UTF-8 without U+0000. A byte order mark stays [MQTT-1.5.4-3]."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise MalformedPacket(
            f"string is not UTF-8: {error.reason} at byte {error.start} of {len(raw)}", "MQTT-1.5.4-1"
        ) from None
    if "\0" in text:
        raise MalformedPacket(f"string contains U+0000 at character {text.index(chr(0))}", "MQTT-1.5.4-2")
    return text


def encode_varint(value: int) -> bytes:
    """The shortest form, 1 to 4 bytes."""
    if 0 <= value < 0x80:
        return bytes((value,))
    if not 0 <= value <= VARINT_MAX:
        raise EncodeError(f"variable byte integer {value} is not within 0..{VARINT_MAX}")
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_integer(value: int, size: int) -> bytes:
    """An unsigned integer of ``size`` bytes, most significant first."""
    try:
        return value.to_bytes(size, "big")
    except OverflowError:
        raise EncodeError(f"{value} does not fit into {size} unsigned bytes") from None


def encode_binary(value: bytes) -> bytes:
    """Binary data with its two byte length; at most 65,535 bytes."""
    if len(value) > TEXT_BYTES_MAX:
        raise EncodeError(f"{len(value)} bytes of data, the limit is {TEXT_BYTES_MAX}")
    return len(value).to_bytes(2, "big") + value


def encode_text(text: str) -> bytes:
    """A UTF-8 string with its two byte length; at most 65,535 bytes, no surrogate, no U+0000."""
    if "\0" in text:
        raise EncodeError("string contains U+0000")
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise EncodeError(f"string contains a surrogate at character {error.start}") from None
    return encode_binary(raw)


def _truncated(data: bytes, start: int, wanted: int) -> MalformedPacket:
    return MalformedPacket(
        f"truncated: {wanted} bytes wanted at byte {start}, the packet ends at byte {len(data)}",
        "MQTT-4.13.1-1",
    )
