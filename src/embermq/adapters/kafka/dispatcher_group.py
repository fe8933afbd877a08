"""How far the broker has got, as the committed offsets of a consumer group: what tools for Kafka show lag by.

Nothing is read from there again: the floor that counts is in the broker's own store.
"""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from embermq.adapters.kafka.address import KafkaAddress
from embermq.adapters.kafka.client import LOG, client_options, error_of, let_go, may_work_later, told
from embermq.adapters.kafka.positions import LogPositions
from embermq.adapters.kafka.settings import KafkaSettings
from embermq.model.position import offset_of, partition_of

EVERY_S = 1.0


class DispatcherGroup:
    """`<prefix>-dispatcher`. `passed` is called on the broker's thread, all else on one that may ask Kafka.

    Its consumer reads nothing and never joins the group. An admin client could commit as well, but when the coordinator
    is restarted meanwhile it ends the process (librdkafka 3663).
    """

    def __init__(
        self, address: KafkaAddress, settings: KafkaSettings, topic: str, positions: LogPositions
    ) -> None:
        self._address = address
        self._topic = topic
        self._positions = positions
        self.name = f"{settings.prefix}-dispatcher"
        self._floor = -1
        self._told = -1
        self._next_s = 0.0
        self._under_way = False
        self._trouble = ""
        self._consumer = Consumer(
            client_options(address)
            | {
                "group.id": self.name,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "on_commit": self._committed,
            }
        )

    def passed(self, floor: int) -> None:
        """Every record below is delivered, stored or owed to nobody."""
        self._floor = floor

    def tell(self) -> None:
        """Commit what is new, once a second at most; does not wait."""
        floor, now_s = self._floor, time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        self._consumer.poll(0)  # answers arrive there
        if floor == self._told or self._under_way:
            return
        if floor < 0:
            return
        at = {one: end for one, end in self._positions.closed.items() if one < partition_of(floor)}
        at[partition_of(floor)] = offset_of(floor)
        offsets = [TopicPartition(self._topic, partition, offset) for partition, offset in at.items()]
        self._told = floor
        self._under_way = True
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._committed(error_of(error), [])

    def _committed(self, error: KafkaError | None, _offsets: list[TopicPartition]) -> None:
        self._under_way = False
        if error is None:
            self._trouble = ""
            return
        self._told = -1
        if not self._trouble and not may_work_later(error):
            LOG.warning(
                "%s: the position of group %s cannot be committed: %s; delivery does not depend on it",
                self._address,
                self.name,
                told(error),
            )
            self._trouble = told(error)

    def close(self) -> None:
        """Let go of the connections."""
        let_go(self._consumer.close)
