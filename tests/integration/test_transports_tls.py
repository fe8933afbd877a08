"""MQTT over TLS: versions, certificates of both sides, their renewal, and who is no TLS client at all."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from cryptography.x509.oid import NameOID
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.certificates import Authority
from tests.support.metrics import metric
from tests.support.paho_echo import hears_itself, paho_client
from tests.support.raw_client import RawClient, dial
from tests.support.waiting import wait_until

from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import (
    Connack,
    Connect,
    Disconnect,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion

V5 = ProtocolVersion.V5
CONNECT_TIMEOUT_S = 1.0


class Broker(BrokerProcess):
    """Ports: `plain_tls` takes everyone, `modern` speaks 1.3 only, `certified` wants certificates and no strangers,
    `asking` takes clients without one if they give a password."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "certificates")
        self.certificate = self.authority.server("broker")
        self.revocations = self.authority.revocations()
        self.plain_tls, self.modern, self.certified, self.asking = (free_port() for _ in range(4))
        ports = (self.plain_tls, self.modern, self.certified, self.asking)
        own = {
            (self.modern, "min_version"): "1.3",
            (self.certified, "client_certificates"): "required",
            (self.certified, "ca"): self.authority.certificate,
            (self.certified, "crl"): self.revocations,
            (self.certified, "allow_anonymous"): "false",
            (self.asking, "client_certificates"): "optional",
            (self.asking, "ca"): self.authority.certificate,
            (self.asking, "allow_anonymous"): "false",
            (self.asking, "identity"): "subject",
        }
        super().__init__(
            folder / "data",
            settings={
                "listeners.mqtts": ",".join(f"127.0.0.1:{port}" for port in ports),
                "tls.cert": self.certificate,
                "clients.connect_timeout_s": CONNECT_TIMEOUT_S,
                "logging.level": "debug",
            }
            | {f'listener."127.0.0.1:{port}".{key}': value for (port, key), value in own.items()},
        )

    def reload(self, told: str, times: int = 4) -> None:
        """SIGHUP, and wait until each of the listeners has said so."""
        before = self.output().count(told)
        os.kill(self.pid, signal.SIGHUP)
        wait_until(lambda: self.output().count(told) == before + times, what=told)


@pytest.fixture(scope="module")
def tls_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("tls"))
    with broker:
        yield broker
        assert "Traceback" not in broker.output()


def enter(broker: Broker, port: int, context: ssl.SSLContext) -> int:
    client = RawClient(dial(port, tls=context))
    try:
        return client.enter()
    finally:
        client.close()


def is_shut_out(port: int, context: ssl.SSLContext) -> bool:
    """With TLS 1.3 the client learns of it only when it reads."""
    try:
        client = RawClient(dial(port, tls=context))
    except OSError:
        return True
    try:
        client.send(b"\xc0\x00")
        return client.read_to_end() == b""
    except OSError:
        return True
    finally:
        client.close()


@pytest.mark.parametrize("version", ["tlsv1.2", "tlsv1.3"])
def test_mosquitto_clients(tls_broker: Broker, name: str, version: str) -> None:
    there = ["-h", "localhost", "-p", str(tls_broker.plain_tls), "--tls-version", version]
    trust = ["--cafile", str(tls_broker.authority.certificate), "-t", f"{name}/a", "-q", "1"]
    said = subprocess.run(
        ["mosquitto_pub", *there, *trust, "-r", "-m", "over TLS"], capture_output=True, text=True, timeout=30
    )
    assert said.returncode == 0, said.stderr
    heard = subprocess.run(
        ["mosquitto_sub", *there, *trust, "-C", "1", "-W", "20"], capture_output=True, text=True, timeout=30
    )
    assert heard.stdout == "over TLS\n", heard.stderr


