"""How fast clients that were away read their application logs: `python -m benchmarks.kafka_feeds kafka://127.0.0.1:9092`.

A Kafka to measure on comes from `make kafka`. Logs of their own are filled for each run and deleted after it. Records
are read, decoded, checked to be no repeats and released, as a broker does it, without sending them to clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import SimpleQueue
from secrets import token_hex
from typing import Annotated

import typer
from confluent_kafka import Producer

from benchmarks.machine import describe
from embermq.adapters.kafka.address import KafkaSettings, parse_address
from embermq.adapters.kafka.application_feeds import KafkaApplicationFeeds
from embermq.adapters.kafka.application_topics import ApplicationTopics, LogProperties
from embermq.adapters.kafka.client import WatchedAdmin
from embermq.delivery.application.positions import Positions
from embermq.formats.application_logs import ApplicationLogNames
from embermq.formats.kafka_record import KafkaEncoder
from embermq.formats.log_record import Stamp, encode_record, encode_stamps
from embermq.model.message import Message
from embermq.ports.application_feed import ApplicationFeed, FeedEntry, FeedTaker

CLIENTS = (1, 10, 100)
PUBLISHERS = 200
PAYLOAD = b"x" * 100
WAIT_S = 60.0


class Client(FeedTaker):
    """Reads one log; `read` counts records that are no repeats."""

    def __init__(self, feeds: KafkaApplicationFeeds, log: str) -> None:
        self.positions = Positions()
        self.read = 0
        self.feed: ApplicationFeed = feeds.open(log, {0: 0}, self)

    def take(self, partition: int, entries: list[FeedEntry]) -> None:
        take = self.positions.take
        for entry in entries:
            source = entry.source
            if source is not None and take(entry.offset, source):
                self.read += 1
        self.positions.commit(entries[-1].offset + 1)
        self.feed.release(sum(entry.size for entry in entries))

    def gone(self, reason: str) -> None:
        raise SystemExit(reason)


def fill(bootstrap: str, logs: list[str], records: int) -> None:
    """So many records in all, of as many publishers as there are, in turn."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 20})
    encode = KafkaEncoder().encode
    now_ms = time.time_ns() // 1_000_000
    for number in range(records):
        log, publisher = logs[number % len(logs)], number % PUBLISHERS
        message = Message(
            f"plant/{publisher}/temperature", PAYLOAD, 1, False, f"client-{publisher}", 4, now_ms
        )
        outgoing = encode(encode_record(message, encode_stamps((Stamp(log, 1, 1),))))
        headers = [*outgoing.headers, ("s", b"0;%d" % number)]
        while len(producer) > 50_000:
            producer.poll(0.05)
        producer.produce(log, outgoing.value, outgoing.key, headers=headers)  # type: ignore[arg-type]
    producer.flush(WAIT_S)


def read(
    feeds: KafkaApplicationFeeds, posted: SimpleQueue[Callable[[], None]], logs: list[str], records: int
) -> None:
    """All clients come at once."""
    cpu_s, began_s = time.process_time(), time.perf_counter()
    clients = [Client(feeds, log) for log in logs]
    first_s = 0.0
    while sum(client.read for client in clients) < records:
        posted.get(timeout=WAIT_S)()
        first_s = first_s or time.perf_counter() - began_s
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    for client in clients:
        client.feed.close()
    print(
        f"{len(logs):4} clients: {records / took_s:9,.0f} records/s, {cpu_s / records * 1e6:5.1f} us CPU a record, "
        f"the first after {first_s * 1000:.0f} ms"
    )


def main(
    url: Annotated[str, typer.Argument(help="kafka://HOST:PORT")],
    records: Annotated[int, typer.Option(help="in all logs together")] = 200_000,
) -> None:
    """Fill the logs of 1, 10 and 100 clients and read them."""
    settings = KafkaSettings(prefix=f"bench-{token_hex(4)}")
    address, names = parse_address(url), ApplicationLogNames(settings.prefix)
    topics = ApplicationTopics(
        WatchedAdmin(address, settings), names, LogProperties(packet_bytes_max=1024 * 1024)
    )
    posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
    feeds = KafkaApplicationFeeds(address, settings, posted.put)
    print(describe())
    for count in CLIENTS:
        logs = [names.client_log(f"c{count}x{number}") for number in range(count)]
        for log in logs:
            topics.ensure({log: 1})
        fill(address.bootstrap, logs, records)
        read(feeds, posted, logs, records)
        for log in logs:
            topics.delete([log])
    feeds.close()


if __name__ == "__main__":
    typer.run(main)
