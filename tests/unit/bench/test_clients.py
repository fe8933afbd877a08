"""Publisher and Subscriber over a transport that keeps what is written: no network."""

from __future__ import annotations

import asyncio
from time import monotonic_ns
from typing import cast

import pytest
from tests.support.paper import Paper

from embermq.mqtt.wire.encoder import encode, puback, pubcomp, pubrec, pubrel
from embermq.mqtt.wire.packets import Connack, Disconnect, Puback, Publish, Pubrec
from embermq.mqtt.wire.version import ProtocolVersion
from embermq_bench.errors import ConnectionLostError
from embermq_bench.frames import FrameFamily, topic_index
from embermq_bench.measurement import Measurement
from embermq_bench.publisher import Publisher
from embermq_bench.settings import Limits, Target
from embermq_bench.subscriber import Subscriber, acknowledgements
from embermq_bench.tally import Tally

V5 = ProtocolVersion.V5
TARGET = Target(version=V5)
LIMITS = Limits(paced_inflight_max=2)


def family(qos: int) -> FrameFamily:
    return FrameFamily("bench/r/", qos=qos, version=V5, payload_bytes=16)


def publisher(qos: int, measurement: Measurement | None = None) -> tuple[Publisher, Paper]:
    client = Publisher(
        "p", TARGET, LIMITS, family(qos).outgoing(0), qos=qos, measurement=measurement or Measurement()
    )
    paper = Paper()
    client.connection_made(cast(asyncio.Transport, paper))
    client.data_received(encode(Connack(False, 0), V5))
    return client, paper


def subscriber(qos: int, measurement: Measurement | None = None) -> tuple[Subscriber, Paper]:
    client = Subscriber(
        "s",
        TARGET,
        LIMITS,
        family(qos),
        tallies={topic_index(source).encode(): Tally() for source in range(2)},
        answers=acknowledgements(qos),
        measurement=measurement or Measurement(),
    )
    paper = Paper()
    client.connection_made(cast(asyncio.Transport, paper))
    client.data_received(encode(Connack(False, 0), V5))
    return client, paper


def message(sequence: int, packet_id: int, *, qos: int = 1, source: int = 0, dup: bool = False) -> bytes:
    payload = sequence.to_bytes(8, "big") + monotonic_ns().to_bytes(8, "big")
    return encode(Publish(f"bench/r/{source:06d}", payload, qos, packet_id, dup=dup), V5)


def test_a_saturated_publisher_keeps_its_window_full() -> None:
    client, paper = publisher(1)
    client.saturate(3)
    client.pump()
    assert client.sent == client.outstanding == 3
    paper.take()
    client.data_received(puback(1) + puback(2))
    assert client.acknowledged == 2
    assert client.sent == 5
    assert client.outstanding == 3
    assert len(paper.take()) == 2 * len(message(0, 1))
    client.stop_after(0)
    client.data_received(puback(3) + puback(4) + puback(5))
    assert client.has_sent_all
    assert client.taken == b"\1" * 5


def test_acknowledgements_in_pieces_and_with_reason_codes() -> None:
    client, _ = publisher(1)
    client.saturate(4)
    client.pump()
    client.stop_after(0)
    stream = puback(2) + encode(Puback(1, 0x10), V5) + encode(Puback(3, 0x97), V5) + puback(4) + puback(4)
    for byte in stream:
        client.data_received(bytes([byte]))
    assert client.acknowledged == 3
    assert client.refused == 1
    assert client.taken == b"\1\1\0\1"


def test_packet_ids_begin_again_after_65535() -> None:
    client, _ = publisher(1)
    client.saturate(40_000)
    client.pump()
    client.data_received(b"".join(puback(packet_id) for packet_id in range(1, 40_001)))
    assert client.sent == 80_000
    client.stop_after(0)
    rest = [sequence % 65_535 + 1 for sequence in range(40_000, 80_000)]
    client.data_received(b"".join(puback(packet_id) for packet_id in rest))
    assert client.acknowledged == 80_000
    assert client.taken.count(1) == 80_000


