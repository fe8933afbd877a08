"""Garbage below MQTT: on TLS, on WebSocket and in the headers of a proxy; beside it others go on."""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.hostile.bystanders import undisturbed
from tests.hostile.watching import gauges, resident_bytes, wait_for_gauges
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.certificates import Authority
from tests.support.raw_client import (
    BINARY,
    CONTINUATION,
    PING,
    PONG,
    RawClient,
    RawWebSocket,
    connect_packet,
    dial,
    frame,
    upgrade_request,
)

pytestmark = pytest.mark.perf

PAUSE_MS = 1_500.0
MIB = 2**20
TIMEOUT_S = 2
END_S = 60.0
"""Within which a connection is ended that has to be, on a busy machine too."""
PROXY_2 = b"\r\n\r\n\x00\r\nQUIT\n"


class Ports:
    """Of a broker that speaks everything: TLS, WebSocket, both, and behind a proxy."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self.broker = broker
        self.authority = Authority(folder)
        self.tls, self.ws, self.wss, self.proxied = (free_port() for _ in range(4))
        broker.settings |= {
            "listeners.mqtt": f"127.0.0.1:{broker.port},127.0.0.1:{self.proxied}",
            "listeners.mqtts": f"127.0.0.1:{self.tls}",
            "listeners.ws": f"127.0.0.1:{self.ws}",
            "listeners.wss": f"127.0.0.1:{self.wss}",
            f'listener."127.0.0.1:{self.proxied}".proxy_protocol': "true",
            "tls.cert": self.authority.server(),
            "clients.connect_timeout_s": TIMEOUT_S,
        }
        broker.start()
        self.before = gauges(broker)

    def check(self) -> None:
        """Everybody is gone, and each listener still lets clients in."""
        wait_for_gauges(self.broker, self.before)
        context = self.authority.trusting()
        for port, tls in ((self.broker.port, None), (self.tls, context)):
            client = RawClient(dial(port, tls=tls))
            assert client.enter() == 0
            client.close()
        for port, tls in ((self.ws, None), (self.wss, context)):
            web = RawWebSocket(dial(port, tls=tls))
            web.upgrade()
            assert web.enter() == 0
            web.close()
        announced = RawClient(dial(self.proxied))
        announced.send(b"PROXY TCP4 192.0.2.1 192.0.2.9 50000 1883\r\n" + connect_packet())
        assert announced.receive()[:1] == b"\x20"
        announced.close()
        wait_for_gauges(self.broker, self.before)


@pytest.fixture
def ports(broker: BrokerProcess, tmp_path: Path) -> Ports:
    return Ports(broker, tmp_path / "certificates")


def changed(data: bytes, dice: random.Random) -> bytes:
    """A few bytes set, a part cut out, or one put in."""
    found = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 8))):
        how, index = dice.randrange(4), dice.randrange(len(found))
        if how < 2:
            found[index] = dice.randrange(256)
        elif how == 2:
            found[index:index] = dice.randbytes(dice.choice((1, 3, 200)))
        elif len(found) > 20:
            del found[index : index + dice.choice((1, 3, 20))]
    return bytes(found)


def throw(port: int, count: int, what: Callable[[int], bytes], *, half_close: bool = True) -> None:
    """One connection each, all of them open together; nothing is asked but that they end."""
    sockets = []
    for number in range(count):
        sock = dial(port)
        try:
            sock.sendall(what(number))
            if half_close:
                sock.shutdown(socket.SHUT_WR)
        except OSError:
            sock.close()
            continue
        sockets.append(sock)
    for sock in sockets:
        sock.settimeout(END_S)
        try:
            while sock.recv(65_536):
                pass
        except ConnectionError:
            pass
        sock.close()


def client_hello(context: ssl.SSLContext) -> bytes:
    """The first bytes of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("secure", ["tls", "wss"])
def test_garbage_instead_of_tls(ports: Ports, secure: str) -> None:
    port = ports.tls if secure == "tls" else ports.wss
    dice = random.Random(1)
    hello = client_hello(ports.authority.trusting())
    huge = b"\x01\xff\xff\xff" + bytes(16_000)

    def garbage(number: int) -> bytes:
        kind = number % 5
        if kind == 0:
            return dice.randbytes(dice.choice((1, 5, 100, 20_000)))
        if kind == 1:
            return changed(hello, dice)
        if kind == 2:  # a hello of 16 MB, of which 400 kB come
            return (b"\x16\x03\x01" + len(huge).to_bytes(2) + huge) * 25
        if kind == 3:  # one hello, and another in the middle of the handshake
            return hello + hello
        return hello + b"\x17\x03\x03\x00\x20" + dice.randbytes(32)

    with undisturbed(ports.broker.port, PAUSE_MS, f"500 times garbage instead of {secure}"):
        throw(port, 500, garbage)
    ports.check()


def test_500_handshakes_that_are_never_continued(ports: Ports) -> None:
    """Half of them have said hello. They end in time, and who comes meanwhile is let in."""
    hello = client_hello(ports.authority.trusting())
    before = resident_bytes(ports.broker)
    with undisturbed(ports.broker.port, PAUSE_MS, "500 TLS handshakes that are never continued"):
        sockets = [dial(ports.tls) for _ in range(500)]
        for sock in sockets[::2]:
            sock.sendall(hello)
        meanwhile = RawClient(dial(ports.tls, tls=ports.authority.trusting()))
        assert meanwhile.enter("meanwhile") == 0
        grown = (resident_bytes(ports.broker) - before) / MIB
        for sock in sockets:
            sock.settimeout(END_S)
            try:
                while sock.recv(65_536):
                    pass
            except ConnectionError:
                pass
            sock.close()
        meanwhile.ping()
        meanwhile.close()
    assert grown < 100, f"{grown:.0f} MiB for 500 handshakes"
    ports.check()


