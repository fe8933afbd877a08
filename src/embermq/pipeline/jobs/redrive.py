"""redrive: Spark reads the dead letters of a queue and judges them, then the broker is asked to put them back.

Spark has ended when the first one goes back: what remains of it are eight bytes a dead letter. Nothing of a run is
stored, since what is left to do is what is a dead letter still.
"""

import re
import sqlite3
import tempfile
import time
from array import array
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct
from pyspark import StorageLevel
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, Row, SparkSession

from embermq.pipeline.batch import batch_session
from embermq.pipeline.errors import FilterError, RedriveError
from embermq.pipeline.jobs.putting_back import PuttingBack
from embermq.pipeline.schema import letter_schema
from embermq.pipeline.settings import PipelineSettings
from embermq.pipeline.sources.dead_letters import FORMAT, DeadLettersSource, LetterBounds, LetterFile
from embermq.pipeline.transforms.dead_letters import (
    filterable,
    judged_letters,
    letter_counts,
    letter_samples,
)

_SPARK_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_SAID = re.compile(r"\[[A-Z][A-Z0-9_.]+\] ?([^\n]*)")
_RAISED = re.compile(r"^\s*(\w+(?:Error|Exception): .*)$", re.MULTILINE)


CHECKPOINT_WAIT_S = 5.0
"""broker.db is a second behind the log, as a rule."""


class RedriveTerms(Struct, frozen=True, kw_only=True):
    """What is asked for: dead letters in the queue `letters_in` that come from `queue`, "" for any. `tasks` at a time,
    0 for one a core."""

    letters_in: str
    queue: str = ""
    wanted: str | None = None
    tasks: int = 0
    dry: bool = False


class LetterCount(Struct, frozen=True, kw_only=True):
    """Dead letters of one queue, group and reason: those that the filter chose, and all that were there."""

    queue: str
    group: str
    reason: str
    chosen: int
    there: int


class LetterSample(Struct, frozen=True, kw_only=True):
    """One that the filter chose."""

    id: str
    message_id: str
    queue: str
    group: str
    reason: str
    moved_at: datetime
    last_error: str
    key: str | None


class Selection(Struct, frozen=True):
    """What Spark found; `sequences` of those that the filter chose, the oldest first."""

    sequences: "array[int]"
    counts: tuple[LetterCount, ...] = ()
    samples: tuple[LetterSample, ...] = ()


class RedriveReport(Struct, frozen=True, kw_only=True):
    """What came of it. `gone` were no dead letters any more: put back by a request whose answer was lost, or by
    somebody else, or over. `held`, `orphaned` and `crowded` ones stay: a consumer has them, or the queue that they come
    from is one of `missing_queues`, or it is one of `full_queues`, where their group has no room any more."""

    letters_in: str
    dry_run: bool
    interrupted: bool
    there: int
    chosen: int
    put_back: int
    held: int
    gone: int
    orphaned: int
    missing_queues: tuple[str, ...]
    crowded: int
    full_queues: tuple[str, ...]
    counts: tuple[LetterCount, ...]
    samples: tuple[LetterSample, ...]
    seconds: float


