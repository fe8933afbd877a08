"""Addresses of every kind: IPv6, names, Unix sockets, and connections that a proxy announces."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.certificates import Authority
from tests.support.paho_echo import hears_itself, paho_client
from tests.support.raw_client import RawClient, RawWebSocket, connect_packet, dial, dial_unix
from tests.support.waiting import wait_until

from embermq.mqtt.wire.packets import Connack, Pingresp
from embermq.mqtt.wire.reason_codes import ReasonCode

CONNECT_TIMEOUT_S = 1.0
SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
LOCALS, STRANGER, STRANGER_6 = "127.0.0.1", "192.0.2.7", "2001:db8::7"


class Broker(BrokerProcess):
    """`six` on ::1, `path` a Unix socket, `named` on localhost, `proxied` and so on behind a proxy."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "certificates")
        self.path = str(folder / "mqtt.sock")
        self.ws_path = str(folder / "ws.sock")
        self.six, self.named, self.proxied, self.proxied_tls, self.proxied_wss = (
            free_port() for _ in range(5)
        )
        proxied = [f"127.0.0.1:{port}" for port in (self.proxied, self.proxied_tls, self.proxied_wss)]
        own_port = free_port()
        super().__init__(
            folder / "data",
            settings={
                "listeners.mqtt": f"127.0.0.1:{own_port},[::1]:{self.six},unix:{self.path},"
                f"localhost:{self.named},{proxied[0]}",
                "listeners.mqtts": proxied[1],
                "listeners.ws": f"unix:{self.ws_path}",
                "listeners.wss": proxied[2],
                "tls.cert": self.authority.server(),
                "clients.connect_timeout_s": CONNECT_TIMEOUT_S,
                "logging.level": "debug",
                f'listener."unix:{self.path}".unix_mode': "600",
            }
            | {f'listener."{address}".proxy_protocol': "true" for address in proxied},
        )
        self.port = own_port


@pytest.fixture(scope="module")
def any_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("sockets"))
    with broker:
        yield broker
        assert broker.is_running
        assert "Traceback" not in broker.output()


def version_1(source: str, *, family: str | None = None) -> bytes:
    family = family or ("TCP6" if ":" in source else "TCP4")
    there = "::1" if ":" in source else "127.0.0.1"
    return f"PROXY {family} {source} {there} 50000 1883\r\n".encode()


def version_2(source: str, *, command: int = 1, more: bytes = b"") -> bytes:
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    there = "::1" if ":" in source else "127.0.0.1"
    body = (
        socket.inet_pton(family, source) + socket.inet_pton(family, there) + struct.pack("!HH", 50_000, 1883)
    )
    code = 0x21 if ":" in source else 0x11
    return SIGNATURE + bytes([0x20 | command, code]) + (len(body) + len(more)).to_bytes(2) + body + more


HEADERS = pytest.mark.parametrize("header", [version_1, version_2])


def test_ipv6(any_broker: Broker, name: str) -> None:
    words = ["mosquitto_pub", "-h", "::1", "-p", str(any_broker.six), "-t", name, "-q", "2", "-m", "x"]
    said = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert said.returncode == 0, said.stderr
    client = RawClient(dial(any_broker.six, "::1"))
    assert client.enter() == 0
    client.close()
    with pytest.raises(ConnectionRefusedError):
        dial(any_broker.six, "127.0.0.1")


def test_a_name_stands_for_all_its_addresses(any_broker: Broker) -> None:
    for *_, place in socket.getaddrinfo("localhost", any_broker.named, type=socket.SOCK_STREAM):
        client = RawClient(dial(any_broker.named, str(place[0])))
        assert client.enter() == 0
        client.close()


def test_paho_over_a_unix_socket(any_broker: Broker, name: str) -> None:
    client = paho_client(name, "unix")
    hears_itself(client, lambda: client.connect(any_broker.path), name, [b"1", os.urandom(200_000)])


def test_mosquitto_over_a_unix_socket(any_broker: Broker, name: str) -> None:
    words = ["mosquitto_pub", "--unix", any_broker.path, "-t", name, "-q", "2", "-m", "x"]
    said = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert said.returncode == 0, said.stderr


def test_a_unix_socket_has_its_mode_and_counts_as_this_machine(any_broker: Broker) -> None:
    assert os.stat(any_broker.path).st_mode & 0o777 == 0o600
    client = RawClient(dial_unix(any_broker.path))
    assert client.enter() == 0
    client.close()


def test_websocket_over_a_unix_socket(any_broker: Broker) -> None:
    client = RawWebSocket(dial_unix(any_broker.ws_path))
    client.upgrade()
    assert client.enter() == 0
    client.close()


def test_a_unix_socket_is_taken_over_from_the_dead_and_not_from_the_living(tmp_path: Path) -> None:
    path = str(tmp_path / "mqtt.sock")
    broker = BrokerProcess(tmp_path / "data", settings={"listeners.mqtt": f"unix:{path}"})
    with broker:
        second = BrokerProcess(tmp_path / "second", settings={"listeners.mqtt": f"unix:{path}"})
        second.launch()
        assert second.wait() == 1
        assert f"listeners.mqtt: cannot listen on unix:{path}: Address already in use" in second.output()
        second.close()
        broker.kill()
        assert os.path.exists(path)
        broker.start()
        client = RawClient(dial_unix(path))
        assert client.enter() == 0
        client.close()
        assert broker.stop() == 0
        assert not os.path.exists(path)


def test_a_file_in_the_way_of_a_unix_socket_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    broker = BrokerProcess(tmp_path / "data", settings={"listeners.mqtt": f"unix:{path}"})
    broker.launch()
    assert broker.wait() == 1
    assert "File exists" in broker.output()
    assert path.read_text() == "data"
    broker.close()


