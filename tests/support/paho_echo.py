"""A paho client that publishes and hears its own messages, over any transport that paho knows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Literal

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from tests.support.waiting import wait_until


def paho_client(
    client_id: str,
    transport: Literal["tcp", "websockets", "unix"] = "tcp",
    version: MQTTProtocolVersion = MQTTProtocolVersion.MQTTv5,
) -> paho.Client:
    return paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=version, transport=transport)


def hears_itself(
    client: paho.Client, connect: Callable[[], object], topic: str, payloads: Sequence[bytes]
) -> None:
    """Raise AssertionError unless all payloads come back, in order, with QoS 2."""
    heard: list[bytes] = []
    subscribed = threading.Event()

    def subscribe(connected: paho.Client, *_: object) -> None:
        connected.subscribe(
            f"{topic}/#", 2
        )  # the argument: a cycle would leave sockets to the garbage collector

    client.on_connect = subscribe
    client.on_subscribe = lambda *_: subscribed.set()
    client.on_message = lambda _client, _data, message: heard.append(bytes(message.payload))
    connect()
    client.loop_start()
    try:
        assert subscribed.wait(30), "no SUBACK"
        for payload in payloads:
            client.publish(f"{topic}/a", payload, 2)
        wait_until(lambda: heard == list(payloads), what=f"{len(payloads)} messages, {len(heard)} came")
    finally:
        client.disconnect()
        client.loop_stop()
