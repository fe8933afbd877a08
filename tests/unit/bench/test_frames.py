"""The fixed layouts against the codec."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import Pingresp, Publish
from embermq.mqtt.wire.version import ProtocolVersion
from embermq_bench.frames import FrameFamily, frame_end, read_stamp

VERSIONS = [ProtocolVersion.V311, ProtocolVersion.V5]


def stamped(payload_bytes: int, sequence: int, intended_ns: int) -> bytes:
    return (sequence.to_bytes(8, "big") + intended_ns.to_bytes(8, "big")).ljust(payload_bytes, b"\0")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("payload_bytes", [16, 64, 200, 20_000])
def test_a_packed_packet_is_what_the_codec_writes(
    version: ProtocolVersion, qos: int, payload_bytes: int
) -> None:
    family = FrameFamily("bench/x/", qos=qos, version=version, payload_bytes=payload_bytes)
    layout = family.outgoing(42)
    frame = layout.pack(layout.head, 7 if qos else b"", layout.middle, 3, 4)
    packet = Publish("bench/x/000042", stamped(payload_bytes, 3, 4), qos, 7 if qos else 0)
    assert frame == encode(packet, version)
    incoming = family.incoming()
    assert incoming.row.unpack(frame) == (
        incoming.start,
        b"000042",
        7 if qos else b"",
        incoming.middle,
        3,
        4,
    )


def test_a_payload_that_is_too_short_has_no_stamp() -> None:
    assert read_stamp(b"short") is None
    assert read_stamp(stamped(16, 9, 8)) == (9, 8)


@given(st.binary(max_size=300), st.binary(max_size=5))
def test_the_end_of_a_packet(payload: bytes, after: bytes) -> None:
    frame = encode(Publish("t", payload), ProtocolVersion.V5)
    assert frame_end(b"xx" + frame + after, 2) == 2 + len(frame)
    assert not any(frame_end(frame[:cut], 0) for cut in range(len(frame)))


def test_an_empty_packet_and_a_bad_length() -> None:
    assert frame_end(encode(Pingresp(), ProtocolVersion.V5), 0) == 2
    with pytest.raises(ValueError, match="4 bytes"):
        frame_end(b"\x30\xff\xff\xff\xff\x01", 0)
