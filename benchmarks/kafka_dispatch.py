"""How soon the pipeline has a record in an application log: `python -m benchmarks.kafka_dispatch 127.0.0.1:9092`.

A Kafka to measure on comes from `make kafka`. Records go into the message log at a steady rate; the time is from the
send of a record to its arrival at a reader of the application log, both in this process. Topics of its own are made
for each run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any

import msgspec
import typer
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.machine import describe
from embermq.formats.kafka_record import KafkaEncoder
from embermq.formats.log_record import Stamp, encode_record, encode_stamps
from embermq.model.message import Message
from embermq.pipeline.kafka_log import KafkaLog
from embermq.pipeline.settings import DriverSettings, Mode
from embermq.pipeline.sources.kafka_positions import KafkaPositions
from embermq.pipeline.supervisor import session_members

TOPICS = 200
PARTITIONS = 2
WARM_UP_S = 30
PAYLOAD_BYTES = 200
TIME_DIGITS = 19
START_S = 180.0
STOP_S = 20.0
PACE_S = 0.002
_TICKS = os.sysconf("SC_CLK_TCK")


class Load:
    """Sends at a steady rate until it is stopped; payloads begin with the time, in nanoseconds."""

    def __init__(self, kafka: KafkaLog, log: str) -> None:
        self._kafka = kafka
        self._stamps = encode_stamps((Stamp(log, 1, 1),))
        self._encoder = KafkaEncoder()
        self._producer = Producer(
            {
                "bootstrap.servers": kafka.bootstrap,
                "acks": "all",
                "linger.ms": 0,
                "partitioner": "murmur2_random",
            }
        )
        self._sent = 0
        self._stopping = threading.Event()

    def send(self) -> None:
        """One record."""
        payload = b"%d" % time.time_ns() + b"x" * (PAYLOAD_BYTES - TIME_DIGITS)
        now_ms = time.time_ns() // 1_000_000
        message = Message(f"plant/{self._sent % TOPICS}", payload, 1, False, "client", 4, now_ms)
        outgoing = self._encoder.encode(encode_record(message, self._stamps))
        headers: Any = outgoing.headers
        self._producer.produce(self._kafka.log_topic, outgoing.value, outgoing.key, headers=headers)
        self._sent += 1

    def run(self, rate: int) -> None:
        """Until `stop`."""
        began_s, first = time.monotonic(), self._sent
        while not self._stopping.wait(PACE_S):
            for _ in range(first + int((time.monotonic() - began_s) * rate) - self._sent):
                self.send()
            self._producer.poll(0)
        self._producer.flush()

    def stop(self) -> None:
        """Let `run` return."""
        self._stopping.set()


def main(
    bootstrap: Annotated[str, typer.Argument(help="Kafka as host:port.")],
    rate: Annotated[int, typer.Option(help="Records a second.")] = 2_000,
    seconds: Annotated[int, typer.Option(help="How long is measured.")] = 60,
    mode: Annotated[str, typer.Option(help="realtime or microbatch.")] = "realtime",
    nice: Annotated[int, typer.Option(help="pipeline.nice")] = 5,
) -> None:
    """Print quantiles of the latency, and what Spark used of the CPU."""
    kafka = KafkaLog(bootstrap=bootstrap, prefix=f"bench{token_hex(4)}")
    positions = KafkaPositions(kafka)
    log = f"{kafka.application_prefix}one"
    positions.ensure_topic(kafka.log_topic, PARTITIONS)
    positions.ensure_topic(log)
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": kafka.prefix, "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(log, 0, 0)])
    settings = DriverSettings(queries=("dispatch",), kafka=kafka, mode=msgspec.convert(mode, Mode), nice=nice)
    load = Load(kafka, log)
    with tempfile.TemporaryDirectory() as folder:
        driver = _start(settings, Path(folder))
        try:
            load.send()
            _first(consumer)
            sender = threading.Thread(target=load.run, args=(rate,))
            sender.start()
            _receive(consumer, WARM_UP_S)
            before_s = _cpu_s(driver.pid)
            latencies = sorted(_receive(consumer, seconds))
            used_s = _cpu_s(driver.pid) - before_s
            load.stop()
            sender.join()
        finally:
            driver.terminate()
            driver.wait(STOP_S)
    count = len(latencies)
    quantiles = [f"p{share}: {latencies[count * share // 100]:.1f} ms" for share in (50, 95, 99)]
    typer.echo(describe())
    typer.echo(f"{mode}, {count / seconds:,.0f}/s: {', '.join(quantiles)}, largest {latencies[-1]:.0f} ms")
    typer.echo(f"Spark: {used_s / count * 1000:.3f} s of CPU for 1,000 records")


def _start(settings: DriverSettings, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "embermq.pipeline", "--data-dir", str(folder), "--settings-json", "-"]
    with (folder / "output.txt").open("wb") as output:
        driver = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
        )
    assert driver.stdin is not None
    driver.stdin.write(msgspec.json.encode(settings) + b"\n")
    driver.stdin.flush()
    return driver


def _first(consumer: Consumer) -> None:
    record = consumer.poll(START_S)
    if record is None or record.error() is not None:
        raise SystemExit(f"nothing has arrived within {START_S:g} s")


def _receive(consumer: Consumer, seconds: float) -> list[float]:
    """Milliseconds from send to receipt, of all that arrives in that time."""
    found: list[float] = []
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        for record in consumer.consume(500, 0.05):
            value = record.value()
            if record.error() is None and isinstance(value, bytes):
                found.append((time.time_ns() - int(value[:TIME_DIGITS])) / 1e6)
    return found


def _cpu_s(session: int) -> float:
    """Of the driver, the JVM and what else they have started."""
    total = 0
    for pid in session_members(session):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS


if __name__ == "__main__":
    typer.run(main)
