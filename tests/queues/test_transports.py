"""Queues over TLS and WebSocket: a message lives there as it does over plain TCP, and so does a lease."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator

import pytest
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.certificates import Authority
from tests.support.mqtt_client import ANSWER_S, run
from tests.support.queue_worker import Worker, queue_broker, worker
from tests.support.raw_client import BINARY, CLOSE, frame, upgrade_request

from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq_client import Client

TRANSPORTS = ["tls", "ws", "wss"]
QUEUES = "".join(
    f"""
[[queues]]
name = "leased-{transport}"
partitions = 1
performance.delivery_timeout = "700ms"
retry_policy.initial_backoff = "0ms"
retry_policy.max_retries = 100
"""
    for transport in TRANSPORTS
)
LARGE = bytes(range(256)) * 1_500


class Place:
    """The broker, its port for each transport, and what its clients believe of certificates."""

    def __init__(self, broker: BrokerProcess, ports: dict[str, int], tls: ssl.SSLContext) -> None:
        self.broker = broker
        self.ports = ports
        self.tls = tls

    async def worker(
        self,
        transport: str,
        client_id: str,
        version: ProtocolVersion = ProtocolVersion.V5,
        *,
        window: int = 100,
    ) -> WiredWorker:
        found = WiredWorker(
            client_id, version, self.tls if transport != "ws" else None, is_framed=transport != "tls"
        )
        given = Properties(receive_maximum=window) if version is ProtocolVersion.V5 else None
        connack = await found.connect(self.ports[transport], properties=given)
        assert connack.reason_code == 0
        return found


class WiredWorker(Worker):
    """Over TLS, over WebSocket with one frame a write, or both."""

    def __init__(
        self, client_id: str, version: ProtocolVersion, tls: ssl.SSLContext | None, *, is_framed: bool
    ) -> None:
        super().__init__(client_id, version=version)
        self._tls = tls
        self._is_framed = is_framed
        self._head = b""
        self._frames = bytearray()
        self._upgraded: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        host = "localhost" if self._tls is not None else None
        making = loop.create_connection(lambda: self, "127.0.0.1", port, ssl=self._tls, server_hostname=host)
        await asyncio.wait_for(making, ANSWER_S)
        if self._is_framed:
            assert self._transport is not None
            self._transport.write(upgrade_request())
            await asyncio.wait_for(self._upgraded, ANSWER_S)

    def data_received(self, data: bytes) -> None:
        if not self._is_framed:
            super().data_received(data)
            return
        self._frames += data
        if not self._upgraded.done():
            head, end, rest = bytes(self._frames).partition(b"\r\n\r\n")
            if end:
                assert head.startswith(b"HTTP/1.1 101 "), head
                self._frames = bytearray(rest)
                self._upgraded.set_result(None)
        while self._upgraded.done() and (found := _whole_frame(self._frames)) is not None:
            opcode, start, end_at = found
            payload = bytes(self._frames[start:end_at])
            del self._frames[:end_at]
            assert opcode in (BINARY, CLOSE)
            if opcode == BINARY:
                super().data_received(payload)

    def _flush(self) -> None:
        if self._is_framed and self._out:
            self._out[:] = [frame(BINARY, b"".join(self._out))]
        super()._flush()


def _whole_frame(data: bytearray) -> tuple[int, int, int] | None:
    """Opcode, begin and end of the payload of the first frame, when all of it is there."""
    if len(data) < 2:
        return None
    more = {126: 2, 127: 8}.get(data[1], 0)
    if len(data) < 2 + more:
        return None
    size = int.from_bytes(data[2 : 2 + more]) if more else data[1]
    end = 2 + more + size
    return (data[0] & 0x0F, 2 + more, end) if len(data) >= end else None


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("transports")
    authority = Authority(folder / "certificates")
    ports = {transport: free_port() for transport in TRANSPORTS}
    listeners = {"listeners.mqtts": ports["tls"], "listeners.ws": ports["ws"], "listeners.wss": ports["wss"]}
    settings = {name: f"127.0.0.1:{port}" for name, port in listeners.items()}
    settings |= {"tls.cert": str(authority.server()), "mqtt.slow_reader_s": "0"}
    with queue_broker(folder, QUEUES, **settings) as broker:
        yield Place(broker, ports, authority.trusting())
        assert "Traceback" not in broker.output()


@pytest.mark.promise("queues-2", "queues-3", "queues-19", "queues-23", "queues-26")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_life_of_a_message(place: Place, transport: str) -> None:
    async def scenario() -> None:
        topic = f"$queue/over/{transport}"
        taker, publisher = [await place.worker(transport, f"{name}-1") for name in ("life", "publisher")]
        await taker.consumes(topic)
        for qos, payload in ((1, b"failed"), (2, b"bad"), (1, LARGE)):
            await publisher.enqueues(topic, payload, qos=qos, partition_key="k")
        first = await taker.next()
        assert await taker.says("nack", first) == (0, "")
        again = await taker.next()
        assert (again.id, again.payload, again.count, again.packet.dup) == (first.id, b"failed", 2, False)
        assert await taker.says("extend", again) == (0, "")
        await taker.acks(again)
        assert await taker.says("reject", await taker.next(), reason="no good") == (0, "")
        held = await taker.next()
        assert held.payload == LARGE
        taker.abort()
        rival, reader = [await place.worker(transport, f"{name}-2") for name in ("life", "reader")]
        await rival.consumes(topic)
        back = await rival.next()
        assert (back.id, back.payload, back.count) == (held.id, LARGE, 2)
        await rival.acks(back)
        await reader.consumes(f"$queue/dlq/over/{transport}")
        letter = await reader.next()
        assert (letter.payload, letter.properties["dlq-last-error"]) == (b"bad", "no good")
        await reader.acks(letter)

    run(scenario())


@pytest.mark.promise("queues-27")
@pytest.mark.parametrize("version", [ProtocolVersion.V31, ProtocolVersion.V311])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_clients_of_mqtt_3_settle_by_puback(place: Place, transport: str, version: ProtocolVersion) -> None:
    async def scenario() -> None:
        topic = f"$queue/three/{transport}{version}"
        taker = await place.worker(transport, f"three{version}-1", version)
        await taker.consumes(topic)
        await taker.enqueues(topic, *(b"%d" % number for number in range(30)))
        assert len({taken.payload for taken in await taker.take(30)}) == 30
        await taker.ping()
        taker.abort()
        rival = await place.worker(transport, f"three{version}-2", version)
        await rival.consumes(topic)
        await rival.gets_nothing()

    run(scenario())


@pytest.mark.promise("queues-22", "queues-32")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_a_socket_has_not_taken_has_no_lease(place: Place, transport: str) -> None:
    """A consumer that reads nothing for longer than a lease. TLS has a buffer of its own, which counts as taken."""

    async def scenario() -> None:
        topic = f"$queue/leased-{transport}"
        slow = await place.worker(transport, f"slow{transport}-1")
        watch = await worker(place.broker, "watch-1")
        await slow.consumes(topic, prefetch="100")
        slow.pause_reading()
        await watch.enqueues(topic, *(b"%02d" % number + bytes(900_000) for number in range(24)))
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            await watch.ping()
        slow.abort()
        second = await place.worker(transport, f"slow{transport}-2")
        await second.consumes(topic, prefetch="100", ack_mode="puback")
        counts: dict[bytes, int] = {}
        while len(counts) < 24:
            taken = await second.next()
            counts.setdefault(taken.payload[:2], taken.count)
        told = f"never in the socket: of {counts}, and it had read {len(slow.messages)}"
        assert list(counts.values()).count(1) >= 4, told
        assert max(counts.values()) > 1, "some had reached it"

    run(scenario())


@pytest.mark.promise("queues-37")
def test_the_client_library_speaks_tls(place: Place) -> None:
    async def scenario() -> None:
        async with (
            Client("127.0.0.1", place.ports["tls"], client_id="lib-1", tls=place.tls) as client,
            client.queue("over/library").consume() as messages,
        ):
            await client.queue("over/library").publish(LARGE)
            message = await anext(messages)
            assert message.payload == LARGE
            await message.ack()

    run(scenario())
