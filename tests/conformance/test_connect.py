"""3.1 and 3.2: CONNECT and CONNACK."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.conformance.clause import V5, V31, V311, in_3x_and_5, in_311_and_5, of_5, of_31, of_311
from tests.conformance.conftest import Enter
from tests.conformance.wire_client import WireClient
from tests.support.broker_process import BrokerProcess

from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Publish,
    Subscribe,
    Subscription,
    Will,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion

Opened = Callable[..., WireClient]


@of_5("3.1.0-1", "3.1.4-6")
@of_311("3.1.0-1")
@of_31("3.1 first")
@in_3x_and_5
def test_the_first_packet_is_connect(port: int, opened: Opened, name: str, version: ProtocolVersion) -> None:
    watcher = opened(port, V5, name + "w")
    watcher.connect()
    watcher.subscribe(name)
    client = opened(port, version)
    client.send(Publish(name, b"never", 0, 0))
    assert client.end() is None
    watcher.nothing()


@of_31("3.1 protocol name", "3.2 return code 0")
def test_31_enters_with_its_protocol_name(port: int, opened: Opened, name: str) -> None:
    client = opened(port, V31, name)
    assert client.connect() == Connack(False, 0)
    client.ping()


@of_31("3.1 client id", "3.2 return code 2")
@pytest.mark.parametrize(("client_id", "code"), [("", 2), ("a" * 23, 0), ("a" * 24, 0), ("ü" * 100, 0)])
def test_31_takes_client_ids_of_1_character_and_more(
    port: int, opened: Opened, client_id: str, code: int
) -> None:
    client = opened(port, V31, client_id)
    assert client.connect().reason_code == code
    if code:
        assert client.end() is None


@of_31("3.2 return code 1")
@of_5("3.1.2-2")
@of_311("3.1.2-2")
@pytest.mark.parametrize(
    ("head", "answer"),
    [
        (b"\0\4MQTT\3", b"\x20\2\0\1"),
        (b"\0\4MQTT\0", b"\x20\2\0\1"),
        (b"\0\4MQTT\x84", b"\x20\2\0\1"),
        (b"\0\6MQIsdp\4", b"\x20\2\0\1"),
    ],
)
def test_a_version_that_is_not_spoken_gets_return_code_1(
    port: int, opened: Opened, head: bytes, answer: bytes
) -> None:
    client = opened(port, V311)
    client.send_bytes(bytes((0x10, len(head) + 6)) + head + b"\2\0\0\0\1x")
    assert encode(client.expect(Connack), V311) == answer
    assert client.end() is None


@of_5("3.1.2-2", "3.2.2-6")
def test_a_version_after_5_gets_84(port: int, opened: Opened) -> None:
    client = opened(port, V5)
    client.send_bytes(b"\x10\x0e\0\4MQTT\6\2\0\0\0\0\1x")
    answer = client.expect(Connack)
    assert (answer.session_present, answer.reason_code) == (False, 0x84)
    assert client.end() is None


@of_5("3.1.2-1")
@of_311("3.1.2-1")
def test_another_protocol_name_is_closed_on(port: int, opened: Opened) -> None:
    for data in (b"\x10\x0e\0\4MQTX\5\2\0\0\0\0\1x", b"\x10\x0d\0\4mqtt\4\2\0\0\0\1x"):
        client = opened(port, V5)
        client.send_bytes(data)
        assert client.end() is None


@of_5("3.1.2-3")
@of_311("3.1.2-3")
def test_the_reserved_connect_flag_is_0(port: int, opened: Opened) -> None:
    client = opened(port, V311)
    client.send_bytes(b"\x10\x0d\0\4MQTT\4\3\0\0\0\1x")
    assert client.end() is None
    client = opened(port, V5)
    client.send_bytes(b"\x10\x0e\0\4MQTT\5\3\0\0\0\0\1x")
    assert client.expect(Connack).reason_code == 0x81
    assert client.end() is None


@of_5("3.1.2-9", "3.1.2-11", "3.1.2-12", "3.1.2-13", "3.1.2-16", "3.1.2-17", "3.1.2-18", "3.1.2-19")
@of_5("3.1.3-1", "3.1.3-3", "3.1.4-1")
@of_311("3.1.2-9", "3.1.2-11", "3.1.2-13", "3.1.2-14", "3.1.2-15", "3.1.2-18", "3.1.2-19", "3.1.2-20")
@of_311("3.1.2-21", "3.1.2-22", "3.1.3-1", "3.1.3-3", "3.1.4-1")
@pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5.0"])
@pytest.mark.parametrize(
    ("flags", "payload"),
    [
        (0x02, ()),
        (0x06, (b"id",)),
        (0x06, (b"id", b"topic")),
        (0x0A, (b"id",)),
        (0x22, (b"id",)),
        (0x1E, (b"id", b"topic", b"will")),
        (0x02, (b"id", b"surplus")),
        (0x82, (b"id",)),
        (0x82, (b"id", b"user", b"surplus")),
        (0xC2, (b"id", b"user")),
        (0xC2, (b"id", b"user", b"password", b"surplus")),
    ],
)
def test_payload_and_flags_agree(
    port: int, opened: Opened, version: ProtocolVersion, flags: int, payload: tuple[bytes, ...]
) -> None:
    parts = [len(part).to_bytes(2, "big") + part for part in payload]
    if version is V5 and flags & 4:
        parts.insert(1, b"\0")
    body = b"\0\4MQTT" + bytes((version, flags)) + b"\0\0" + (b"\0" if version is V5 else b"")
    body += b"".join(parts)
    client = opened(port, version)
    client.send_bytes(bytes((0x10, len(body))) + body)
    if version is V5:
        assert client.expect(Connack).reason_code == 0x81
    assert client.end() is None


@of_311("3.1.2-22")
def test_a_password_needs_a_user_name_before_5(port: int, opened: Opened, name: str) -> None:
    client = opened(port, V311)
    client.send_bytes(b"\x10\x10\0\4MQTT\4\x42\0\0\0\1x\0\1p")
    assert client.end() is None
    new = opened(port, V5, name)
    new.connect(password=b"p")  # allowed in 5.0; whether it lets in is another matter


@of_5("3.1.2-4", "3.1.4-4", "3.2.2-2", "3.1.2-6", "3.2.2-3", "3.1.3-2")
@of_311("3.1.2-6", "3.1.4-3", "3.2.2-1", "3.2.2-3", "3.1.3-2")
@in_311_and_5
def test_a_clean_start_discards_the_session(
    port: int, opened: Opened, enter: Enter, name: str, version: ProtocolVersion
) -> None:
    first = opened(port, version, name)
    assert not first.connect(clean=False, expiry=100).session_present
    first.subscribe(name)
    first.leave()
    enter("p").publish(name, b"for nobody")
    second = opened(port, version, name)
    assert not second.connect(clean=True, expiry=100).session_present
    enter("p").publish(name, b"for nobody")
    second.nothing()


@of_5("3.1.2-5", "3.1.2-23", "3.2.2-3", "4.1.0-1", "4.5.0-1", "3.1.3-2")
@of_311("3.1.2-4", "3.1.2-5", "3.2.2-2", "4.1.0-1", "4.5.0-1", "3.1.3-2")
@in_3x_and_5
def test_a_session_is_resumed(
    port: int, opened: Opened, enter: Enter, name: str, version: ProtocolVersion
) -> None:
    first = opened(port, version, name)
    first.connect(clean=False, expiry=100)
    first.subscribe(name)
    first.leave()
    publisher = enter("p")
    publisher.publish(name, b"1", qos=1)
    publisher.publish(name, b"2", qos=2)
    second = opened(port, version, name)
    assert second.connect(clean=False, expiry=100).session_present is (version is not V31)
    assert [message.payload for message in second.messages(2)] == [b"1", b"2"]
    publisher.publish(name, b"3")
    assert second.message().payload == b"3"
    second.leave()


@of_5("3.1.3-5")
@of_311("3.1.3-5")
@in_3x_and_5
def test_usual_client_ids_are_taken(port: int, opened: Opened, version: ProtocolVersion) -> None:
    for client_id in ("0123456789abcdefghijklm", "NOPQRSTUVWXYZ", "z"):
        client = opened(port, version, client_id)
        assert client.connect().reason_code == 0


@of_5("3.1.3-6", "3.1.3-7", "3.2.2-16")
def test_an_empty_client_id_gets_a_unique_one(port: int, opened: Opened) -> None:
    given = []
    for clean in (True, False):
        client = opened(port, V5)
        properties = client.connect(clean=clean).properties
        assert properties is not None and properties.assigned_client_identifier
        given.append(properties.assigned_client_identifier)
    assert given[0] != given[1]
    # The id is the client's own from then on: another connection with it takes over.
    other = opened(port, V5, given[1])
    other.connect()
    assert client.ended_with() == 0x8E


@of_311("3.1.3-6", "3.1.3-7", "3.1.3-8", "3.2.2-4", "3.2.2-5", "3.1.4-5")
def test_an_empty_client_id_of_311_needs_a_clean_session(
    port: int, opened: Opened, enter: Enter, name: str
) -> None:
    watcher = enter("w")
    watcher.subscribe(name)
    assert opened(port, V311).connect(clean=True).reason_code == 0
    client = opened(port, V311)
    client.send(Connect("", V311, False, 0), Publish(name, b"never", 0, 0))
    assert client.expect(Connack) == Connack(False, 2)
    assert client.end() is None
    watcher.nothing()


@of_5("3.1.3-8", "3.2.2-7")
@of_311("3.1.3-9")
@in_311_and_5
def test_a_client_id_that_is_not_wanted_is_told(
    strict_broker: object, enter_strict: Enter, opened: Opened, version: ProtocolVersion
) -> None:
    client = opened(strict_broker.port, version)  # type: ignore[attr-defined]
    answer = client.connect()
    assert (answer.session_present, answer.reason_code) == (False, 0x85 if version is V5 else 2)
    assert client.end() is None


@of_5("3.1.4-2")
@of_31("3.2 return code 4")
@in_3x_and_5
@pytest.mark.parametrize("username", ["known", "nobody"])
def test_wrong_credentials_are_refused(
    strict_broker: BrokerProcess, opened: Opened, name: str, version: ProtocolVersion, username: str
) -> None:
    client = opened(strict_broker.port, version, name)
    answer = client.connect(username=username, password=b"wrong")
    assert answer.reason_code == (0x86 if version is V5 else 4)
    assert client.end() is None


@of_5("3.1.4-3")
@of_311("3.1.4-2")
@of_31("3.1 takeover")
@in_3x_and_5
def test_the_same_client_id_takes_over(enter: Enter, version: ProtocolVersion) -> None:
    first, second = enter(version=version), enter(version=version)
    said = first.end()
    assert (said.reason_code if said else None) == (0x8E if version is V5 else None)
    second.ping()


@of_5("3.1.4-5", "3.2.0-1", "3.2.0-2", "3.2.2-1")
@of_311("3.1.4-4", "3.2.0-1")
@in_3x_and_5
@pytest.mark.one_broker
def test_connack_comes_first_and_once(port: int, opened: Opened, name: str, version: ProtocolVersion) -> None:
    """Also when the client does not wait for it; the client's decoder refuses a second one and reserved flags."""
    client = opened(port, version, name)
    client.send(
        Connect(name, version, True, 0), Subscribe(1, (Subscription(name, 0),)), Publish(name, b"x", 0, 0)
    )
    assert client.expect(Connack).reason_code == 0
    kinds = {type(client.next()).__name__ for _ in range(2)}
    assert kinds == {"Suback", "Publish"}
    client.nothing()


