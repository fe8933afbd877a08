"""traffic.db: windows of rates, sizes and latencies, added up batch by batch."""

import math
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.sql import DataFrame

from embermq.pipeline.schema import PARTITION, RECEIPTS
from embermq.pipeline.sinks.sink_file import SinkFile
from embermq.pipeline.transforms.batch_values import is_new
from embermq.pipeline.transforms.traffic import BUCKETS_PER_DOUBLING, traffic_windows

READER = "traffic"
WATERMARK_S = 60
"""A record accepted this long before the newest one seen is late: counted as such in its window."""
RECEIPTS_NEXT = "receipts_next"
BUCKETS_KEPT_MS = 3_600_000
"""How long after its window a latency sample still changes the quantiles."""

_ADD_WINDOW = """
INSERT INTO traffic_window VALUES (:window_ms, :root, :length_ms, :messages, :payload_bytes, :qos1, :qos2, :late)
ON CONFLICT (window_ms, root) DO UPDATE SET
    messages = messages + excluded.messages, payload_bytes = payload_bytes + excluded.payload_bytes,
    qos1 = qos1 + excluded.qos1, qos2 = qos2 + excluded.qos2, late = late + excluded.late
"""
_ADD_QUEUE = """
INSERT INTO queue_window VALUES (:window_ms, :queue, :length_ms, :messages, :payload_bytes, :qos1, :qos2, :late)
ON CONFLICT (window_ms, queue) DO UPDATE SET
    messages = messages + excluded.messages, payload_bytes = payload_bytes + excluded.payload_bytes,
    qos1 = qos1 + excluded.qos1, qos2 = qos2 + excluded.qos2, late = late + excluded.late
"""
_ADD_BUCKET = """
INSERT INTO latency_bucket VALUES (:window_ms, :root, :client_type, :bucket, :deliveries, :max_us)
ON CONFLICT (window_ms, root, client_type, bucket) DO UPDATE SET
    deliveries = deliveries + excluded.deliveries, max_us = MAX(max_us, excluded.max_us)
"""
_PUT_LATENCY = "INSERT OR REPLACE INTO latency_window VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PUT_STATE = """
INSERT INTO traffic_state VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = MAX(value, excluded.value)
"""


class TrafficPosition(Struct, frozen=True):
    """The position at which the next batch starts in the two tables of broker.db, and from when on messages are not
    late."""

    next_offset: int
    receipts_next: int
    watermark_ms: int


class TrafficWindows:
    """Adds a batch to the windows in one transaction.

    Spark keeps no state: sums, counts and latency buckets add up, so a window is its row here, and the watermark
    moves in the transaction of the counts. A lost checkpoint or a kill costs and repeats nothing.
    """

    def __init__(self, path: Path, window_s: int, watermark_s: int) -> None:
        self.file = SinkFile(path, READER, ("embermq.formats", "traffic.sql"))
        self._window_s = window_s
        self._watermark_ms = watermark_s * 1000

    def position(self) -> TrafficPosition:
        """What is in the windows already."""
        state = dict(self.file.connection.execute("SELECT name, value FROM traffic_state").fetchall())
        return TrafficPosition(
            self.file.position() or 0, state.get(RECEIPTS_NEXT, 0), state.get("watermark_ms", 0)
        )

    def write(self, events: DataFrame) -> int:
        """Take rows of the traffic source; returns the number of positions of the message log it covered."""
        at = self.position()
        new = events.where(is_new({PARTITION: at.next_offset, RECEIPTS: at.receipts_next}))
        return self._add(traffic_windows(new, self._window_s, at.watermark_ms).toArrow())

    def begin_receipts(self, bounds: Mapping[int, tuple[int, int]]) -> dict[int, int]:
        """Where each partition of the topic of receipts, which has these first offsets and ends, is read from.

        A topic that ends before what is in the windows was made anew.
        """
        done = self._receipts_done()
        begin = {number: max(done.get(number, 0), first) for number, (first, _) in bounds.items()}
        anew = [number for number, (_, end) in bounds.items() if begin[number] > end]
        with self.file.transaction() as connection:
            for number in anew:
                begin[number] = bounds[number][0]
                connection.execute("DELETE FROM traffic_state WHERE name = ?", (_receipts_key(number),))
        return begin

    def _receipts_done(self) -> dict[int, int]:
        state = self.file.connection.execute(
            "SELECT name, value FROM traffic_state WHERE name GLOB ?", (f"{RECEIPTS_NEXT};*",)
        )
        return {int(name.rpartition(";")[2]): int(value) for name, value in state.fetchall()}

    def write_partitions(self, events: DataFrame) -> int:
        """The same of a log in Kafka, and of the topic of receipts; all partitions of the log have begun."""
        watermark_ms = self.position().watermark_ms
        done = {RECEIPTS - number: offset for number, offset in self._receipts_done().items()}
        new = events.where(is_new(self.file.positions() | done))
        return self._add(traffic_windows(new, self._window_s, watermark_ms).toArrow(), partitioned=True)

    def _add(self, groups: pa.Table, *, partitioned: bool = False) -> int:
        if not len(groups):
            return 0
        length_ms = self._window_s * 1000
        from_log = pc.greater(groups["partition"], RECEIPTS)
        log, receipts = groups.filter(from_log), groups.filter(pc.invert(from_log))
        covered = 0
        with self.file.transaction() as connection:
            found = log.filter(pc.is_valid(log["window_ms"])).to_pylist()
            windows = [{**row, "length_ms": length_ms} for row in found]
            connection.executemany(_ADD_WINDOW, windows)
            connection.executemany(_ADD_QUEUE, [row for row in windows if row["queue"] is not None])
            samples = receipts.filter(pc.is_valid(receipts["window_ms"])).to_pylist()
            connection.executemany(_ADD_BUCKET, samples)
            for key in {(row["window_ms"], row["root"], row["client_type"]) for row in samples}:
                self._put_quantiles(*key)
            if len(log):
                covered = self._move(log, partitioned)
                late = pc.sum(log["late"]).as_py()
                messages = pc.sum(log["messages"]).as_py()
                missing = pc.sum(log["missing"]).as_py()
                data = pc.sum(log["payload_bytes"]).as_py() or 0
                rejected = covered - messages - late - missing
                self.file.count(
                    records=covered,
                    entries=messages,
                    late=late,
                    rejected=rejected,
                    missing=missing,
                    bytes=data,
                )
                newest_ms = pc.max(log["newest_ms"]).as_py()
                if newest_ms is not None:
                    connection.execute(_PUT_STATE, ("watermark_ms", newest_ms - self._watermark_ms))
            if len(receipts):
                self._move_receipts(receipts, partitioned)
        return covered

    def _move(self, log: pa.Table, partitioned: bool) -> int:
        """Each partition to its end; how many positions that are."""
        spans = log.group_by("partition").aggregate([("first", "min"), ("next", "max")]).to_pylist()
        for span in spans:
            self.file.move_to(span["next_max"], span["partition"] if partitioned else None)
        return sum(span["next_max"] - span["first_min"] for span in spans)

    def _move_receipts(self, receipts: pa.Table, partitioned: bool) -> None:
        ends = receipts.group_by("partition").aggregate([("next", "max")]).to_pylist()
        for end in ends:
            key = _receipts_key(RECEIPTS - end["partition"]) if partitioned else RECEIPTS_NEXT
            self.file.connection.execute(_PUT_STATE, (key, end["next_max"]))

    def _put_quantiles(self, window_ms: int, root: str, client_type: int) -> None:
        buckets = self.file.connection.execute(
            "SELECT bucket, deliveries, max_us FROM latency_bucket"
            " WHERE window_ms = ? AND root = ? AND client_type = ? ORDER BY bucket",
            (window_ms, root, client_type),
        ).fetchall()
        total = sum(deliveries for _, deliveries, _ in buckets)
        quantiles = [_quantile(buckets, total, share) for share in (0.50, 0.95, 0.99)]
        largest = max(max_us for _, _, max_us in buckets)
        self.file.connection.execute(
            _PUT_LATENCY,
            (window_ms, root, client_type, self._window_s * 1000, total, *quantiles, largest),
        )

    def prune(self, older_than_ms: int, rows_max: int) -> int:
        """Delete windows older than that, and buckets whose window will not change any more."""
        watermark_ms = self.position().watermark_ms
        deleted = 0
        with self.file.transaction():
            for table, before_ms in (
                ("traffic_window", older_than_ms),
                ("queue_window", older_than_ms),
                ("latency_window", older_than_ms),
                ("latency_bucket", max(older_than_ms, watermark_ms - BUCKETS_KEPT_MS)),
            ):
                deleted += self._prune_table(table, before_ms, rows_max)
        return deleted

    def _prune_table(self, table: str, before_ms: int, rows_max: int) -> int:
        """Whole windows, oldest first, as many as hold `rows_max` rows, at least one."""
        edge = self.file.connection.execute(
            f"SELECT MAX(window_ms) FROM (SELECT window_ms FROM {table} WHERE window_ms < ?"
            " ORDER BY window_ms LIMIT ?)",
            (before_ms, rows_max),
        ).fetchone()[0]
        if edge is None:
            return 0
        deleted = self.file.connection.execute(f"DELETE FROM {table} WHERE window_ms <= ?", (edge,))
        return deleted.rowcount


def _receipts_key(number: int) -> str:
    return f"{RECEIPTS_NEXT};{number}"


def _quantile(buckets: list[tuple[int, int, int]], total: int, share: float) -> int:
    """The middle of the bucket that holds that share of the samples, never above its largest."""
    wanted = share * total
    seen = 0
    for bucket, deliveries, max_us in buckets:
        seen += deliveries
        if seen >= wanted:
            return min(max_us, round(math.exp2((bucket + 0.5) / BUCKETS_PER_DOUBLING)))
    return 0
