"""MQTT over WebSocket, with and without TLS: real clients, frames of every shape, and garbage."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from paho.mqtt.enums import MQTTProtocolVersion
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.certificates import Authority
from tests.support.measuring import judge
from tests.support.metrics import metric
from tests.support.paho_echo import hears_itself, paho_client
from tests.support.raw_client import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    RawClient,
    RawWebSocket,
    connect_packet,
    dial,
    frame,
    upgrade_request,
)
from tests.support.waiting import wait_until

from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion

CONNECT_TIMEOUT_S = 1.0
ORIGIN = "https://pages.example"
PINGREQ = encode(Pingreq(), ProtocolVersion.V5)


class Broker(BrokerProcess):
    """Ports: `ws`, `wss`, and `own`, at another path and for pages of ORIGIN only."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "certificates")
        self.ws, self.wss, self.own = free_port(), free_port(), free_port()
        super().__init__(
            folder / "data",
            settings={
                "listeners.ws": f"127.0.0.1:{self.ws},127.0.0.1:{self.own}",
                "listeners.wss": f"127.0.0.1:{self.wss}",
                "tls.cert": self.authority.server(),
                "clients.connect_timeout_s": CONNECT_TIMEOUT_S,
                "mqtt.packet_bytes_max": 1_000_000,
                f'listener."127.0.0.1:{self.own}".path': "/own",
                f'listener."127.0.0.1:{self.own}".origins': ORIGIN,
            },
        )


@pytest.fixture(scope="module")
def ws_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("websocket"))
    with broker:
        yield broker
        assert broker.is_running
        assert "Traceback" not in broker.output()


@pytest.fixture(params=["ws", "wss"])
def dial_it(request: pytest.FixtureRequest, ws_broker: Broker) -> Iterator[Callable[[], RawWebSocket]]:
    """Opens a connection that has not been upgraded; closed after the test."""
    with ExitStack() as opened:

        def dial_one() -> RawWebSocket:
            if request.param == "wss":
                client = RawWebSocket(dial(ws_broker.wss, tls=ws_broker.authority.trusting()))
            else:
                client = RawWebSocket(dial(ws_broker.ws))
            opened.callback(client.close)
            return client

        yield dial_one


@pytest.fixture
def raw(dial_it: Callable[[], RawWebSocket]) -> Iterator[RawWebSocket]:
    """A connection that speaks WebSocket, but not MQTT yet."""
    client = dial_it()
    head = client.upgrade()
    assert head.startswith(b"HTTP/1.1 101 ")
    assert b"Sec-WebSocket-Protocol: mqtt" in head
    yield client
    client.close()


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("version", [MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5])
def test_paho(ws_broker: Broker, name: str, secure: bool, version: MQTTProtocolVersion) -> None:
    client = paho_client(name, "websockets", version)
    client.ws_set_options(path="/mqtt")
    if secure:
        client.tls_set_context(ws_broker.authority.trusting())
    port = ws_broker.wss if secure else ws_broker.ws
    payloads = [os.urandom(size) for size in (1, 125, 126, 65_535, 65_536, 500_000)]
    hears_itself(client, lambda: client.connect("localhost", port), name, payloads)


@pytest.mark.clause("MQTT-6.0.0-2", version="5.0")
@pytest.mark.clause("MQTT-6.0.0-2", version="3.1.1")
def test_a_packet_may_be_split_over_frames_at_every_byte(raw: RawWebSocket) -> None:
    for byte in connect_packet():
        raw.sock.sendall(frame(BINARY, bytes([byte])))
    assert raw.expect(Connack).reason_code == 0


def test_frames_may_be_split_at_every_byte(raw: RawWebSocket) -> None:
    for byte in frame(BINARY, connect_packet()) + frame(BINARY, PINGREQ):
        raw.sock.sendall(bytes([byte]))
    raw.expect(Connack)
    raw.expect(Pingresp)


@pytest.mark.clause("MQTT-6.0.0-2", version="5.0")
@pytest.mark.clause("MQTT-6.0.0-2", version="3.1.1")
def test_a_frame_may_hold_several_packets_and_a_part_of_one(raw: RawWebSocket) -> None:
    raw.send(connect_packet() + PINGREQ * 3 + PINGREQ[:1])
    raw.expect(Connack)
    for _ in range(3):
        raw.expect(Pingresp)
    raw.send(PINGREQ[1:])
    raw.expect(Pingresp)


