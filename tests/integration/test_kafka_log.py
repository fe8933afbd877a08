"""The message log in a real Kafka: servers that go and come back, topics that are not as they should be."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import pytest
from confluent_kafka import (
    KafkaError,
    KafkaException,
    Producer,
)
from confluent_kafka import Message as Told
from confluent_kafka.admin._config import ConfigResource
from msgspec.structs import replace
from tests.contracts.kafka_stores import PACKET_BYTES_MAX, KafkaStores
from tests.contracts.stores import tick_writes
from tests.contracts.test_tick_store import payloads, record, session
from tests.support.broker_process import free_port
from tests.support.forked_program import run_program
from tests.support.kafka_server import KafkaCluster, KafkaServer
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

from embermq.adapters.kafka import appender, client, log_topic
from embermq.adapters.kafka.address import KafkaSettings, parse_address
from embermq.adapters.kafka.client import WatchedAdmin
from embermq.adapters.kafka.log_topic import KEPT, LogTopic
from embermq.adapters.kafka.message_log import DEFAULT_RECORD_BYTES, KafkaMessageLog
from embermq.delivery.direct.path import DirectPath
from embermq.durability.recovery import complete
from embermq.formats.kafka_record import KafkaEncoder, record_bytes_max
from embermq.formats.log_record import Origin, decode_record, encode_record, iter_frames
from embermq.intake.broker import Broker
from embermq.model.message import Message
from embermq.model.position import position_of
from embermq.model.session_writes import RetainedWrite
from embermq.ports.errors import StoreError, StoreUnavailable
from embermq.ports.tick_store import Receipt
from embermq.sessions.settings import MqttSettings
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Tick

BACK_S = 60.0
Answers = list[Receipt | StoreError]


@pytest.fixture
def stores(kafka: KafkaServer, redis_server: RedisServer, tmp_path: Path) -> Iterator[KafkaStores]:
    opened = KafkaStores(kafka, redis_server.url, tmp_path)
    yield opened
    kafka.heal()
    opened.close()


def serve(stores: KafkaStores, is_done: Callable[[], bool], what: str) -> None:
    """Be the broker's thread until something is so."""

    def look() -> bool:
        stores.tick.now_ms = time.monotonic_ns() // 1_000_000
        while not stores.posted.empty():
            stores.posted.get()()
        return is_done()

    wait_until(look, BACK_S, what)


def leave(stores: KafkaStores) -> None:
    """As a killed broker leaves it: nothing is said to anybody."""
    stores.appender.close()
    stores.kafka_log.close()
    stores.posted = SimpleQueue()
    stores.writer_of_state.close()
    stores.raw.close()
    stores._closing = []


def test_while_kafka_is_away_ticks_wait_and_nothing_is_lost(stores: KafkaStores, kafka: KafkaServer) -> None:
    stores.write(records=[record(b"0", "a"), record(b"1", "b")])
    kafka.stop()
    answers = stores.submit(tick_writes(records=[record(b"2", "a"), record(b"3", "b")], receipts=[b"r"]))
    serve(stores, lambda: bool(stores.servers.failing), "the trouble is known")
    assert stores.kafka.bootstrap in stores.servers.failing
    assert (answers, stores.store.busy) == ([], True)
    kafka.start()
    serve(stores, lambda: bool(answers), "the tick is answered")
    assert answers == [Receipt(2, 2, whole=False)]
    assert stores.servers.failing == ""
    assert stores.write(records=[record(b"4", "a")]) == Receipt(4, 1)
    assert payloads(stores) == [b"%d" % number for number in range(5)]
    assert stores.failures == []


def _kill_and_start(kafka: KafkaServer) -> None:
    kafka.kill()
    kafka.start()


