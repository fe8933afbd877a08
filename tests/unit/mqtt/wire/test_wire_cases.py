"""Every named wire case: decoded, encoded, cut at every byte, fed byte by byte."""

from __future__ import annotations

import pytest
from tests.conformance.wire_cases import CASES, WireCase, WireError
from tests.conformance.wire_errors import ERRORS

from embermq.mqtt.wire.decoder import Decoder
from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.errors import ProtocolError
from embermq.mqtt.wire.packets import Connack, Connect, Packet, Pingreq, Pingresp
from embermq.mqtt.wire.version import ProtocolVersion, Role


def opened(role: Role, version: ProtocolVersion) -> Decoder:
    """A decoder behind the first packet of its connection."""
    if role is Role.SERVER:
        return Decoder(role, version=version)
    decoder = Decoder(role, version=version)
    decoder.feed(encode(Connack(False, 0), version))
    assert decoder.error is None
    return decoder


def fresh(role: Role, version: ProtocolVersion) -> Decoder:
    """A decoder before the first packet of its connection."""
    return Decoder(role, version=None if role is Role.SERVER else version)


def decoder_for(case: WireCase) -> Decoder:
    opening = isinstance(case.packet, Connect | Connack)
    return (fresh if opening else opened)(case.reader, case.version)


def decoder_for_error(case: WireError) -> Decoder:
    return (fresh if case.opening else opened)(case.reader, case.version)


def by_name(case: WireCase | WireError) -> str:
    return case.name


def byte_by_byte(decoder: Decoder, data: bytes) -> list[Packet]:
    return [packet for index in range(len(data)) for packet in decoder.feed(data[index : index + 1])]


def test_names_are_unique() -> None:
    names = [case.name for case in CASES] + [case.name for case in ERRORS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_decoded_whole_and_byte_by_byte_and_encoded(case: WireCase) -> None:
    decoder = decoder_for(case)
    assert decoder.feed(case.data) == [case.packet]
    assert decoder.error is None
    assert decoder.buffered_bytes == 0
    assert decoder.version is case.version

    decoder = decoder_for(case)
    assert byte_by_byte(decoder, case.data) == [case.packet]
    assert decoder.error is None

    data = encode(case.packet, case.version)
    if case.canonical:
        assert data == case.data
    else:
        decoder = decoder_for(case)
        assert decoder.feed(data) == [case.packet]
        assert decoder.error is None


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_cut_at_every_byte(case: WireCase) -> None:
    cuts = range(1, len(case.data)) if len(case.data) < 300 else (1, 2, 3, 4, 5, len(case.data) - 1)
    for cut in cuts:
        decoder = decoder_for(case)
        assert decoder.feed(case.data[:cut]) == []
        assert decoder.error is None
        assert decoder.buffered_bytes == cut
        assert decoder.feed(case.data[cut:]) == [case.packet]
        assert decoder.buffered_bytes == 0
    if len(case.data) > 128:
        return
    # With a length that agrees, a shorter body is another packet or an error, and the next packet stands.
    ping, pong = (b"\xc0\0", Pingreq()) if case.reader is Role.SERVER else (b"\xd0\0", Pingresp())
    for size in range(len(case.data) - 2):
        decoder = decoder_for(case)
        packets = decoder.feed(bytes((case.data[0], size)) + case.data[2 : 2 + size] + ping)
        if decoder.error is None:
            assert packets[-1] == pong or case.data[0] == 0xE0
        else:
            assert packets == []


@pytest.mark.parametrize("case", ERRORS, ids=by_name)
def test_refused_whole_and_byte_by_byte_and_behind_good_packets(case: WireError) -> None:
    decoder = decoder_for_error(case)
    assert decoder.feed(case.data) == []
    error = decoder.error
    assert isinstance(error, ProtocolError)
    assert (error.reason_code, error.clause) == (case.error, case.clause), str(error)
    assert case.clause in str(error)
    assert decoder.feed(b"\xc0\0") == []

    decoder = decoder_for_error(case)
    assert byte_by_byte(decoder, case.data) == []
    error = decoder.error
    assert error is not None
    assert (error.reason_code, error.clause) == (case.error, case.clause), str(error)

    if case.opening:
        return
    ping, pong = (b"\xc0\0", Pingreq()) if case.reader is Role.SERVER else (b"\xd0\0", Pingresp())
    decoder = decoder_for_error(case)
    assert decoder.feed(ping + ping + case.data + ping) == [pong] * 2
    assert decoder.error is not None
