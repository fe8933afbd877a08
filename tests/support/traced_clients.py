"""What tests of `embermq trace` have happened to three messages, on either profile."""

from __future__ import annotations

from tests.support.mqtt_client import MqttClient
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import Puback, Subscription
from embermq.mqtt.wire.reason_codes import ReasonCode


async def three_messages(port: int, first: str, second: str) -> MqttClient:
    """0, 1, 2 in t/a, the last one retained: the application `first` has acknowledged 0, refused 1, and not got 2;
    `second` has had all three and is gone for good; dev-1 is away. Returns the publisher."""
    one, two, device = MqttClient(first), MqttClient(second), MqttClient("dev-1")
    one.acknowledges = False
    for client in (one, two, device):
        await client.connect(port, expiry_s=3_600)
        await client.subscribe(Subscription("t/#", 1))
    device.abort()
    publisher = MqttClient("pub")
    await publisher.connect(port)
    for number in range(2):
        await publisher.publish("t/a", b"%d" % number, qos=1)
    await wait_for(lambda: len(one.messages) == 2, 60)
    for message, code in zip(one.messages, (ReasonCode.SUCCESS, ReasonCode.QUOTA_EXCEEDED), strict=True):
        assert message.packet_id is not None
        one.send(Puback(message.packet_id, code))
    await one.ping()
    one.abort()
    await publisher.publish("t/a", b"2", qos=1, retain=True)
    await wait_for(lambda: len(two.messages) == 3, 60)
    await two.ping()
    two.abort()
    last = MqttClient(second)
    await last.connect(port, expiry_s=0)
    last.close()
    return publisher
