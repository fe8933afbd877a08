"""Requests that wait for their answers, in one queue of responses a client."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paho.mqtt.client import MQTTMessage

from embermq_client.errors import ClientError, RequestTimeout
from embermq_client.message import (
    CORRELATION_ID,
    RESPONSE_PREFIX,
    RESPONSE_TOPIC,
    Message,
    Pairs,
    Response,
    read_response,
)

if TYPE_CHECKING:
    from embermq_client.client import Client


class Responses:
    """Its topic cannot be guessed; it is subscribed to with the first request."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._topic = RESPONSE_PREFIX + secrets.token_hex(16)
        self._waiting: dict[bytes, asyncio.Future[Response]] = {}
        self._opening = asyncio.Lock()
        self._is_open = False
        self.asked: Pairs = (("ack-mode", "puback"),)
        self.qos = 1
        self.identifier = 0
        self.late = 0
        """Answers that nobody waited for any more."""

    async def ask(self, topic: str, payload: bytes, *, timeout_s: float, properties: Pairs) -> Response:
        """Publish a request and wait for its answer. Raises RequestTimeout, PublishRefused, Unconfirmed."""
        text = secrets.token_hex(16)
        correlation = text.encode()
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._open()
                self._waiting[correlation] = answer
                await self._client.publish(
                    topic,
                    payload,
                    (*properties, (RESPONSE_TOPIC, self._topic), (CORRELATION_ID, text)),
                    ResponseTopic=self._topic,
                    CorrelationData=correlation,
                    MessageExpiryInterval=max(1, math.ceil(timeout_s)),
                )
                return await answer
        except TimeoutError:
            raise RequestTimeout(f"{topic}: no answer in {timeout_s:g} s") from None
        finally:
            self._waiting.pop(correlation, None)

    async def _open(self) -> None:
        async with self._opening:
            if not self._is_open:
                await self._client.attach(self._topic, self)
                self._is_open = True

    # The client calls these, as it does those of a consumer.

    def take(self, packet: MQTTMessage) -> None:
        """An answer has come."""
        correlation, response = read_response(packet)
        waiting = self._waiting.get(correlation or b"")
        if waiting is None or waiting.done():
            self.late += 1
        else:
            waiting.set_result(response)

    def forget(self) -> None:
        """The connection is gone. Whoever waits waits on: the reply may come over the next one."""

    def settled(self, messages: Sequence[Message]) -> None:
        """Responses are settled by their PUBACK."""

    def end(self, error: ClientError) -> None:
        """No answers will come; the next request asks for the queue again."""
        self._is_open = False
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)
