"""How far the broker has got, as the committed offsets of a consumer group: what tools for Kafka show lag by.

Nothing is read from there again: the floor that counts is in the broker's own store.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from embermq.adapters.kafka.client import LOG, WatchedAdmin, error_of, told
from embermq.adapters.kafka.positions import LogPositions

EVERY_S = 1.0


class DispatcherGroup:
    """`<prefix>-dispatcher`. `passed` is called on the broker's thread, `tell` on the one that may ask Kafka."""

    def __init__(self, admin: WatchedAdmin, topic: str, prefix: str, positions: LogPositions) -> None:
        self._admin = admin
        self._topic = topic
        self._positions = positions
        self.name = f"{prefix}-dispatcher"
        self._floor = -1
        self._told = -1
        self._next_s = 0.0
        self._answer: Future[Any] | None = None
        self._trouble = ""

    def passed(self, floor: int) -> None:
        """Every record below is delivered, stored or owed to nobody."""
        self._floor = floor

    def tell(self) -> None:
        """Commit what is new, once a second at most; does not wait."""
        floor, now_s = self._floor, time.monotonic()
        if floor == self._told or now_s < self._next_s or not self._has_answered():
            return
        mark = self._positions.before(floor)
        if mark is None:
            return
        self._next_s = now_s + EVERY_S
        self._told = floor
        offsets = [
            TopicPartition(self._topic, partition, offset) for partition, offset in enumerate(mark.offsets)
        ]
        request = ConsumerGroupTopicPartitions(self.name, offsets)
        timeout_s = self._admin.settings.request_timeout_s
        answers = self._admin.client.alter_consumer_group_offsets([request], request_timeout=timeout_s)
        self._answer = answers[self.name]

    def _has_answered(self) -> bool:
        if self._answer is None:
            return True
        if not self._answer.done():
            return False
        answer, self._answer = self._answer, None
        trouble = ""
        try:
            answer.result()
        except KafkaException as error:
            trouble = told(error_of(error))
            self._told = -1
        if trouble and not self._trouble:
            LOG.warning(
                "%s: the position of group %s cannot be committed: %s; delivery does not depend on it",
                self._admin.address,
                self.name,
                trouble,
            )
        self._trouble = trouble
        return True
