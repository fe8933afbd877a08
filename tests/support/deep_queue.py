"""Queues with many messages, written into a data directory while no broker runs on it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from tests.contracts.stores import Stores

from embermq.formats.log_record import encode_record
from embermq.model.message import Message
from embermq.model.queue_rows import EntryRow, GroupRow, QueueSettingsRow, QueueWrites

TICK = 1_000
SETTINGS = b'{"limits":{"max_queue_depth":1000000}}'


class DeepQueues:
    """To be closed before the broker starts. Message number i of a queue has that number as its payload, the sequence
    i + 1 and the partition i % 10; with `keys` it has one of so many keys."""

    def __init__(self, data_dir: Path) -> None:
        data_dir.mkdir()
        self._stores = Stores("os", data_dir)
        self._queues = 0
        self._now_ms = time.time_ns() // 1_000_000

    def add(self, name: str, depth: int, *, groups: Iterable[tuple[str, int]] = (), keys: int = 0) -> None:
        """`groups` by name, each with the sequence at which it begins; nobody consumes."""
        self._queues += 1
        generation = self._queues
        self._stores.write(
            queues=QueueWrites(
                queues={generation: QueueSettingsRow(generation, name, SETTINGS, depth + 1)},
                groups={
                    (generation, group): GroupRow(generation, group, first, self._now_ms)
                    for group, first in groups
                },
            )
        )
        for first in range(0, depth, TICK):
            records: list[bytes] = []
            entries: dict[tuple[int, int], EntryRow] = {}
            for number in range(first, min(depth, first + TICK)):
                body = Message(f"$queue/{name}", b"%d" % number, 1, False, "producer", 5, self._now_ms)
                key = f"user-{number % keys}" if keys else None
                entries[generation, number + 1] = EntryRow(
                    generation, number + 1, number % 10, -1, len(records), key, self._now_ms + 3_600_000
                )
                records.append(encode_record(body))
            end = self._stores.log.statistics().end_offset + len(records)
            self._stores.write(records=records, queues=QueueWrites(entries=entries), dispatcher_floor=end)

    def close(self) -> None:
        """A broker may start."""
        self._stores.close()