def test_messages_may_be_fragmented_with_pings_in_between(raw: RawWebSocket) -> None:
    packet = connect_packet()
    raw.sock.sendall(frame(BINARY, packet[:3], final=False) + frame(PING, b"here?"))
    assert raw.receive_frame() == (PONG, b"here?")
    raw.sock.sendall(frame(CONTINUATION, b"", final=False) + frame(CONTINUATION, packet[3:]))
    raw.expect(Connack)


def test_pings_and_pongs(raw: RawWebSocket) -> None:
    raw.enter()
    raw.sock.sendall(frame(PONG, b"nobody asked") + frame(PING, b"") + frame(PING, b"x" * 125))
    answers = [raw.receive_frame()]
    if answers[0] == (PONG, b""):
        answers.append(raw.receive_frame())
    assert answers[-1] == (PONG, b"x" * 125)
    raw.ping()


def test_empty_frames_by_the_thousand_carry_nothing(raw: RawWebSocket) -> None:
    raw.enter()
    raw.sock.sendall(frame(BINARY, b"") * 20_000)
    raw.ping()


def test_frames_right_behind_the_request_count(dial_it: Callable[[], RawWebSocket]) -> None:
    client = dial_it()
    client.upgrade(upgrade_request() + frame(BINARY, connect_packet()))
    client.expect(Connack)
    client.close()


def test_the_clients_close_is_answered(raw: RawWebSocket) -> None:
    raw.enter()
    raw.sock.sendall(frame(CLOSE, (1000).to_bytes(2) + b"bye"))
    assert raw.expect_close() == 1000
    assert raw.rest() == b""


def test_an_empty_close_is_answered(raw: RawWebSocket) -> None:
    raw.sock.sendall(frame(CLOSE, b""))
    assert raw.receive_frame()[0] == CLOSE
    assert raw.rest() == b""


def test_what_comes_before_a_close_counts(raw: RawWebSocket) -> None:
    raw.enter()
    raw.sock.sendall(frame(BINARY, PINGREQ) + frame(CLOSE, (1000).to_bytes(2)))
    assert raw.expect_close() == 1000


def test_the_brokers_last_word_comes_before_its_close(raw: RawWebSocket) -> None:
    """A second CONNECT: DISCONNECT is read, then the close frame, which the client answers."""
    raw.enter()
    raw.send(connect_packet())
    assert raw.expect(Disconnect).reason_code == ReasonCode.PROTOCOL_ERROR
    assert raw.expect_close() == 1000
    raw.sock.sendall(frame(CLOSE, (1000).to_bytes(2)))
    assert raw.rest() == b""


def test_after_disconnect_the_broker_closes(raw: RawWebSocket) -> None:
    raw.enter()
    raw.send(encode(Disconnect(), ProtocolVersion.V5))
    assert raw.expect_close() == 1000


@pytest.mark.clause("MQTT-6.0.0-1", version="5.0")
@pytest.mark.clause("MQTT-6.0.0-1", version="3.1.1")
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(frame(TEXT, b"hello"), 1003, id="text"),
        pytest.param(frame(TEXT, connect_packet()[:2]), 1003, id="MQTT in a text frame"),
        pytest.param(frame(TEXT, b"\xff\xfe"), 1007, id="text that is no UTF-8"),
        pytest.param(frame(BINARY, PINGREQ, masked=False), 1002, id="not masked"),
        pytest.param(frame(3, b""), 1002, id="an opcode that means nothing"),
        pytest.param(frame(11, b""), 1002, id="a control opcode that means nothing"),
        pytest.param(frame(BINARY, b"", reserved=4), 1002, id="a reserved bit"),
        pytest.param(frame(PING, b"x" * 126), 1002, id="a long ping"),
        pytest.param(frame(PING, b"", final=False), 1002, id="a ping in parts"),
        pytest.param(frame(CONTINUATION, b""), 1002, id="a continuation of nothing"),
        pytest.param(frame(BINARY, b"", final=False) + frame(BINARY, b""), 1002, id="two beginnings"),
        pytest.param(frame(CLOSE, b"\x03"), 1002, id="half a status"),
        pytest.param(frame(CLOSE, (999).to_bytes(2)), 1002, id="a status that cannot be"),
        pytest.param(b"\x82\xff" + b"\xff" * 8 + b"mask", 1002, id="a frame of 2^64 bytes"),
    ],
)
def test_bad_frames_end_the_connection_with_a_status(raw: RawWebSocket, sent: bytes, status: int) -> None:
    raw.enter()
    raw.sock.sendall(sent)
    assert raw.expect_close() == status
    raw.sock.sendall(frame(CLOSE, status.to_bytes(2)))
    assert raw.rest() == b""


