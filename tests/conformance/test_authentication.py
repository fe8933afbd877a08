"""4.12, 3.15: enhanced authentication, by SCRAM, first and again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scramp import ScramClient
from tests.conformance.clause import V5, of_5
from tests.conformance.conftest import DURABILITY, TROUBLE
from tests.conformance.wire_client import WireClient
from tests.support.broker_process import BrokerProcess

from embermq.app.accounts import accounts_of
from embermq.app.config import Settings
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Publish,
    Subscribe,
    Subscription,
    Will,
)
from embermq.mqtt.wire.properties import Properties

CONTINUE, AGAIN = 0x18, 0x19
METHODS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
METHOD = METHODS[0]
PASSWORD = "correct horse"
both_methods = pytest.mark.parametrize("method", METHODS)
CONSTANTS = {"embermq.app.authentication.FAILURES_FREE": 1_000_000}
"""Whoever is wrong on purpose does not wait for its answer."""
Opened = Callable[..., WireClient]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with accounts for SCRAM."""
    directory = tmp_path_factory.mktemp("scram")
    with accounts_of(Settings(data_dir=str(directory)), create=True) as accounts:
        for name in ("ann", "bob"):
            accounts.add(name, PASSWORD.encode(), ClientType.DEVICE, scram=True)
    with BrokerProcess(directory, settings=DURABILITY, constants=CONSTANTS) as broker:
        yield broker
        assert broker.is_running
        assert not TROUBLE.search(broker.output()), broker.output()
        assert "scramp" not in broker.output()


class Scram:
    """A client that authenticates."""

    def __init__(self, wire: WireClient, method: str = METHOD) -> None:
        self.wire = wire
        self.method = method

    def auth(self, code: int, data: bytes | str | None, method: str | None = None) -> Auth:
        raw = data.encode() if isinstance(data, str) else data
        return Auth(
            code, Properties(authentication_method=method or self.method, authentication_data=raw or None)
        )

    def connect_packet(self, data: str | None, *, will: Will | None = None, **properties: Any) -> Connect:
        asked = Properties(
            authentication_method=self.method,
            authentication_data=data.encode() if data is not None else None,
            **properties,
        )
        return Connect(self.wire.client_id, V5, properties=asked, will=will)

    def begins(self, user: str = "ann", password: str = PASSWORD, **properties: Any) -> ScramClient:
        """CONNECT, and the broker's question is taken."""
        client = ScramClient([self.method], user, password)
        self.wire.send(self.connect_packet(client.get_client_first(), **properties))
        client.set_server_first(self.question())
        return client

    def question(self) -> str:
        asked = self.wire.expect(Auth)
        assert asked.reason_code == CONTINUE
        assert asked.properties is not None
        assert asked.properties == Properties(
            authentication_method=self.method, authentication_data=asked.properties.authentication_data
        )
        return (asked.properties.authentication_data or b"").decode()

    def enters(self, user: str = "ann", **properties: Any) -> Connack:
        client = self.begins(user, **properties)
        self.wire.send(self.auth(CONTINUE, client.get_client_final()))
        answer = self.wire.expect(Connack)
        assert answer.reason_code == 0, answer
        assert answer.properties is not None
        assert answer.properties.authentication_method == self.method
        client.set_server_final((answer.properties.authentication_data or b"").decode())
        return answer

    def begins_again(self, user: str = "ann", password: str = PASSWORD) -> ScramClient:
        client = ScramClient([self.method], user, password)
        self.wire.send(self.auth(AGAIN, client.get_client_first()))
        client.set_server_first(self.question())
        return client

    def refused_with(self) -> int:
        """The reason code of the CONNACK that ends it; nothing in it but perhaps a reason."""
        answer = self.wire.expect(Connack)
        assert not answer.session_present
        assert answer.properties is None or answer.properties == Properties(
            reason_string=answer.properties.reason_string
        )
        assert self.wire.end() is None
        return answer.reason_code


Arrives = Callable[..., Scram]


def auth_bytes(code: int, method: str) -> bytes:
    return encode(
        Auth(code, Properties(authentication_method=method, authentication_data=b"n,,n=ann,r=abc")), V5
    )


@pytest.fixture
def arrives(guarded: BrokerProcess, opened: Opened, name: str) -> Arrives:
    """Opens connections of clients with names of their own."""

    def arriving(method: str = METHOD, suffix: str = "c") -> Scram:
        return Scram(opened(guarded.port, V5, name + suffix), method)

    return arriving


@of_5("4.12.0-2", "4.12.0-3", "4.12.0-5", "3.15.2-1")
@both_methods
def test_scram_brings_a_client_in(arrives: Arrives, name: str, method: str) -> None:
    """The question and CONNACK name the method; broker and client have both shown that they know the password."""
    client = arrives(method)
    assert not client.enters().session_present
    assert client.wire.subscribe(name) == (2,)
    assert client.wire.publish(name + "/nobody", qos=2) == 0x10
    client.wire.publish(name, qos=0)
    assert client.wire.message().payload == b"x"