@of_5("3.1.2-22")
@of_311("3.1.2-24")
@of_31("3.1 keep alive")
@in_3x_and_5
def test_a_silent_client_is_gone_after_one_and_a_half_times_its_keep_alive(
    enter: Enter, name: str, version: ProtocolVersion
) -> None:
    watcher = enter("w")
    watcher.subscribe(name)
    client = enter(version=version, keep_alive=1, will=Will(name, b"gone", 0, False))
    said = client.end(timeout_s=20)
    assert (said.reason_code if said else None) == (0x8D if version is V5 else None)
    assert watcher.message().payload == b"gone"  # as if the network had failed


@of_5("3.1.2-22")
def test_keep_alive_counts_every_packet_and_0_is_for_ever(enter: Enter, name: str) -> None:
    lively, still = enter("l", keep_alive=1), enter("s", keep_alive=0)
    for _ in range(8):
        lively.nothing(0.25)  # a PINGREQ, then silence
    still.ping()


@of_5("3.2.2-22")
def test_without_server_keep_alive_the_clients_own_holds(port: int, opened: Opened, name: str) -> None:
    properties = opened(port, V5, name).connect(keep_alive=65_535).properties
    assert properties is not None and properties.server_keep_alive is None


@of_5("3.1.2-21", "3.2.2-21")
@pytest.mark.parametrize(("asked", "told"), [(0, 60), (61, 60), (60, None), (5, None)])
def test_server_keep_alive_is_told_when_it_is_shorter(
    strict_broker: object, opened: Opened, name: str, asked: int, told: int | None
) -> None:
    client = opened(strict_broker.port, V5, name)  # type: ignore[attr-defined]
    properties = client.connect(keep_alive=asked).properties
    assert properties is not None and properties.server_keep_alive == told


