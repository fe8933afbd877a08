"""Packet ids of incoming QoS 2 PUBLISHes on their way into broker.db: one that comes and is released between two
commits is never written.

What gathers here is part of the open transaction, and goes with it when that is taken back.
"""

import sqlite3
from collections.abc import Iterable

from embermq.model.session_writes import SessionWrites

ReceivedId = tuple[int, int]
"""Generation of the session, packet id."""


class ReceivedIds:
    """Works inside the caller's transactions."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.clear()

    def clear(self) -> None:
        """The transaction was taken back: the table has what it had."""
        self._stored: dict[int, set[int]] = {}
        """What the table has, by generation."""
        for generation, packet_id in self._connection.execute("SELECT generation, packet_id FROM receiving"):
            self._stored.setdefault(generation, set()).add(packet_id)
        self._come: set[ReceivedId] = set()
        self._gone: set[ReceivedId] = set()

    def gather(self, writes: SessionWrites) -> None:
        """Take what a tick wants of them."""
        come, gone, stored = self._come, self._gone, self._stored
        for generation, packet_id, _ in writes.receiving:
            if generation not in stored or packet_id not in stored[generation]:
                come.add((generation, packet_id))
            else:
                gone.discard((generation, packet_id))
        for one in writes.released:
            come.discard(one)
            if one[0] in stored and one[1] in stored[one[0]]:
                gone.add(one)

    def forget(self, generations: Iterable[int]) -> None:
        """Sessions have ended."""
        ended = set(generations)
        for gathered in (self._come, self._gone):
            gathered.difference_update({one for one in gathered if one[0] in ended})
        for generation in ended:
            if self._stored.pop(generation, None) is not None:
                self._connection.execute("DELETE FROM receiving WHERE generation = ?", (generation,))

    def write(self) -> None:
        """All that has gathered."""
        many, stored = self._connection.executemany, self._stored
        if self._come:
            many("INSERT INTO receiving VALUES (?, ?)", self._come)
            for generation, packet_id in self._come:
                stored.setdefault(generation, set()).add(packet_id)
            self._come = set()
        if self._gone:
            many("DELETE FROM receiving WHERE generation = ? AND packet_id = ?", self._gone)
            for generation, packet_id in self._gone:
                left = stored[generation]
                left.discard(packet_id)
                if not left:
                    del stored[generation]
            self._gone = set()
