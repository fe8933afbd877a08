"""Broken bytes end the connection that sent them, in the right way, and disturb nobody else."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Iterator

import pytest
from tests.integration.conftest import quiet
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import MqttClient

from embermq.mqtt.wire.decoder import Decoder, Role
from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Publish,
    Subscribe,
    Subscription,
)
from embermq.mqtt.wire.version import ProtocolVersion

V31, V311, V5 = ProtocolVersion.V31, ProtocolVersion.V311, ProtocolVersion.V5

MISTAKES = {
    "reserved type 0": b"\x00\x00",
    "a second CONNECT": None,
    "CONNACK from a client": b"\x20\x02\x00\x00",
    "a length of five bytes": b"\x30\xff\xff\xff\xff\x01",
    "a packet past the limit": b"\x30\xff\xff\xff\x7f",
    "QoS 3": b"\x36\x05\x00\x01a\x00\x01",
    "packet id 0": b"\x32\x05\x00\x01a\x00\x00",
    "a topic with a wildcard": b"\x30\x03\x00\x01#",
    "a topic that is not UTF-8": b"\x30\x04\x00\x02\xc3\x28",
    "a topic with a null": b"\x30\x03\x00\x01\x00",
    "a topic longer than the packet": b"\x30\x03\x00\x09a",
    "SUBSCRIBE with wrong flags": b"\x80\x06\x00\x01\x00\x01a\x00",
    "SUBSCRIBE without a filter": b"\x82\x02\x00\x01",
    "UNSUBSCRIBE cut off": b"\xa2\x01\x00",
    "PUBREL with wrong flags": b"\x60\x02\x00\x01",
    "PINGREQ with a body": b"\xc0\x01\x00",
}


class Raw:
    """A socket that takes bytes as they come."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.socket = socket.create_connection(("127.0.0.1", broker.port), timeout=30)

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return

    def read_to_end(self) -> bytes:
        found = b""
        try:
            while piece := self.socket.recv(65_536):
                found += piece
        except ConnectionResetError:
            return found
        return found

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def raw(broker: BrokerProcess) -> Iterator[Raw]:
    found = Raw(broker)
    yield found
    found.close()


def connect(version: ProtocolVersion, client_id: str) -> bytes:
    return encode(Connect(client_id, version, True, 0, None, None, None, None), version)


def packets(data: bytes, version: ProtocolVersion) -> list[Packet]:
    decoder = Decoder(Role.CLIENT, packet_bytes_max=2**20, version=version)
    found = decoder.feed(data)
    assert decoder.error is None, decoder.error
    return found


@pytest.mark.parametrize("version", [V31, V311, V5])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_its_connection(
    raw: Raw, broker: BrokerProcess, name: str, version: ProtocolVersion, mistake: str
) -> None:
    data = MISTAKES[mistake] or connect(version, name)
    if version is V5 and data[0] >> 4 == 3 and len(data) > 6:
        data = data[:1] + bytes([data[1] + 1]) + data[2:] + b"\x00"
    raw.send(connect(version, name) + data + encode(Publish(f"{name}/after", b"x", 0), version))
    found = packets(raw.read_to_end(), version)
    assert isinstance(found[0], Connack)
    assert found[0].reason_code == 0
    if version is V5:
        assert isinstance(found[-1], Disconnect)
        assert found[-1].reason_code >= 0x81
    else:
        assert len(found) == 1


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"\x10\x0c\x00\x04MQTT\x06\x02\x00\x00\x00\x00", b"\x20"),
        (b"\x10\x0c\x00\x04MQTT\x01\x02\x00\x00\x00\x00", b"\x20"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b""),
        (b"\x30\x03\x00\x01a", b""),
        (b"\xc0\x00", b""),
        (b"\x10\x00", b""),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b""),
        (b"\xff" * 100, b""),
    ],
)
def test_a_first_packet_that_is_no_connect(raw: Raw, data: bytes, answer: bytes) -> None:
    raw.send(data)
    raw.socket.shutdown(socket.SHUT_WR)
    assert raw.read_to_end()[: len(answer)] == answer


def test_a_version_that_is_not_spoken_is_told(raw: Raw) -> None:
    raw.send(b"\x10\x0c\x00\x04MQTT\x09\x02\x00\x00\x00\x00")
    answer = raw.read_to_end()
    assert answer[0] == 0x20
    assert 0x84 in answer or answer[3] == 1


