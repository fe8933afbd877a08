"""Clients that do not read what they asked for: the broker's memory stays bounded, others are served, kept sessions
lose nothing."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support import raw_client
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.certificates import Authority
from tests.support.measuring import judge
from tests.support.metrics import metric, resident_mib
from tests.support.raw_client import OpenSockets, RawClient
from tests.support.waiting import wait_until

from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
SUBSCRIBERS = 50 if "FAULT_ROUNDS" in os.environ else 20
FLOOD_BYTES = 3_000_000 * SUBSCRIBERS
"""More than all of them may take together, so a message that is kept once for all would be noticed, too."""
MIB_EACH = 2.0
"""Of the broker's memory for one client that never reads: its full write buffer of 1 MiB, what came over it in one
turn, and TLS."""
OPEN = OpenSockets()


@pytest.fixture(autouse=True)
def closes() -> Iterator[None]:
    yield
    OPEN.close()


def entered(
    sock: socket.socket, client_id: str, *, version: ProtocolVersion = V5, kept: bool = False
) -> RawClient:
    client = RawClient(OPEN.keep(sock), version)
    properties = Properties(session_expiry_interval=3_600) if kept and version is V5 else None
    client.send(encode(Connect(client_id, version, not kept, 0, None, None, None, properties), version))
    assert client.expect(Connack).reason_code == 0
    return client


def subscribed(client: RawClient, topic_filter: str, qos: int) -> RawClient:
    client.send(encode(Subscribe(1, (Subscription(topic_filter, qos),)), client.version))
    assert client.expect(Suback).reason_codes == (qos,)
    return client


def worst_ping(bystander: RawClient, before_s: float) -> float:
    began = time.monotonic()
    bystander.ping()
    return max(before_s, time.monotonic() - began)


@pytest.mark.perf
@pytest.mark.parametrize(
    ("transport", "payload_bytes"),
    [
        pytest.param("tcp", 1_000, marks=pytest.mark.in_faults),
        pytest.param("ws", 1_000, marks=pytest.mark.in_faults),
        pytest.param("tls", 100_000, marks=pytest.mark.in_faults),
        ("ws", 100_000),
    ],
)
def test_many_that_never_read_a_flood_of_qos_0(
    own_broker: BrokerProcess, tmp_path: Path, transport: str, payload_bytes: int
) -> None:
    authority = Authority(tmp_path / "certificates")
    tls_port, ws_port = free_port(), free_port()
    own_broker.settings |= {
        "listeners.mqtts": f"127.0.0.1:{tls_port}",
        "listeners.ws": f"127.0.0.1:{ws_port}",
        "tls.cert": authority.server(),
    }
    own_broker.start()
    for number in range(SUBSCRIBERS):
        if transport == "ws":
            client: RawClient = raw_client.RawWebSocket(OPEN.keep(raw_client.dial(ws_port)))
            client.upgrade()  # type: ignore[attr-defined]
            assert client.enter(f"s{number}") == 0
        elif transport == "tls":
            client = entered(raw_client.dial(tls_port, tls=authority.trusting()), f"s{number}")
        else:
            client = entered(raw_client.dial(own_broker.port), f"s{number}")
        subscribed(client, "flood", 0)
    bystander = entered(raw_client.dial(own_broker.port), "bystander")
    publisher = entered(raw_client.dial(own_broker.port), "publisher")
    before_mib = resident_mib(own_broker)
    packet = encode(Publish("flood", b"x" * payload_bytes), V5)
    chunk = packet * max(1, 65_536 // len(packet))
    worst_s = 0.0
    for turn in range(FLOOD_BYTES // len(chunk)):
        publisher.send(chunk)
        if turn % 50 == 0:
            worst_s = worst_ping(bystander, worst_s)
    publisher.ping()
    grown_mib = resident_mib(own_broker) - before_mib
    assert grown_mib < SUBSCRIBERS * MIB_EACH, f"{grown_mib:.0f} MiB"
    judge(worst_s, 1.0, "s of the longest ping of another")
    assert metric(own_broker, "readers_paused") == SUBSCRIBERS
    assert metric(own_broker, "dropped_slow") > SUBSCRIBERS * FLOOD_BYTES / payload_bytes / 2


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_slow_reader_is_sent_away_and_a_kept_session_loses_nothing(
    own_broker: BrokerProcess, version: ProtocolVersion, qos: int
) -> None:
    own_broker.settings["mqtt.slow_reader_s"] = 0.5
    own_broker.constants["embermq.edge.connection.WRITE_BUFFER_BYTES_MAX"] = 65_536
    own_broker.start()
    subscribed(entered(raw_client.dial(own_broker.port), "slow", version=version, kept=True), "t", qos)
    publisher = entered(raw_client.dial(own_broker.port), "publisher")
    count, size = 2_000, 10_000
    for number in range(0, count, 500):
        for packet_id in range(number, number + 500):
            payload = (b"%d " % packet_id).ljust(size)
            publisher.send(encode(Publish("t", payload, qos, packet_id + 1 if qos else 0), V5))
        if qos:
            for packet_id in range(number, number + 500):
                assert publisher.expect(Puback).packet_id == packet_id + 1
    publisher.ping()
    wait_until(lambda: metric(own_broker, "slow_readers_closed") == 1)
    wait_until(lambda: metric(own_broker, "connections") == 1, what="it does not have to read that")
    assert metric(own_broker, "sessions") == 2
    if not qos:
        return
    again = entered(raw_client.dial(own_broker.port), "slow", version=version, kept=True)
    numbers: list[int] = []
    while len(numbers) < count:
        message = again.expect(Publish)
        numbers.append(int(message.payload.split(b" ", 1)[0]))
        again.send(encode(Puback(message.packet_id), version))
    assert numbers == list(range(count))


def test_who_reads_again_in_time_stays_and_hears_why_when_it_does_not(own_broker: BrokerProcess) -> None:
    own_broker.settings["mqtt.slow_reader_s"] = 5  # to read a megabyte on a busy machine
    own_broker.constants["embermq.edge.connection.WRITE_BUFFER_BYTES_MAX"] = 65_536
    own_broker.start()
    slow = subscribed(entered(raw_client.dial(own_broker.port), "slow"), "t", 0)
    publisher = entered(raw_client.dial(own_broker.port), "publisher")

    def fill() -> None:
        while not metric(own_broker, "readers_paused"):
            publisher.send(encode(Publish("t", b"x" * 50_000), V5) * 20)

    fill()
    before = metric(own_broker, "slow_readers_closed")
    while metric(own_broker, "readers_paused"):
        slow.expect(Publish)
    slow.ping_through()
    assert (before, metric(own_broker, "slow_readers_closed")) == (0, 0)
    while not metric(own_broker, "slow_readers_closed"):
        fill()
    while not isinstance(packet := slow.next(), Disconnect):
        assert isinstance(packet, Publish)
    assert packet.reason_code == 0x97


@pytest.mark.perf
@pytest.mark.parametrize("flood", [pytest.param("pings", marks=pytest.mark.in_faults), "subscriptions"])
def test_who_asks_and_asks_and_never_reads_costs_little_and_is_cut_off(
    own_broker: BrokerProcess, flood: str
) -> None:
    own_broker.start()
    bystander = entered(raw_client.dial(own_broker.port), "bystander")
    before_mib = resident_mib(own_broker)
    rude = entered(raw_client.dial(own_broker.port), "rude")
    packet = encode(Pingreq(), V5)
    if flood == "subscriptions":
        packet = encode(Subscribe(1, tuple(Subscription(f"f/{number}", 0) for number in range(50))), V5)
    chunk = packet * (65_536 // len(packet))
    worst_s = 0.0
    with suppress(ConnectionResetError, BrokenPipeError):
        for turn in range(2_000 if flood == "pings" else 100):
            rude.send(chunk)
            if turn % 20 == 0:
                worst_s = worst_ping(bystander, worst_s)
    judge(worst_s, 1.0, "s of the longest ping of another")
    assert resident_mib(own_broker) - before_mib < 40
    if flood == "pings":  # its answers are as many bytes as its packets
        assert metric(own_broker, "slow_readers_closed") == 1
    bystander.ping()


def test_retained_messages_do_not_run_ahead_of_who_does_not_read(own_broker: BrokerProcess) -> None:
    own_broker.settings["log.durability"] = "os"
    own_broker.start()
    publisher = entered(raw_client.dial(own_broker.port), "publisher")
    topics, size = 5_000, 2_000  # thrice, to each: more than its socket holds
    for number in range(topics):
        publisher.send(encode(Publish(f"r/{number}", b"x" * size, 0, 0, True), V5))
    publisher.ping()
    wait_until(lambda: metric(own_broker, "retained_messages") == topics, 30)
    before_mib = resident_mib(own_broker)
    lazy = [entered(raw_client.dial(own_broker.port), f"lazy{number}") for number in range(10)]
    for client in lazy:
        client.send(encode(Subscribe(1, tuple(Subscription(text, 0) for text in ("#", "r/#", "+/+"))), V5))
    wait_until(lambda: metric(own_broker, "readers_paused") == len(lazy), 30)
    publisher.ping()
    assert resident_mib(own_broker) - before_mib < len(lazy) * MIB_EACH + 10


def test_large_stored_messages_do_not_count_as_unread_answers(own_broker: BrokerProcess) -> None:
    """A page of them may be on its way when the one before fills the buffer: its client only needs some time."""
    own_broker.constants["embermq.edge.connection.WRITE_BUFFER_BYTES_MAX"] = 65_536
    own_broker.start()
    subscribed(entered(raw_client.dial(own_broker.port), "kept", kept=True), "t", 1).close()
    wait_until(lambda: metric(own_broker, "connections") == 0)
    publisher = entered(raw_client.dial(own_broker.port), "publisher")
    sizes = [240_000, 1_000_000] * 8
    for number, size in enumerate(sizes):
        publisher.send(encode(Publish("t", (b"%d " % number).ljust(size), 1, number + 1), V5))
        publisher.expect(Puback)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.settimeout(raw_client.ANSWER_S)
    sock.connect(("127.0.0.1", own_broker.port))
    again = entered(sock, "kept", kept=True)
    wait_until(lambda: metric(own_broker, "readers_paused") == 1)
    for _ in range(5):
        publisher.ping()
    seen: list[bytes] = []
    while len(seen) < len(sizes):
        message = again.expect(Publish)
        seen.append(message.payload)
        again.send(encode(Puback(message.packet_id), V5))
    assert seen == [(b"%d " % number).ljust(size) for number, size in enumerate(sizes)]
    assert metric(own_broker, "slow_readers_closed") == 0


def test_messages_of_nothing_but_properties_do_not_fill_the_memory_while_they_wait(
    own_broker: BrokerProcess,
) -> None:
    """10,000 pairs of one letter take 60 KiB of a packet and 1.7 MB of memory."""
    own_broker.start()
    client = RawClient(OPEN.keep(raw_client.dial(own_broker.port)), V5)
    wishes = Properties(receive_maximum=1)
    client.send(encode(Connect("waits", V5, True, 0, None, None, None, wishes), V5))
    assert client.expect(Connack).reason_code == 0
    subscribed(client, "t", 1)
    publisher = entered(raw_client.dial(own_broker.port), "publisher")
    properties = Properties(user_properties=(("", "x"),) * 10_000)
    before_mib = resident_mib(own_broker)
    count = 120
    for number in range(1, count + 1):
        publisher.send(encode(Publish("t", b"", 1, number, False, False, properties), V5))
        publisher.expect(Puback)
    grown_mib = resident_mib(own_broker) - before_mib
    assert grown_mib < 100, f"{grown_mib:.0f} MiB"
    assert metric(own_broker, "dropped_slow") > count - 20
    for _ in range(5):
        client.send(encode(Puback(client.expect(Publish).packet_id), V5))
