"""Packets that are almost right: conversations of a client, and the same with mutations, from a number alone.

A conversation is told from a seed, so that it can be told again. Whether a mutation ends it is asked of the decoder:
what stands behind a packet that cannot be read would not be read, so it is not sent, and not counted.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.conformance.wire_cases import CASES
from tests.conformance.wire_errors import ERRORS

from embermq.mqtt.wire.data_types import encode_varint
from embermq.mqtt.wire.decoder import Decoder
from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import (
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion, Role
from embermq.sessions.settings import MqttSettings

PACKET_BYTES_MAX = MqttSettings().packet_bytes_max
PACKETS_MAX = 12
"""Packets of a conversation behind CONNECT."""
VERSIONS = (ProtocolVersion.V5, ProtocolVersion.V5, ProtocolVersion.V311, ProtocolVersion.V31)
BAD_TEXTS = (
    b"\x00",
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xef\xbf\xbf",
    b"\xe2\x28",
    b"#",
    b"+",
    b"/",
    b"$",
)
BAD_LENGTHS = (
    b"\x00",
    b"\x01",
    b"\x7f",
    b"\x80\x00",
    b"\x80\x01",
    b"\xff\x7f",
    b"\x80\x80\x00",
    b"\xff\xff\x03",
    b"\xff\xff\xff\x7f",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\x01",
)
BAD_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFE, 0xFFFF)

Mutation = Callable[[bytes, random.Random, list[bytes]], bytes]


@dataclass(frozen=True, slots=True)
class Conversation:
    """What one client sends: `valid` and `mutated` go together packet by packet.

    `ends` says that the last mutated packet cannot be read, `waits` that the broker waits for more of it.
    """

    number: int
    version: ProtocolVersion
    valid: tuple[bytes, ...]
    mutated: tuple[bytes, ...]
    mutations: int
    ends: bool
    waits: bool


class Storyteller:
    """Conversations by number; the same seed tells the same."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._corpus = {version: _corpus(version) for version in ProtocolVersion}

    def tell(self, number: int) -> Conversation:
        """The conversation of that number."""
        dice = random.Random(f"{self.seed}:{number}")
        version = dice.choice(VERSIONS)
        corpus = self._corpus[version]
        valid = [connect(dice, version, number)]
        mutated = [valid[0]]
        mutations = 0
        decoder = Decoder(Role.SERVER, packet_bytes_max=PACKET_BYTES_MAX)
        if dice.random() < 0.15:
            mutated[0] = mutate(valid[0], dice, corpus)
            mutations += 1
        decoder.feed(mutated[0])
        for _ in range(dice.randint(1, PACKETS_MAX)):
            if decoder.error is not None:
                break
            packet = dice.choice(corpus)
            valid.append(packet)
            if dice.random() < 0.9:
                packet = _mutated(packet, dice, corpus, version)
                mutations += 1
            mutated.append(packet)
            decoder.feed(packet)
        ends = decoder.error is not None
        waits = not ends and decoder.buffered_bytes > 0
        return Conversation(number, version, tuple(valid), tuple(mutated), mutations, ends, waits)


def _mutated(packet: bytes, dice: random.Random, corpus: list[bytes], version: ProtocolVersion) -> bytes:
    """Most mutations cannot be read; those that can reach further into the broker, so they are sought."""
    wanted = dice.choice((False, True, True))
    for _ in range(4):
        mutated = mutate(packet, dice, corpus)
        decoder = Decoder(Role.SERVER, packet_bytes_max=PACKET_BYTES_MAX, version=version)
        decoder.feed(mutated)
        if not wanted or (decoder.error is None and not decoder.buffered_bytes):
            break
    return mutated


def connect(dice: random.Random, version: ProtocolVersion, number: int) -> bytes:
    """A CONNECT that is right; a few ids are wanted by many."""
    client_id = f"h{number % 500 if dice.random() < 0.1 else number}"
    will = None
    properties = None
    if dice.random() < 0.2:
        will_properties = (
            Properties(will_delay_interval=dice.choice((0, 1, 30)), user_properties=(("a", "b"),))
            if version is ProtocolVersion.V5
            else None
        )
        will = Will(
            f"h/will/{number % 50}", b"gone", dice.randint(0, 2), dice.random() < 0.2, will_properties
        )
    if version is ProtocolVersion.V5 and dice.random() < 0.5:
        properties = Properties(
            session_expiry_interval=dice.choice((0, 1, 5)),
            receive_maximum=dice.choice((1, 10, 65_535)),
            maximum_packet_size=dice.choice((50, 1_000, 268_435_460)),
            topic_alias_maximum=dice.choice((0, 5)),
        )
    packet = Connect(
        client_id,
        version,
        dice.random() < 0.8,
        dice.choice((0, 1, 60)),
        None,
        None,
        will,
        properties,
    )
    return encode(packet, version)


