"""What feeds of application logs have in common: entries made of the driver's messages, and what was not released."""

from __future__ import annotations

from confluent_kafka import Message

from embermq.formats.kafka_record import decode_kafka_record
from embermq.formats.log_record import RecordError
from embermq.ports.application_feed import FeedEntry, FeedTaker

UNREAD_BYTES_MAX = 4 * 1024 * 1024
"""Read for one client and not released: past it the client is not read on. A pause costs some 100 ms, since the driver
throws away what it has read ahead, so a client that catches up should seldom get there."""
UNREAD_TOTAL_BYTES_MAX = 256 * 1024 * 1024
"""The same of all clients together: past it each of them has `LEAST_UNREAD_BYTES`, so that those go on that take
something."""
LEAST_UNREAD_BYTES = 64 * 1024
CONSUMED_AT_ONCE = 500
ASK_S = 1.0
"""For small questions on a thread that reads for all: everybody's records wait meanwhile."""
ENTRY_BYTES = 200
"""What an entry takes in memory besides its topic and payload."""

Found = tuple["OpenFeed", int, list[FeedEntry]]
"""Entries of one partition and for whom they are."""


class OpenFeed:
    """Somebody who reads. `fetched` is written by the thread that reads alone, `released` by the broker's."""

    def __init__(self, log: str, taker: FeedTaker) -> None:
        self.log = log
        self.taker = taker
        self.fetched = self.released = 0
        self.paused = self.closed = False

    @property
    def unread_bytes(self) -> int:
        """What the client has not done with yet."""
        return self.fetched - self.released


def room_of_each(unread_bytes: int, each_max: int, total_max: int) -> int:
    """How much each may have unread when all have `unread_bytes` of it together."""
    return each_max if unread_bytes < total_max else min(each_max, LEAST_UNREAD_BYTES)


def feed_entry(message: Message, offset: int) -> FeedEntry:
    """Of a message without an error."""
    key, value = message.key(), message.value()
    size = ENTRY_BYTES + len(key or b"") + len(value or b"")
    try:
        found = decode_kafka_record(key, value, message.headers())  # type: ignore[arg-type]
    except RecordError as error:
        return FeedEntry(offset, size, None, None, str(error))
    return FeedEntry(offset, size, found.source, found.record, is_moved=found.is_moved)


def hand_over(found: list[Found]) -> None:
    """Give entries to those that have not closed their feeds. Called on the broker's thread."""
    for feed, partition, entries in found:
        if not feed.closed:
            feed.taker.take(partition, entries)


def tell_begins(feed: OpenFeed, partition: int, first: int) -> None:
    """Say that what stood before offset `first` is gone. Called on the broker's thread."""
    if not feed.closed:
        feed.taker.begins(partition, first)


def tell_gone(feed: OpenFeed, reason: str) -> None:
    """Say that the log is gone, and why; close the feed. Called on the broker's thread."""
    if not feed.closed:
        feed.closed = True
        feed.taker.gone(reason)