@of_5("3.1.2-28")
def test_response_information_only_for_who_asks(strict_broker: object, opened: Opened, name: str) -> None:
    port = strict_broker.port  # type: ignore[attr-defined]
    for asked, told in ((None, None), (False, None), (True, f"answers/{name}")):
        client = opened(port, V5, name)
        properties = client.connect(properties=Properties(request_response_information=asked)).properties
        assert properties is not None and properties.response_information == told


@of_5("3.1.2-29")
def test_no_explanations_for_who_wants_none(enter_strict: Enter, name: str) -> None:
    bad = Properties(payload_format_indicator=1)
    for wanted in (True, False):
        client = enter_strict(properties=Properties(request_problem_information=wanted))
        client.send(Publish(name, b"\xff", 1, 1, properties=bad))
        answer = client.next()
        assert answer.reason_code == 0x99  # type: ignore[union-attr]
        assert (answer.properties is not None) is wanted  # type: ignore[union-attr]


@of_5("3.2.2-9", "3.2.2-10", "3.2.2-11")
def test_the_maximum_qos_is_told_and_kept(
    strict_broker: object, opened: Opened, enter_strict: Enter, name: str
) -> None:
    client = opened(strict_broker.port, V5, name)  # type: ignore[attr-defined]
    properties = client.connect().properties
    assert properties is not None and properties.maximum_qos == 1
    assert client.subscribe(f"{name}/2", qos=2) == (1,)
    client.send(Publish(name, b"x", 2, 1))
    assert client.ended_with() == 0x9B