@of_5("4.12.0-1")
@pytest.mark.parametrize("method", ["SCRAM-SHA-1", "SCRAM-SHA-256-PLUS", "scram-sha-256", "PLAIN", ""])
def test_a_method_that_is_not_known_is_refused(arrives: Arrives, method: str) -> None:
    client = arrives(method)
    client.wire.send(client.connect_packet("n,,n=ann,r=abc"))
    assert client.refused_with() == 0x8C


@of_5("4.12.0-4", "4.12.0-5")
@both_methods
@pytest.mark.parametrize(
    ("user", "password"),
    [("ann", "wrong"), ("nobody", PASSWORD), ("nobody", "")],
    ids=["password", "user", "both"],
)
def test_who_cannot_prove_it_is_refused(arrives: Arrives, method: str, user: str, password: str) -> None:
    """With the same messages, whether the user exists or not."""
    client = arrives(method)
    scram = client.begins(user, password)
    client.wire.send(client.auth(CONTINUE, scram.get_client_final()))
    assert client.refused_with() == 0x87


@of_5("4.12.0-4")
@pytest.mark.parametrize(
    "data", ["n", "n,,n=ann", "p=tls-unique,,n=ann,r=abc", "n,,n=ann,r=abc\0", "x" * 60_000]
)
def test_a_first_message_that_is_none_is_refused(arrives: Arrives, data: str) -> None:
    client = arrives()
    client.wire.send(client.connect_packet(data))
    assert client.refused_with() == 0x87


@of_5("4.12.0-4")
@pytest.mark.parametrize("data", [None, "", "x", "c=biws,r=abc,p=AAAA", "n,,n=ann,r=abc", "x" * 60_000])
def test_a_last_message_that_is_none_is_refused(arrives: Arrives, data: str | None) -> None:
    client = arrives()
    client.begins()
    client.wire.send(client.auth(CONTINUE, data))
    assert client.refused_with() == 0x87


def test_a_nonce_or_a_proof_of_another_exchange(arrives: Arrives) -> None:
    one, other = arrives(suffix="1"), arrives(suffix="2")
    proof = one.begins().get_client_final()
    other.begins()
    other.wire.send(other.auth(CONTINUE, proof))
    assert other.refused_with() == 0x87
    one.wire.send(one.auth(CONTINUE, proof))
    assert one.wire.expect(Connack).reason_code == 0


def test_a_client_that_waits_to_be_asked(arrives: Arrives) -> None:
    """CONNECT without data: the question is empty."""
    client = arrives()
    client.wire.send(client.connect_packet(None))
    assert client.question() == ""
    scram = ScramClient([METHOD], "ann", PASSWORD)
    client.wire.send(client.auth(CONTINUE, scram.get_client_first()))
    scram.set_server_first(client.question())
    client.wire.send(client.auth(CONTINUE, scram.get_client_final()))
    assert client.wire.expect(Connack).reason_code == 0


@of_5("3.1.2-30", "4.12.0-4")
@pytest.mark.parametrize(
    "packet",
    [Subscribe(1, (Subscription("a", 0),)), Publish("a", b""), Pingreq()],
    ids=["SUBSCRIBE", "PUBLISH", "PINGREQ"],
)
def test_only_auth_and_disconnect_before_connack(arrives: Arrives, packet: Packet) -> None:
    client = arrives()
    client.begins()
    client.wire.send(packet)
    assert client.refused_with() == 0x82


@of_5("3.1.2-30")
def test_what_comes_behind_the_proof_is_too_early(arrives: Arrives) -> None:
    client = arrives()
    scram = client.begins()
    client.wire.send(client.auth(CONTINUE, scram.get_client_final()), Pingreq())
    assert client.refused_with() == 0x82


def test_disconnect_during_the_exchange(arrives: Arrives) -> None:
    client = arrives()
    client.begins()
    client.wire.send(Disconnect())
    assert client.wire.end() is None


@of_5("4.12.0-3", "4.12.0-5", "3.15.2-1")
def test_auth_out_of_turn_before_connack(arrives: Arrives) -> None:
    wrong = [
        auth_bytes(AGAIN, METHOD),
        auth_bytes(CONTINUE, METHODS[1]),
        b"\xf0\x01\x00",
        b"\xf0\x01\x18",
    ]
    for number, packet in enumerate(wrong):
        client = arrives(suffix=str(number))
        client.begins()
        client.wire.send_bytes(packet)
        assert client.refused_with() == 0x82


@of_5("3.15.1-1")
def test_auth_with_flags(arrives: Arrives) -> None:
    client = arrives()
    client.begins()
    client.wire.send_bytes(b"\xf1\x00")
    assert client.refused_with() == 0x81