def test_garbage_behind_a_handshake(ports: Ports) -> None:
    """TLS that was right until then: bytes that no record can be read from, and records with no MQTT in them."""
    dice = random.Random(2)
    context = ports.authority.trusting()
    with undisturbed(ports.broker.port, PAUSE_MS, "150 times garbage behind a handshake"):
        for number in range(150):
            sock = dial(ports.tls, tls=context)
            assert isinstance(sock, ssl.SSLSocket)
            if number % 3 == 0:
                sock.sendall(changed(connect_packet("tls"), dice))
            elif number % 3 == 1:
                sock.sendall(connect_packet("tls"))
            raw = socket.socket(fileno=sock.detach())
            raw.sendall(dice.randbytes(dice.choice((5, 100, 20_000))))
            raw.close()
    ports.check()


def test_garbage_instead_of_a_websocket(ports: Ports) -> None:
    dice = random.Random(3)

    def garbage(number: int) -> bytes:
        kind = number % 6
        if kind == 0:
            return dice.randbytes(dice.choice((1, 30, 2_000)))
        if kind == 1:
            return changed(upgrade_request(), dice)
        if kind == 2:
            return upgrade_request(extra="X: " + "y" * 100_000)
        if kind == 3:
            return upgrade_request(extra="\r\n".join(f"X{n}: y" for n in range(1_000)))
        if kind == 4:
            return upgrade_request(method="POST", extra="Content-Length: 99999999999")
        return b"GET /mqtt HTTP/1.1\r\n" + b" \r\n" * 1_000

    with undisturbed(ports.broker.port, PAUSE_MS, "1,200 times garbage instead of a WebSocket"):
        throw(ports.ws, 1_200, garbage)
    ports.check()


FRAMES = {
    "unmasked": frame(BINARY, b"\xc0\x00", masked=False) * 10,
    "2^63 bytes": b"\x82\xff" + (2**63).to_bytes(8) + b"mask" + b"\x00" * 1_000,
    "2^62 bytes": b"\x82\xff" + (2**62).to_bytes(8) + b"mask" + b"\x30" + b"\xff" * 1_000,
    "compressed": frame(BINARY, b"\xc0\x00", reserved=4),
    "all reserved bits": frame(BINARY, b"\xc0\x00", reserved=7),
    "reserved opcode": frame(11, b"x"),
    "fragmented ping": frame(PING, b"x", final=False),
    "ping of 200 bytes": frame(PING, b"x" * 200),
    "continuation of nothing": frame(CONTINUATION, b"\xc0\x00"),
    "10,000 pings": frame(PING, b"") * 10_000,
    "10,000 pongs": frame(PONG, b"x") * 10_000,
    "endless fragments": frame(BINARY, b"", final=False) + frame(CONTINUATION, b"", final=False) * 10_000,
    "a packet of 10,000 frames": frame(BINARY, b"\x30\x80\x80\x01") + frame(BINARY, b"\x00") * 10_000,
}
LONG_FRAMES = ("10,000 pongs", "a packet of 10,000 frames")
"""Like 10,000 pings, and like endless fragments."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.in_faults) if name in LONG_FRAMES else name for name in FRAMES],
)
def test_bad_frames_from_10_clients(ports: Ports, name: str) -> None:
    """Whoever sends them waits for itself. Nobody reads what is answered."""
    before = resident_bytes(ports.broker)
    with undisturbed(ports.broker.port, PAUSE_MS, f"frames: {name}"):
        throw(ports.ws, 10, lambda _: upgrade_request() + frame(BINARY, connect_packet()) + FRAMES[name])
    assert resident_bytes(ports.broker) - before < 40 * MIB
    ports.check()


def test_1_000_websockets_with_mutated_frames(ports: Ports) -> None:
    dice = random.Random(4)
    good = frame(BINARY, connect_packet("frames")) + frame(BINARY, b"\xc0\x00") + frame(PING, b"x")

    def garbage(_: int) -> bytes:
        return upgrade_request() + changed(good, dice)

    with undisturbed(ports.broker.port, PAUSE_MS, "1,000 WebSockets with mutated frames"):
        for _ in range(4):
            throw(ports.ws, 250, garbage)
    ports.check()


def test_garbage_instead_of_a_proxy_header(ports: Ports) -> None:
    dice = random.Random(5)
    heads = (
        b"PROXY TCP4 192.0.2.1 192.0.2.9 50000 1883\r\n",
        b"PROXY TCP6 2001:db8::1 2001:db8::2 50000 1883\r\n",
        PROXY_2 + b"\x21\x11\x00\x0c" + bytes((192, 0, 2, 1, 192, 0, 2, 9, 1, 2, 3, 4)),
        PROXY_2 + b"\x21\x21\xff\xff" + bytes(65_535),
        b"PROXY " + b"x" * 1_000,
    )

    def garbage(number: int) -> bytes:
        head = heads[number % len(heads)]
        return (changed(head, dice) if number % 7 else head) + connect_packet()

    with undisturbed(ports.broker.port, PAUSE_MS, "1,000 times garbage instead of a PROXY header"):
        throw(ports.proxied, 1_000, garbage)
    ports.check()
