"""Retained messages, and messages that operators publish."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Sequence
from heapq import nsmallest

import msgspec

from embermq.admin.durable import TickDriver, Waiter
from embermq.admin.errors import NotFound, OperationRefused, RequestRefused
from embermq.admin.values import (
    PublishOutcome,
    PublishProperties,
    PublishRequest,
    RetainedDetail,
    RetainedView,
)
from embermq.intake.broker import Broker
from embermq.intake.kept_properties import deadline_of
from embermq.intake.operators import OperatorsPublishing
from embermq.model.message import Message
from embermq.model.moments import iso_ms
from embermq.model.session import RetainedRow
from embermq.mqtt.topics.errors import TopicError
from embermq.mqtt.topics.names import is_system_topic, validate_filter
from embermq.mqtt.topics.topic_tree import TopicTree
from embermq.mqtt.wire.decoder import Decoder, Role
from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.errors import EncodeError
from embermq.mqtt.wire.packets import Publish
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import FIRST_ERROR, ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.errors import StoreError
from embermq.routing.retained import RetainedMessages
from embermq.sessions.tick import Asked

STEPS_AT_ONCE = 5_000
"""Places of the tree that are looked at before the event loop gets its turn."""
STORE_WAIT_S = 30.0
V5 = ProtocolVersion.V5
BAD_TOPIC = frozenset({ReasonCode.TOPIC_NAME_INVALID, ReasonCode.PAYLOAD_FORMAT_INVALID})


class MessageDesk:
    """Called on the event loop."""

    def __init__(self, broker: Broker, ticks: TickDriver) -> None:
        self._state = broker.state
        self._ticks = ticks
        self._publishing = OperatorsPublishing(broker.state, broker.publishing)

    async def retained(self, topic_filter: str, after: str, limit: int) -> Sequence[RetainedView]:
        """Up to `limit` that the filter matches and whose topic sorts behind `after`, in that order. Raises
        RequestRefused."""
        try:
            validate_filter(topic_filter)
        except TopicError as error:
            raise RequestRefused(f"filter: {error}") from None
        best: list[str] = []
        step: list[str] = []
        for number, found in enumerate(self._tree(topic_filter).walk(topic_filter), 1):
            if found is not None and found[0] > after:
                step.append(found[0])
            if number % STEPS_AT_ONCE == 0:
                best, step = nsmallest(limit, [*best, *step]), []
                await asyncio.sleep(0)
        topics = nsmallest(limit, [*best, *step])
        there = (self._message(topic) for topic in topics)
        return [self._view(message) for message in there if message is not None]

    def message(self, topic: str) -> RetainedDetail:
        """One with its payload. Raises NotFound."""
        message = self._message(topic)
        if message is None:
            raise NotFound(f"nothing is retained for the topic {topic!r}")
        properties = msgspec.to_builtins(message.properties) if message.properties is not None else {}
        shown: dict[str, str] = {}
        try:
            shown["payload"] = message.payload.decode()
        except UnicodeDecodeError:
            shown["payload_base64"] = b64encode(message.payload).decode()
        return RetainedDetail(about=self._view(message), properties=properties, **shown)

    async def delete(self, topic: str) -> None:
        """Publish what deletes it [MQTT-3.3.1-6]; returns when that is durable. Raises NotFound, OperationRefused,
        StoreError."""
        if self._state.retained.get(topic) is None:
            raise NotFound(f"nothing is retained for the topic {topic!r}")
        await self.publish(PublishRequest(topic=topic, retain=True))

    async def publish(self, asked: PublishRequest) -> PublishOutcome:
        """Take a message; returns when it is durable. Raises RequestRefused, OperationRefused, StoreError."""
        self._ticks.look_at_clock()
        message, fate = self._asked(asked), Asked()
        refusal = self._publishing.publish(message, fate)
        if refusal is not None and refusal.code < FIRST_ERROR:
            return PublishOutcome(stored=False, told=refusal.text)
        if refusal is None:
            self._ticks.wake()
            if not fate.is_recorded:
                return PublishOutcome(stored=False)
            await self._stored()
            refusal = fate.refusal
            if refusal is not None:
                raise StoreError(refusal.text)
            return PublishOutcome(stored=True)
        if refusal.code in BAD_TOPIC:
            raise RequestRefused(refusal.text)
        raise OperationRefused(refusal.text)

    async def _stored(self) -> None:
        """Wait until the log has what this tick holds, or has refused it."""
        durable = Waiter(loop=asyncio.get_running_loop())
        self._state.tick.batch.after_log.append(durable)
        try:
            async with asyncio.timeout(STORE_WAIT_S):
                await durable
        except TimeoutError:
            raise StoreError(f"the message log has not answered within {STORE_WAIT_S:g} s") from None

    def _asked(self, asked: PublishRequest) -> Message:
        """Raises RequestRefused for what no client could send."""
        payload = asked.payload.encode() or _bytes("payload_base64", asked.payload_base64)
        properties = _properties(asked.properties)
        packet = Publish(
            asked.topic,
            payload,
            asked.qos,
            1 if asked.qos else 0,
            retain=asked.retain,
            properties=properties,
        )
        if problem := _problem_of(packet):
            raise RequestRefused(problem)
        tick = self._state.tick
        due_ms = deadline_of(properties, tick.now_ms) if properties is not None else 0
        return Message(
            asked.topic, payload, asked.qos, asked.retain, "", V5, tick.date_ms, due_ms, properties
        )

    def _tree(self, topic: str) -> TopicTree[RetainedRow] | RetainedMessages:
        return self._state.system if is_system_topic(topic) else self._state.retained

    def _message(self, topic: str) -> Message | None:
        """None for one that is damaged or over, too."""
        row = self._tree(topic).get(topic)
        if row is None:
            return None
        record = self._state.damaged.decode(row.record, "a retained message")
        if record is None or record.message.is_expired(self._state.tick.now_ms):
            return None
        return record.message

    def _view(self, message: Message) -> RetainedView:
        expires_ms = message.expires_ms
        return RetainedView(
            topic=message.topic,
            qos=message.qos,
            payload_bytes=len(message.payload),
            publisher=message.publisher,
            published=iso_ms(message.accepted_ms) if message.accepted_ms else None,
            expires=iso_ms(self._state.tick.to_date(expires_ms)) if expires_ms else None,
        )


def _properties(asked: PublishProperties) -> Properties | None:
    given = Properties(
        payload_format_indicator=asked.payload_format_indicator,
        message_expiry_interval=asked.message_expiry_interval,
        content_type=asked.content_type,
        response_topic=asked.response_topic,
        correlation_data=(
            _bytes("correlation_data_base64", asked.correlation_data_base64)
            if asked.correlation_data_base64 is not None
            else None
        ),
        user_properties=asked.user_properties,
    )
    return None if given == Properties() else given


def _problem_of(packet: Publish) -> str:
    """Why no client could send it, "" when one could: what a connection would say of its bytes."""
    try:
        data = encode(packet, V5)
    except EncodeError as error:
        return str(error)
    decoder = Decoder(Role.SERVER, version=V5)
    decoder.feed(data)
    return str(decoder.error) if decoder.error is not None else ""


def _bytes(name: str, text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError) as error:
        raise RequestRefused(f"{name}: is no base64: {error}") from None