def _all_payloads(stores: KafkaStores) -> list[bytes]:
    """However many there are."""
    found: list[bytes] = []
    while True:
        offset = len(found)
        batches = stores.log.read(offset, records_max=5_000, bytes_max=2**30)
        if not batches:
            return found
        for batch in batches:
            assert batch.base_offset == len(found)
            found += [decode_record(frame).message.payload for frame in iter_frames(batch.body)]


@pytest.mark.in_faults
def test_a_kill_of_kafka_in_mid_flight_loses_and_repeats_nothing(
    stores: KafkaStores, kafka: KafkaServer, seed: int
) -> None:
    chance = random.Random(seed)
    killer = Thread(target=partial(_kill_and_start, kafka))
    kill_at = chance.randrange(20, 60)
    # A Kafka that starts forgets producers of records older than producer.id.expiration.ms, and takes theirs twice.
    now_ms = time.time_ns() // 1_000_000
    sent = 0
    for number in range(120):
        count = chance.randrange(1, 200)
        wanted = [record(b"%d" % (sent + index), f"t/{index % 17}", now_ms) for index in range(count)]
        answers = stores.submit(tick_writes(records=wanted))
        if number == kill_at:
            killer.start()
        serve(stores, lambda answers=answers: bool(answers), "the tick is answered")  # type: ignore[misc]
        assert answers == [Receipt(sent, count, whole=False)]
        sent += count
    killer.join()
    assert stores.failures == []
    assert _all_payloads(stores) == [b"%d" % number for number in range(sent)]
    stores.reopen()
    assert _all_payloads(stores) == [b"%d" % number for number in range(sent)]


def test_after_a_kill_positions_go_on_where_they_were(stores: KafkaStores) -> None:
    stores.write(records=[record(b"0")])
    leave(stores)
    stores.reopen()
    assert stores.write(records=[record(b"1")]) == Receipt(1, 1)
    stores.reopen()
    assert stores.write(records=[record(b"2")]) == Receipt(2, 1)
    assert payloads(stores) == [b"0", b"1", b"2"]


def test_what_a_dead_broker_sent_late_takes_its_place_and_is_no_part_of_a_tick(
    stores: KafkaStores, kafka: KafkaServer, caplog: pytest.LogCaptureFixture
) -> None:
    stores.write(records=[record(b"0")])
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    late = KafkaEncoder().encode(record(b"late"))
    producer.produce(stores.topic.name, late.value, late.key, headers=late.headers)  # type: ignore[arg-type]
    assert producer.flush(BACK_S) == 0
    assert stores.write(records=[record(b"1"), record(b"2")]) == Receipt(2, 2)
    assert "has 1 records that this broker did not write" in caplog.text
    assert payloads(stores) == [b"0", b"late", b"1", b"2"]


def test_what_somebody_writes_between_the_records_of_a_tick_ends_the_broker(stores: KafkaStores) -> None:
    stores.write(records=[record(b"0")])
    first = stores.appender._first

    def moved(error: KafkaError | None, message: Told) -> None:
        first(error, message)
        assert stores.appender._tick is not None
        stores.appender._tick.first_offset -= 1

    stores.appender._first = moved  # type: ignore[method-assign]
    answers = stores.submit(tick_writes(records=[record(b"1"), record(b"2")]))
    serve(stores, lambda: bool(stores.failures), "the broker ends")
    assert answers == []
    assert "has one writer" in str(stores.failures[0])


def test_after_a_kill_the_log_has_its_size_and_is_trimmed(
    stores: KafkaStores, caplog: pytest.LogCaptureFixture
) -> None:
    stores.write(records=[record(b"%d" % number, f"t/{number}") for number in range(200)])
    leave(stores)
    stores.reopen()
    statistics = stores.log.statistics()
    assert (statistics.start_offset, statistics.end_offset) == (0, 200)
    assert statistics.body_bytes == 200 * DEFAULT_RECORD_BYTES
    stores.log.trim(50)
    assert payloads(stores) == [b"%d" % number for number in range(50, 200)]
    assert stores.log.offset_at(2**50) == 200
    stores.log.trim(200)
    assert (payloads(stores), stores.log.statistics().start_offset) == ([], 200)
    leave(stores)
    stores.reopen()
    assert caplog.text == "", "nothing is missing"
    assert stores.write(records=[record(b"200")]) == Receipt(200, 1)
    assert payloads(stores) == [b"200"]