@HEADERS
@pytest.mark.parametrize(
    ("source", "code"),
    [
        (LOCALS, 0),
        ("::1", 0),
        (STRANGER, ReasonCode.NOT_AUTHORIZED),
        (STRANGER_6, ReasonCode.NOT_AUTHORIZED),
    ],
)
def test_the_address_that_the_proxy_tells_counts_as_this_machine_or_not(
    any_broker: Broker, header: Callable[[str], bytes], source: str, code: int
) -> None:
    client = RawClient(dial(any_broker.proxied))
    client.send(header(source))
    assert client.enter() == code
    client.close()


@HEADERS
def test_logs_name_the_clients_address(any_broker: Broker, header: Callable[[str], bytes]) -> None:
    client = RawClient(dial(any_broker.proxied))
    source = "192.0.2.81" if header is version_1 else "2001:db8::82"
    client.send(header(source) + b"\x00\x00")
    client.read_to_end()
    client.close()
    peer = f'"[{source}]:50000"' if ":" in source else f"{source}:50000"
    wait_until(lambda: f"peer={peer} " in any_broker.output())


@HEADERS
def test_tls_and_websocket_behind_a_proxy(any_broker: Broker, header: Callable[[str], bytes]) -> None:
    """All in one piece, and a byte at a time."""
    for port, kind in ((any_broker.proxied_tls, RawClient), (any_broker.proxied_wss, RawWebSocket)):
        for step in (1_000, 1):
            sock = dial(port)
            sent = header(LOCALS)
            for start in range(0, len(sent), step):
                sock.sendall(sent[start : start + step])
            client = kind(any_broker.authority.trusting().wrap_socket(sock, server_hostname="localhost"))
            if isinstance(client, RawWebSocket):
                client.upgrade()
            assert client.enter() == 0
            client.ping()
            client.close()


def test_renewed_certificates_behind_a_proxy(any_broker: Broker) -> None:
    def certificate() -> bytes | None:
        sock = dial(any_broker.proxied_tls)
        sock.sendall(version_1(LOCALS))
        with any_broker.authority.trusting().wrap_socket(sock, server_hostname="localhost") as tls:
            return tls.getpeercert(binary_form=True)

    before = certificate()
    any_broker.authority.server()
    os.kill(any_broker.pid, signal.SIGHUP)
    wait_until(lambda: any_broker.output().count("certificates read again") == 2)
    assert certificate() != before


def test_what_follows_the_header_at_once_is_not_lost(any_broker: Broker) -> None:
    for header in (version_1(LOCALS), version_2(LOCALS, more=b"\x04\x00\x01\x00")):
        client = RawClient(dial(any_broker.proxied))
        client.send(header + connect_packet() + b"\xc0\x00")
        assert client.expect(Connack).reason_code == 0
        client.expect(Pingresp)
        client.close()


def test_a_proxy_that_speaks_for_itself_is_this_machine(any_broker: Broker) -> None:
    client = RawClient(dial(any_broker.proxied))
    client.send(version_2(STRANGER, command=0))
    assert client.enter() == 0
    client.close()


@pytest.mark.parametrize("header", [b"PROXY UNKNOWN\r\n", SIGNATURE + b"\x21\x00\x00\x00"])
def test_a_client_of_whom_the_proxy_knows_nothing_is_a_stranger(any_broker: Broker, header: bytes) -> None:
    client = RawClient(dial(any_broker.proxied))
    client.send(header)
    assert client.enter() == ReasonCode.NOT_AUTHORIZED
    client.close()


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(connect_packet("a-client-without-a-proxy"), id="no header"),
        pytest.param(b"PROXY TCP4 192.0.2.1\r\n", id="half a line"),
        pytest.param(b"PROXY TCP4 ::1 ::1 1 2\r\n", id="another family"),
        pytest.param(version_1("999.0.0.1", family="TCP4"), id="no address"),
        pytest.param(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n", id="no port"),
        pytest.param(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\n\n\n\n", id="another end of line"),
        pytest.param(b"PROXY " + b"x" * 200, id="no end of line"),
        pytest.param(SIGNATURE + b"\x11\x11\x00\x0c" + b"\0" * 12, id="another version"),
        pytest.param(SIGNATURE + b"\x25\x11\x00\x0c" + b"\0" * 12, id="another command"),
        pytest.param(SIGNATURE + b"\x21\x11\x00\x04" + b"\0" * 4, id="too short for its addresses"),
        pytest.param(SIGNATURE + b"\x21\x11\xff\xff", id="too long"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00", id="TLS"),
    ],
)
def test_what_is_no_header_is_not_let_in(any_broker: Broker, sent: bytes) -> None:
    client = RawClient(dial(any_broker.proxied))
    client.send(sent)
    client.sock.settimeout(30 * CONNECT_TIMEOUT_S)
    assert client.read_to_end() == b""
    client.close()


def test_a_header_that_does_not_come_is_not_waited_for(any_broker: Broker) -> None:
    silent = [RawClient(dial(any_broker.proxied)) for _ in range(20)]
    silent[0].send(b"PROXY TCP4 192.")
    for client in silent:
        client.sock.settimeout(30 * CONNECT_TIMEOUT_S)
        assert client.read_to_end() == b""
        client.close()


@HEADERS
def test_nobody_is_believed_where_there_is_no_proxy(
    any_broker: Broker, header: Callable[[str], bytes]
) -> None:
    client = RawClient(dial(any_broker.port))
    client.send(header(LOCALS) + connect_packet())
    assert client.read_to_end() == b""
    client.close()
