"""The codec on generated packets and bytes: round trips, pieces of any size, noise."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.conformance.wire_cases import CASES
from tests.conformance.wire_errors import ERRORS
from tests.property import packet_strategies as packets

from embermq.mqtt.wire.data_types import VARINT_MAX, encode_varint, read_varint
from embermq.mqtt.wire.decoder import Decoder
from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.errors import MalformedPacket, ProtocolError
from embermq.mqtt.wire.packets import Connack, Packet, Pubrel, Subscribe, Unsubscribe
from embermq.mqtt.wire.version import ProtocolVersion, Role

VERSIONS = list(ProtocolVersion)
DUP = 0x08
"""In 3.1 also of these three, and nothing is done with it."""


def streams(role: Role, version: ProtocolVersion) -> st.SearchStrategy[list[Packet]]:
    """What one side sends in a whole connection."""
    first = packets.connects(version) if role is Role.SERVER else packets.connacks(version)
    then = packets.of_client(version) if role is Role.SERVER else packets.of_server(version)
    last = (
        packets.disconnects(version, role) if role is Role.SERVER or version is ProtocolVersion.V5 else None
    )
    ends = st.just([]) if last is None else last.map(lambda packet: [packet])
    return st.builds(lambda a, b, c: [a, *b, *c], first, st.lists(then, max_size=6), ends)


def fresh(role: Role, version: ProtocolVersion, packet_bytes_max: int = 1 << 20) -> Decoder:
    return Decoder(role, packet_bytes_max=packet_bytes_max, version=None if role is Role.SERVER else version)


def in_pieces(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    start = 0
    for size in sizes:
        pieces.append(data[start : start + size])
        start += size
    pieces.append(data[start:])
    return pieces


def outcome(decoder: Decoder, pieces: list[bytes]) -> tuple[list[Packet], object, object]:
    """What came out: packets, error and version."""
    found = [packet for piece in pieces for packet in decoder.feed(piece)]
    error = decoder.error
    said = None if error is None else (type(error), error.reason_code, error.message, error.clause)
    return found, said, decoder.version


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("role", list(Role))
@given(data=st.data())
def test_round_trip_in_any_pieces(role: Role, version: ProtocolVersion, data: st.DataObject) -> None:
    stream = data.draw(streams(role, version))
    wire = b"".join(encode(packet, version) for packet in stream)
    decoder = fresh(role, version)
    assert decoder.feed(wire) == stream
    assert decoder.error is None
    sizes = data.draw(st.lists(st.integers(0, 20), max_size=12))
    assert outcome(fresh(role, version), in_pieces(wire, sizes)) == (stream, None, version)


ALL_BYTES = [(case.reader, case.version, case.data) for case in CASES if len(case.data) < 200]
ALL_BYTES += [(case.reader, case.version, case.data) for case in ERRORS]


@settings(max_examples=3 * settings().max_examples)
@given(
    noise=st.binary(max_size=60),
    role=st.sampled_from(Role),
    version=st.sampled_from(VERSIONS),
    opened=st.booleans(),
    sizes=st.lists(st.integers(0, 8), max_size=8),
)
def test_noise_is_refused_in_the_same_way_in_any_pieces(
    noise: bytes, role: Role, version: ProtocolVersion, opened: bool, sizes: list[int]
) -> None:
    whole, split = opened_pair(role, version, opened)
    assert outcome(whole, [noise]) == outcome(split, in_pieces(noise, sizes))


@settings(max_examples=6 * settings().max_examples)
@given(
    case=st.sampled_from(ALL_BYTES),
    changes=st.lists(
        st.tuples(st.integers(0, 200), st.integers(0, 255), st.integers(0, 2)), min_size=1, max_size=3
    ),
    opened=st.booleans(),
    sizes=st.lists(st.integers(0, 8), max_size=8),
)
def test_changed_packets_never_raise(
    case: tuple[Role, ProtocolVersion, bytes],
    changes: list[tuple[int, int, int]],
    opened: bool,
    sizes: list[int],
) -> None:
    """A byte changed, added or removed; the length follows in most examples, so that the body is read."""
    role, version, wire = case
    changed = bytearray(wire)
    for position, value, how in changes:
        index = position % max(len(changed), 1)
        if how == 0 and changed:
            changed[index] = value
        elif how == 1:
            changed.insert(index, value)
        elif changed:
            del changed[index]
    if sum(position for position, _, _ in changes) % 4 and 2 <= len(changed) < 130:
        changed[1] = len(changed) - 2
    data = bytes(changed)
    whole, split = opened_pair(role, version, opened)
    found, said, _ = result = outcome(whole, [data])
    assert result == outcome(split, in_pieces(data, sizes))
    if said is None:
        # What was taken can be written again, and reads the same.
        for packet in found:
            again, _ = opened_pair(role, version, opened)
            wire_again = encode(packet, whole.version or version)
            assert again.feed(wire_again) == [packet]


def opened_pair(role: Role, version: ProtocolVersion, opened: bool) -> tuple[Decoder, Decoder]:
    pair = (fresh(role, version, 4096), fresh(role, version, 4096))
    if opened and role is Role.SERVER:
        pair = (
            Decoder(role, packet_bytes_max=4096, version=version),
            Decoder(role, packet_bytes_max=4096, version=version),
        )
    elif opened:
        for decoder in pair:
            decoder.feed(encode(Connack(False, 0), version))
    return pair


@settings(max_examples=3 * settings().max_examples)
@given(version=st.sampled_from(VERSIONS), data=st.data())
def test_a_changed_byte_never_reads_as_the_same_packet(version: ProtocolVersion, data: st.DataObject) -> None:
    packet = data.draw(packets.of_client(version))
    wire = bytearray(encode(packet, version))
    position, change = data.draw(st.integers(0, len(wire) - 1)), data.draw(st.integers(1, 255))
    repeated = version is ProtocolVersion.V31 and isinstance(packet, Pubrel | Subscribe | Unsubscribe)
    assume(not (repeated and (position, change) == (0, DUP)))
    wire[position] ^= change
    assert Decoder(Role.SERVER, version=version).feed(bytes(wire)) != [packet]


@settings(max_examples=2 * settings().max_examples)
@given(st.integers(0, VARINT_MAX))
def test_variable_byte_integers(value: int) -> None:
    data = encode_varint(value)
    assert read_varint(data, 0) == (value, len(data))
    assert len(data) == 1 + (value >= 1 << 7) + (value >= 1 << 14) + (value >= 1 << 21)
    for cut in range(len(data)):
        with pytest.raises(MalformedPacket):
            read_varint(data[:cut], 0)
    if len(data) < 4:
        padded = data[:-1] + bytes((data[-1] | 0x80, 0))
        with pytest.raises(ProtocolError, match="shortest"):
            read_varint(padded, 0)