def test_records_whose_tick_ended_half_way_are_accepted_at_the_next_start(stores: KafkaStores) -> None:
    """Killed between the log's answer and the rest: the packet id of the QoS 2 message is known again."""
    stores.write(sessions=[session(5)], records=[record(b"0")])
    exactly_once = Message("a/b", b"1", 2, True, "c", 4, 7)
    frame = encode_record(exactly_once, b"", Origin(5, 77))
    rest = {"receiving": [(5, 77, 0)], "retained": [RetainedWrite("a/b", 0, frame)]}
    stores.link.away = True
    answers = stores.submit(tick_writes(records=[frame], **rest))
    serve(stores, lambda: bool(answers), "the record is stored")
    assert answers == [Receipt(1, 1, whole=False)]
    leave(stores)
    stores.reopen()
    stored = replace(stores.sessions.load(), log_end=stores.positions.end)
    (known,) = stored.sessions
    assert known.receiving == ()
    state = BrokerState(MqttSettings(), Tick())
    state.direct = state.durable = DirectPath(state)
    complete(Broker(state), stored, stores.sessions.load_retained(), stores.log)
    (found,) = state.sessions.of({5})
    assert found.receiving == {77}
    retained = state.retained.get("a/b")
    assert retained is not None and (retained.offset, retained.record) == (1, frame)


