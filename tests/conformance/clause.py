"""The marks by which a test names the statements that it shows."""

from __future__ import annotations

import pytest
from tests.conformance.wires import TRANSPORTS

from embermq.mqtt.wire.version import ProtocolVersion

V31, V311, V5 = ProtocolVersion.V31, ProtocolVersion.V311, ProtocolVersion.V5


def of_5(*ids: str) -> pytest.MarkDecorator:
    """Statements of MQTT 5.0, such as `of_5("3.1.2-4")` for MQTT-3.1.2-4."""
    return pytest.mark.clause(*(f"MQTT-{text}" for text in ids), version="5.0")


def of_311(*ids: str) -> pytest.MarkDecorator:
    """Statements of MQTT 3.1.1."""
    return pytest.mark.clause(*(f"MQTT-{text}" for text in ids), version="3.1.1")


def of_31(*ids: str) -> pytest.MarkDecorator:
    """Rules of MQTT 3.1, which has no numbers of its own: the section, and what it is about."""
    return pytest.mark.clause(*ids, version="3.1")


in_3x_and_5 = pytest.mark.parametrize("version", [V31, V311, V5], ids=["3.1", "3.1.1", "5.0"])
in_311_and_5 = pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5.0"])
on_every_transport = pytest.mark.parametrize("transport", TRANSPORTS, indirect=True)
on_tcp_first = pytest.mark.parametrize(
    "transport",
    [pytest.param(name, marks=[] if name == "tcp" else pytest.mark.in_faults) for name in TRANSPORTS],
    indirect=True,
)
"""On the others in `make faults`: all transports lead to one decoder, as test_wire_cases.py and test_ending.py show."""
