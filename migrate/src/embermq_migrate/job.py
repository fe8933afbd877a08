"""The migration from the tables of 1.x: pieces are read, judged and written by one task each, in one Spark job.

The driver only counts and cuts before, and watches. What a task has done is in migration.db before the task ends.
"""

import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from embermq_migrate.errors import MigrationError
from embermq_migrate.judging import judged_messages
from embermq_migrate.migrated_clients import ROW_COLUMNS, PieceTerms, PieceWriter, write_piece
from embermq_migrate.migration_file import Counts, MigrationFile, wait_for_writers, writing
from embermq_migrate.old_tables import OldTables, Piece, shown_url
from embermq_migrate.old_tables_source import FORMAT, OldTablesSource, ReadOrder
from embermq_migrate.redis_sessions import RedisPlace, RedisSessionTarget
from embermq_migrate.session_target import SessionTarget
from embermq_migrate.sqlite_sessions import SqliteSessionTarget

if TYPE_CHECKING:
    from pyarrow import RecordBatch

LOOK_S = 0.25
PIECE_CLIENTS = 5_000
_DONE = StructType([StructField("piece", IntegerType(), False), StructField("counts", BinaryType(), False)])

_TOLD = re.compile(r"^\S*MigrationError: (.*)$", re.MULTILINE)
_RAISED = re.compile(r"^\s*(\w+(?:Error|Exception): .*)$", re.MULTILINE)

Progress = Callable[[int, int], None]
"""Messages that are dealt with, and how many there are."""
Reserve = Callable[[int], int]
"""Takes that many generations away from the broker; returns the first."""


class MigrationTerms(Struct, frozen=True, kw_only=True):
    """What is asked for. Without `redis` the target is `broker_db`. `zero_expires` takes an expiry interval of 0 at its
    word; 1.0 and 1.1 wrote it for messages without one."""

    source: str
    schema: str = "public"
    redis: RedisPlace | None = None
    broker_db: str
    file: str
    queue_limit: int = 10_000
    payload_bytes_max: int = 1024 * 1024 + 64 * 1024
    ttl_s: int = 604_800
    session_expiry_s: int = 0xFFFF_FFFF
    zero_expires: bool = False
    piece_rows: int = 20_000
    dry: bool = False

    def said(self) -> str:
        """What one run keeps to from beginning to end."""
        terms = (self.schema, self.queue_limit, self.payload_bytes_max, self.ttl_s, self.zero_expires)
        return msgspec.json.encode(terms).decode()


class MigrationReport(Struct, frozen=True, kw_only=True):
    """What came of it. `columns_absent` did not exist yet in that version."""

    source: str
    target: str
    dry_run: bool
    resumed: bool
    pieces: int
    pieces_done_before: int
    columns_absent: tuple[str, ...]
    seconds: float
    counts: Counts


def migrate(
    spark: SparkSession, terms: MigrationTerms, reserve: Reserve, progress: Progress
) -> MigrationReport:
    """Bring everything over, or what a run that died has left. Raises MigrationError."""
    began = time.monotonic()
    source = shown_url(terms.source)
    target = terms.broker_db if terms.redis is None else terms.redis.shown
    tables = OldTables(terms.source, terms.schema)
    file: MigrationFile | None = None
    try:
        wait_for_writers(Path(terms.file))
        file = MigrationFile(Path(terms.file))
        open_target(terms, read_only=True).close()
        half_done = file.is_half_done()
        run = file.unfinished(source, target, terms.said())
        resumed = run is not None
        if run is None:
            run = file.begin(source, target, terms.said(), tables.cut(terms.piece_rows, PIECE_CLIENTS))
        pieces = file.pieces(run)
        done = file.done(run)
        todo = [piece for piece in pieces if piece.number not in done]
        if todo:
            generations = _reserve(file, todo, reserve, dry=terms.dry)
            job = _Job(spark, terms, tuple(pieces), run, half_done)
            _watch(job, todo, generations, file, progress)
        counts = Counts()
        done_after = file.done(run)
        for one in done_after.values():
            counts.add(one)
        if len(done_after) < len(pieces):
            raise MigrationError(
                f"{len(pieces) - len(done_after)} of {len(pieces)} pieces are missing: start it again"
            )
        file.finish(run)
        return MigrationReport(
            source=source,
            target=target,
            dry_run=terms.dry,
            resumed=resumed,
            pieces=len(pieces),
            pieces_done_before=len(done),
            columns_absent=tables.absent,
            seconds=round(time.monotonic() - began, 3),
            counts=counts,
        )
    finally:
        tables.close()
        if file is not None:
            file.close()


