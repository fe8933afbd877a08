"""What the load on a queue sends, and what it makes of deliveries: no network."""

from __future__ import annotations

import asyncio
from time import monotonic_ns
from typing import cast

import pytest
from tests.support.paper import Paper

from embermq.mqtt.wire.decoder import Decoder, Role
from embermq.mqtt.wire.encoder import encode, puback
from embermq.mqtt.wire.packets import Connack, Packet, Puback, Publish
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq_bench.errors import ConnectionLostError, LoadError
from embermq_bench.measurement import Measurement
from embermq_bench.queue_consumer import Arrivals, QueueConsumer
from embermq_bench.queue_frames import STAMP, QueueFrames, keys_of
from embermq_bench.queue_report import broken_promises
from embermq_bench.settings import Ack, Limits, Load, QueueLoad, Target

V5 = ProtocolVersion.V5
RUN = 0xABCD0123
FRAMES = QueueFrames("bench/q", RUN, version=V5, payload_bytes=32)


def decoded(data: bytes, version: ProtocolVersion = V5) -> list[Packet]:
    decoder = Decoder(Role.SERVER, packet_bytes_max=1_000_000, version=version)
    packets = list(decoder.feed(data))
    assert decoder.error is None
    return packets


def delivery(
    sequence: int, *, publisher: int = 0, run: int = RUN, packet_id: int = 1, count: int = 1
) -> bytes:
    payload = STAMP.pack(sequence, monotonic_ns(), publisher, run) + bytes(8)
    stamps = (("partition-key", "k"), ("message-id", f"1-{sequence:x}"), ("delivery-count", str(count)))
    return encode(
        Publish("$queue/bench/q", payload, 1, packet_id, properties=Properties(user_properties=stamps)), V5
    )


def consumer(
    arrivals: Arrivals, *, ack: Ack = Ack.BATCH, batch: int = 50
) -> tuple[QueueConsumer, Paper, Measurement]:
    measurement = Measurement()
    measurement.since_ns = 0
    client = QueueConsumer(
        "c",
        Target(version=V5),
        Limits(),
        FRAMES,
        load=QueueLoad(ack=ack, ack_batch=batch),
        arrivals=arrivals,
        measurement=measurement,
    )
    paper = Paper()
    client.connection_made(cast(asyncio.Transport, paper))
    client.data_received(encode(Connack(False, 0), V5))
    return client, paper, measurement


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_carry_their_key_in_turn(qos: int) -> None:
    layout = FRAMES.outgoing(1, keys_of(1, 2, 6), qos)
    frames = [layout.pack(layout.head, 7, layout.middle, sequence, 99) for sequence in range(4)]
    packets = [packet for packet in decoded(b"".join(frames)) if isinstance(packet, Publish)]
    assert [packet.topic for packet in packets] == ["$queue/bench/q"] * 4
    assert [(packet.qos, packet.packet_id) for packet in packets] == [(qos, 7)] * 4
    assert [STAMP.unpack_from(packet.payload) for packet in packets] == [(n, 99, 1, RUN) for n in range(4)]
    assert {len(packet.payload) for packet in packets} == {32}
    keys = [
        dict(packet.properties.user_properties)["partition-key"] for packet in packets if packet.properties
    ]
    assert keys == ["k0000001", "k0000003", "k0000005", "k0000001"]


@pytest.mark.parametrize("version", [V5, ProtocolVersion.V311])
def test_messages_without_a_key_have_no_property(version: ProtocolVersion) -> None:
    layout = QueueFrames("q", RUN, version=version, payload_bytes=24).outgoing(0, [], 1)
    (packet,) = decoded(layout.pack(layout.head, 1, layout.middle, 5, 6), version)
    assert isinstance(packet, Publish)
    assert packet.properties is None and STAMP.unpack(packet.payload) == (5, 6, 0, RUN)


def test_each_key_belongs_to_one_publisher() -> None:
    shares = [keys_of(number, 3, 10) for number in range(3)]
    assert sorted(key for share in shares for key in share) == [f"k{number:07d}" for number in range(10)]