@of_5("3.15.2-2", "3.15.2-3", "3.1.2-24")
def test_auth_keeps_to_the_maximum_packet_size(arrives: Arrives) -> None:
    """The question comes bare, so it comes to whom it just fits; to another the connection ends without it."""
    scram = ScramClient([METHOD], "ann", PASSWORD)
    probe = arrives(suffix="probe")
    first = scram.get_client_first()
    probe.wire.send(probe.connect_packet(first))
    size = len(encode(probe.wire.expect(Auth), V5))
    fits = arrives(suffix="fits")
    fits.wire.send(fits.connect_packet(first, maximum_packet_size=size))
    assert fits.question()
    narrow = arrives(suffix="narrow")
    narrow.wire.send(narrow.connect_packet(first, maximum_packet_size=size - 1))
    assert narrow.wire.end() is None


def test_nothing_of_the_client_counts_before_the_proof(arrives: Arrives, name: str) -> None:
    """Neither its name nor its will."""
    resident = arrives()
    resident.enters()
    resident.wire.subscribe(name)
    client = arrives()
    first = "n,,n=ann,r=abc"
    client.wire.send(client.connect_packet(first, will=Will(name, b"gone")))
    client.question()
    client.wire.drop()
    resident.wire.nothing()


@of_5("4.12.0-6", "4.12.0-7")
def test_without_a_method_there_is_none(guarded: BrokerProcess, opened: Opened, name: str) -> None:
    client = opened(guarded.port, V5, name)
    answer = client.connect(username="ann", password=PASSWORD.encode())
    assert answer.reason_code == 0, "the account has its password as well"
    assert answer.properties is not None
    assert answer.properties.authentication_method is None
    assert answer.properties.authentication_data is None
    client.send(Auth(AGAIN, Properties(authentication_method=METHOD, authentication_data=b"n,,n=ann,r=abc")))
    assert client.ended_with() == 0x82


@of_5("4.12.1-1", "4.12.0-5", "3.15.2-1")
@both_methods
def test_again_while_messages_flow(arrives: Arrives, name: str, method: str) -> None:
    client = arrives(method)
    client.enters()
    for _ in range(2):
        scram = client.begins_again()
        assert client.wire.subscribe(name) == (2,)
        assert client.wire.publish(name + "/nobody", qos=1) == 0x10
        client.wire.publish(name, qos=0)
        client.wire.message()
        client.wire.send(client.auth(CONTINUE, scram.get_client_final()))
        answer = client.wire.expect(Auth)
        assert answer.reason_code == 0
        assert answer.properties is not None
        assert answer.properties.authentication_method == method
        scram.set_server_final((answer.properties.authentication_data or b"").decode())
    client.wire.ping()


@of_5("4.12.1-2")
@pytest.mark.parametrize(
    ("user", "password"),
    [("ann", "wrong"), ("nobody", PASSWORD), ("bob", PASSWORD)],
    ids=["password", "user", "another user"],
)
def test_again_and_it_fails(arrives: Arrives, name: str, user: str, password: str) -> None:
    """The connection ends, with its will; another user may not take it over."""
    watcher = arrives(suffix="w")
    watcher.enters()
    watcher.wire.subscribe(name)
    client = arrives()
    scram = ScramClient([METHOD], "ann", PASSWORD)
    client.wire.send(client.connect_packet(scram.get_client_first(), will=Will(name, b"gone")))
    scram.set_server_first(client.question())
    client.wire.send(client.auth(CONTINUE, scram.get_client_final()))
    assert client.wire.expect(Connack).reason_code == 0
    again = client.begins_again(user, password)
    client.wire.send(client.auth(CONTINUE, again.get_client_final()))
    assert client.wire.ended_with() == 0x87
    assert watcher.wire.message().payload == b"gone"


@of_5("4.12.1-1", "4.12.1-2")
def test_again_out_of_turn(arrives: Arrives) -> None:
    wrong = [auth_bytes(AGAIN, METHODS[1]), auth_bytes(CONTINUE, METHOD), auth_bytes(AGAIN, METHOD) * 2]
    for number, packets in enumerate(wrong):
        client = arrives(suffix=str(number))
        client.enters()
        client.wire.send_bytes(packets)
        assert client.wire.ended_with() == 0x82


def test_a_second_beginning_before_the_end_of_the_first(arrives: Arrives) -> None:
    client = arrives()
    client.enters()
    client.begins_again()
    client.wire.send(client.auth(AGAIN, "n,,n=ann,r=abc"))
    assert client.wire.ended_with() == 0x82


def test_the_session_is_the_users_and_kept(arrives: Arrives) -> None:
    client = arrives()
    client.enters(session_expiry_interval=100)
    client.wire.leave()
    client = arrives()
    scram = ScramClient([METHOD], "ann", PASSWORD)
    first = client.connect_packet(scram.get_client_first(), session_expiry_interval=0)
    client.wire.send(Connect(first.client_id, V5, clean_start=False, properties=first.properties))
    scram.set_server_first(client.question())
    client.wire.send(client.auth(CONTINUE, scram.get_client_final()))
    answer = client.wire.expect(Connack)
    assert (answer.reason_code, answer.session_present) == (0, True)
