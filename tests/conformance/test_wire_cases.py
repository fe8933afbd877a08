"""What is right on the wire is taken: whole, cut at every byte, and byte by byte."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.conformance.clause import V5, V31, V311, in_3x_and_5, on_every_transport
from tests.conformance.conftest import Enter
from tests.conformance.wire_cases import CASES, SERVER, WireCase
from tests.conformance.wire_client import WireClient

from embermq.mqtt.wire.packets import Auth, Connack, Connect, Disconnect, Pingreq, Pingresp, Publish
from embermq.mqtt.wire.version import ProtocolVersion

pytestmark = on_every_transport
CONNECTS = [case for case in CASES if case.reader is SERVER and isinstance(case.packet, Connect)]
OTHERS = [
    case
    for case in CASES
    if case.reader is SERVER and not isinstance(case.packet, Connect | Auth | Disconnect)
]
LIVELY = b"\xc0\0"


def is_taken(case: WireCase) -> bool:
    """Aliases have tests of their own: whether one is right depends on what came before and on the maximum."""
    packet = case.packet
    return not (isinstance(packet, Publish) and packet.properties and packet.properties.topic_alias)


@pytest.mark.parametrize("case", [case for case in OTHERS if is_taken(case)], ids=lambda case: case.name)
def test_a_right_packet_is_taken(enter: Enter, case: WireCase) -> None:
    """In one piece, in two at every place, and with another packet behind it."""
    client = enter(version=case.version)
    client.send_bytes(case.data + LIVELY)
    until_alive(client)
    client.close()
    client = enter(version=case.version)
    for byte in case.data:
        client.send_bytes(bytes((byte,)))
    client.send(Pingreq())
    until_alive(client)


def until_alive(client: WireClient) -> None:
    while not isinstance(packet := client.next(), Pingresp):
        assert not isinstance(packet, Disconnect), packet


@pytest.mark.parametrize("case", CONNECTS, ids=lambda case: case.name)
def test_a_right_connect_is_answered(port: int, opened: Callable[..., WireClient], case: WireCase) -> None:
    """It may be refused, by credentials or by an authentication method, but it is never an error of protocol."""
    for pieces in (1, len(case.data)):
        client = opened(port, case.version)
        step = -(-len(case.data) // pieces)
        for start in range(0, len(case.data), step):
            client.send_bytes(case.data[start : start + step])
        answer = client.expect(Connack)
        if case.version is V5:
            assert answer.reason_code in (0, 0x86, 0x8C)
        else:
            assert answer.reason_code in (0, 4)


@in_3x_and_5
def test_a_packet_that_is_cut_leaves_nothing_behind(
    enter: Enter, name: str, version: ProtocolVersion
) -> None:
    """At every byte of a PUBLISH the client goes away: nobody hears of the message."""
    watcher = enter("w")
    watcher.subscribe(name)
    data = {
        V31: b"\x32" + bytes((len(name) + 5,)) + b"\0\x0c" + name.encode() + b"\0\1x",
        V311: b"\x32" + bytes((len(name) + 5,)) + b"\0\x0c" + name.encode() + b"\0\1x",
        V5: b"\x32" + bytes((len(name) + 6,)) + b"\0\x0c" + name.encode() + b"\0\1\0x",
    }[version]
    for end in range(1, len(data)):
        client = enter(version=version)
        client.send_bytes(data[:end])
        client.close()
    watcher.nothing()
    client = enter(version=version)
    client.send_bytes(data)
    assert watcher.message().payload == b"x"