def test_what_came_in_one_read_is_settled_in_batches() -> None:
    arrivals = Arrivals(1, 0, ordered=False)
    client, paper, measurement = consumer(arrivals, batch=2)
    client.data_received(b"".join(delivery(sequence, packet_id=sequence + 1) for sequence in range(3)))
    sent = decoded(paper.take())
    assert [packet.packet_id for packet in sent if isinstance(packet, Puback)] == [1, 2, 3]
    acks = [packet for packet in sent if isinstance(packet, Publish)]
    assert [(packet.topic, packet.qos, packet.payload) for packet in acks] == [
        ("$queue/bench/q/$ack", 1, b"")
    ] * 2
    named = [packet.properties.user_properties for packet in acks if packet.properties]
    assert named == [(("message-id", "1-0"), ("message-id", "1-1")), (("message-id", "1-2"),)]
    assert (client.delivered, client.settled, client.unconfirmed) == (3, 0, 3)
    client.data_received(puback(1))
    assert (client.settled, client.unconfirmed, measurement.settling.samples) == (2, 1, 2)
    client.data_received(encode(Puback(2, 0x83), V5))
    assert (client.settled, client.unconfirmed, client.settles_refused) == (2, 0, 1)


def test_deliveries_in_pieces() -> None:
    arrivals = Arrivals(1, 0, ordered=False)
    client, _, measurement = consumer(arrivals)
    for byte in delivery(0) + delivery(1):
        client.data_received(bytes([byte]))
    assert arrivals.distinct == client.delivered == measurement.delivery.samples == 2


def test_pubacks_alone_settle_when_that_is_asked() -> None:
    client, paper, _ = consumer(Arrivals(1, 0, ordered=False), ack=Ack.PUBACK)
    client.data_received(delivery(0, packet_id=9))
    assert paper.take() == puback(9) and (client.settled, client.unconfirmed) == (1, 0)


def test_what_is_not_of_this_run_is_settled_and_told_apart() -> None:
    arrivals = Arrivals(1, 0, ordered=False)
    client, paper, _ = consumer(arrivals)
    client.data_received(delivery(0, run=1) + delivery(0, publisher=4))
    assert (arrivals.foreign, arrivals.distinct) == (2, 0)
    assert [packet for packet in decoded(paper.take()) if isinstance(packet, Publish)]


def test_a_broker_without_message_ids_ends_the_run() -> None:
    client, paper, _ = consumer(Arrivals(1, 0, ordered=False))
    lost: list[ConnectionLostError] = []
    client.on_lost = lost.append
    client.data_received(encode(Publish("$queue/bench/q", STAMP.pack(0, 0, 0, RUN) + bytes(8), 1, 1), V5))
    assert paper.aborted and "without message-id" in str(lost[0])


def test_lost_doubled_and_order_are_counted() -> None:
    arrivals = Arrivals(2, 4, ordered=True)  # publisher 0 has keys 0 and 2 in turn: even and odd numbers
    for sequence in (1, 0, 3, 2, 2):
        assert arrivals.take(0, sequence)
    assert (arrivals.distinct, arrivals.doubled, arrivals.disordered) == (4, 1, 0)
    arrivals.take(0, 7)
    arrivals.take(0, 5)
    assert arrivals.disordered == 1 and arrivals.tallies[0].missing(bytearray(b"\1" * 8)) == 2
    arrivals.take(0, 5)
    assert arrivals.disordered == 1 and arrivals.doubled == 2  # a repeat may come at any time
    assert not arrivals.take(2, 0)


def test_repeats_that_the_broker_names_are_counted() -> None:
    arrivals = Arrivals(1, 0, ordered=False)
    client, _, _ = consumer(arrivals)
    client.data_received(delivery(0) + delivery(0, count=2) + delivery(1, count=12))
    assert (arrivals.repeats, arrivals.doubled) == (2, 1)


@pytest.mark.parametrize(
    ("load", "queue", "version", "told"),
    [
        (Load(qos=0, payload_bytes=64), QueueLoad(), V5, "qos is 0"),
        (Load(payload_bytes=20), QueueLoad(), V5, "payload is 20 bytes; it is 24 or more"),
        (Load(), QueueLoad(publishers=4, keys=3), V5, "keys is 3; it is 0, or 4"),
        (Load(), QueueLoad(consumers=0), V5, "consumers is 0"),
        (Load(), QueueLoad(ack_batch=1_001), V5, "ack batch is 1001; it is 1 to 1000"),
        (Load(), QueueLoad(), ProtocolVersion.V311, "need MQTT 5"),
        (Load(), QueueLoad(keys=1, ack=Ack.PUBACK), ProtocolVersion.V311, "need MQTT 5"),
    ],
)
def test_options_that_contradict_one_another_are_told(
    load: Load, queue: QueueLoad, version: ProtocolVersion, told: str
) -> None:
    with pytest.raises(LoadError, match=told):
        queue.check(load, version)


def test_what_counts_as_a_broken_promise() -> None:
    assert broken_promises(0, 0) == ()
    assert broken_promises(2, 0) == ("2 acknowledged messages were lost",)
    assert len(broken_promises(1, 1)) == 2
