"""What a rule makes of a batch, whatever its messages do to Spark.

One bad message fails the whole job of Spark that it is in. So a batch that fails is halved until the message is found;
the others have their effect, in their order. A job that does not end is ended, and counts as failed.
"""

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator

from msgspec import Struct
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from embermq.pipeline.errors import RuleError, RuleStuck
from embermq.pipeline.jvm_thread import closing_connection
from embermq.pipeline.keeper import short_reason
from embermq.pipeline.rules.set_aside import ROWS_MAX

GRACE_S = 30.0
"""How long the tasks of a job that was ended may take to notice it: they look up from time to time."""
_LOOK_S = 0.1
FAILURES = (PySparkException, Py4JJavaError, RuleError, ValueError, OverflowError)
"""What a message can bring about: the last two by a date that Spark has and Python has not. A Java that is gone shows
in other errors."""


class MadeRows(Struct, frozen=True):
    """Rows of the messages of a partition below offset `end` that were not in the ones before; or `failure`, why the
    last of them has none. `end` is None for all that there are."""

    rows: list[Row]
    partition: int = 0
    end: int | None = None
    failure: str = ""


class Evaluation:
    """Of one rule. `rows_of` understands the rule for the records that it is given."""

    def __init__(
        self, spark: SparkSession, name: str, rows_of: Callable[[DataFrame], DataFrame], timeout_s: float
    ) -> None:
        self._spark = spark
        self._name = name
        self._rows_of = rows_of
        self._timeout_s = timeout_s

    def found(self, records: DataFrame) -> Iterator[MadeRows]:
        """In the order of the messages of each partition. Raises RuleRefused, RuleStuck, and what is the fault of no
        message."""
        try:
            rows = self.collected(records)
        except RuleStuck:
            raise
        except FAILURES:
            yield from self._parts(records)
        else:
            yield MadeRows(rows)

    def _parts(self, records: DataFrame) -> Iterator[MadeRows]:
        # A log that cannot be read, or another table that is gone, is the fault of no message: these raise.
        ranges = records.groupBy("partition").agg(F.min("offset"), F.max("offset")).collect()
        self.collected(records.where("offset IS NULL"))
        waiting = [(number, first, last + 1) for number, first, last in sorted(ranges, reverse=True)]
        while waiting:
            number, begin, end = waiting.pop()
            # Within the records: above the rule's own conditions it would be asked after them.
            part = records.where(
                (F.col("partition") == number) & (F.col("offset") >= begin) & (F.col("offset") < end)
            )
            try:
                yield MadeRows(self._tried(part, tries=1 if end - begin > 1 else 2), number, end)
            except RuleStuck:
                raise
            except FAILURES as error:
                middle = (begin + end) // 2
                if middle > begin:
                    waiting += [(number, middle, end), (number, begin, middle)]
                else:
                    yield MadeRows([], number, end, short_reason(error))

    def _tried(self, records: DataFrame, tries: int) -> list[Row]:
        while True:
            tries -= 1
            try:
                return self.collected(records)
            except RuleStuck:
                raise
            except FAILURES:
                if not tries:
                    raise

    def collected(self, records: DataFrame) -> list[Row]:
        """All that it makes of them. Raises what `FAILURES` has, and RuleStuck."""
        context, group = self._spark.sparkContext, f"rule-{self._name}-{uuid.uuid4().hex}"
        is_late = threading.Event()

        @closing_connection
        def end_it() -> None:
            is_late.set()
            context.cancelJobGroup(group)

        rows = self._rows_of(records)
        watch = threading.Timer(self._timeout_s, end_it)
        watch.daemon = True
        context.setJobGroup(group, f"rule {self._name}", interruptOnCancel=True)
        watch.start()
        try:
            found = rows.collect()
        except FAILURES as error:
            if not is_late.is_set():
                raise
            self._wait_for_tasks(group)
            raise RuleError(f"it takes longer than {self._timeout_s:g} s") from error
        finally:
            watch.cancel()
            context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # none from here on
        made = Counter((row["partition"], row["offset"]) for row in found)
        for (_, offset), many in made.items():
            if many > ROWS_MAX:
                raise RuleError(f"it makes more than {ROWS_MAX:,} messages of the one at offset {offset}")
        return found

    def _wait_for_tasks(self, group: str) -> None:
        """Spark says that the job has ended, its threads may not have noticed: some of Java cannot be interrupted."""
        tracker = self._spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        stages = [stage for job in jobs if job is not None for stage in job.stageIds]
        until_s = time.monotonic() + GRACE_S
        while self._works_on(stages):
            if time.monotonic() > until_s:
                raise RuleStuck(f"it takes longer than {self._timeout_s:g} s, and Spark cannot end it")
            time.sleep(_LOOK_S)

    def _works_on(self, stages: list[int]) -> bool:
        """Spark names its threads after what they do."""
        threads = self._spark._jvm.java.lang.Thread.getAllStackTraces().keySet().toArray()  # type: ignore[union-attr]
        names = [str(thread.getName()) for thread in threads]
        return any(f"in stage {stage}." in name for stage in stages for name in names)
