"""Reading application logs: one consumer and one thread for all connected clients.

Each client's partitions are added to the assignment when it comes and taken away when it goes. What has been read for
a client and not released is counted; past the limit its partitions are paused, so a client that does not go on costs
the others nothing. A batch is decoded on the thread and handed to the broker's in one call.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from threading import Event, Thread

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, TopicDescription  # type: ignore[attr-defined]

from embermq.adapters.kafka.address import KafkaAddress, KafkaSettings
from embermq.adapters.kafka.client import (
    LOG,
    Failures,
    Post,
    client_options,
    error_of,
    may_work_later,
    told,
    unavailable,
)
from embermq.formats.kafka_record import decode_kafka_record
from embermq.formats.log_record import RecordError
from embermq.ports.application_feed import ApplicationFeed, ApplicationFeeds, FeedEntry, FeedTaker
from embermq.ports.errors import StoreUnavailable

ASK_AGAIN_S = 5.0


class ReadRights:
    """Kafka is asked every `ASK_AGAIN_S`, and never waited for."""

    def __init__(self, address: KafkaAddress, settings: KafkaSettings) -> None:
        self._options = client_options(address)
        self._timeout_s = settings.request_timeout_s
        self._admin: AdminClient | None = None
        self._asked: dict[str, Future[TopicDescription]] = {}
        self._due_s = 0.0

    def given(self, logs: Collection[str]) -> set[str]:
        """Of these, those that Kafka has lately said may be read."""
        answered = {log: answer for log, answer in self._asked.items() if answer.done()}
        for log in answered:
            del self._asked[log]
        found = {log for log, answer in answered.items() if log in logs and _may_read(answer)}
        left = [log for log in logs if log not in found]
        if left and not self._asked and time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + ASK_AGAIN_S
            self._ask(left)
        return found

    def _ask(self, logs: list[str]) -> None:
        if self._admin is None:  # hardly any broker needs it
            self._admin = AdminClient(self._options)
        self._asked = self._admin.describe_topics(
            TopicCollection(logs), include_authorized_operations=True, request_timeout=self._timeout_s
        )


def _may_read(answer: Future[TopicDescription]) -> bool:
    try:
        return AclOperation.READ in (answer.result().authorized_operations or ())
    except KafkaException:
        return False


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
    return FeedEntry(offset, size, found.source, found.record)


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


WAIT_S = 0.02
"""How long a new client, or one that may be read on, waits until the thread looks."""
LOOK_AGAIN_S = 1.0
ORDERS_S = 0.2
"""For clients that come and go, in one round: those who are there are read for in between."""
LOOKED_AT_ONCE = 8
"""When fewer clients than these wait to be read for, Kafka is asked who leads the partition of each, which takes
milliseconds; of many the driver finds out by itself in less time."""
FETCHED_BYTES_MAX = 256 * 1024
"""Of one partition in one answer: a flood for one client comes in pieces, others' records between them."""
AHEAD_KB = 16 * 1024
AHEAD_RECORDS = 2_000

GONE = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_ID,
    }
)
"""A topic that is not there."""

_Place = tuple[str, int]


def consumer_options(address: KafkaAddress) -> dict[str, object]:
    """For consumers of application logs: each record soon, and little read ahead."""
    return client_options(address) | {
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        # A transaction that somebody left open would hide every record behind it.
        "isolation.level": "read_uncommitted",
        "fetch.wait.max.ms": 20,
        "fetch.message.max.bytes": FETCHED_BYTES_MAX,
        "fetch.error.backoff.ms": 50,
        "fetch.queue.backoff.ms": 5,
        "queued.min.messages": AHEAD_RECORDS,
        "queued.max.messages.kbytes": AHEAD_KB,
        "topic.metadata.propagation.max.ms": 2_000,
        "topic.metadata.refresh.interval.ms": 5_000,
    }