def redrive(
    settings: PipelineSettings, letters: Path, terms: RedriveTerms, putting_back: PuttingBack
) -> RedriveReport:
    """Start Spark when there is a dead letter at all in the file `letters`, then put back what the filter chose. Ctrl-C
    ends the second part with a report. Raises FilterError, RedriveError, BrokerAway."""
    began = time.monotonic()
    file = LetterFile(letters)
    try:
        file.wait_for_log(CHECKPOINT_WAIT_S)  # what was buried just now
        bounds = file.bounds(terms.letters_in)
    except sqlite3.Error as error:
        raise RedriveError(f"{letters} cannot be read: {error}") from error
    finally:
        file.close()
    selection = Selection(array("q"))
    if bounds is not None and bounds.start < bounds.end:
        with (
            tempfile.TemporaryDirectory(prefix="embermq-") as work,
            batch_session(settings, terms.tasks, Path(work)) as spark,
        ):
            selection = select_letters(spark, letters, terms, bounds)
    is_interrupted = False
    if bounds is not None and not terms.dry:
        try:
            putting_back.run(bounds.generation, selection.sequences)
        except KeyboardInterrupt:
            is_interrupted = True
    return RedriveReport(
        letters_in=terms.letters_in,
        dry_run=terms.dry,
        interrupted=is_interrupted,
        there=sum(count.there for count in selection.counts),
        chosen=len(selection.sequences),
        put_back=putting_back.put_back,
        held=putting_back.held,
        gone=putting_back.gone,
        orphaned=putting_back.orphaned,
        missing_queues=putting_back.missing_queues(),
        crowded=putting_back.crowded,
        full_queues=putting_back.full_queues(),
        counts=selection.counts,
        samples=selection.samples,
        seconds=round(time.monotonic() - began, 3),
    )


def select_letters(spark: SparkSession, file: Path, terms: RedriveTerms, bounds: LetterBounds) -> Selection:
    """Judge every dead letter once. Raises FilterError, RedriveError."""
    for logger in _SPARK_LOGGERS:
        PySparkLogger.getLogger(logger).disabled = True  # they say on standard error what is raised as well
    with_messages = terms.wanted is not None and _names_the_message(spark, terms.wanted)
    spark.dataSource.register(DeadLettersSource)
    letters = spark.read.format(FORMAT).options(
        path=str(file),
        generation=str(bounds.generation),
        start=str(bounds.start),
        end=str(bounds.end),
        tasks=str(spark.sparkContext.defaultParallelism),
        queue=terms.queue,
        with_messages="1" if with_messages else "0",
    )
    try:
        # Kept, since a filter may say another thing when it is asked twice.
        judged = judged_letters(letters.load(), terms.wanted).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            chosen = judged.where("chosen").select("sequence").orderBy("sequence").toArrow()
            return Selection(
                array("q", chosen["sequence"].to_numpy().tobytes()),
                tuple(LetterCount(**row.asDict()) for row in letter_counts(judged).collect()),
                tuple(map(_sample, letter_samples(judged).collect())) if terms.dry else (),
            )
        finally:
            judged.unpersist()
    except PySparkException as error:
        raise RedriveError(
            f"dead letters in {terms.letters_in} cannot be read and judged: {_said(error)}"
        ) from error


def _sample(row: Row) -> LetterSample:
    told = row.asDict() | {"moved_at": datetime.fromtimestamp(row["moved_ms"] / 1_000, UTC)}
    return LetterSample(**{name: told[name] for name in LetterSample.__struct_fields__})


def _names_the_message(spark: SparkSession, wanted: str) -> bool:
    """Whether the filter needs more than the dead letter itself, so that messages have to be read. Raises FilterError
    when it means nothing."""

    def columns(*, with_messages: bool) -> DataFrame:
        return filterable(spark.createDataFrame([], letter_schema(with_messages=with_messages)))

    try:
        columns(with_messages=False).where(wanted)
        return False
    except (AnalysisException, ParseException):
        pass  # it says more with all columns
    known = columns(with_messages=True)
    try:
        known.where(wanted)
    except (AnalysisException, ParseException) as error:
        name = (error.getMessageParameters() or {}).get("objectName", "")
        if (error.getCondition() or "").startswith("UNRESOLVED_COLUMN"):
            listed = ", ".join(known.columns)
            raise FilterError(f"there is no column {name}; a dead letter has {listed}") from error
        raise FilterError(_said(error)) from error
    return True


def _said(error: BaseException) -> str:
    """What Spark has to say, in one sentence, without its plans and stack traces."""
    text = str(error)
    found = _SAID.search(text) or _RAISED.search(text)
    said = found[1] if found else text.strip().partition("\n")[0]
    return said.partition(" SQLSTATE: ")[0].strip() or type(error).__name__