def test_a_mosquitto_client_that_does_not_know_the_authority_stays_away(
    tls_broker: Broker, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path)
    words = ["-h", "localhost", "-p", str(tls_broker.plain_tls), "--cafile", str(stranger.certificate)]
    said = subprocess.run(
        ["mosquitto_pub", *words, "-t", "a", "-m", "b"], capture_output=True, text=True, timeout=30
    )
    assert said.returncode != 0
    wait_until(lambda: "TLSV1_ALERT_UNKNOWN_CA" in tls_broker.output())


def test_mosquitto_with_a_certificate_instead_of_a_password(tls_broker: Broker, name: str) -> None:
    own = str(tls_broker.authority.client())
    words = ["-h", "localhost", "-p", str(tls_broker.certified), "--cert", own, "--key", own]
    words += ["--cafile", str(tls_broker.authority.certificate), "-q", "1", "-t", name, "-m", "x"]
    said = subprocess.run(["mosquitto_pub", *words], capture_output=True, text=True, timeout=30)
    assert said.returncode == 0, said.stderr


def test_paho(tls_broker: Broker, name: str) -> None:
    client = paho_client(name)
    client.tls_set_context(tls_broker.authority.trusting())
    payloads = [os.urandom(300_000), b"end"]
    hears_itself(client, lambda: client.connect("localhost", tls_broker.plain_tls), name, payloads)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_are_spoken(tls_broker: Broker, version: ssl.TLSVersion) -> None:
    context = tls_broker.authority.trusting()
    context.minimum_version = context.maximum_version = version
    with dial(tls_broker.plain_tls, tls=context) as sock:
        assert isinstance(sock, ssl.SSLSocket)
        assert sock.version() == {"TLSv1_2": "TLSv1.2", "TLSv1_3": "TLSv1.3"}[version.name]


def test_a_listener_that_wants_1_3_refuses_1_2(tls_broker: Broker) -> None:
    context = tls_broker.authority.trusting()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        dial(tls_broker.modern, tls=context)
    assert enter(tls_broker, tls_broker.modern, tls_broker.authority.trusting()) == 0


def test_who_must_have_a_certificate_and_has_none_or_a_strangers_stays_out(
    tls_broker: Broker, tmp_path: Path
) -> None:
    assert is_shut_out(tls_broker.certified, tls_broker.authority.trusting())
    assert is_shut_out(tls_broker.certified, tls_broker.authority.trusting(Authority(tmp_path).client()))
    assert (
        enter(tls_broker, tls_broker.certified, tls_broker.authority.trusting(tls_broker.authority.client()))
        == 0
    )


