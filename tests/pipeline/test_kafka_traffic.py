"""Traffic on a real Kafka: records and delivery receipts, and the same numbers as on the embedded log."""

import math
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Producer
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.pipeline.feeding import AT_ONCE, feeding, feeding_of_kafka
from tests.pipeline.kafka_topics import LogInKafka
from tests.pipeline.log_writer import NOON_MS, LogWriter, record
from tests.pipeline.queries import DEADLINE_S, rows_of
from tests.pipeline.test_lake import object_storage
from tests.support.kafka_server import KafkaServer
from tests.support.seaweed import BUCKET
from tests.support.waiting import wait_until

from embermq.adapters.kafka.address import KafkaSettings, parse_address
from embermq.adapters.kafka.receipt_topic import ReceiptTopic
from embermq.formats.log_record import decode_record, slot_field
from embermq.formats.receipts import SAMPLE
from embermq.pipeline.jobs.bulk_parts import Traffic
from embermq.pipeline.jobs.kafka_ranges import read_ranges
from embermq.pipeline.log_look import Bounds
from embermq.pipeline.places import Places
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.sinks.delta_table import DeltaTable
from embermq.pipeline.sinks.held_table import load_log_store
from embermq.pipeline.sinks.traffic_table import TrafficTable, traffic_place
from embermq.pipeline.sinks.traffic_windows import _quantile
from embermq.pipeline.transforms.kafka_records import receipts_from_kafka, records_from_kafka
from embermq.pipeline.transforms.traffic import BUCKETS_PER_DOUBLING, latency_windows, traffic_events

TABLES = ("traffic_window", "queue_window", "latency_window", "latency_bucket")
QUICK = replace(AT_ONCE, queries=("traffic",), max_records_per_batch=50_000)
MINUTES_MS = 60_000
WINDOW_MS = QUICK.traffic_window_s * 1_000
SLOTS = 2
COUNTS = ("messages", "payload_bytes", "qos1", "qos2", "late")

EARLY = [
    record(topic, b"%d" % i, qos=1 + i % 2, accepted_ms=NOON_MS + i * 500)
    for i in range(60)
    for topic in (f"plant{i % 3}/x", f"$queue/plant/{i % 3}")
]
NEWEST = [record("plant1/x", b"now", accepted_ms=NOON_MS + 10 * MINUTES_MS)]
LATE = [record(f"plant{i}/x", b"late", accepted_ms=NOON_MS + MINUTES_MS) for i in range(2)]


def sample(
    latency_us: int, *, accepted_ms: int = NOON_MS, client_type: int = 0, root: str = "plant0"
) -> bytes:
    return SAMPLE.pack(accepted_ms, latency_us, client_type, len(root.encode())) + root.encode()


