"""A rule over windows of time: its SQL is asked once a window, over all that was accepted within it.

Nothing is remembered of messages: the log has them, so what a killed driver has not given is reckoned again. What a
window makes is written down before the first row of it goes to the target, since the same records may give rows in
another order, or another last digit, the second time. Then rows have numbers, as those of a message have.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import reduce
from hashlib import sha256

import msgspec
from msgspec import Struct
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from embermq.pipeline.errors import RuleStuck
from embermq.pipeline.jobs.bulk_log import BulkBatch, BulkLog
from embermq.pipeline.keeper import short_reason
from embermq.pipeline.log_look import Bounds, Positions
from embermq.pipeline.places import Places
from embermq.pipeline.rules.evaluating import FAILURES
from embermq.pipeline.rules.live import RuleKind, RulePart
from embermq.pipeline.rules.set_aside import ROWS_MAX
from embermq.pipeline.rules.settings import Stretch, query_of_rule
from embermq.pipeline.rules.targets import NumberedRow, numbered
from embermq.pipeline.schema import PARTITION
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.sinks.sink_file import SinkFile
from embermq.pipeline.status import ahead_ms

SETTLED_S = 5
"""How long after its end a window is asked: what was accepted is in the log by then, or counts in the next one."""
CATCH_UP_S = 7 * 86_400
"""Windows that ended longer ago are not asked any more. A number that counts messages is no such window either: a rule
that was asked for each message before begins with them."""
_KINDS = {kind.__name__: kind for kind in (bool, int, float, str, bytes, Decimal, date, datetime)}
"""What a column of a row may be."""


class Window(Struct, frozen=True):
    """One that was reckoned: its end, Unix seconds, up to where the log was read, and its rows with their numbers.
    `asked` says which columns they are kept with, "" for payloads."""

    log_id: int
    end_s: int
    seen: dict[int, int]
    rows: Sequence[NumberedRow] = ()
    asked: str = ""


class WindowLog(BulkLog):
    """A log from which nothing is due by position. `real` is read by the parts themselves."""

    is_partitioned = False

    def __init__(self, real: BulkLog) -> None:
        self.real = real

    def look(self) -> None:
        self.real.look()
        self.bounds = {PARTITION: Bounds(0, 0)} if self.real.bounds else {}

    def identity(self) -> int:
        return self.real.identity()

    def starts(self, query: str, done: Positions) -> dict[int, int]:
        return {PARTITION: 0}

    def bounded(self, starts: Positions, ends: Positions) -> dict[int, int]:
        return {PARTITION: 0}

    def read(self, begin: Positions, end: Positions) -> DataFrame:
        return self.real.read(begin, end)

    def since(self, time_ms: int) -> dict[int, int]:
        return self.real.since(time_ms)

    def probe(self, starts: Positions) -> BulkBatch:
        return self.real.probe({number: bounds.end for number, bounds in self.real.bounds.items()})

    def receipt_bounds(self) -> Mapping[int, Bounds]:
        return {}

    def read_receipts(self, begin: Positions, end: Positions) -> DataFrame:
        raise NotImplementedError

    def measure(self, rows: DataFrame) -> None:
        """Windows are not cut."""

    def publish(self, query: str, positions: Positions) -> None:
        self.real.publish(query, positions)

    def close(self) -> None:
        self.real.close()


class WindowPart(RulePart):
    """See the module. Its number of a row is the end of the window, in seconds, times ROWS_MAX, and which row it is."""

    log: WindowLog

    def __init__(self, kind: RuleKind, settings: DriverSettings, places: Places, log: WindowLog) -> None:
        super().__init__(kind, settings, places, log)
        self._stretch = Stretch(0, 0, 0)
        self._file = WindowFile(places, kind.rule_name)
        self.held.callback(self._file.close)
        self._last = self._file.last()
        self._failed_s = -1

    def open(self, spark: SparkSession) -> None:
        self._target.open()
        now_s = self._now_s()
        if not self._target.next:
            self._target.begin({PARTITION: (now_s + 1) * ROWS_MAX})
        if self._target.next[PARTITION] < (now_s - CATCH_UP_S) * ROWS_MAX:
            self._target.move(PARTITION, (now_s - CATCH_UP_S) * ROWS_MAX)
        self._session.check(self._rule_name, self._rule)

    def positions(self) -> Positions:
        return {PARTITION: 0}

    def begin_at(self, begin: Positions) -> None:
        """It begins with the window that is under way."""

    def write(self, batch: BulkBatch) -> int:
        """The probe: what it makes of one record."""
        self._stretch = self._rule.stretch(self._now_s())
        with self._at_work(f"{PARTITION}:0"):
            self._evaluation.collected(batch.rows)
        return 0

    def moved(self, begin: Positions, end: Positions) -> int:
        return 0

    def reached(self, done: Positions) -> Positions:
        if self._last is not None and self._last.log_id == self.log.identity():
            return self._last.seen
        return {number: bounds.end for number, bounds in self.log.real.bounds.items()}

    def waiting(self) -> int:
        return int(self._now_s() >= self._next_end_s() + SETTLED_S)

    def write_more(self, spark: SparkSession) -> None:
        """One window."""
        end_s = self._next_end_s()
        with self._at_work(f"{PARTITION}:{end_s}"):
            rows = self._rows_of(end_s)
        new = [one for one in rows if one[0] >= self._target.next[PARTITION]]
        self._messages += self._target.put(PARTITION, new)
        self._target.move(PARTITION, (end_s + 1) * ROWS_MAX)

    def _next_end_s(self) -> int:
        """The end of the window that comes next, or of the one of which it has given a part."""
        done_s, given = divmod(self._target.next[PARTITION], ROWS_MAX)
        every_s = self._rule.every_s
        return done_s if given else (done_s - 1) // every_s * every_s + every_s

    def _rows_of(self, end_s: int) -> Sequence[NumberedRow]:
        """Those that were written down, or else what it makes of the window; none, when that fails again."""
        log_id, last = self.log.identity(), self._last
        if last is not None and (last.log_id, last.end_s) == (log_id, end_s) and self._fits(last):
            return last.rows
        self._stretch = self._rule.stretch(end_s)
        follows = last is not None and (last.log_id, last.end_s) == (log_id, self._stretch.start_s)
        seen = {number: bounds.end for number, bounds in self.log.real.bounds.items()}
        before = {number: last.seen.get(number, 0) for number in seen} if last is not None and follows else {}
        rows = numbered(self._made(self._records(before, seen)))
        window = Window(log_id, end_s, seen, rows, self._asked())
        self._file.write(window)
        self._last = window
        return rows

    def _fits(self, kept: Window) -> bool:
        """Whether its rows are what the target takes now: the rule may have been changed, or the columns of a file."""
        if not kept.rows:
            return True
        if self._rule.has_columns:
            self._columns = self._session.columns(self._rule_name, self._rule)
        return kept.asked == self._asked()

    def _asked(self) -> str:
        rule = self._rule
        return (
            sha256((rule.sql + self._columns.simpleString()).encode()).hexdigest() if rule.has_columns else ""
        )

    def _records(self, before: Mapping[int, int], seen: Mapping[int, int]) -> DataFrame:
        """What was accepted within the window, and what the window before it did not see."""
        stretch, bounds = self._stretch, self.log.real.bounds
        begin = self.log.since(stretch.begin_s * 1_000)
        for number, end in seen.items():
            at = min(begin.get(number, 0), before.get(number, end), end)
            begin[number] = max(bounds[number].first, at)
        accepted = F.unix_millis("accepted_at")
        is_late = (
            (F.col("partition") == number) & (F.col("offset") >= offset) for number, offset in before.items()
        )
        is_new = reduce(Column.__or__, is_late, accepted >= stretch.begin_s * 1_000)
        return self.log.read(begin, seen).where(is_new & (accepted < stretch.end_s * 1_000))

    def _made(self, records: DataFrame) -> Sequence[Row]:
        """Raises what is the fault of no message, and at first all else."""
        end_s = self._stretch.end_s
        try:
            return self._evaluation.collected(records)
        except RuleStuck:
            raise
        except FAILURES as error:
            self._evaluation.collected(records.where("offset IS NULL"))
            if self._failed_s != end_s:
                self._failed_s = end_s
                raise
            self._aside.add("failed", PARTITION, end_s * ROWS_MAX, short_reason(error))
            return ()

    def _seen_stretch(self) -> Stretch | None:
        return self._stretch

    def _now_s(self) -> int:
        """In the broker's time, which messages are accepted in."""
        return (time.time_ns() // 1_000_000 - ahead_ms(self.places)) // 1_000


class WindowFile:
    """In rules.db: the last window that was reckoned."""

    def __init__(self, places: Places, rule: str) -> None:
        self._file = SinkFile(places.rules, query_of_rule(rule), (__package__ or "", "rule_windows.sql"))
        self._rule = rule

    def last(self) -> Window | None:
        """None before the first."""
        connection = self._file.connection
        sql = "SELECT log_id, end_s, seen FROM rule_windows WHERE rule = ?"
        found = connection.execute(sql, (self._rule,)).fetchone()
        if found is None:
            return None
        log_id, end_s, seen = found
        sql = """
            SELECT number, topic, payload, asked, columns FROM rule_window_rows
            LEFT JOIN rule_window_columns USING (rule, number) WHERE rule = ? ORDER BY number
        """
        rows, asked = [], ""
        for number, topic, payload, kept_asked, columns in connection.execute(sql, (self._rule,)):
            asked = kept_asked or ""  # the same in all: they were written at once
            own = {} if columns is None else {"columns": _columns_in(columns)}
            row = Row(partition=PARTITION, offset=end_s, chain="", topic=topic, payload=payload, **own)
            rows.append((number, row))
        return Window(log_id, end_s, msgspec.json.decode(seen, type=dict[int, int]), rows, asked)

    def write(self, window: Window) -> None:
        """In the place of the one before, which has been given. Durable when it returns."""
        with self._file.transaction() as connection:
            noted = (self._rule, window.log_id, window.end_s, msgspec.json.encode(window.seen))
            connection.execute("INSERT OR REPLACE INTO rule_windows VALUES (?, ?, ?, ?)", noted)
            connection.execute("DELETE FROM rule_window_rows WHERE rule = ?", (self._rule,))
            connection.execute("DELETE FROM rule_window_columns WHERE rule = ?", (self._rule,))
            connection.executemany(
                "INSERT INTO rule_window_rows VALUES (?, ?, ?, ?)",
                [(self._rule, number, row["topic"], bytes(row["payload"])) for number, row in window.rows],
            )
            if window.asked:
                connection.executemany(
                    "INSERT INTO rule_window_columns VALUES (?, ?, ?, ?)",
                    [(self._rule, at, window.asked, _columns_of(row)) for at, row in window.rows],
                )

    def close(self) -> None:
        self._file.close()


def _columns_of(row: Row) -> bytes:
    """Names, types and values: JSON would not tell texts, bytes and times apart."""
    named = ((name, _kept(value)) for name, value in row["columns"].asDict().items())
    return msgspec.msgpack.encode([(name, type(value).__name__, value) for name, value in named])


def _kept(value: object) -> object:
    if isinstance(value, datetime):  # without a zone, and where clocks are set back it may be two
        with suppress(ValueError, OverflowError):
            return value.astimezone(UTC)
    return bytes(value) if isinstance(value, bytearray) else value


def _columns_in(kept: bytes) -> Row:
    found = msgspec.msgpack.decode(kept, type=list[tuple[str, str, object]])
    values = [None if value is None else msgspec.convert(value, _KINDS[kind]) for _, kind, value in found]
    return Row(*(name for name, _, _ in found))(*values)