ALERTS = {
    "missing": ("handshake failure", "certificate required", "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
    "expired": ("certificate expired", "certificate expired", "certificate has expired"),
    "revoked": ("certificate revoked", "certificate revoked", "certificate revoked"),
    "strange": ("unknown ca", "unknown ca", "unable to get"),
}
"""What OpenSSL calls the alert in TLS 1.2 and 1.3, and what the log says."""


def refused_certificate(broker: Broker, which: str, folder: Path) -> Path | None:
    if which == "missing":
        return None
    if which == "strange":
        return Authority(folder).client()
    own = broker.authority.client(lives_h=0 if which == "expired" else 24)
    if which == "revoked":
        broker.authority.revocations(own)
        broker.reload("certificates read again")
    return own


def alert_of(port: int, context: ssl.SSLContext) -> str:
    """What a client reads that speaks at once, as those of MQTT do: it must not lose the alert by that."""
    try:
        with dial(port, tls=context) as sock:
            sock.sendall(encode(Connect("c", V5, True, 0, None, None, None, None), V5))
            return f"no alert, but {sock.recv(1)!r}"
    except ssl.SSLError as error:
        return str(error).replace("_", " ").lower()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("which", ALERTS)
def test_a_refused_certificate_gets_an_alert_and_a_line_of_the_log(
    tls_broker: Broker, tmp_path: Path, which: str, version: ssl.TLSVersion
) -> None:
    port, (alert_1_2, alert_1_3, cause) = tls_broker.certified, ALERTS[which]
    context = tls_broker.authority.trusting(refused_certificate(tls_broker, which, tmp_path))
    context.minimum_version = context.maximum_version = version
    mark, before = len(tls_broker.output()), metric(tls_broker, "tls_handshakes_failed")
    tries = 0

    def is_told() -> bool:
        """Lines are few when the tests before have filled the log's second."""
        nonlocal tries
        tries += 1
        assert (alert_1_3 if version is ssl.TLSVersion.TLSv1_3 else alert_1_2) in alert_of(port, context)
        lines = tls_broker.output()[mark:].splitlines()
        told = f'listener="listeners.mqtts 127.0.0.1:{port}" reason="TLS: {cause}'
        return any(" INFO client refused event=refused " in line and told in line for line in lines)

    wait_until(is_told)
    assert metric(tls_broker, "tls_handshakes_failed") == before + tries


def test_a_refused_client_that_does_not_leave_is_ended_soon(tls_broker: Broker) -> None:
    """Whatever it sends is thrown away, up to a limit."""
    context = tls_broker.authority.trusting()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    for sends in (b"", b"x" * 16_000):
        with dial(tls_broker.certified, tls=context) as sock:
            bare = socket.socket(fileno=os.dup(sock.fileno()))
            with closing(bare):
                bare.settimeout(30)
                with suppress(OSError):
                    for _ in range(64 if sends else 0):
                        bare.sendall(sends)
                read_to_end(bare)
                wait_until(lambda: metric(tls_broker, "tls_handshakes") == 0, what="no handshake under way")


def read_to_end(sock: socket.socket) -> bytes:
    data = b""
    with suppress(OSError):
        while chunk := sock.recv(4_096):
            data += chunk
    return data


def test_a_certificate_is_who_one_is_where_strangers_may_not_enter(tls_broker: Broker) -> None:
    authority, port = tls_broker.authority, tls_broker.asking
    nameless = authority.client((NameOID.ORGANIZATION_NAME, "Acme"))
    assert enter(tls_broker, port, authority.trusting()) == ReasonCode.NOT_AUTHORIZED
    assert enter(tls_broker, port, authority.trusting(authority.client())) == 0
    assert enter(tls_broker, port, authority.trusting(nameless)) == 0  # its subject is its name
    assert enter(tls_broker, tls_broker.certified, authority.trusting(nameless)) == ReasonCode.NOT_AUTHORIZED


def test_a_certificate_counts_more_than_a_wrong_password(tls_broker: Broker) -> None:
    context = tls_broker.authority.trusting(tls_broker.authority.client())
    client = RawClient(dial(tls_broker.certified, tls=context))
    assert client.enter(username="somebody", password=b"wrong") == 0
    client.close()


def test_renewed_certificates_are_for_those_who_come_later(tls_broker: Broker) -> None:
    port, context = tls_broker.plain_tls, tls_broker.authority.trusting()
    before = dial(port, tls=context)
    old = RawClient(before)
    assert old.enter() == 0
    tls_broker.authority.server("broker")
    tls_broker.reload("certificates read again")
    with dial(port, tls=context) as after:
        assert isinstance(before, ssl.SSLSocket) and isinstance(after, ssl.SSLSocket)
        assert after.getpeercert(binary_form=True) != before.getpeercert(binary_form=True)
    old.ping()
    old.close()


def test_bad_files_leave_the_certificates_as_they_are(tls_broker: Broker) -> None:
    good = tls_broker.certificate.read_bytes()
    try:
        tls_broker.certificate.write_bytes(b"rubbish")
        tls_broker.reload("keeps its old certificates: tls.cert: no certificate")
    finally:
        tls_broker.certificate.write_bytes(good)
    assert enter(tls_broker, tls_broker.plain_tls, tls_broker.authority.trusting()) == 0
    tls_broker.reload("certificates read again")


def test_a_revoked_certificate_does_not_enter_any_more_nor_resume(tls_broker: Broker) -> None:
    authority, port = tls_broker.authority, tls_broker.certified
    own, other = authority.client(), authority.client()
    context = authority.trusting(own)
    inside = dial(port, tls=context)
    client = RawClient(inside)
    assert client.enter() == 0
    assert isinstance(inside, ssl.SSLSocket)
    session = inside.session
    authority.revocations(own)
    tls_broker.reload("certificates read again")
    assert is_shut_out(port, context)
    resuming = socket.create_connection(("127.0.0.1", port), 10)
    try:
        with context.wrap_socket(resuming, server_hostname="localhost", session=session) as sock:
            sock.sendall(b"\xc0\x00")
            assert sock.recv(1) == b""
    except OSError:
        resuming.close()
    assert enter(tls_broker, port, authority.trusting(other)) == 0
    client.ping()
    client.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00" * 5_000,
        b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\xff\xff",
    ],
)
def test_what_is_no_tls_ends_soon_and_hurts_nobody(tls_broker: Broker, garbage: bytes) -> None:
    bystander = RawClient(dial(tls_broker.plain_tls, tls=tls_broker.authority.trusting()))
    assert bystander.enter() == 0
    client = RawClient(dial(tls_broker.plain_tls))
    client.send(garbage)
    client.read_to_end()
    client.close()
    bystander.ping()
    bystander.close()