LATENCIES = [(us, NOON_MS + us % 20_000, us // 1_000 % 2, f"plänt{us % 3}") for us in range(900, 60_900, 101)]
SAMPLES = [
    sample(us, accepted_ms=accepted_ms, client_type=kind, root=root)
    for us, accepted_ms, kind, root in LATENCIES
]
LAST = [sample(77_000, client_type=1, root="")]


def wait_for_samples(places: Places, count: int) -> None:
    total = "SELECT COALESCE(SUM(deliveries), 0) FROM latency_window"
    wait_until(
        lambda: rows_of(places.traffic, total) == [(count,)], DEADLINE_S, f"{count} samples", poll_s=0.1
    )


def on_the_embedded_log(spark: SparkSession, log: LogWriter, places: Places) -> None:
    log.append(EARLY)
    log.add_receipts(b"".join(SAMPLES))
    with feeding(spark, places, QUICK, [Traffic]) as loop:
        loop.wait_for_position(len(EARLY))
        for more in (NEWEST, LATE):
            loop.wait_for_position(log.append(more) + len(more))
        log.add_receipts(b"torn")
        log.add_receipts(b"".join(LAST))
        wait_for_samples(places, len(SAMPLES + LAST))


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-1", "pipeline-2", "pipeline-9")
def test_the_same_numbers_as_on_the_embedded_log_and_nothing_twice_when_it_starts_anew(
    spark: SparkSession, log: LogWriter, places: Places, kafka: KafkaServer
) -> None:
    on_the_embedded_log(spark, log, places)
    of_kafka = Places(places.data_dir.with_name("kafka"))
    in_kafka = LogInKafka(kafka.bootstrap, kafka.prefix())
    settings = KafkaSettings(prefix=in_kafka.kafka.prefix)
    broker = ReceiptTopic(parse_address(f"kafka://{kafka.bootstrap}"), settings)
    topic = in_kafka.kafka.receipts_topic
    try:
        in_kafka.append(EARLY)
        broker.take(SAMPLES)
        wait_until(lambda: broker.statistics().stored == len(SAMPLES), DEADLINE_S, "samples in Kafka")
        with feeding_of_kafka(spark, in_kafka, of_kafka, QUICK, [Traffic]) as loop:
            loop.wait_for_positions(in_kafka.ends())
            in_kafka.append(NEWEST)
            loop.wait_for_positions(in_kafka.ends())
            wait_for_samples(of_kafka, len(SAMPLES))
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        producer.produce(topic, b'[{"t":1}]', headers=[("v", b"1.0")])
        producer.produce(topic, b'[{"t":1,"l":1,"c":0,"r":"plant0"}]', headers=[("v", b"2.0")])
        assert not producer.flush(DEADLINE_S)
        with feeding_of_kafka(spark, in_kafka, of_kafka, QUICK, [Traffic]) as loop:
            in_kafka.append(LATE)
            broker.take(LAST)
            loop.wait_for_positions(in_kafka.ends())
            wait_for_samples(of_kafka, len(SAMPLES + LAST))
    finally:
        broker.close()
    for table in TABLES:
        rows = rows_of(of_kafka.traffic, f"SELECT * FROM {table} ORDER BY 1, 2, 3, 4")
        assert rows == rows_of(places.traffic, f"SELECT * FROM {table} ORDER BY 1, 2, 3, 4"), table
        assert len(rows) > 3
    assert rows_of(of_kafka.traffic, "SELECT SUM(late) FROM traffic_window") == [(len(LATE),)]
    types = "SELECT DISTINCT client_type FROM latency_window ORDER BY 1"
    assert rows_of(of_kafka.traffic, types) == [(0,), (1,)]
    ends = in_kafka.positions.bounds(topic)
    assert rows_of(of_kafka.traffic, "SELECT value FROM traffic_state WHERE name = 'receipts_next;0'") == [
        (ends[0].end,)
    ]


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-1", "pipeline-2", "pipeline-9", "cluster-21")
def test_slots_add_to_one_table_each_message_once_whatever_comes_again(
    spark: SparkSession, kafka: KafkaServer, tmp_path: Path
) -> None:
    """Each slot has the same records and samples, and copies of the other. With each batch all that was before comes
    again, to a driver that has lost its file."""
    load_log_store(spark, tmp_path / "classes")
    prefix = kafka.prefix()
    with object_storage(spark, tmp_path / "storage"):
        for slot in range(SLOTS):
            log = LogInKafka(kafka.bootstrap, f"{prefix}.slot-{slot}", slot=slot)
            settings = replace(QUICK, kafka=log.kafka, lake_dir=f"s3a://{BUCKET}/lake")
            places = Places(tmp_path / f"node-{slot}")
            copy = record("plant0/x", b"copy", accepted_ms=NOON_MS, unknown_fields=(slot_field(7, 1),))
            broker = ReceiptTopic(
                parse_address(f"kafka://{kafka.bootstrap}"), KafkaSettings(prefix=log.kafka.prefix)
            )
            try:
                for number, frames in enumerate(([*EARLY, copy, *NEWEST], [*LATE, copy])):
                    log.append(frames)
                    samples = SAMPLES[number::2]
                    before = broker.statistics().stored
                    broker.take(samples)
                    there = before + len(samples)
                    wait_until(lambda: broker.statistics().stored == there, DEADLINE_S, "samples in Kafka")  # noqa: B023
                    give_all(spark, log, places, settings)
            finally:
                broker.close()
        sums = DeltaTable(spark, traffic_place(settings, places)).read()
        assert added(sums, "root") == windows_of(SLOTS, "root")
        assert added(sums.where("queue IS NOT NULL"), "queue") == windows_of(SLOTS, "queue")
        found = [tuple(row)[1:] for row in latency_windows(sums, 0, 2**62).collect()]
    assert sorted(found) == latencies_of(SLOTS)


def give_all(spark: SparkSession, log: LogInKafka, places: Places, settings: DriverSettings) -> None:
    """As a driver that begins: the log from its first record on, and all receipts."""
    assert log.kafka.slot is not None
    table = TrafficTable(settings, places, log.kafka.slot)
    try:
        ends = log.ends()
        table.open(spark, log.positions.archive_id(), ends)
        rows = read(spark, log, log.kafka.log_topic, ends)
        records = records_from_kafka(rows, log.kafka.application_prefix, has_copies=True)
        table.write(traffic_events(records).persist())
        bounds = {
            number: Bounds(found.first, found.end)
            for number, found in log.positions.bounds(log.kafka.receipts_topic).items()
        }
        assert table.begin_receipts(bounds).keys() == bounds.keys()
        samples = {number: found.end for number, found in bounds.items()}
        table.write(receipts_from_kafka(read(spark, log, log.kafka.receipts_topic, samples)).persist())
        assert (table.positions(), table.receipts_done()) == (ends, samples)
    finally:
        table.close()
    places.traffic.unlink()


def read(spark: SparkSession, log: LogInKafka, topic: str, ends: dict[int, int]) -> DataFrame:
    rows = read_ranges(spark, log.kafka, topic, dict.fromkeys(ends, 0), ends)
    assert rows is not None
    return rows


def added(sums: DataFrame, by: str) -> dict[tuple[int, str], tuple[int, ...]]:
    rows = sums.where("client_type IS NULL").groupBy("window_ms", by).agg(*map(F.sum, COUNTS)).collect()
    return {(row[0], row[1]): tuple(row)[2:] for row in rows}


def windows_of(times: int, by: str) -> dict[tuple[int, str], tuple[int, ...]]:
    """What so many slots together have."""
    found: dict[tuple[int, str], Counter[str]] = defaultdict(Counter)
    for frames, is_late in ((EARLY + NEWEST, False), (LATE, True)):
        for message in (decode_record(frame).message for frame in frames):
            root, _, queue = message.topic.partition("/")
            if by == "queue" and root != "$queue":
                continue
            counts = found[message.accepted_ms // WINDOW_MS * WINDOW_MS, queue if by == "queue" else root]
            if is_late:
                counts["late"] += times
                continue
            counts.update({"messages": times, "payload_bytes": times * len(message.payload)})
            counts[f"qos{message.qos}"] += times
    return {key: tuple(counts[name] for name in COUNTS) for key, counts in found.items()}


def latencies_of(times: int) -> list[tuple[int, ...]]:
    """Client type, samples, quantiles and longest of each window, as one broker's file has them."""
    windows: dict[tuple[int, str, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for us, accepted_ms, kind, root in LATENCIES:
        bucket = math.floor(math.log2(us) * BUCKETS_PER_DOUBLING)
        windows[accepted_ms // WINDOW_MS * WINDOW_MS, root, kind][bucket].append(us)
    return sorted(_figures(kind, buckets, times) for (_, _, kind), buckets in windows.items())


def _figures(kind: int, found: dict[int, list[int]], times: int) -> tuple[int, ...]:
    buckets = [(bucket, times * len(each), max(each)) for bucket, each in sorted(found.items())]
    total, longest = sum(one[1] for one in buckets), max(one[2] for one in buckets)
    return kind, total, *(min(longest, _quantile(buckets, total, share)) for share in (0.50, 0.99)), longest