def test_a_loss_that_is_smaller_than_the_tick_that_notices_it_is_seen_by_the_next_start(
    stores: KafkaStores, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka has lost the last two of three records, and with five more its end is above what was known."""
    stores.write(records=[record(b"%d" % number) for number in range(3)])
    stores.positions.advance(5, 0)
    stores.submit(tick_writes(records=[record(b"%d" % number) for number in range(5)]))
    serve(stores, lambda: bool(stores.failures), "the broker ends")
    assert "has lost its end, 2 records" in str(stores.failures[0])
    stores.reopen()
    assert "New ones go to partition 1" in caplog.text
    assert stores.write(records=[record(b"9")]) == Receipt(position_of(1, 0), 1)
    stores.reopen()
    assert stores.write(records=[record(b"10")]) == Receipt(position_of(1, 1), 1)


def test_a_record_that_is_too_large_is_refused_by_name_and_nothing_of_its_tick_is_stored(
    stores: KafkaStores,
) -> None:
    limit = record_bytes_max(PACKET_BYTES_MAX)
    large = record(b"x" * limit, "too/large")
    answers = stores.submit(tick_writes(records=[record(b"0"), large]))
    stores.answer()
    (refusal,) = answers
    assert isinstance(refusal, StoreError)
    for word in ("too/large", str(limit), "max.message.bytes", stores.topic.name):
        assert word in str(refusal)
    assert "max.message.bytes" in stores.appender.objection(large)
    fits = record(b"x" * (limit - 2_000))
    assert stores.appender.objection(fits) == "" and len(fits) > stores.appender.bytes_sure
    assert stores.write(records=[fits, record(b"1")]) == Receipt(0, 2)
    assert len(payloads(stores)) == 2


def test_records_of_a_tick_that_is_not_answered_are_not_read(stores: KafkaStores) -> None:
    stores.write(records=[record(b"0", "a"), record(b"1", "b")])
    answers = stores.submit(tick_writes(records=[record(b"2", "a"), record(b"3", "b")]))
    wait_until(lambda: not stores.posted.empty(), BACK_S, "Kafka has them")
    assert payloads(stores) == [b"0", b"1"]
    stores.answer()
    assert answers == [Receipt(2, 2, whole=False)]
    assert payloads(stores) == [b"0", b"1", b"2", b"3"]


def _look_until_closed(log: KafkaMessageLog) -> None:
    try:
        while True:
            log.statistics()
    except StoreUnavailable:
        return


def test_the_end_of_a_run_does_not_wait_for_a_kafka_that_hangs(
    stores: KafkaStores, kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(appender, "CLOSE_S", 0.5)
    stores.write(records=[record(b"0")])
    stores.log.statistics()
    kafka.pause()
    looking = Thread(target=_look_until_closed, args=[stores.kafka_log], daemon=True)
    looking.start()  # as retention does
    answers = stores.submit(tick_writes(records=[record(b"1"), record(b"2")]))
    began_s = time.monotonic()
    stores.close()
    assert time.monotonic() - began_s < BACK_S
    while not stores.posted.empty():
        stores.posted.get()()
    assert "it may or may not have 2 records" in caplog.text
    assert (answers, stores.failures) == ([], [])
    kafka.resume()
    looking.join(BACK_S)
    assert not looking.is_alive()
    stores.reopen()
    assert stores.write(records=[record(b"3")]).base_offset in (1, 3)
    assert payloads(stores) in ([b"0", b"3"], [b"0", b"1", b"2", b"3"])


def test_a_topic_that_goes_away_ends_the_appender_with_its_name(
    stores: KafkaStores, kafka: KafkaServer
) -> None:
    stores.write(records=[record(b"0")])
    kafka.delete_topic(stores.topic.name)
    answers = stores.submit(tick_writes(records=[record(b"1")]))
    serve(stores, lambda: bool(stores.failures), "the appender has ended")
    assert answers == []
    assert stores.topic.name in str(stores.failures[0]) and kafka.bootstrap in str(stores.failures[0])
    assert stores.servers.failing == str(stores.failures[0])
    with pytest.raises(StoreUnavailable, match=f"topic {stores.topic.name} is gone"):
        stores.topic.open(is_new=False)
    stores.topic.open(is_new=True)
    leave(stores)
    stores.reopen()  # whoever says that an empty log is all right gets one, and no number twice
    assert stores.write(records=[record(b"2")]).base_offset > 1


def test_what_nobody_expected_where_reports_are_heard_ends_the_broker_and_is_named(
    stores: KafkaStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise LookupError("not this one")

    monkeypatch.setattr(stores.appender, "_hear", fail)
    serve(stores, lambda: bool(stores.failures), "the appender has ended")
    assert "LookupError('not this one')" in str(stores.failures[0])


def test_a_clock_ahead_of_kafkas_is_no_reason_to_refuse_records(stores: KafkaStores) -> None:
    ahead_ms = time.time_ns() // 1_000_000 + 10 * 3_600_000
    frame = encode_record(Message("t", b"x", 1, False, "", 4, ahead_ms))
    assert stores.write(records=[frame]).record_count == 1


def _topic(kafka: KafkaServer, **settings: object) -> LogTopic:
    made = KafkaSettings(prefix=kafka.prefix(), **settings)  # type: ignore[arg-type]
    admin = WatchedAdmin(parse_address(f"kafka://{kafka.bootstrap}"), made)
    return LogTopic(admin, packet_bytes_max=PACKET_BYTES_MAX)


FIT = KEPT | {"max.message.bytes": str(record_bytes_max(PACKET_BYTES_MAX))}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"retention.ms": "1000"}, "retention.ms is 1000, must be -1"),
        ({"retention.bytes": "5"}, "retention.bytes is 5, must be -1"),
        ({"cleanup.policy": "compact"}, "cleanup.policy is compact, must be delete"),
        ({"message.timestamp.type": "LogAppendTime"}, "message.timestamp.type"),
    ],
)
def test_a_topic_that_is_not_fit_is_refused_by_what_is_wrong(
    kafka: KafkaServer, changed: dict[str, str], words: str
) -> None:
    topic = _topic(kafka)
    kafka.create_topic(topic.name, partitions=1, settings=FIT | changed)
    for is_new in (True, False):
        with pytest.raises(StoreUnavailable) as refused:
            topic.open(is_new=is_new)
        for word in [words, topic.name]:
            assert word in str(refused.value)


def test_a_topic_that_takes_too_little_of_a_record_takes_more_from_then_on(
    kafka: KafkaServer, caplog: pytest.LogCaptureFixture
) -> None:
    topic = _topic(kafka)
    kafka.create_topic(topic.name, partitions=1, settings=FIT | {"max.message.bytes": "1000"})
    topic.open(is_new=False)
    assert f"topic {topic.name} took 1000 bytes of a record (max.message.bytes)" in caplog.text
    assert topic._describe()["max.message.bytes"] == FIT["max.message.bytes"]
    caplog.clear()
    topic.open(is_new=False)
    assert not caplog.text


def test_a_topic_that_may_take_no_more_of_a_record_is_refused(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = _topic(kafka)
    kafka.create_topic(topic.name, partitions=1, settings=FIT | {"max.message.bytes": "1000"})
    refusal = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))

    def refuse(resources: list[ConfigResource], **_: object) -> dict[ConfigResource, Future[None]]:
        answer: Future[None] = Future()
        answer.set_exception(refusal)
        return dict.fromkeys(resources, answer)

    monkeypatch.setattr(topic._admin.client, "incremental_alter_configs", refuse)
    with pytest.raises(StoreUnavailable) as refused:
        topic.open(is_new=False)
    for word in (topic.name, "max.message.bytes is 1000", "2097152", "mqtt.packet_bytes_max"):
        assert word in str(refused.value)


def test_a_server_that_takes_no_request_with_the_largest_message_is_refused(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_topic, "REQUEST_BYTES", 1 << 30)
    needed = record_bytes_max(PACKET_BYTES_MAX) + (1 << 30)
    words = rf"socket.request.max.bytes of server 1 is 104857600, must be at least {needed} for mqtt.packet_bytes_max"
    with pytest.raises(StoreUnavailable, match=words):
        _topic(kafka).open(is_new=True)
    monkeypatch.setattr(LogTopic, "_request_limit", lambda *_: 0)  # nothing is told, as by one that is away
    _topic(kafka).open(is_new=True)


@pytest.mark.in_faults
def test_each_server_of_a_cluster_is_asked(
    kafka_cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def topic() -> LogTopic:
        made = KafkaSettings(prefix=kafka_cluster.prefix())
        admin = WatchedAdmin(parse_address(f"kafka://{kafka_cluster.bootstrap}"), made)
        return LogTopic(admin, packet_bytes_max=PACKET_BYTES_MAX)

    assert topic().open(is_new=True).replicas == 3
    monkeypatch.setattr(log_topic, "REQUEST_BYTES", 1 << 30)
    with pytest.raises(StoreUnavailable) as refused:
        topic().open(is_new=True)
    assert all(f"of server {node.node_id} is 104857600" in str(refused.value) for node in kafka_cluster.nodes)


def test_a_topic_is_made_once_as_configured_and_its_worth_is_said(kafka: KafkaServer) -> None:
    topic = _topic(kafka)
    assert topic.durability() is None
    durability = topic.open(is_new=True)
    assert (durability.replicas, durability.min_insync_replicas, durability.losses_survived) == (1, 1, 0)
    assert topic.open(is_new=False) == topic.open(is_new=True) == topic.durability() == durability
    assert len(kafka.admin.list_topics(topic.name, timeout=BACK_S).topics[topic.name].partitions) == 1
    with pytest.raises(StoreUnavailable, match=r"cannot make topic .*(?i:replication)"):
        _topic(kafka, replication_factor=3).open(is_new=True)


def test_nobody_there_is_said_with_the_servers_name_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ATTEMPT_S", 0.5)
    port = free_port()
    address = parse_address(f"kafka://ember:secret@127.0.0.1:{port}")
    admin = WatchedAdmin(address, KafkaSettings(request_timeout_s=1.0))
    with pytest.raises(StoreUnavailable, match=rf"kafka://127\.0\.0\.1:{port}: no answer in 3 s") as refused:
        LogTopic(admin, packet_bytes_max=1_000).open(is_new=True)
    assert "secret" not in str(refused.value)


def _checked(*assignments: str) -> tuple[str, object]:
    """What `check-config` shows, for people and for machines."""
    words = ["check-config", "--no-pipeline"]
    for assignment in assignments:
        words += ["--set", assignment]
    shown, document = (run_program(*words, *more, timeout_s=BACK_S) for more in ((), ("--json",)))
    for done in (shown, document):
        done.check_returncode()
    return shown.stdout, json.loads(document.stdout).get("log")


def test_the_configuration_is_shown_with_what_the_cluster_is_worth(kafka: KafkaServer) -> None:
    topic = _topic(kafka)
    redis = "stores.session=redis://127.0.0.1"
    place = (
        f"stores.log=kafka://{kafka.bootstrap}",
        redis,
        f"kafka.prefix={topic.name.removesuffix('.msg.all')}",
    )
    shown, told = _checked(*place)
    assert told == f"topic {topic.name} is not there yet, the first start makes it"
    assert shown.rstrip().endswith(f"message log: {told}")
    durability = topic.open(is_new=True)
    assert _checked(*place)[1] == str(durability)
    nobody = f"127.0.0.1:{free_port()}"
    shown, told = _checked(f"stores.log=kafka://ann:hidden@{nobody}", redis, "kafka.request_timeout_s=1")
    assert str(told).startswith(f"kafka://{nobody}: no answer in 3 s") and "hidden" not in shown
    assert _checked()[1] is None


def test_what_others_wrote_there_is_passed_over_and_said(
    stores: KafkaStores, kafka: KafkaServer, caplog: pytest.LogCaptureFixture
) -> None:
    stores.write(records=[record(b"0", "a")])
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(stores.topic.name, b"not ours", b"a")
    assert producer.flush(BACK_S) == 0
    assert stores.write(records=[record(b"1", "a")]) == Receipt(2, 1)
    assert "did not write" in caplog.text
    assert payloads(stores) == [b"0", b"1"]
    assert "no record of this broker" in caplog.text
    stores.reopen()
    assert stores.write(records=[record(b"2", "a")]) == Receipt(3, 1)


@pytest.mark.in_faults
def test_too_few_copies_make_a_tick_wait_and_their_return_ends_it(
    kafka_cluster: KafkaCluster, redis_server: RedisServer, tmp_path: Path
) -> None:
    stores = KafkaStores(kafka_cluster, redis_server.url, tmp_path)
    assert stores.durability.losses_survived == 1
    assert "survives the loss of 1 server" in str(stores.durability)
    stores.write(records=[record(b"%d" % number, f"t/{number}") for number in range(10)])
    leader = kafka_cluster.leader(stores.topic.name)
    leader.kill()
    answers = stores.submit(
        tick_writes(records=[record(b"%d" % number, f"t/{number}") for number in range(10, 20)])
    )
    serve(stores, lambda: bool(answers), "two of three are enough")
    other = next(node for node in kafka_cluster.nodes if node.is_running)
    other.kill()
    answers = stores.submit(
        tick_writes(records=[record(b"%d" % number, f"t/{number}") for number in range(20, 30)])
    )
    serve(stores, lambda: stores.kafka.bootstrap in stores.servers.failing, "the trouble is known")
    assert answers == []
    kafka_cluster.heal()
    serve(stores, lambda: bool(answers), "the tick is answered")
    assert payloads(stores) == [b"%d" % number for number in range(30)]
    assert stores.failures == []
    stores.close()