def open_target(terms: MigrationTerms, *, read_only: bool) -> SessionTarget:
    """The store that the terms name. Raises MigrationError."""
    if terms.redis is None:
        return SqliteSessionTarget(Path(terms.broker_db), read_only=read_only)
    return RedisSessionTarget(terms.redis)


def _reserve(file: MigrationFile, todo: list[Piece], reserve: Reserve, *, dry: bool) -> dict[int, int]:
    """Piece number -> its first generation."""
    count = sum(piece.clients for piece in todo)
    first = 1 if dry else reserve(count)
    if not dry and count:
        file.reserve(first, first + count)
    firsts: dict[int, int] = {}
    for piece in todo:
        firsts[piece.number] = first
        first += piece.clients
    return firsts


class _Job(Struct, frozen=True):
    spark: SparkSession
    terms: MigrationTerms
    pieces: tuple[Piece, ...]
    run: int
    half_done: bool


def _watch(
    job: _Job, todo: list[Piece], generations: dict[int, int], file: MigrationFile, progress: Progress
) -> None:
    """Run the job in a thread; tell how far it is. Addresses with passwords travel in files for this user alone."""
    failures: list[BaseException] = []
    with tempfile.TemporaryDirectory(prefix="embermq-") as folder:
        frame = _rows(job, todo, generations, Path(folder))

        def collect() -> None:
            try:
                frame.collect()
            except BaseException as error:
                failures.append(error)

        thread = Thread(target=collect, name="migration", daemon=True)
        thread.start()
        total = sum(piece.messages for piece in job.pieces)
        while thread.is_alive():
            thread.join(LOOK_S)
            progress(sum(counts.read for counts in file.done(job.run).values()), total)
    if failures:
        raise MigrationError(_cause(failures[0])) from failures[0]


def _rows(job: _Job, todo: list[Piece], generations: dict[int, int], folder: Path) -> DataFrame:
    """The job, not started."""
    terms = job.terms
    order = ReadOrder(terms.source, terms.schema, terms.queue_limit, terms.payload_bytes_max, job.pieces)
    order_file, terms_file = folder / "order.json", folder / "terms.json"
    for path, value in ((order_file, order), (terms_file, terms)):
        path.touch(mode=0o600)
        path.write_bytes(msgspec.json.encode(value))
    job.spark.dataSource.register(OldTablesSource)
    numbers = ",".join(str(piece.number) for piece in todo)
    source = job.spark.read.format(FORMAT).options(order=str(order_file), numbers=numbers).load()
    judged = judged_messages(
        source,
        now_ms=time.time_ns() // 1_000_000,
        ttl_s=terms.ttl_s,
        payload_bytes_max=terms.payload_bytes_max,
        zero_expires=terms.zero_expires,
    )
    task = _Task(
        str(terms_file),
        job.run,
        {
            piece.number: PieceTerms(
                generations[piece.number], piece.clients, terms.session_expiry_s, job.half_done, terms.dry
            )
            for piece in todo
        },
    )
    return judged.select("piece", *ROW_COLUMNS).mapInArrow(task.write, _DONE)


class _Task:
    """What one task does with the rows of one piece; travels to Spark's workers."""

    def __init__(self, terms_file: str, run: int, pieces: dict[int, PieceTerms]) -> None:
        self._terms_file = terms_file
        self._run = run
        self._pieces = pieces

    def write(self, batches: "Iterator[RecordBatch]") -> "Iterator[RecordBatch]":
        """Rows in, the counts of the piece out."""
        terms = msgspec.json.decode(Path(self._terms_file).read_bytes(), type=MigrationTerms)
        with writing(Path(terms.file)):
            yield from self._write(batches, terms)

    def _write(self, batches: "Iterator[RecordBatch]", terms: MigrationTerms) -> "Iterator[RecordBatch]":
        import pyarrow as pa

        target = file = writer = None
        number = -1
        try:
            for batch in batches:
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    if writer is None:
                        number = row[0]
                        target = open_target(terms, read_only=terms.dry)
                        file = MigrationFile(Path(terms.file))
                        writer = PieceWriter(target, self._pieces[number], file.is_ours)
                    writer.take(row[1:])
            if writer is not None and file is not None:
                counts = write_piece(writer, file, self._run, number)
                yield pa.RecordBatch.from_pydict(
                    {"piece": pa.array([number], pa.int32()), "counts": pa.array([counts], pa.binary())}
                )
        finally:
            if target is not None:
                target.close()
            if file is not None:
                file.close()


def _cause(error: BaseException) -> str:
    """What ended a task, out of what Spark makes of it: the sentence of its MigrationError, else its error."""
    text = str(error)
    told = _TOLD.findall(text) or _RAISED.findall(text)
    return str(told[-1]).strip() if told else text.strip().partition("\n")[0] or type(error).__name__