def test_qos_2_is_acknowledged_by_pubrec_and_its_slot_is_free_after_pubcomp() -> None:
    client, paper = publisher(2)
    client.saturate(2)
    client.pump()
    client.stop_after(0)
    paper.take()
    client.data_received(pubrec(1) + encode(Pubrec(2, 0x97), V5))
    assert client.acknowledged == 1
    assert client.refused == 1
    assert client.outstanding == 1
    assert paper.take() == pubrel(1)
    client.data_received(pubcomp(1))
    assert client.outstanding == 0


def test_a_paced_publisher_holds_back_what_the_limit_does_not_allow_and_counts_the_wait() -> None:
    measurement = Measurement()
    client, _ = publisher(1, measurement)
    measurement.since_ns = 0
    client.follow()
    intended_ns = monotonic_ns() - 1_000_000_000
    for _ in range(3):
        client.offer(intended_ns)
    client.pump()
    assert client.sent == 2
    assert client.backlog == 1
    client.data_received(puback(1))
    assert client.sent == 3
    assert client.backlog == 0
    assert measurement.acknowledgement.quantile_ns(0.0) >= 1_000_000_000
    assert measurement.send_delay.samples == 3


def test_a_publisher_waits_while_its_socket_is_full() -> None:
    client, _ = publisher(0)
    client.saturate(5)
    client.pause_writing()
    client.pump()
    assert client.sent == 0
    client.resume_writing()
    assert client.sent == 5


@pytest.mark.parametrize("step", [1, 7, 41, 10_000])
def test_a_subscriber_counts_and_answers_however_the_bytes_are_cut(step: int) -> None:
    measurement = Measurement()
    measurement.since_ns = 0
    client, paper = subscriber(1, measurement)
    foreign = encode(Publish("bench/other/000000", bytes(16), 1, 9), V5)
    stream = (
        message(0, 1)
        + message(0, 2, source=1)
        + message(2, 3)
        + message(1, 4)
        + message(1, 5, dup=True)
        + foreign
        + message(3, 6)
    )
    for start in range(0, len(stream), step):
        client.data_received(stream[start : start + step])
    first, second = client.tallies[b"000000"], client.tallies[b"000001"]
    assert (first.arrived, first.reordered, first.duplicated) == (4, 1, 1)
    assert second.arrived == 1
    assert client.delivered == 6
    assert client.foreign == 1
    assert measurement.delivery.samples == 6
    assert paper.take() == b"".join(puback(packet_id) for packet_id in (1, 2, 3, 4, 5, 9, 6))


@pytest.mark.parametrize("step", [1, 5, 10_000])
def test_at_qos_2_a_repeat_before_pubrel_is_one_delivery_and_a_new_id_is_a_double(step: int) -> None:
    client, paper = subscriber(2)
    stream = (
        message(0, 1, qos=2)
        + message(0, 1, qos=2, dup=True)
        + pubrel(1)
        + message(1, 2, qos=2)
        + pubrel(2)
        + message(1, 2, qos=2)
    )
    for start in range(0, len(stream), step):
        client.data_received(stream[start : start + step])
    tally = client.tallies[b"000000"]
    assert tally.arrived == 2
    assert tally.duplicated == 1
    expected = pubrec(1) + pubrec(1) + pubcomp(1) + pubrec(2) + pubcomp(2) + pubrec(2)
    assert paper.take() == expected


def test_messages_before_the_window_are_counted_and_not_measured() -> None:
    measurement = Measurement()
    client, _ = subscriber(1, measurement)
    client.data_received(message(0, 1))
    measurement.since_ns = monotonic_ns()
    client.data_received(message(1, 2))
    assert client.delivered == 2
    assert measurement.delivery.samples == 1


@pytest.mark.parametrize("garbage", [b"\x30\xff\xff\xff\xff\xff", b"\x00\x00"])
def test_bytes_that_are_no_packet_end_the_connection_and_are_reported_once(garbage: bytes) -> None:
    client, paper = subscriber(1)
    lost: list[ConnectionLostError] = []
    client.on_lost = lost.append
    client.data_received(garbage)
    client.connection_lost(None)
    assert len(lost) == 1
    assert paper.aborted


def test_the_reason_of_a_disconnect_is_told() -> None:
    client, _ = subscriber(1)
    lost: list[ConnectionLostError] = []
    client.on_lost = lost.append
    client.data_received(encode(Disconnect(0x8B), V5))
    client.connection_lost(None)
    assert "0x8b" in str(lost[0])