def test_a_bad_frame_publishes_the_will(ws_broker: Broker, raw: RawWebSocket, name: str) -> None:
    watcher = RawClient(dial(ws_broker.port))
    watcher.enter()
    watcher.send(bytes([0x82, 6 + len(name), 0, 1, 0, 0, len(name), *name.encode(), 0]))
    watcher.receive()
    will = bytes([0, 0, len(name), *name.encode(), 0, 4]) + b"gone"
    body = b"\x00\x04MQTT\x05\x06\x00\x00\x00\x00\x00" + will
    raw.send(bytes([0x10, len(body)]) + body)
    raw.expect(Connack)
    raw.sock.sendall(frame(TEXT, b"?"))
    assert watcher.expect(Publish).payload == b"gone"
    watcher.close()


def test_a_packet_over_the_limit_is_refused_as_over_tcp(raw: RawWebSocket) -> None:
    raw.enter()
    raw.sock.sendall(b"\x82\xff" + (200_000_000).to_bytes(8) + b"\0\0\0\0" + b"\x30\xff\xff\xff\x7f")
    assert raw.expect(Disconnect).reason_code == ReasonCode.PACKET_TOO_LARGE


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        pytest.param(upgrade_request("/"), 404, id="another path"),
        pytest.param(upgrade_request("/mqtt/"), 404, id="nearly the path"),
        pytest.param(upgrade_request(subprotocol=None), 400, id="no subprotocol"),
        pytest.param(upgrade_request(subprotocol="mqttv3.11, chat"), 400, id="other subprotocols"),
        pytest.param(upgrade_request(method="POST"), 400, id="not GET"),
        pytest.param(upgrade_request().replace(b": 13", b": 8"), 426, id="another version"),
        pytest.param(
            upgrade_request().replace(b"Connection: Upgrade", b"Connection: close"), 400, id="no upgrade"
        ),
        pytest.param(upgrade_request().replace(b"HTTP/1.1", b"HTTP/1.0"), 400, id="old HTTP"),
        pytest.param(
            upgrade_request().replace(b"Host: localhost", b"Host: \xff\xfe"), 400, id="a host in no alphabet"
        ),
        pytest.param(upgrade_request().replace(b"Host: localhost", b"X: y"), 400, id="no host"),
        pytest.param(b"GET /mqtt HTTP/1.1\r\nHost: x\r\n\r\n", 400, id="plain HTTP"),
        pytest.param(b"rubbish\r\n\r\n", 400, id="no HTTP"),
        pytest.param(upgrade_request(extra="X: " + "y" * 9_000), 431, id="too long"),
        pytest.param(b"G" * 9_000, 431, id="no end"),
    ],
)
def test_bad_requests_are_answered_in_http(
    dial_it: Callable[[], RawWebSocket], request_bytes: bytes, status: int
) -> None:
    client = dial_it()
    head = client.upgrade(request_bytes)
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert client.rest().endswith(b"\n")
    client.close()


@pytest.mark.clause("MQTT-6.0.0-4", version="5.0")
@pytest.mark.clause("MQTT-6.0.0-4", version="3.1.1")
def test_of_several_subprotocols_mqtt_is_chosen(dial_it: Callable[[], RawWebSocket]) -> None:
    client = dial_it()
    assert (
        b"Sec-WebSocket-Protocol: mqtt\r\n"
        in client.upgrade(upgrade_request(subprotocol="mqttv3.1, mqtt")) + b"\r\n"
    )
    assert client.enter() == 0


def test_who_offers_only_the_name_from_before_gets_it(dial_it: Callable[[], RawWebSocket]) -> None:
    client = dial_it()
    head = client.upgrade(upgrade_request(subprotocol="chat, mqttv3.1")) + b"\r\n"
    assert b"Sec-WebSocket-Protocol: mqttv3.1\r\n" in head
    assert client.enter() == 0