def test_the_time_to_connect_includes_the_handshake(tls_broker: Broker) -> None:
    """Many that say nothing, and one that is slow with its first bytes; then one that is slow after the handshake."""
    silent = [RawClient(dial(tls_broker.plain_tls)) for _ in range(20)]
    silent[0].send(b"\x16\x03\x01")
    idle = RawClient(dial(tls_broker.plain_tls, tls=tls_broker.authority.trusting()))
    for client in [*silent, idle]:
        client.sock.settimeout(30 * CONNECT_TIMEOUT_S)
        client.read_to_end()
        client.close()


def test_a_listener_without_its_files_keeps_the_broker_from_starting(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    broker = BrokerProcess(
        tmp_path / "data",
        settings={
            "listeners.mqtts": "127.0.0.1:0",
            "tls.cert": authority.certificate,
            "tls.key": "nowhere.key",
        },
    )
    broker.launch()
    assert broker.wait() == 1
    assert "embermq: tls.key: cannot read nowhere.key: No such file or directory" in broker.output()
    broker.close()


def test_who_says_much_and_leaves_is_heard_to_the_end(tls_broker: Broker) -> None:
    """What it said is decided in turns; that its connection is gone before the last of them takes nothing back."""
    count = 2_000
    packets = [encode(Publish("much", (b"%d" % number).ljust(60)), V5) for number in range(count)]
    with closing(dial(tls_broker.port)) as watching, closing(dial(tls_broker.port)) as telling:
        watcher, teller = RawClient(watching), RawClient(telling)
        for client in (watcher, teller):
            client.enter()
        watcher.send(encode(Subscribe(1, (Subscription("much", 0),)), V5))
        watcher.expect(Suback)
        leaver = RawClient(dial(tls_broker.plain_tls, tls=tls_broker.authority.trusting()))
        leaver.send(encode(Connect("leaver", V5, True, 0, None, None, Will("much", b"will"), None), V5))
        leaver.expect(Connack)
        connections = metric(tls_broker, "connections")
        leaver.send(b"".join(packets) + encode(Disconnect(), V5))
        leaver.close()
        wait_until(lambda: metric(tls_broker, "connections") == connections - 1)
        teller.send(encode(Publish("much", b"behind"), V5))
        seen: list[bytes] = []
        while not seen or seen[-1] != b"behind":
            seen.append(watcher.expect(Publish).payload.rstrip())
        assert seen == [*(b"%d" % number for number in range(count)), b"behind"]
