"""Traffic on a real Kafka: records and delivery receipts, and the same numbers as on the embedded log."""

import pytest
from confluent_kafka import Producer
from msgspec.structs import replace
from pyspark.sql import SparkSession
from tests.pipeline.feeding import AT_ONCE, feeding, feeding_of_kafka
from tests.pipeline.kafka_topics import LogInKafka
from tests.pipeline.log_writer import NOON_MS, LogWriter, record
from tests.pipeline.queries import DEADLINE_S, rows_of
from tests.support.kafka_server import KafkaServer
from tests.support.waiting import wait_until

from embermq.adapters.kafka.address import KafkaSettings, parse_address
from embermq.adapters.kafka.receipt_topic import ReceiptTopic
from embermq.formats.receipts import SAMPLE
from embermq.pipeline.jobs.bulk_parts import Traffic
from embermq.pipeline.places import Places

TABLES = ("traffic_window", "queue_window", "latency_window", "latency_bucket")
QUICK = replace(AT_ONCE, queries=("traffic",), max_records_per_batch=50_000)
MINUTES_MS = 60_000

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


SAMPLES = [
    sample(us, accepted_ms=NOON_MS + us % 20_000, client_type=us // 1_000 % 2, root=f"plänt{us % 3}")
    for us in range(900, 60_900, 101)
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