@pytest.mark.parametrize(
    ("origin", "status"), [(ORIGIN, 101), ("https://other.example", 403), ("null", 403), (None, 101)]
)
def test_pages_from_elsewhere_stay_out_where_pages_are_named(
    ws_broker: Broker, origin: str | None, status: int
) -> None:
    client = RawWebSocket(dial(ws_broker.own))
    request = upgrade_request("/own?x=y", extra=f"Origin: {origin}" if origin else "")
    assert client.upgrade(request).startswith(f"HTTP/1.1 {status} ".encode())
    client.close()


def test_the_time_to_connect_includes_the_upgrade(dial_it: Callable[[], RawWebSocket]) -> None:
    """Nothing said, a request begun, an upgrade without CONNECT, pings instead of CONNECT."""
    silent, slow, upgraded = (dial_it() for _ in range(3))
    slow.sock.sendall(upgrade_request()[:-2])
    upgraded.upgrade()
    upgraded.sock.sendall(frame(PING, b""))
    for client in (silent, slow, upgraded):
        client.sock.settimeout(30 * CONNECT_TIMEOUT_S)
    assert upgraded.expect_close() == 1000
    assert silent.rest() == b""
    assert slow.rest() == b""
    for client in (silent, slow, upgraded):
        client.close()


def test_a_client_that_pings_and_does_not_read_makes_no_memory_grow(ws_broker: Broker) -> None:
    bystander = RawClient(dial(ws_broker.port))
    bystander.enter()
    client = RawWebSocket(dial(ws_broker.ws))
    client.upgrade()
    client.enter()
    before = _resident_bytes(ws_broker.pid)
    pings = frame(PING, b"x" * 125) * 500
    client.sock.settimeout(0.2)
    sent = 0
    with suppress(TimeoutError):  # the broker reads no more, which is as good
        while sent < 30_000_000:
            sent += client.sock.send(pings)
    bystander.ping()
    assert _resident_bytes(ws_broker.pid) - before < 20_000_000
    client.close()
    bystander.close()


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.perf
def test_who_half_closes_behind_a_mistake_is_not_waited_for(raw: RawWebSocket) -> None:
    """Its connection would hold its place for seconds, though neither side has anything to say."""
    assert raw.enter() == 0
    raw.sock.sendall(frame(BINARY, b"\x00\x00"))
    assert raw.expect(Disconnect).reason_code == 0x81
    began_s = time.monotonic()
    raw.sock.shutdown(socket.SHUT_WR)
    raw.rest()
    judge(time.monotonic() - began_s, 2, "s to the end of who half-closes behind a mistake")


@pytest.mark.parametrize("frames", ["one", "many"])
@pytest.mark.parametrize("ending", ["close frame", "end of the stream"])
def test_who_says_much_and_leaves_is_heard_to_the_end(
    ws_broker: Broker, raw: RawWebSocket, name: str, ending: str, frames: str
) -> None:
    """What came before the end is decided in turns: it counts, a DISCONNECT above all, which takes the will back."""
    with closing(dial(ws_broker.port)) as watching, closing(dial(ws_broker.port)) as publishing:
        watcher, publisher = RawClient(watching), RawClient(publishing)
        watcher.enter()
        publisher.enter()
        watcher.send(encode(Subscribe(1, (Subscription(name, 0),)), ProtocolVersion.V5))
        watcher.expect(Suback)
        will = Will(name, b"will", 0, False)
        connect = Connect(f"{name}-leaves", ProtocolVersion.V5, True, 0, None, None, will, None)
        raw.send(encode(connect, ProtocolVersion.V5))
        raw.expect(Connack)
        connections = metric(ws_broker, "connections")
        count = 1_000
        packets = [encode(Publish(name, b"%d" % number), ProtocolVersion.V5) for number in range(count)]
        packets.append(encode(Disconnect(), ProtocolVersion.V5))
        last = frame(CLOSE, b"\x03\xe8") if ending == "close frame" else b""
        said = packets if frames == "many" else [b"".join(packets)]
        raw.sock.sendall(b"".join(frame(BINARY, data) for data in said) + last)
        if not last:
            raw.sock.shutdown(socket.SHUT_WR)
        raw.rest()
        raw.close()
        wait_until(lambda: metric(ws_broker, "connections") == connections - 1)
        publisher.send(encode(Publish(name, b"behind"), ProtocolVersion.V5))
        seen: list[bytes] = []
        while not seen or seen[-1] != b"behind":
            seen.append(watcher.expect(Publish).payload)
        assert seen == [*(b"%d" % number for number in range(count)), b"behind"]