def test_what_came_before_the_mistake_counts_and_what_follows_does_not(
    raw: Raw, broker: BrokerProcess, name: str
) -> None:
    async def watch() -> None:
        watcher = MqttClient(f"w{name}")
        await watcher.connect(broker.port)
        await watcher.subscribe(Subscription(f"{name}/#", 1))
        data = connect(V5, name) + encode(Publish(f"{name}/before", b"x", 1, 1), V5)
        raw.send(data + b"\x00\x00" + encode(Publish(f"{name}/after", b"x", 1, 2), V5))
        await asyncio.to_thread(raw.read_to_end)
        await watcher.publish(f"{name}/end", b"", qos=1)
        assert [message.topic for message in watcher.messages] == [f"{name}/before", f"{name}/end"]
        watcher.abort()
        await watcher.ended

    asyncio.run(watch())


def test_a_packet_byte_by_byte(raw: Raw, name: str) -> None:
    raw.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data = connect(V5, name) + encode(Subscribe(1, (Subscription(f"{name}/t", 1),)), V5)
    data += encode(Publish(f"{name}/t", b"hello", 1, 2), V5) + encode(Disconnect(), V5)
    for number in range(len(data)):
        raw.send(data[number : number + 1])
    kinds = [type(packet).__name__ for packet in packets(raw.read_to_end(), V5)]
    assert kinds[:2] == ["Connack", "Suback"]


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_noise_from_many_disturbs_nobody(broker: BrokerProcess, name: str, version: ProtocolVersion) -> None:
    """A client that talks properly never misses a beat beside 150 that send noise."""
    dice = random.Random(version)

    async def noisy(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        if number % 3:
            data = bytearray(connect(version, f"n{name}{number}"))
            data += encode(Subscribe(1, (Subscription(f"{name}/#", 2),)), version)
            data += encode(Publish(f"{name}/x", b"y" * 50, 1, 1), version)
            for _ in range(dice.randint(1, 4)):
                data[dice.randrange(len(data))] ^= dice.randint(1, 255)
        else:
            data = bytearray(dice.randbytes(dice.randint(1, 300)))
        try:
            writer.write(bytes(data[: dice.randint(1, len(data))] if number % 2 else data))
            await writer.drain()
            if number % 4:
                writer.write_eof()
                await asyncio.wait_for(reader.read(), 30)
        except ConnectionError:
            return
        finally:
            writer.transport.abort()

    async def talk() -> None:
        steady = MqttClient(f"s{name}", version=version)
        await steady.connect(broker.port)
        await steady.subscribe(Subscription(f"steady{name}", 1))
        tasks = [asyncio.create_task(noisy(number)) for number in range(150)]
        for number in range(50):
            assert await steady.publish(f"steady{name}", b"%d" % number, qos=1) == 0
        await asyncio.gather(*tasks)
        await steady.ping()
        assert [message.payload for message in steady.messages] == [b"%d" % number for number in range(50)]
        steady.abort()
        await steady.ended

    asyncio.run(talk())


def test_no_connect_in_time_ends_the_connection(own_broker: BrokerProcess) -> None:
    own_broker.settings["clients.connect_timeout_s"] = 0.5
    own_broker.start()
    silent, half = Raw(own_broker), Raw(own_broker)
    half.send(connect(V5, "half")[:5])
    assert silent.read_to_end() == b""
    assert half.read_to_end() == b""
    for found in (silent, half):
        found.close()
    assert own_broker.stop() == 0


def test_resets_at_any_moment(broker: BrokerProcess, name: str) -> None:
    """RST instead of FIN, with data on the way in both directions."""
    for number in range(60):
        found = Raw(broker)
        found.send(connect(V5, f"{name}{number % 3}")[: 5 + number])
        found.send(encode(Subscribe(1, (Subscription(f"{name}/#", 1),)), V5))
        for packet_id in range(1, number):
            found.send(encode(Publish(f"{name}/t", b"x" * 100, 1, packet_id), V5))
        found.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        found.close()
    last = Raw(broker)
    last.send(connect(V5, name) + encode(Disconnect(), V5))
    assert packets(last.read_to_end(), V5)
    last.close()
    quiet(broker)