class _Feed(OpenFeed, ApplicationFeed):
    def __init__(
        self, feeds: KafkaApplicationFeeds, log: str, starts: Mapping[int, int], taker: FeedTaker
    ) -> None:
        super().__init__(log, taker)
        self._feeds = feeds
        self.next_offsets = dict(starts)
        self.handed_over = dict(starts)
        """Everything before these offsets has been posted to the broker's thread."""

    def release(self, size: int) -> None:
        self.released += size

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._feeds.order(partial(self._feeds.remove, self))


class KafkaApplicationFeeds(ApplicationFeeds):
    """Of one broker. `post` runs a call on the broker's thread."""

    def __init__(
        self,
        address: KafkaAddress,
        settings: KafkaSettings,
        post: Post,
        *,
        unread_bytes_max: int = UNREAD_BYTES_MAX,
        unread_total_bytes_max: int = UNREAD_TOTAL_BYTES_MAX,
        failures: Failures | None = None,
    ) -> None:
        self._address = address
        self._post = post
        self._failures = failures or Failures()
        self._unread_bytes_max = unread_bytes_max
        self._unread_total_bytes_max = unread_total_bytes_max
        self._orders: deque[Callable[[], None]] = deque()
        self._ordered = Event()
        self._feeds: dict[_Place, _Feed] = {}
        self._paused: set[_Feed] = set()
        self._holding: set[_Feed] = set()
        """Whose clients have not done with all that was read for them."""
        self._refused: dict[_Feed, str] = {}
        """What Kafka does not let us read, and why."""
        self._told: dict[_Feed, str] = {}
        """Why something cannot be read, as it was logged last."""
        self._rights = ReadRights(address, settings)
        self._orders_until_s = 0.0
        self._batches: dict[_Place, Found] = {}
        self._again: list[Callable[[], None]] = []
        """To be tried again in the next round."""
        self._missing: set[_Feed] = set()
        self._look_s = 0.0
        """When to look which topics are there; 0.0 when there is no reason to."""
        self._failing = ""
        self._closing = False
        options = consumer_options(address) | {
            "group.id": f"{settings.prefix}-application-readers",
            "error_cb": self._on_error,
        }
        try:
            self._consumer = Consumer(options)
        except (KafkaException, ValueError, TypeError) as error:
            raise StoreUnavailable(f"{address}: cannot make a consumer: {error}") from None
        self._thread = Thread(target=self._run, name="kafka application logs", daemon=True)
        self._thread.start()

    @property
    def failing(self) -> str:
        if not self._thread.is_alive() and not self._closing:
            return f"{self._address}: the thread that reads application logs has ended"
        return self._failing or next(iter(tuple(self._refused.values())), "")

    def open(self, log: str, starts: Mapping[int, int], taker: FeedTaker) -> ApplicationFeed:
        feed = _Feed(self, log, starts, taker)
        self.order(partial(self._add, feed))
        return feed

    def close(self) -> None:
        """Stop reading; waits for the thread."""
        self._closing = True
        self._ordered.set()
        self._thread.join()
        try:
            self._consumer.close()
        except KafkaException as error:
            raise unavailable(self._address, "cannot close a consumer", error) from None

    def order(self, what: Callable[[], None]) -> None:
        """Have something done on the thread."""
        self._orders.append(what)
        self._ordered.set()

    # On the thread

    def _run(self) -> None:
        while not self._closing:
            self._ordered.clear()
            try:
                self._round()
            except KafkaException as error:
                self._failing = f"{self._address}: {told(error_of(error))}"
                self._go_back()
            except Exception as error:  # whatever it was, clients that are not read for would wait for ever
                doing = f"{self._address}: reading application logs"
                self._failing = self._failures.note(doing, error)
                self._go_back()

    def _go_back(self) -> None:
        """A round has ended half way: what the driver has handed out and the broker has not got is read once more."""
        self._batches.clear()
        self._paused.clear()
        places: list[TopicPartition] = []
        for place, feed in self._feeds.items():
            feed.paused = False
            feed.next_offsets[place[1]] = feed.handed_over[place[1]]
            places.append(TopicPartition(*place, feed.next_offsets[place[1]]))
        self._ordered.wait(ASK_S)
        with suppress(KafkaException):  # the next round says so again
            self._consumer.assign(places)
            self._consumer.resume(places)

    def _round(self) -> None:
        self._orders_until_s = time.monotonic() + ORDERS_S
        while self._orders and time.monotonic() < self._orders_until_s:
            self._orders.popleft()()
        if not self._feeds:
            if not (self._orders or self._closing):  # looked at after `clear`: a later `set` is heard
                self._ordered.wait()
            return
        if self._paused:
            room = self._room()
            for feed in [feed for feed in self._paused if 2 * feed.unread_bytes <= room]:
                self._resume(feed)
        if self._look_s and time.monotonic() >= self._look_s:
            self._look()
        if self._refused:
            self._look_at_rights()
        self._consume()
        again, self._again = self._again, []
        for call in again:
            call()

    def _consume(self) -> None:
        consumer = self._consumer
        messages = consumer.consume(1, WAIT_S)
        if not messages:
            if self._failing:
                self._probe()
            return
        messages += consumer.consume(CONSUMED_AT_ONCE - 1, 0)
        for message in messages:
            self._take(message)
        self._hand_over()

    def _hand_over(self) -> None:
        batches, self._batches = self._batches, {}
        if not batches:
            return
        self._failing = ""
        for place, (feed, partition, entries) in batches.items():
            feed.fetched += sum(entry.size for entry in entries)
            self._feeds[place].handed_over[partition] = entries[-1].offset + 1
        self._holding.update(self._feeds[place] for place in batches)
        self._post(partial(hand_over, list(batches.values())))
        room = self._room()
        for feed in self._holding - self._paused:
            if feed.unread_bytes >= room:
                self._pause(feed)

    def _room(self) -> int:
        """So many bytes each client may have unread at the moment."""
        unread = {feed: feed.unread_bytes for feed in self._holding}
        self._holding = {feed for feed, size in unread.items() if size > 0}
        return room_of_each(sum(unread.values()), self._unread_bytes_max, self._unread_total_bytes_max)

    def _take(self, message: Message) -> None:
        place = (message.topic() or "", message.partition() or 0)
        feed = self._feeds.get(place)
        if feed is None or feed.closed:
            return
        error = message.error()
        if error is not None:
            self._trouble(feed, place, error)
            return
        offset = message.offset() or 0
        if offset < feed.next_offsets[place[1]]:
            return
        feed.next_offsets[place[1]] = offset + 1
        if feed in self._told:
            self._is_read(feed)
        batch = self._batches.get(place)
        if batch is None:
            batch = self._batches[place] = (feed, place[1], [])
        batch[2].append(feed_entry(message, offset))

    def _trouble(self, feed: _Feed, place: _Place, error: KafkaError) -> None:
        if error.code() in GONE:
            self._look_s = self._look_s or time.monotonic()
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._find_again(feed, place)
        elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            # The driver tries it again in silence, and says so once.
            self._refused[feed] = self._tell(feed, error)
        elif not may_work_later(error):
            self._failing = self._tell(feed, error)

    def _tell(self, feed: _Feed, error: KafkaError) -> str:
        """Returns the reason, which is logged when it is another one than before."""
        reason = f"{self._address}: {feed.log}: {told(error)}"
        if self._told.get(feed) != reason:
            LOG.error("its client gets nothing: %s", reason)
        self._told[feed] = reason
        return reason

    def _is_read(self, feed: _Feed) -> None:
        """Nothing is told of it any more."""
        self._told.pop(feed, None)
        self._refused.pop(feed, None)

    def _look_at_rights(self) -> None:
        given = self._rights.given({feed.log for feed in self._refused})
        for feed in [feed for feed in self._refused if feed.log in given]:
            self._is_read(feed)

    def _look(self) -> None:
        """The driver says that a topic is not there, not which: one that is missing twice is gone. A server that has
        just come up may not know all."""
        try:
            there = self._consumer.list_topics(timeout=ASK_S).topics
        except KafkaException:
            self._look_s = time.monotonic() + LOOK_AGAIN_S
            return
        missing = {feed for feed in self._feeds.values() if feed.log not in there}
        for feed in missing & self._missing:
            self._end(feed, f"{self._address}: application log {feed.log} is gone: it was deleted")
        self._missing = missing - self._missing
        self._look_s = time.monotonic() + LOOK_AGAIN_S if self._missing else 0.0

    def _find_again(self, feed: _Feed, place: _Place) -> None:
        """The offset that was asked for is not there: the log was trimmed by somebody else, or made anew."""
        if self._feeds.get(place) is not feed:
            return
        wanted = feed.next_offsets[place[1]]
        try:
            first, end = self._consumer.get_watermark_offsets(TopicPartition(*place), ASK_S)
        except KafkaException as error:
            self._failing = f"{self._address}: {feed.log}: {told(error_of(error))}"
            if error_of(error).code() in GONE:
                self._look_s = self._look_s or time.monotonic()
            self._again.append(partial(self._find_again, feed, place))
            return
        if wanted > end:
            reason = f"partition {place[1]} ends at {end}, {wanted} was to be read: it was made anew"
            self._end(
                feed, f"{self._address}: application log {feed.log} is not the one that was read: {reason}"
            )
            return
        if wanted < first:
            LOG.error(
                "%s: application log %s, partition %d: %d records were deleted before they were read",
                self._address,
                feed.log,
                place[1],
                first - wanted,
            )
            self._hand_over()  # what came before
            feed.next_offsets[place[1]] = feed.handed_over[place[1]] = first
            self._post(partial(tell_begins, feed, place[1], first))
        self._consumer.incremental_unassign([TopicPartition(*place)])
        self._consumer.incremental_assign([TopicPartition(*place, feed.next_offsets[place[1]])])

    def _end(self, feed: _Feed, reason: str) -> None:
        self.remove(feed)
        self._post(partial(tell_gone, feed, reason))

    def _add(self, feed: _Feed) -> None:
        if feed.closed:
            return
        places = [
            TopicPartition(feed.log, partition, offset) for partition, offset in feed.next_offsets.items()
        ]
        for partition in feed.next_offsets:
            other = self._feeds.get((feed.log, partition))
            if other is not None:
                self.remove(other)
            self._feeds[feed.log, partition] = feed
        left_s = self._orders_until_s - time.monotonic()
        if not self._failing and left_s > 0 and len(self._orders) < LOOKED_AT_ONCE:
            # A partition whose leader is not known yet would be looked at once a second.
            with suppress(KafkaException):
                self._consumer.list_topics(feed.log, left_s)
        self._consumer.incremental_assign(places)

    def remove(self, feed: _Feed) -> None:
        """Stop reading for a feed. Called on the thread that reads."""
        places = [(feed.log, partition) for partition in feed.next_offsets]
        mine = [place for place in places if self._feeds.get(place) is feed]
        if feed.paused:
            self._resume(feed)  # the driver would keep it paused for whoever reads it next
        self._holding.discard(feed)
        self._is_read(feed)
        for place in mine:
            del self._feeds[place]
            self._batches.pop(place, None)
        if mine:
            self._consumer.incremental_unassign([TopicPartition(*place) for place in mine])

    def _pause(self, feed: _Feed) -> None:
        feed.paused = True
        self._paused.add(feed)
        self._consumer.pause([TopicPartition(feed.log, partition) for partition in feed.next_offsets])

    def _resume(self, feed: _Feed) -> None:
        feed.paused = False
        self._paused.discard(feed)
        self._consumer.resume([TopicPartition(feed.log, partition) for partition in feed.next_offsets])

    def _probe(self) -> None:
        """Nothing comes: because nothing is there, or because Kafka is away?"""
        try:
            self._consumer.list_topics(next(iter(self._feeds))[0], ASK_S)
        except KafkaException:
            return
        self._failing = ""

    def _on_error(self, error: KafkaError) -> None:
        if error.code() in GONE:
            self._look_s = self._look_s or time.monotonic()
        elif error.code() != KafkaError._ALL_BROKERS_DOWN or not self._failing:
            self._failing = f"{self._address}: {told(error)}"
