"""Listeners that allow their clients less, the largest payload, and rules that send clients elsewhere, over sockets."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.mqtt_client import ConnectionEnded, MqttClient, run

from embermq.mqtt.wire.packets import Connack, Subscription
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion

V31, V311, V5 = ProtocolVersion.V31, ProtocolVersion.V311, ProtocolVersion.V5
RULES = '[[rule]]\nuse_server = "b.example:8883"\nclient_id = "eu-*"\n[[rule]]\nallow = "all"\n'


def test_listeners_differ_and_rules_send_clients_elsewhere(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    low, high = free_port(), free_port()
    table = f'listener."127.0.0.1:{low}"'
    broker = BrokerProcess(
        tmp_path / "data",
        settings={
            "listeners.ws": "",
            "listeners.mqtt": f"127.0.0.1:{low}, 127.0.0.1:{high}",
            f"{table}.connections_max": 1,
            f"{table}.max_qos": 0,
            f"{table}.allow_empty_client_id": "false",
            f"{table}.protocol_versions": "5.0",
            "mqtt.protocol_versions": "3.1.1, 5.0",
            "mqtt.payload_bytes_max": 100,
            "authorization.rules": rules,
        },
    )

    async def answer(port: int, client_id: str, version: ProtocolVersion = V5) -> tuple[MqttClient, Connack]:
        client = MqttClient(client_id, version=version)
        connack = await client.connect(port)
        if connack.reason_code:
            await client.ended
        return client, connack

    async def scenario() -> None:
        for port, version, code in ((low, V311, 1), (low, V31, 1), (high, V31, 1), (high, V311, 0)):
            assert (await answer(port, "c", version))[1].reason_code == code, (port == low, version)
        assert (await answer(low, ""))[1].reason_code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        said = (await answer(high, ""))[1].properties
        assert said is not None and (said.assigned_client_identifier or "").startswith("ember-")
        client, connack = await answer(low, "c")
        assert connack.properties is not None and connack.properties.maximum_qos == 0
        assert await client.subscribe(Subscription("t", 2)) == (0,)
        await client.publish("t", b"x")
        assert (await answer(low, "d"))[1].reason_code == ReasonCode.SERVER_BUSY
        publisher, _ = await answer(high, "p")
        assert await publisher.publish("t", b"x" * 101, qos=1) == ReasonCode.QUOTA_EXCEEDED
        assert await publisher.publish("t", b"x" * 100, qos=1) == 0
        old, _ = await answer(high, "o", V311)
        with pytest.raises(ConnectionEnded):
            await old.publish("t", b"x" * 101, qos=1)
        _, sent = await answer(high, "eu-1")
        assert sent.reason_code == ReasonCode.USE_ANOTHER_SERVER
        assert sent.properties is not None and sent.properties.server_reference == "b.example:8883"
        assert (await answer(high, "eu-1", V311))[1].reason_code == 3
        for one in (client, publisher):
            one.close()
            await one.ended

    with broker:
        run(scenario())
        assert "Traceback" not in broker.output()
