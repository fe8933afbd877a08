"""paho-mqtt as a consumer of durable queues: a client that knows nothing of EmberMQ."""

from __future__ import annotations

from queue import Queue
from types import TracebackType
from typing import Any, cast

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from embermq.mqtt.wire.version import ProtocolVersion

ANSWER_S = 60.0


class PahoWorker:
    """One connection, with a clean session."""

    def __init__(self, port: int, client_id: str, version: ProtocolVersion) -> None:
        self._client = Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion(int(version))
        )
        self._port = port
        self._answers: Queue[object] = Queue()
        self._inbox: Queue[MQTTMessage] = Queue()
        self._taken: list[MQTTMessage] = []
        self._client.on_connect = lambda *_: self._answers.put("connected")
        self._client.on_subscribe = lambda *_: self._answers.put("subscribed")
        self._client.on_message = lambda _client, _user, message: self._inbox.put(message)

    def __enter__(self) -> PahoWorker:
        self._client.connect("127.0.0.1", self._port)
        self._client.loop_start()
        assert self._answers.get(timeout=ANSWER_S) == "connected"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def consume(self, topic: str, qos: int) -> None:
        self._client.subscribe(topic, qos)
        assert self._answers.get(timeout=ANSWER_S) == "subscribed"

    def enqueue(self, topic: str, *payloads: bytes) -> None:
        for payload in payloads:
            self._client.publish(topic, payload, 1).wait_for_publish(ANSWER_S)

    def payloads(self, count: int) -> list[bytes]:
        """Of the next messages."""
        found = [self._inbox.get(timeout=ANSWER_S) for _ in range(count)]
        self._taken += found
        return [bytes(message.payload) for message in found]

    def settle(self, topic: str, verb: str) -> None:
        """Everything that was taken, in one message."""
        properties: Any = cast(Any, Properties)(PacketTypes.PUBLISH)
        properties.UserProperty = [
            pair
            for message in self._taken
            for pair in cast(Any, message.properties).UserProperty
            if pair[0] == "message-id"
        ]
        self._client.publish(f"{topic}/${verb}", b"", 1, properties=properties).wait_for_publish(ANSWER_S)
