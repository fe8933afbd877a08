"""traffic.db: windows of rates, sizes and latencies, added up batch by batch."""

import math
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from embermq.pipeline.log_look import Bounds
from embermq.pipeline.schema import PARTITION, RECEIPTS
from embermq.pipeline.sinks.sink_file import SinkFile
from embermq.pipeline.transforms.batch_values import is_new
from embermq.pipeline.transforms.traffic import BUCKETS_PER_DOUBLING, traffic_windows
from embermq.pipeline.transforms.traffic_table import traffic_table

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


class TrafficWindows:
    """Adds a batch to the windows in one transaction.

    Spark keeps no state: sums, counts and latency buckets add up, so a window is its row here, and the watermark
    moves in the transaction of the counts. A lost checkpoint or a kill costs and repeats nothing.
    """

    def __init__(self, path: Path, window_s: int, watermark_s: int, *, partitioned: bool = False) -> None:
        """`partitioned`: of a log in Kafka."""
        self.file = SinkFile(path, READER, ("embermq.formats", "traffic.sql"))
        self._window_s = window_s
        self._watermark_ms = watermark_s * 1000
        self._partitioned = partitioned

    def positions(self) -> dict[int, int]:
        """Below these everything is in the windows, by partition of the message log."""
        if self._partitioned:
            return self.file.positions()
        at = self.file.position()
        return {} if at is None else {PARTITION: at}

    def begin_at(self, begin: Mapping[int, int]) -> None:
        """Say where partitions begin; no effect for those that have begun."""
        for number, offset in begin.items():
            self.file.begin_at(offset, self._number(number))

    def receipts_done(self) -> dict[int, int]:
        """Below these all receipts are in the windows."""
        if not self._partitioned:
            return {PARTITION: self._state().get(RECEIPTS_NEXT, 0)}
        return {
            int(name.rpartition(";")[2]): at
            for name, at in self._state().items()
            if name.startswith(f"{RECEIPTS_NEXT};")
        }

    def begin_receipts(self, bounds: Mapping[int, Bounds]) -> dict[int, int]:
        """Where the receipts, of which these are there, are read from. Those that end before what is in the windows
        were made anew."""
        done = self.receipts_done()
        with self.file.transaction() as connection:
            for number in (number for number, found in bounds.items() if done.get(number, 0) > found.end):
                connection.execute("DELETE FROM traffic_state WHERE name = ?", (self._receipts_key(number),))
        return receipts_begin(bounds, done)

    def write_table(self, events: pa.Table) -> int:
        """The same of rows in an Arrow table, all of one partition."""
        numbers = events["partition"].unique().to_pylist()
        assert len(numbers) <= 1, "of the embedded log"
        done = self.positions() | {RECEIPTS - number: at for number, at in self.receipts_done().items()}
        at = max((done.get(number, 0) for number in numbers), default=0)
        new = events.filter(pc.greater_equal(events["offset"], at))
        return self._add(traffic_table(new, self._window_s, self._watermark()))

    def write(self, events: DataFrame) -> int:
        """Take rows of the traffic source; returns the number of positions of the message log it covered."""
        receipts = {RECEIPTS - number: at for number, at in self.receipts_done().items()}
        new = events.where(is_new(self.positions() | receipts))
        return self._add(traffic_windows(new, self._window_s, self._watermark()).toArrow())

    def _state(self) -> dict[str, int]:
        return dict(self.file.connection.execute("SELECT name, value FROM traffic_state").fetchall())

    def _watermark(self) -> int:
        """From when on messages are not late."""
        return self._state().get("watermark_ms", 0)

    def _number(self, partition: int) -> int | None:
        return partition if self._partitioned else None

    def _receipts_key(self, number: int) -> str:
        return f"{RECEIPTS_NEXT};{number}" if self._partitioned else RECEIPTS_NEXT

    def _add(self, groups: pa.Table) -> int:
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
                covered = self._move(log)
                late = pc.sum(log["late"]).as_py()
                messages = pc.sum(log["messages"]).as_py()
                missing = pc.sum(log["missing"]).as_py()
                data = pc.sum(log["payload_bytes"]).as_py() or 0
                rejected = pc.sum(log["rejected"]).as_py()
                self.file.count(
                    records=messages + late + missing + rejected,
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
                self._move_receipts(receipts)
        return covered

    def _move(self, log: pa.Table) -> int:
        """Each partition to its end; how many positions that are."""
        spans = log.group_by("partition").aggregate([("first", "min"), ("next", "max")]).to_pylist()
        for span in spans:
            self.file.move_to(span["next_max"], self._number(span["partition"]))
        return sum(span["next_max"] - span["first_min"] for span in spans)

    def _move_receipts(self, receipts: pa.Table) -> None:
        ends = receipts.group_by("partition").aggregate([("next", "max")]).to_pylist()
        for end in ends:
            key = self._receipts_key(RECEIPTS - end["partition"])
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
        watermark_ms = self._watermark()
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


def receipts_begin(bounds: Mapping[int, Bounds], done: Mapping[int, int]) -> dict[int, int]:
    """Where each partition of the receipts goes on, below whose end it is."""
    return {
        number: found.first if (at := done.get(number, 0)) > found.end else max(at, found.first)
        for number, found in bounds.items()
    }


def _quantile(buckets: list[tuple[int, int, int]], total: int, share: float) -> int:
    """The middle of the bucket that holds that share of the samples, never above its largest."""
    wanted = share * total
    seen = 0
    for bucket, deliveries, max_us in buckets:
        seen += deliveries
        if seen >= wanted:
            return min(max_us, round(math.exp2((bucket + 0.5) / BUCKETS_PER_DOUBLING)))
    return 0
