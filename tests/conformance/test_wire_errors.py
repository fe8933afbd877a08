"""What is wrong on the wire: each case ends its connection in the way that its version has for it, and no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from _pytest.mark.structures import ParameterSet
from tests.conformance.clause import V5, V31, V311, on_tcp_first
from tests.conformance.conftest import Enter
from tests.conformance.wire_cases import SERVER, WireError
from tests.conformance.wire_client import WireClient
from tests.conformance.wire_errors import ERRORS

from embermq.mqtt.wire.packets import Connack
from embermq.mqtt.wire.version import ProtocolVersion

pytestmark = on_tcp_first
OPENINGS = [case for case in ERRORS if case.reader is SERVER and case.opening]
LATER = [case for case in ERRORS if case.reader is SERVER and not case.opening]


def marked(cases: list[WireError]) -> list[ParameterSet]:
    """The clauses that the cases name are those of 5.0."""
    found = []
    for case in cases:
        numbered = case.version is V5 and case.clause.startswith("MQTT-")
        marks = [pytest.mark.clause(case.clause, version="5.0")] if numbered else []
        found.append(pytest.param(case, id=case.name, marks=marks))
    return found


@pytest.mark.clause(
    "MQTT-4.13.1-1", "MQTT-4.13.2-1", "MQTT-3.14.4-1", "MQTT-3.14.4-2", "MQTT-3.14.2-1", version="5.0"
)
@pytest.mark.clause("MQTT-4.8.0-1", "MQTT-2.2.2-2", version="3.1.1")
@pytest.mark.parametrize("case", marked(LATER))
def test_a_wrong_packet_ends_the_connection(enter: Enter, case: WireError) -> None:
    client = enter(version=case.version)
    client.send_bytes(case.data)
    client.finish_sending()
    said = client.end()
    if case.version is V5:
        assert said is not None and said.reason_code == case.error
    else:
        assert said is None


@pytest.mark.clause("MQTT-3.1.4-1", "MQTT-3.2.2-7", "MQTT-3.14.0-1", "MQTT-3.2.2-8", version="5.0")
@pytest.mark.clause("MQTT-3.1.4-1", version="3.1.1")
@pytest.mark.parametrize("case", marked(OPENINGS))
def test_a_wrong_opening_is_refused(port: int, opened: Callable[..., WireClient], case: WireError) -> None:
    """By CONNACK when it was a CONNECT of 5.0, by the end of the connection otherwise [MQTT-3.14.0-1]."""
    client = opened(port, case.version)
    client.send_bytes(case.data)
    client.finish_sending()
    is_connect = case.data.startswith(b"\x10") and b"\0\4MQTT\5" in case.data
    if is_connect:
        assert client.expect(Connack).reason_code == case.error
    elif case.error == 0x84:
        return  # what the answer is to a version that nobody speaks has a test of its own
    assert client.end() is None


@pytest.mark.clause("MQTT-3.1.0-2", version="5.0")
@pytest.mark.clause("MQTT-3.1.0-2", version="3.1.1")
@pytest.mark.parametrize("version", [V31, V311, V5])
def test_a_second_connect_ends_the_connection(enter: Enter, version: ProtocolVersion, name: str) -> None:
    client = enter(version=version)
    head = {V31: b"\0\x06MQIsdp\3", V311: b"\0\4MQTT\4", V5: b"\0\4MQTT\5"}[version]
    body = head + b"\2\0\0" + (b"\0" if version is V5 else b"") + b"\0\1x"
    client.send_bytes(bytes((0x10, len(body))) + body)
    said = client.end()
    assert (said.reason_code if said else None) == (0x82 if version is V5 else None)