def _corpus(version: ProtocolVersion) -> list[bytes]:
    """What a client of that version may send once it is connected."""
    found: list[bytes] = [encode(packet, version) for packet in _packets(version)]
    found += [
        case.data
        for case in CASES
        if case.reader is Role.SERVER
        and case.version is version
        and case.data[0] >> 4 not in (1, 14)
        and len(case.data) < 2_000
    ]
    return found


def _packets(version: ProtocolVersion) -> list[Packet]:
    found: list[Packet] = [Pingreq()]
    is_5 = version is ProtocolVersion.V5
    for number in range(12):
        properties = None
        if is_5 and number % 2:
            properties = Properties(
                payload_format_indicator=bool(number & 2),
                message_expiry_interval=number,
                topic_alias=number if number < 6 else None,
                response_topic="h/answer",
                correlation_data=b"12",
                user_properties=(("key", "value"), ("key", "value")),
                content_type="text/plain",
            )
        qos = number % 3
        packet_id = 1 + number if qos else 0
        retain = number == 7
        payload = b"payload" * number
        found.append(Publish(f"h/{number}/topic", payload, qos, packet_id, retain, False, properties))
    for number in range(1, 7):
        found += [Puback(number), Pubrec(number), Pubrel(number), Pubcomp(number)]
        texts = (f"h/{number}/+", f"h/{number}/topic", "h/none/#", "$share/g/h/+/topic", "+/1/#", "h/é/✓")
        properties = Properties(subscription_identifiers=(number,)) if is_5 else None
        subscriptions = tuple(Subscription(text, number % 3) for text in texts[:number])
        found.append(Subscribe(100 + number, subscriptions, properties))
        found.append(Unsubscribe(200 + number, texts[:number]))
    return found


def mutate(packet: bytes, dice: random.Random, corpus: list[bytes]) -> bytes:
    """One mutation, seldom two."""
    mutated = dice.choice(MUTATIONS)(packet, dice, corpus)
    while dice.random() < 0.15 and mutated:
        mutated = dice.choice(MUTATIONS)(mutated, dice, corpus)
    return mutated


def _with_length(packet: bytes) -> bytes:
    """The same with a remaining length that is right."""
    if len(packet) < 2:
        return packet
    position = 1
    while position < len(packet) - 1 and position < 4 and packet[position] & 0x80:
        position += 1
    body = packet[position + 1 :]
    return packet[:1] + encode_varint(len(body)) + body


def _flip_bits(packet: bytes, dice: random.Random, _corpus: list[bytes]) -> bytes:
    changed = bytearray(packet)
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def _set_bytes(packet: bytes, dice: random.Random, _corpus: list[bytes]) -> bytes:
    changed = bytearray(packet)
    for _ in range(dice.choice((1, 1, 2, 3))):
        changed[dice.randrange(len(changed))] = dice.randrange(256)
    return bytes(changed)


def _first_byte(packet: bytes, dice: random.Random, _corpus: list[bytes]) -> bytes:
    return bytes((dice.randrange(256),)) + packet[1:]


def _wrong_length(packet: bytes, dice: random.Random, _corpus: list[bytes]) -> bytes:
    return packet[:1] + dice.choice(BAD_LENGTHS) + packet[2:]


def _truncate(packet: bytes, dice: random.Random, _corpus: list[bytes]) -> bytes:
    cut = packet[: dice.randint(1, len(packet))]
    return _with_length(cut) if dice.random() < 0.7 else cut


def _insert(packet: bytes, dice: random.Random, _corpus: list[bytes]) -> bytes:
    position = dice.randint(1, len(packet))
    new = dice.randbytes(dice.choice((1, 1, 2, 4, 20)))
    return _with_length(packet[:position] + new + packet[position:])


def _remove(packet: bytes, dice: random.Random, _corpus: list[bytes]) -> bytes:
    position = dice.randint(1, len(packet))
    return _with_length(packet[:position] + packet[position + dice.choice((1, 1, 2, 4, 20)) :])


def _repeat_part(packet: bytes, dice: random.Random, _corpus: list[bytes]) -> bytes:
    """A part twice, ten times, a thousand times: a property that may be there once is there twice."""
    start = dice.randrange(len(packet))
    part = packet[start : start + dice.choice((1, 2, 3, 5, 7, 12))]
    times = dice.choice((1, 1, 1, 10, 1_000))
    return _with_length(packet[:start] + part * times + packet[start:])


