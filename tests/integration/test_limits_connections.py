"""Limits of connections over real sockets: in all, from an address, in a second, and TLS handshakes that never end."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support import raw_client
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.certificates import Authority
from tests.support.measuring import judge
from tests.support.metrics import metric
from tests.support.raw_client import ANSWER_S, OpenSockets, RawClient
from tests.support.waiting import wait_until

from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import Connack, Connect, Publish
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion

V31, V311, V5 = ProtocolVersion.V31, ProtocolVersion.V311, ProtocolVersion.V5
SERVER_UNAVAILABLE = 3
"""The return code of MQTT 3."""
HANDSHAKE_S = 10.0
"""So long at most somebody is kept out by handshakes of others that never end."""

OPEN = OpenSockets()


@pytest.fixture(autouse=True)
def closes() -> Iterator[None]:
    yield
    OPEN.close()


def dial(port: int, tls: ssl.SSLContext | None = None) -> socket.socket:
    return OPEN.keep(raw_client.dial(port, tls=tls))


def dial_from(source: str, port: int) -> socket.socket:
    return OPEN.keep(socket.create_connection(("127.0.0.1", port), ANSWER_S, (source, 0)))


def connack(sock: socket.socket, version: ProtocolVersion = V5, *, header: bytes = b"") -> bytes:
    """What comes of a CONNECT in five bytes or less; a refusal is followed by the end of the connection."""
    sock.sendall(header + encode(Connect("", version, True, 0, None, None, None, None), version))
    with suppress(ConnectionResetError):
        return sock.recv(5)
    return b""


def code(sock: socket.socket, version: ProtocolVersion = V5, *, header: bytes = b"") -> int:
    """The reason or return code of the CONNACK."""
    answer = connack(sock, version, header=header)
    assert answer[:1] == b"\x20", answer
    if answer[3]:
        with suppress(ConnectionResetError):
            while sock.recv(1_000):
                pass
        sock.close()
    return answer[3]


@pytest.mark.parametrize(
    ("version", "refusal"),
    [(V5, ReasonCode.SERVER_BUSY), (V311, SERVER_UNAVAILABLE), (V31, SERVER_UNAVAILABLE)],
)
def test_one_connection_too_many(own_broker: BrokerProcess, version: ProtocolVersion, refusal: int) -> None:
    own_broker.settings["clients.connections_max"] = 2
    own_broker.start()
    inside = [RawClient(dial(own_broker.port)) for _ in range(2)]
    assert [client.enter() for client in inside] == [0, 0]
    sock = dial(own_broker.port)
    if version is V31:
        sock.sendall(encode(Connect("old", version, True, 0, None, None, None, None), version))
        assert sock.recv(4)[3] == refusal
    else:
        assert code(sock, version) == refusal
    assert metric(own_broker, "refused_connections_max") == 1
    assert metric(own_broker, "connections_limit") == 2
    inside[0].close()
    wait_until(lambda: metric(own_broker, "listener_connections") == 1)
    assert code(dial(own_broker.port), V311) == 0


@pytest.mark.perf
@pytest.mark.parametrize("limit", ["connections_max", "connections_per_address_max"])
def test_who_closes_and_comes_again_at_once_is_not_counted_twice(
    own_broker: BrokerProcess, limit: str
) -> None:
    """The broker has not read that the first connections are over when the second ones come, and what they published
    last is still to be stored then."""
    own_broker.settings[f"clients.{limit}"] = 10
    own_broker.settings["log.durability"] = "os"  # a slow disk may take longer than anybody is waited for
    own_broker.start()
    last = encode(Publish("last", b"x", 1, 1), V5)
    sockets = [dial(own_broker.port) for _ in range(10)]
    refused = 0
    for _ in range(10):
        refused += sum(code(sock) != 0 for sock in sockets)
        os.kill(own_broker.pid, signal.SIGSTOP)
        for sock in sockets[::2]:
            sock.close()
        for sock in sockets[1::2]:
            with suppress(OSError):
                sock.sendall(last)  # room for half of them is found first
            sock.close()
        sockets = [dial(own_broker.port) for _ in range(10)]
        os.kill(own_broker.pid, signal.SIGCONT)
    entered = [code(sock) for sock in sockets].count(0)
    judge(refused + 10 - entered, 1, "clients of 110 that were refused where there was room")
    assert refused < 50, (
        "a machine that stands still has some, a broker that does not look again all but the first 10"
    )
    if entered == 10:
        assert code(dial(own_broker.port)) in (ReasonCode.SERVER_BUSY, ReasonCode.QUOTA_EXCEEDED)


def test_the_reason_is_told_in_words(own_broker: BrokerProcess) -> None:
    own_broker.settings["clients.connections_max"] = 1
    own_broker.start()
    assert RawClient(dial(own_broker.port)).enter() == 0
    second = RawClient(dial(own_broker.port))
    second.send(encode(Connect("", V5, True, 0, None, None, None, None), V5))
    refusal = second.expect(Connack)
    assert refusal.properties is not None
    assert refusal.properties.reason_string == "there are too many connections"


def test_an_address_has_its_own_limit(own_broker: BrokerProcess, tmp_path: Path) -> None:
    path = tmp_path / "mqtt.sock"
    own_broker.settings["clients.connections_per_address_max"] = 1
    own_broker.settings["listeners.mqtt"] = f"127.0.0.1:{own_broker.port},unix:{path}"
    own_broker.start()
    first, second = dial_from("127.0.0.1", own_broker.port), dial_from("127.0.0.2", own_broker.port)
    assert (code(first), code(second, V311)) == (0, 0)
    assert code(dial_from("127.0.0.2", own_broker.port)) == ReasonCode.QUOTA_EXCEEDED
    assert code(dial_from("127.0.0.1", own_broker.port), V311) == SERVER_UNAVAILABLE
    assert metric(own_broker, "refused_address_max") == 2
    local = [OPEN.keep(raw_client.dial_unix(str(path))) for _ in range(3)]
    assert [code(sock) for sock in local] == [0, 0, 0]
    first.close()
    wait_until(lambda: metric(own_broker, "connections") == 4)
    assert code(dial_from("127.0.0.1", own_broker.port)) == 0


def test_behind_a_proxy_the_address_that_it_tells_counts(own_broker: BrokerProcess) -> None:
    proxied = free_port()
    own_broker.settings["clients.connections_per_address_max"] = 1
    own_broker.settings["clients.allow_anonymous"] = "true"
    own_broker.settings["listeners.mqtt"] = f"127.0.0.1:{own_broker.port},127.0.0.1:{proxied}"
    own_broker.settings[f'listener."127.0.0.1:{proxied}".proxy_protocol'] = "true"
    own_broker.start()

    def from_4(host: str) -> bytes:
        return f"PROXY TCP4 {host} 192.0.2.200 50000 1883\r\n".encode()

    def from_6(host: str) -> bytes:
        return f"PROXY TCP6 {host} 2001:db8::1 50000 1883\r\n".encode()

    kept = [dial(proxied) for _ in range(5)]
    assert code(kept[0], header=from_4("192.0.2.1")) == 0
    assert code(kept[1], header=from_4("192.0.2.2")) == 0
    assert code(dial(proxied), header=from_4("192.0.2.1")) == ReasonCode.QUOTA_EXCEEDED
    assert code(kept[2], header=from_6("2001:db8:1:2::1")) == 0
    assert code(dial(proxied), header=from_6("2001:db8:1:2:ffff::9")) == ReasonCode.QUOTA_EXCEEDED
    assert code(kept[3], header=from_6("2001:db8:1:3::1")) == 0
    assert code(kept[4], header=b"PROXY UNKNOWN\r\n") == 0
    assert code(dial(proxied), header=b"PROXY UNKNOWN\r\n") == 0


@pytest.mark.parametrize(
    ("version", "refusal"), [(V5, ReasonCode.CONNECTION_RATE_EXCEEDED), (V311, SERVER_UNAVAILABLE)]
)
def test_new_connections_come_too_fast(
    own_broker: BrokerProcess, version: ProtocolVersion, refusal: int
) -> None:
    own_broker.settings["clients.connect_rate_max"] = 3
    own_broker.start()
    codes = [code(dial(own_broker.port), version) for _ in range(20)]
    assert codes[:3] == [0, 0, 0]
    assert set(codes[3:]) <= {0, refusal}
    assert metric(own_broker, "refused_connect_rate") == codes.count(refusal) > 10
    wait_until(lambda: code(dial(own_broker.port), version) == 0, what="a second later there is room")


@pytest.mark.perf
def test_a_flood_of_connections_over_the_limit_hurts_nobody(own_broker: BrokerProcess) -> None:
    own_broker.settings["clients.connections_max"] = 5
    own_broker.start()
    bystander = RawClient(dial(own_broker.port))
    assert bystander.enter() == 0
    worst_s = 0.0
    for _ in range(20):
        flood = [dial(own_broker.port) for _ in range(100)]
        began = time.monotonic()
        bystander.ping()
        worst_s = max(worst_s, time.monotonic() - began)
        for sock in flood:
            sock.close()
    judge(worst_s, 1.0, "a flood of connections, s of the longest ping of another")
    wait_until(lambda: metric(own_broker, "refused_connections_max") > 500)
    wait_until(lambda: metric(own_broker, "refused_untold") > 300)
    # The last of the flood may not have been looked at yet.
    wait_until(lambda: connack(dial(own_broker.port))[3:4] == b"\0")
    bystander.ping()


@pytest.mark.perf
def test_tls_handshakes_that_never_end_keep_others_out_for_seconds_at_most(
    own_broker: BrokerProcess, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "certificates")
    port = free_port()
    own_broker.settings["listeners.mqtts"] = f"127.0.0.1:{port}"
    own_broker.settings["tls.cert"] = authority.server()
    own_broker.settings["clients.connect_timeout_s"] = 60
    own_broker.start()
    stalled = [dial(port) for _ in range(1_000)]
    for sock in stalled[::2]:
        with suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(b"\x16\x03\x01")
    bystander = RawClient(dial(own_broker.port))
    assert bystander.enter() == 0
    began = time.monotonic()
    client = RawClient(dial(port, tls=authority.trusting()))
    assert client.enter() == 0
    judge(time.monotonic() - began, HANDSHAKE_S, "TLS handshakes that never end, s until somebody else is in")
    began = time.monotonic()
    bystander.ping()
    judge(time.monotonic() - began, 1.0, "TLS handshakes that never end, s of a ping of another")
    assert metric(own_broker, "tls_handshakes") <= 200
    assert metric(own_broker, "tls_handshakes_dropped") >= 700
    for sock in stalled:
        sock.close()
    wait_until(lambda: metric(own_broker, "tls_handshakes") == 0)
    assert metric(own_broker, "connections") == 2


def test_many_honest_tls_clients_at_once_all_enter(own_broker: BrokerProcess, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    port = free_port()
    own_broker.settings["listeners.mqtts"] = f"127.0.0.1:{port}"
    own_broker.settings["tls.cert"] = authority.server()
    own_broker.start()
    context: ssl.SSLContext = authority.trusting()
    socks = [dial(port) for _ in range(40)]
    clients = [RawClient(OPEN.keep(context.wrap_socket(sock, server_hostname="localhost"))) for sock in socks]
    assert [client.enter() for client in clients] == [0] * 40
    assert metric(own_broker, "tls_handshakes_dropped") == 0
