"""Application logs on a real Kafka: their topics, and reading them for many clients at once."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    NewPartitions,
)
from tests.support.application_log_writer import ApplicationLogWriter, HandLoop, HandReader, make_log
from tests.support.kafka_server import KafkaServer
from tests.support.measuring import is_judged, judge
from tests.support.waiting import wait_until

from embermq.adapters.kafka import application_feeds, shared_feeds
from embermq.adapters.kafka.address import KafkaAddress, KafkaSettings, parse_address
from embermq.adapters.kafka.application_feeds import UNREAD_BYTES_MAX, KafkaApplicationFeeds
from embermq.adapters.kafka.application_topics import ApplicationTopics, LogProperties
from embermq.adapters.kafka.client import WatchedAdmin
from embermq.adapters.kafka.shared_feeds import KafkaSharedFeeds
from embermq.formats.application_logs import ApplicationLogNames
from embermq.model.application_positions import StoredPositions
from embermq.ports.application_feed import SharedFeed
from embermq.ports.application_logs import FoundLog
from embermq.ports.errors import StoreError, StoreUnavailable

PROPERTIES = LogProperties(packet_bytes_max=1024 * 1024)


class Place:
    """A prefix of its own on the test's Kafka, and everything that works on it."""

    def __init__(self, kafka: KafkaServer) -> None:
        self.kafka = kafka
        self.settings = KafkaSettings(prefix=kafka.prefix())
        self.address: KafkaAddress = parse_address(f"kafka://{kafka.bootstrap}")
        self.names = ApplicationLogNames(self.settings.prefix)
        self.topics = ApplicationTopics(WatchedAdmin(self.address, self.settings), self.names, PROPERTIES)
        self.writer = ApplicationLogWriter(kafka.bootstrap)
        self.loop = HandLoop()
        self.feeds = KafkaApplicationFeeds(self.address, self.settings, self.loop.post)

    def log(self, client_id: str, partitions: int = 1) -> str:
        """A new log."""
        name = self.names.client_log(client_id)
        make_log(self.topics, name, partitions)
        return name

    def reads(self, log: str, start: int = 0, *, stalled: bool = False) -> HandReader:
        """A client that is connected."""
        reader = HandReader()
        reader.stalled = stalled
        reader.feed = self.feeds.open(log, {0: start}, reader)
        return reader

    def waits(self, reader: HandReader, count: int, deadline_s: float = 30.0) -> None:
        """Until so many records have come."""
        self.loop.run_until(lambda: len(reader.came) >= count, deadline_s, f"{count} records")


@pytest.fixture
def place(kafka: KafkaServer) -> Iterator[Place]:
    found = Place(kafka)
    yield found
    found.feeds.close()


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


@pytest.mark.promise("application-2")
def test_logs_are_made_once_and_listed_and_deleted(place: Place) -> None:
    one, other = place.log("one"), place.log("other", partitions=2)
    first = make_log(place.topics, one)
    assert (first.ends, first.is_new) == ({0: 0}, False)
    place.writer.write(one, numbered(5))
    missing = place.names.client_log("missing")
    found = place.topics.ensure({one: 1, missing: 1, other: 3})
    assert found[one] == FoundLog({0: 5}, first.identity)
    made = found[missing]
    assert isinstance(made, FoundLog) and made.is_new and made.identity != first.identity
    problem = found[other]
    assert type(problem) is StoreError  # it does not pass by itself
    assert f"{other} has 2 partitions, 3 are configured" in str(problem)
    place.kafka.create_topic(f"{place.settings.prefix}.msg.all")
    sizes = place.topics.sizes()
    assert [(size.name, size.records, size.lag({0: 3})) for size in sizes] == [
        (missing, 0, 0),
        (one, 5, 2),
        (other, 0, 0),
    ]
    place.topics.trim({(one, 0): 4})
    size = place.topics.sizes()[1]
    assert (size.records, size.lag({})) == (1, 1)
    assert place.topics.ends_of_those_there({one: 1, other: 2, "nobody": 1}) == {
        (one, 0): 5,
        (other, 0): 0,
        (other, 1): 0,
    }
    for _ in range(2):
        place.topics.delete([one, missing])
    assert [size.name for size in place.topics.sizes()] == [other]
    again = make_log(place.topics, one)
    assert again.is_new and again.ends == {0: 0} and again.identity != first.identity