@of_5("3.2.2-12")
@in_311_and_5
def test_a_will_above_the_maximum_qos_is_refused(
    strict_broker: object, opened: Opened, name: str, version: ProtocolVersion
) -> None:
    client = opened(strict_broker.port, version, name)  # type: ignore[attr-defined]
    client.send(Connect(name, version, True, 0, None, None, Will(name, b"", 2, False)))
    if version is V5:
        assert client.expect(Connack).reason_code == 0x9B
    assert client.end() is None


@of_311("3.2.2-6")
def test_a_refusal_without_a_return_code_is_silent(strict_broker: object, opened: Opened, name: str) -> None:
    client = opened(strict_broker.port, V311, name)  # type: ignore[attr-defined]
    client.send(Connect(name, V311, True, 0, None, None, Will(name, b"x", 0, True)))
    assert client.end() is None


@of_5("3.2.2-13", "3.2.2-14")
def test_retain_is_refused_where_it_is_not_available(
    strict_broker: object, opened: Opened, name: str
) -> None:
    port = strict_broker.port  # type: ignore[attr-defined]
    client = opened(port, V5, name)
    client.send(Connect(name, V5, True, 0, None, None, Will(name, b"x", 0, True)))
    assert client.expect(Connack).reason_code == 0x9A
    assert client.end() is None
    client = opened(port, V5, name)
    properties = client.connect().properties
    assert properties is not None and properties.retain_available is False
    client.send(Publish(name, b"x", 0, 0, True))
    assert client.ended_with() == 0x9A