def _splice(packet: bytes, dice: random.Random, corpus: list[bytes]) -> bytes:
    """The head of one packet and the tail of another."""
    other = dice.choice(corpus)
    return _with_length(packet[: dice.randint(1, len(packet))] + other[dice.randint(1, len(other)) :])


def _bad_text(packet: bytes, dice: random.Random, _corpus: list[bytes]) -> bytes:
    position = dice.randint(1, len(packet))
    text = dice.choice(BAD_TEXTS)
    if dice.random() < 0.5:
        return packet[:position] + text + packet[position + len(text) :]
    return _with_length(packet[:position] + text + packet[position:])


def _bad_varint(packet: bytes, dice: random.Random, _corpus: list[bytes]) -> bytes:
    position = dice.randint(1, len(packet))
    return _with_length(packet[:position] + dice.choice(BAD_LENGTHS) + packet[position:])


def _bad_number(packet: bytes, dice: random.Random, _corpus: list[bytes]) -> bytes:
    position = dice.randint(1, len(packet))
    return packet[:position] + dice.choice(BAD_NUMBERS).to_bytes(2) + packet[position + 2 :]


def _out_of_order(_packet: bytes, dice: random.Random, corpus: list[bytes]) -> bytes:
    """A packet that is right, where nothing asked for it."""
    choice = dice.randrange(6)
    if choice == 0:
        return dice.choice(ERRORS).data
    if choice == 1:
        return dice.choice(CASES).data[:2_000]
    if choice == 2:
        return connect(dice, dice.choice(VERSIONS), dice.randrange(1_000))
    if choice == 3:
        return bytes((dice.choice((0x40, 0x50, 0x62, 0x70)), 2)) + dice.randbytes(2)
    if choice == 4:
        return encode(Disconnect(), ProtocolVersion.V311)
    return dice.choice(corpus) * dice.choice((2, 5, 40))


def _properties(packet: bytes, dice: random.Random, _corpus: list[bytes]) -> bytes:
    """Property blocks of any ids, with values of the right form or not."""
    block = b"".join(_property(dice) for _ in range(dice.choice((1, 1, 2, 3, 200))))
    size = encode_varint(len(block)) if dice.random() < 0.8 else dice.choice(BAD_LENGTHS)
    kind = dice.randrange(5)
    packet_id = dice.choice((1, 2, 0xFFFF)).to_bytes(2)
    if kind == 0:
        return _with_length(b"\x32\x00\x00\x05h/1/t" + packet_id + size + block + b"payload")
    if kind == 1:
        return _with_length(b"\x82\x00" + packet_id + size + block + b"\x00\x05h/1/t\x01")
    if kind == 2:
        first = dice.choice((0x40, 0x50, 0x62, 0x70))
        return _with_length(bytes((first, 0)) + packet_id + b"\x00" + size + block)
    if kind == 3:
        return _with_length(
            bytes((dice.choice((0xE0, 0xF0)), 0, dice.choice((0, 4, 0x18, 0x19)))) + size + block
        )
    return _with_length(b"\xa2\x00" + packet_id + size + block + b"\x00\x05h/1/t")


def _property(dice: random.Random) -> bytes:
    number = dice.choice(
        (0x01, 0x02, 0x03, 0x08, 0x09, 0x0B, 0x11, 0x15, 0x1F, 0x23, 0x26, dice.randrange(256))
    )
    text = dice.choice((b"", b"h/1/t", b"x", b"\xff", b"+"))
    if dice.random() < 0.3:
        return bytes((number,)) + dice.randbytes(dice.choice((0, 1, 2, 4)))
    value = {
        0x01: bytes((dice.choice((0, 1, 2)),)),
        0x02: dice.choice((0, 1, 0xFFFFFFFF)).to_bytes(4),
        0x0B: encode_varint(dice.choice((0, 1, 127, 128, 268_435_455))),
        0x11: dice.choice((0, 1, 0xFFFFFFFF)).to_bytes(4),
        0x23: dice.choice((0, 1, 5, 33, 0xFFFF)).to_bytes(2),
        0x26: (len(text).to_bytes(2) + text) * 2,
    }.get(number, len(text).to_bytes(2) + text)
    return bytes((number,)) + value


MUTATIONS: tuple[Mutation, ...] = (
    _flip_bits,
    _set_bytes,
    _first_byte,
    _wrong_length,
    _truncate,
    _insert,
    _remove,
    _repeat_part,
    _splice,
    _bad_text,
    _bad_varint,
    _bad_number,
    _out_of_order,
    _properties,
)