@pytest.mark.promise("application-3")
def test_a_log_that_was_given_more_partitions_is_read_in_its_first_one(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    log = place.log("app")
    place.writer.write(log, [b"old"])
    place.kafka.admin.create_partitions([NewPartitions(log, 3)])[log].result(30)
    wait_until(lambda: len(place.topics.sizes()[0].ends) == 3, 30, "they are there")
    for _ in range(2):
        assert make_log(place.topics, log).ends == {0: 1}
    place.waits(place.reads(log), 1)
    assert caplog.text.count("has 3 partitions: a client's own log is written and read in partition 0") == 1


def test_a_clock_ahead_of_kafkas_is_no_reason_to_refuse_records_of_a_log(place: Place) -> None:
    log = place.log("app")
    reports: list[object] = []
    producer = Producer({"bootstrap.servers": place.kafka.bootstrap, "log_level": 0})
    ahead_ms = time.time_ns() // 1_000_000 + 10 * 3_600_000
    producer.produce(log, b"x", timestamp=ahead_ms, on_delivery=lambda error, _: reports.append(error))
    assert producer.flush(30) == 0
    assert reports == [None]


def test_a_transaction_that_somebody_left_open_hides_nothing(place: Place) -> None:
    log = place.log("app")
    options = {"bootstrap.servers": place.kafka.bootstrap, "transactional.id": log, "log_level": 0}
    stranger = Producer(options)
    stranger.init_transactions(30)
    stranger.begin_transaction()
    stranger.produce(log, b"of somebody else")
    assert stranger.flush(30) == 0
    place.writer.write(log, numbered(3))
    reader = place.reads(log)
    place.waits(reader, 4)
    assert [one.entry.record is None for one in reader.came] == [True, False, False, False]
    stranger.abort_transaction(30)


@pytest.mark.promise("application-2")
def test_a_log_is_usable_as_soon_as_it_is_made(place: Place) -> None:
    for number in range(5):
        log = place.log(f"client{number}")
        reader = place.reads(log)
        place.writer.write(log, [b"first"])
        place.waits(reader, 1)
        assert reader.payloads == [b"first"]


@pytest.mark.perf
def test_a_stalled_client_is_bounded_and_slows_nobody(place: Place) -> None:
    """The two are measured in turn, until both have the machine as much to themselves."""
    calm, busy = place.log("calm"), place.log("busy")
    payload = bytes(10_000)

    def latencies(count: int) -> list[float]:
        found = []
        for _ in range(count):
            before = len(neighbour.came)
            sent_s = time.monotonic()
            place.writer.write(calm, [b"x"])
            place.waits(neighbour, before + 1)
            found.append(neighbour.came[-1].at_s - sent_s)
        return found

    def stalls() -> HandReader:
        """Nothing more comes to it."""
        reader = place.reads(busy, stalled=True)
        place.loop.run_until(lambda: reader.held_bytes >= UNREAD_BYTES_MAX)
        held = 0
        while held < reader.held_bytes:
            held = reader.held_bytes
            place.loop.run_for(0.5)
        assert held < 6 * UNREAD_BYTES_MAX
        return reader

    neighbour = place.reads(calm)
    latencies(20)
    place.writer.write(busy, [payload] * 1_000)
    found: list[tuple[float, float]] = []
    for _ in range(5 if is_judged() else 1):
        alone_s = statistics.median(latencies(100))
        stalled = stalls()
        held = stalled.held_bytes
        found.append((alone_s, statistics.median(latencies(100))))
        assert stalled.held_bytes == held
        if found[-1][1] < 1.5 * alone_s + 0.005:
            break
        if is_judged():
            assert stalled.feed is not None
            stalled.feed.close()
    else:
        assert not is_judged(), f"medians of the latency alone and beside it: {found}"
    stalled.stalled = False
    stalled.release()
    place.waits(stalled, 1_000)
    assert [one.entry.offset for one in stalled.came] == list(range(1_000))


@pytest.mark.in_faults
@pytest.mark.promise("application-3")
def test_kafka_is_killed_and_comes_back_while_clients_read(place: Place) -> None:
    log, quiet = place.log("app"), place.log("quiet")
    reader, other = place.reads(log), place.reads(quiet)
    place.writer.write(log, numbered(100))
    place.waits(reader, 100)
    place.kafka.kill()
    place.loop.run_until(lambda: place.feeds.failing, what="it is told that Kafka is away")
    assert place.kafka.bootstrap in place.feeds.failing
    place.writer.write(log, numbered(100, 100), flush=False)
    place.kafka.start()
    place.loop.run_until(lambda: not place.feeds.failing, 60, "it is seen that Kafka is back")
    place.writer.flush()
    place.writer.write(quiet, [b"q"])
    place.loop.run_until(lambda: len(reader.came) >= 200 and other.came)
    assert reader.payloads == numbered(200)
    assert reader.reasons == other.reasons == []


@pytest.mark.promise("application-3")
def test_a_log_that_was_made_anew_or_trimmed_by_hand_is_no_silent_loss(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    log = place.log("app")
    place.writer.write(log, numbered(10))
    reader = place.reads(log, start=11)
    place.loop.run_until(lambda: reader.reasons)
    assert "partition 0 ends at 10, 11 was to be read: it was made anew" in reader.reasons[0]
    place.topics.trim({(log, 0): 6})
    trimmed = place.reads(log, start=2)
    place.waits(trimmed, 4)
    assert trimmed.payloads == numbered(4, 6)
    assert trimmed.firsts == [(0, 6)]
    assert "partition 0: 4 records were deleted before they were read" in caplog.text


def test_without_kafka_a_request_ends_with_its_name(place: Place) -> None:
    settings = KafkaSettings(prefix=place.settings.prefix, request_timeout_s=1)
    topics = ApplicationTopics(WatchedAdmin(place.address, settings), place.names, PROPERTIES)
    place.kafka.kill()
    asks: tuple[Callable[[], object], ...] = (
        lambda: topics.delete(["x"]),
        topics.sizes,
        lambda: topics.ends([("x", 0)]),
    )
    for ask in asks:
        began_s = time.monotonic()
        with pytest.raises(StoreUnavailable, match=place.kafka.bootstrap):
            ask()
        assert time.monotonic() - began_s < 60
    assert isinstance(topics.ensure({"x": 1})["x"], StoreUnavailable)


@pytest.mark.perf
@pytest.mark.promise("application-4")
def test_who_was_away_catches_up(place: Place) -> None:
    """20,000 a second are promised (docs/performance.md)."""
    log, count = place.log("app"), 50_000 if is_judged() else 5_000
    place.writer.write(log, [bytes(100)] * count)
    began_s, cpu_s = time.monotonic(), time.process_time()
    reader = place.reads(log)
    place.waits(reader, count, 60)
    judge(time.monotonic() - began_s, 2.5, f"s to catch up with {count:,} records")
    judge((time.process_time() - cpu_s) / count * 1e6, 100, "us of CPU a record")


def keyed(count: int, keys: int) -> list[tuple[str, bytes]]:
    """Topic and payload, in turn."""
    return [(f"t/{number % keys}", b"%06d" % number) for number in range(count)]


class Member(HandReader):
    """Settles everything in turn, at once unless `stalled`."""

    def settle(self, log_feed: SharedFeed) -> None:
        """Everything that has come is acknowledged."""
        for partition in self.partitions:
            offsets = [one.entry.offset for one in self.came if one.partition == partition]
            if offsets:
                log_feed.commit(partition, StoredPositions(0, offsets[-1] + 1, ((0, 1),)))


@pytest.fixture
def shared(place: Place) -> Iterator[KafkaSharedFeeds]:
    feeds = KafkaSharedFeeds(place.address, place.settings, place.loop.post)
    yield feeds
    feeds.close()


def joins(place: Place, shared: KafkaSharedFeeds, log: str) -> tuple[Member, SharedFeed]:
    member = Member()
    member.feed = feed = shared.join(f"{place.settings.prefix}-group", log, member)
    return member, feed


@pytest.mark.promise("application-11")
def test_members_share_a_log_and_who_leaves_hands_over(
    place: Place, shared: KafkaSharedFeeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_feeds, "COMMIT_EVERY_S", 3_600)  # positions are told when a partition goes
    log = place.names.shared_log("t/+")
    make_log(place.topics, log, 4)
    one, one_feed = joins(place, shared, log)
    place.loop.run_until(lambda: len(one.partitions) == 4, what="alone it has all")
    records = keyed(400, 16)
    for topic, payload in records[:200]:
        place.writer.write(log, [payload], topic=topic, flush=False)
    place.writer.flush()
    place.waits(one, 200)
    one.settle(one_feed)
    other, other_feed = joins(place, shared, log)
    place.loop.run_until(lambda: len(one.partitions) == len(other.partitions) == 2, 60, "each has half")
    assert set(one.partitions) | set(other.partitions) == set(range(4))
    committed = [stored.committed_offset for stored in other.partitions.values()]
    assert all(stored.floors == ((0, 1),) for stored in other.partitions.values())
    assert committed == [len([o for o in one.came if o.partition == p]) for p in other.partitions]
    # The base is 0 here, so what was settled is read again, to be recognised.
    place.waits(other, sum(committed))
    other.came.clear()
    for topic, payload in records[200:]:
        place.writer.write(log, [payload], topic=topic, flush=False)
    place.writer.flush()
    place.loop.run_until(lambda: len(one.came) + len(other.came) == 400)
    assert one.came[200:]
    assert other.came
    other.settle(other_feed)
    taken = dict(other.partitions)
    other_feed.close()
    place.loop.run_until(lambda: len(one.partitions) == 4, 60, "the one that stays has all again")
    ends = {p: max(c.entry.offset for c in other.came if c.partition == p) + 1 for p in taken}
    assert {p: one.partitions[p].committed_offset for p in taken} == ends
    for key in range(16):
        wanted = [payload for topic, payload in records if topic == f"t/{key}"]
        found = [
            came.payload
            for came in (*one.came[:200], *other.came, *one.came[200:])
            if came.entry.record is not None and came.entry.record.message.topic == f"t/{key}"
        ]
        assert sorted(set(found)) == wanted
        assert list(dict.fromkeys(found)) == wanted, "the order of a topic holds"


@pytest.mark.promise("application-11")
def test_positions_of_a_group_outlive_the_broker(place: Place) -> None:
    log = place.names.shared_log("t")
    make_log(place.topics, log)
    place.writer.write(log, numbered(10))
    for stored in (StoredPositions(), StoredPositions(2, 5, ((0, 3), (7, 9)))):
        feeds = KafkaSharedFeeds(place.address, place.settings, place.loop.post)
        member, feed = joins(place, feeds, log)
        place.waits(member, 10 - stored.base_offset)
        assert member.partitions == {0: stored}
        assert member.came[0].entry.offset == stored.base_offset
        feed.commit(0, StoredPositions(2, 5, ((0, 3), (7, 9))))
        feeds.close()
    group = Consumer(
        {"bootstrap.servers": place.kafka.bootstrap, "group.id": f"{place.settings.prefix}-group"}
    )
    partition = TopicPartition(log, 0)
    assert group.committed([partition], timeout=30)[0].offset == 5
    place.topics.delete([log])
    make_log(place.topics, log)
    wait_until(lambda: group.committed([partition], timeout=30)[0].offset < 0, what="it goes with its log")
    group.close()


@pytest.mark.promise("application-11")
def test_a_stalled_member_is_bounded(place: Place, shared: KafkaSharedFeeds) -> None:
    log = place.names.shared_log("t")
    make_log(place.topics, log)
    place.writer.write(log, [bytes(10_000)] * 1_000)
    member, _ = joins(place, shared, log)
    member.stalled = True
    place.loop.run_until(lambda: member.held_bytes >= UNREAD_BYTES_MAX)
    place.loop.run_for(0.3)
    assert member.held_bytes < 7 * UNREAD_BYTES_MAX
    member.stalled = False
    member.release()
    place.waits(member, 1_000)
    assert [one.entry.offset for one in member.came] == list(range(1_000))


@pytest.mark.in_faults
@pytest.mark.promise("application-11")
def test_members_go_on_when_kafka_comes_back(place: Place, shared: KafkaSharedFeeds) -> None:
    log = place.names.shared_log("t")
    make_log(place.topics, log)
    member, feed = joins(place, shared, log)
    place.writer.write(log, numbered(10))
    place.waits(member, 10)
    feed.commit(0, StoredPositions(10, 10))
    place.kafka.kill()
    place.loop.run_until(lambda: shared.failing)
    place.kafka.start()
    place.writer.write(log, numbered(10, 10))
    place.loop.run_until(lambda: numbered(20)[-1] in member.payloads, 60)
    assert list(dict.fromkeys(member.payloads)) == numbered(20)
    assert member.reasons == []


@pytest.mark.promise("application-11")
def test_a_shared_log_that_is_deleted_is_told_by_name(place: Place, shared: KafkaSharedFeeds) -> None:
    log = place.names.shared_log("t")
    make_log(place.topics, log)
    member, _ = joins(place, shared, log)
    place.loop.run_until(lambda: member.partitions)
    place.topics.delete([log])
    place.loop.run_until(lambda: member.reasons, 60)
    assert f"shared log {log} is gone" in member.reasons[0]


@pytest.mark.promise("application-11")
def test_a_shared_log_that_is_made_anew_is_told(place: Place, shared: KafkaSharedFeeds) -> None:
    """Its offsets begin at 0: what was known of the one before would take its records for old ones."""
    log = place.names.shared_log("t")
    make_log(place.topics, log)
    place.writer.write(log, numbered(10))
    member = Member()
    known = StoredPositions(11, 11)
    member.feed = shared.join(f"{place.settings.prefix}-group", log, member, lambda _: known)
    place.loop.run_until(lambda: member.reasons)
    assert "was made anew: offset 11 of partition 0 was to be read, it ends at 10" in member.reasons[0]
    assert (member.came, member.partitions) == ([], {0: known})


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_is_unforeseen_is_told_and_records_are_read_all_the_same(
    place: Place, shared: KafkaSharedFeeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    with monkeypatch.context() as broken:
        for module in (application_feeds, shared_feeds):
            broken.setattr(module, "feed_entry", fails)
        log = place.log("app")
        place.writer.write(log, [b"x"])
        reader = place.reads(log)
        member, _ = joins(place, shared, log)
        place.loop.run_until(lambda: place.feeds.failing and member.reasons)
        reason = "unexpected RuntimeError('a fault of ours')"
        assert place.feeds.failing == f"{place.address}: reading application logs: {reason}"
        assert member.reasons == [f"{place.address}: reading {log}: {reason}"]
    place.waits(reader, 1)
    assert reader.payloads == [b"x"] and not place.feeds.failing
    again, _ = joins(place, shared, log)
    place.waits(again, 1)
    assert again.payloads == [b"x"]
