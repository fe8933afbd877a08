"""A rule that runs: the rows of each batch go to its target, each with the number of the message that it comes of.

What that target has had it leaves out; so a driver that is killed goes on from there.

A rule that Spark's Java dies of is paused, so that the pipeline lives. Each rule notes before a batch that it is at
work, and takes the note away after it. Who finds a note when the driver starts was at work when the one before died.
Then rules work one at a time, until the one is known.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from embermq.pipeline.errors import RuleError, RuleStuck
from embermq.pipeline.jobs.bulk_log import BulkBatch, BulkLog
from embermq.pipeline.jobs.bulk_parts import BulkPart
from embermq.pipeline.log_look import Positions
from embermq.pipeline.paused import pause_queries
from embermq.pipeline.places import Places
from embermq.pipeline.rules.evaluating import Evaluation, MadeRows
from embermq.pipeline.rules.session import RuleSession, columns_in
from embermq.pipeline.rules.set_aside import ROWS_MAX, SetAside
from embermq.pipeline.rules.settings import RuleSettings, Stretch, query_of_rule
from embermq.pipeline.rules.targets import BrokerTarget, RuleDoor, RuleTarget, by_partition
from embermq.pipeline.rules.webhook import WebhookTarget
from embermq.pipeline.schema import PARTITION
from embermq.pipeline.session import jvm_process
from embermq.pipeline.settings import DriverSettings

DEATHS_MAX = 3
FOLDER = "rules-at-work"


class _Note(Struct, frozen=True):
    position: str
    deaths: int


class Care:
    """Of all rules of one driver. Threads share it."""

    def __init__(self, places: Places) -> None:
        self._data_dir = places.data_dir
        self._folder = places.work / FOLDER
        self._folder.mkdir(parents=True, exist_ok=True)
        self._found = {
            path.name: note for path in self._folder.iterdir() if (note := _read(path)) is not None
        }
        self._alone = threading.Lock()

    @contextmanager
    def at_work(self, rule: str, position: str) -> Iterator[None]:
        """While the rule has a batch from `position` on, partition and offset. Raises RuleError when Java has died of
        that too often."""
        if not self._found:
            with self._noted(rule, position, 0):
                yield
            return
        with self._alone:
            before = self._found.get(rule)
            deaths = before.deaths if before is not None and before.position == position else 0
            if deaths >= DEATHS_MAX:
                (self._folder / rule).unlink(missing_ok=True)
                del self._found[rule]
                reason = f"Spark's Java has ended {deaths} times while it read from message {position} on"
                self.pause(rule, reason)
                raise RuleError(reason)
            with self._noted(rule, position, deaths):
                yield
            self._found.pop(rule, None)

    def pause(self, rule: str, reason: str) -> None:
        """Let it rest until a person resumes it."""
        pause_queries(self._data_dir, [query_of_rule(rule)], reason)

    @contextmanager
    def _noted(self, rule: str, position: str, deaths: int) -> Iterator[None]:
        note = self._folder / rule
        note.write_bytes(msgspec.json.encode(_Note(position, deaths + 1)))
        try:
            yield
        except Exception as error:
            if not is_java_gone(error):
                note.unlink(missing_ok=True)
            raise
        note.unlink(missing_ok=True)


def is_java_gone(error: Exception) -> bool:
    """How PySpark tells that its Java has ended."""
    if isinstance(error, Py4JJavaError):
        return False
    return isinstance(error, Py4JError | ConnectionError | EOFError)


def _read(path: Path) -> _Note | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Note)
    except (OSError, msgspec.DecodeError):
        return None


class RulePart(BulkPart):
    """One rule. It begins with the messages that come after it was first seen."""

    def __init__(self, kind: "RuleKind", settings: DriverSettings, places: Places, log: BulkLog) -> None:
        super().__init__(settings, places, log)
        self.name = kind.name
        self._rule_name = kind.rule_name
        self._rule = kind.rule
        self._session = kind.session
        self._care = kind.care
        self._evaluation = Evaluation(kind.session.spark, kind.rule_name, self._rows, settings.rule_timeout_s)
        self._aside = SetAside(places.rules, kind.rule_name)
        self._columns = StructType()
        """Of the rows made last, where they are kept with their columns: those of a file may be others next time."""
        self._target = self._target_in(RuleDoor(places, kind.rule_name))
        self.held.callback(self._target.close)
        self._messages = 0

    def open(self, spark: SparkSession) -> None:
        self._target.open()
        if not self._target.next:  # first: what comes while its SQL is refused is for it, too
            self.begin_at({partition: bounds.end for partition, bounds in self.log.bounds.items()})
        self._session.check(self._rule_name, self._rule)

    def positions(self) -> Positions:
        return {partition: number // ROWS_MAX for partition, number in self._target.next.items()}

    def begin_at(self, begin: Positions) -> None:
        self._target.begin({partition: offset * ROWS_MAX for partition, offset in begin.items()})

    def counts(self) -> dict[str, int]:
        return {"messages": self._messages, **self._aside.totals}

    def write(self, batch: BulkBatch) -> int:
        """Returns how many messages were published."""
        before = self._messages
        at = ", ".join(f"{partition}:{offset}" for partition, offset in sorted(self.positions().items()))
        with self._at_work(at):
            for found in self._evaluation.found(batch.rows):
                self._take(found)
        return self._messages - before

    def moved(self, begin: Positions, end: Positions) -> int:
        for partition, offset in end.items():
            if offset * ROWS_MAX > self._target.next[partition]:
                self._target.move(partition, offset * ROWS_MAX)
        if self.log.is_partitioned:
            return 0  # a batch begins at what is there
        return max(0, min(self.log.bounds[PARTITION].first, end[PARTITION]) - begin[PARTITION])

    def keep_up(self, now_ms: int) -> None:
        """Of targets that are kept in order here."""
        self._target.keep_up(now_ms)

    @contextmanager
    def _at_work(self, at: str) -> Iterator[None]:
        """While Spark reckons what comes from there on."""
        with self._care.at_work(self._rule_name, at):
            try:
                yield
            except RuleStuck as error:  # nothing but its end stops what Java does
                self._care.pause(self._rule_name, str(error))
                end_java(self._session.spark)
                raise

    def _target_in(self, door: RuleDoor) -> RuleTarget:
        """Where its rows go. What a target needs is loaded for that target alone."""
        name, rule, aside, log = self._rule_name, self._rule, self._aside, self.log
        if rule.to == "lake":
            from embermq.pipeline.rules.table_targets import LakeTarget

            return LakeTarget(
                name,
                rule,
                door,
                aside,
                settings=self.settings,
                places=self.places,
                log_id=log.identity,
                spark=self._session.spark,
                columns=lambda: self._columns,
                run=self._session.run,
            )
        if rule.to == "sql":
            from embermq.pipeline.rules.table_targets import SqlTarget

            return SqlTarget(name, rule, door, aside, log_id=log.identity, settings=self.settings.sql)
        if rule.to == "webhook":
            return WebhookTarget(name, rule, door, aside, log.identity)
        kafka = self.settings.kafka
        return BrokerTarget(name, rule, door, aside, slot=None if kafka is None else kafka.slot)

    def _rows(self, records: DataFrame) -> DataFrame:
        rows = self._session.rows(self._rule_name, self._rule, records, self._seen_stretch())
        if self._rule.has_columns:
            self._columns = columns_in(rows)
        return rows.where("offset >= 0")

    def _seen_stretch(self) -> Stretch | None:
        """Of a rule over windows."""
        return None

    def _take(self, found: MadeRows) -> None:
        done = self._target.next
        for partition, rows in by_partition(found.rows).items():
            new = [one for one in rows if one[0] >= done[partition]]
            self._messages += self._target.put(partition, new)
        if found.end is None or found.end * ROWS_MAX <= done[found.partition]:
            return  # the batch is done when all of it is; or it has been before
        if found.failure:
            self._aside.add("failed", found.partition, (found.end - 1) * ROWS_MAX, found.failure)
        self._target.move(found.partition, found.end * ROWS_MAX)


class RuleKind:
    """Makes the part of one rule."""

    def __init__(self, name: str, rule: RuleSettings, session: RuleSession, care: Care) -> None:
        self.name = query_of_rule(name)
        self.care = care
        self.rule_name = name
        self.rule = rule
        self.session = session

    def __call__(self, settings: DriverSettings, places: Places, log: BulkLog) -> RulePart:
        if self.rule.every:
            from embermq.pipeline.rules.windows import WindowLog, WindowPart

            assert isinstance(log, WindowLog)
            return WindowPart(self, settings, places, log)
        return RulePart(self, settings, places, log)


def end_java(spark: SparkSession) -> None:
    """The driver ends with it, and is started again."""
    jvm_process(spark).kill()
