"""What the records of ticks cost on their way into Kafka: `python -m benchmarks.kafka_append kafka://127.0.0.1:9092`.

A Kafka to measure on comes from `make kafka`. Ticks follow one another without a pause, as in a broker that is busy; a
topic of its own is made for each run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import SimpleQueue
from secrets import token_hex
from typing import Annotated

import typer

from benchmarks.machine import describe
from embermq.adapters.kafka.address import KafkaSettings, parse_address
from embermq.adapters.kafka.appender import KafkaAppender
from embermq.adapters.kafka.client import WatchedAdmin
from embermq.adapters.kafka.log_producer import LogProducer
from embermq.adapters.kafka.log_topic import LogTopic, find_ends
from embermq.adapters.kafka.message_log import KafkaMessageLog
from embermq.formats.log_record import encode_record
from embermq.model.message import Message
from embermq.ports.errors import StoreError
from embermq.ports.tick_store import Receipt

TICKS = {1: 1_500, 10: 800, 100: 300, 1_000: 40}
"""Records of a tick to ticks of that size."""
WARM_UP_TICKS = 20
CLIENTS = 200
PAYLOAD = b"x" * 100
ANSWER_S = 30.0


class Appending:
    """One topic and what writes it. `cpu_s` is this process alone."""

    def __init__(self, url: str, settings: KafkaSettings) -> None:
        address = parse_address(url)
        admin = WatchedAdmin(address, settings)
        topic = LogTopic(admin, packet_bytes_max=1024 * 1024)
        topic.open(is_new=True)
        self.posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        positions = find_ends(admin, topic)
        self.appender = KafkaAppender(
            address,
            LogProducer(address, settings, record_bytes_max=topic.record_bytes_max),
            topic.name,
            positions,
            self.posted.put,
            record_bytes_max=topic.record_bytes_max,
        )
        self.log = KafkaMessageLog(admin, topic.name, positions)
        self.next_number = 0

    def tick(self, count: int) -> float:
        """Seconds from the call to the answer."""
        base, self.next_number = self.next_number, self.next_number + count
        now_ms = time.time_ns() // 1_000_000
        records = []
        for number in range(base, base + count):
            client = number % CLIENTS
            message = Message(f"plant/{client}/temperature", PAYLOAD, 1, False, f"client-{client}", 4, now_ms)
            records.append(encode_record(message))
        answers: list[Receipt | StoreError] = []
        began_s = time.perf_counter()
        self.appender.append(records, answers.append)
        while not answers:
            self.posted.get(timeout=ANSWER_S)()
        return time.perf_counter() - began_s

    def read_all(self) -> float:
        """Records a second."""
        began_s, number = time.perf_counter(), 0
        while batches := self.log.read(number, records_max=1_000, bytes_max=4 * 1024 * 1024):
            number = batches[-1].base_offset + batches[-1].record_count
        return number / (time.perf_counter() - began_s)

    def close(self) -> None:
        self.appender.close()
        self.log.close()


def main(url: Annotated[str, typer.Argument(help="kafka://HOST:PORT")]) -> None:
    """Append ticks of 1, 10, 100 and 1,000 records and read them back."""
    settings = KafkaSettings(prefix=f"bench-{token_hex(4)}")
    print(describe())
    appending = Appending(url, settings)
    for count, ticks in TICKS.items():
        for _ in range(WARM_UP_TICKS):
            appending.tick(count)
        cpu_s, began_s = time.process_time(), time.perf_counter()
        times = sorted(appending.tick(count) for _ in range(ticks))
        took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
        print(
            f"ticks of {count:5}: {count * ticks / took_s:9,.0f} records/s, "
            f"p50 {times[ticks // 2] * 1000:7.2f} ms, p99 {times[ticks * 99 // 100] * 1000:7.2f} ms, "
            f"CPU {cpu_s / ticks * 1e6:8.0f} us a tick, {cpu_s / ticks / count * 1e6:6.1f} us a record"
        )
    print(f"read back: {appending.read_all():,.0f} records/s")
    appending.close()


if __name__ == "__main__":
    typer.run(main)