@of_5("3.2.2-15", "3.1.4-1")
@in_3x_and_5
def test_a_packet_past_the_maximum_size_is_refused(
    strict_broker: object, opened: Opened, name: str, version: ProtocolVersion
) -> None:
    port = strict_broker.port  # type: ignore[attr-defined]
    client = opened(port, version, name)
    properties = client.connect().properties
    assert version is not V5 or (properties is not None and properties.maximum_packet_size == 1024)
    head = len(name) + (3 if version is V5 else 2)
    client.send(Publish(name, bytes(1024 - 3 - head), 0, 0))
    client.ping()
    client.send_bytes(
        encode(Publish(name, bytes(1025 - 3 - head), 0, 0), version)[:5]
    )  # its length is enough
    said = client.end()
    assert (said.reason_code if said else None) == (0x95 if version is V5 else None)


@of_5("3.2.2-17", "3.2.2-18", "3.3.2-9")
def test_an_alias_past_the_maximum_is_refused(
    strict_broker: object, opened: Opened, enter: Enter, name: str
) -> None:
    client = opened(strict_broker.port, V5, name)  # type: ignore[attr-defined]
    properties = client.connect().properties
    assert properties is not None and properties.topic_alias_maximum is None
    client.send(Publish(name, b"x", 0, 0, properties=Properties(topic_alias=1)))
    assert client.ended_with() == 0x94
    other = enter("o")
    other.send(Publish(name, b"x", 0, 0, properties=Properties(topic_alias=33)))
    assert other.ended_with() == 0x94


@of_5("3.2.2-19", "3.2.2-20", "3.1.2-24")
def test_a_refusal_goes_without_its_reason_when_that_is_too_long(
    port: int, opened: Opened, name: str
) -> None:
    for limit, explained in ((1000, True), (16, False)):
        client = opened(port, V5, name)
        will = Will("$SYS/" + name, b"x", 0, False)
        client.send(Connect(name, V5, True, 0, None, None, will, Properties(maximum_packet_size=limit)))
        answer = client.expect(Connack)
        assert answer.reason_code == 0x90
        assert (answer.properties is not None) is explained
        assert max(client.sizes) <= limit
        assert client.end() is None


def test_session_expiry_is_cut_to_the_brokers_and_told(
    strict_broker: object, opened: Opened, name: str
) -> None:
    port = strict_broker.port  # type: ignore[attr-defined]
    for asked, told in ((0xFFFF_FFFF, 1000), (1001, 1000), (1000, None), (0, None)):
        properties = opened(port, V5, name).connect(expiry=asked).properties
        assert properties is not None and properties.session_expiry_interval == told


@of_5("4.12.0-1", "4.12.0-6", "3.2.2-7")
def test_an_authentication_method_that_is_not_known_is_refused(port: int, opened: Opened, name: str) -> None:
    client = opened(port, V5, name)
    answer = client.connect(properties=Properties(authentication_method="UNKNOWN"))
    assert answer.reason_code == 0x8C
    assert answer.properties is None or answer.properties.authentication_method is None
    assert client.end() is None


@of_5("4.12.0-7", "4.12.0-6")
def test_auth_without_a_method_is_a_protocol_error(enter: Enter) -> None:
    client = enter()
    client.send(Auth(0x19, Properties(authentication_method="X")))
    assert client.ended_with() == 0x82


def test_a_disconnect_right_behind_connect_is_heard(port: int, opened: Opened, name: str) -> None:
    watcher = opened(port, V5, name + "w")
    watcher.connect()
    watcher.subscribe(name)
    client = opened(port, V5, name)
    client.send(Connect(name, V5, True, 0, None, None, Will(name, b"never", 0, False)), Disconnect())
    client.expect(Connack)
    assert client.end() is None
    watcher.nothing()
