"""Dead letters of one queue as a Spark data source, for batches: `format("embermq_dead_letters")`.

Options: `path` (broker.db), `generation` of the dead-letter queue, `start` and `end` (sequences in it), `tasks`,
`queue` (whose they are, "" for anybody's), `with_messages` ("1" for the columns of the message too: each record is
then read and decoded). A row is a dead letter as it is at that moment; one that goes meanwhile is left out. Where the
message cannot be read its columns are null and `error` says why.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import cast

import pyarrow as pa
from msgspec import Struct
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from embermq.formats.entry_rest import decode_rest
from embermq.formats.log_record import split_batch
from embermq.formats.segments import FOLDER
from embermq.model.queue_rows import DeadLetter
from embermq.pipeline.schema import letter_schema, record_schema
from embermq.pipeline.sources.log_file import BrokerFile, LogFile
from embermq.pipeline.sources.record_rows import BrokenRow, RecordRows
from embermq.queues.settling import message_id_of

FORMAT = "embermq_dead_letters"
ROWS_PER_READ = 2_000
"""Dead letters of one read: one Arrow batch, or several when they come with messages that are large."""
BYTES_PER_BATCH = 8 * 1024 * 1024
PIECE_SEQUENCES = 10_000
"""What is not worth another task."""
RUNS_MAX = 100
"""Parts of a queue that are looked for between its gaps, which restored backups leave."""

_GENERATION = "SELECT MAX(generation) FROM queue WHERE name = ?"
_BOUNDS = "SELECT MIN(sequence), MAX(sequence) + 1 FROM queue_entry WHERE queue = ?"
_BELOW = "SELECT MAX(sequence) + 1 FROM queue_entry WHERE queue = ? AND sequence < ?"
_FROM = "SELECT MIN(sequence) FROM queue_entry WHERE queue = ? AND sequence >= ?"
_ENTRIES = """
SELECT sequence, "offset", message_key, rest FROM queue_entry
WHERE queue = ? AND sequence >= ? AND sequence < ? ORDER BY sequence LIMIT ?
"""
_APPLIED = "SELECT name, value FROM meta WHERE name IN ('log_file', 'log_position', 'log_end')"
CHECKPOINT_LOOK_S = 0.05
_KEPT = 'SELECT record FROM queue_body WHERE "offset" = ?'


class LetterBounds(Struct, frozen=True):
    """Which queue it is, and the sequences [start, end) that it has now; equal when it has none."""

    generation: int
    start: int
    end: int


class Letter(Struct, frozen=True):
    """One dead letter. `offset` is where its record stands."""

    sequence: int
    offset: int
    key: str | None
    about: DeadLetter


class LetterFile(BrokerFile):
    """Reads dead letters and their records by short transactions."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._log = LogFile(path.with_name(FOLDER))
        self._base = 0
        self._frames: list[bytes] = []

    def wait_for_log(self, timeout_s: float) -> None:
        """Until broker.db has what the log has now, or the time is over: while the broker is down it stays as it is."""
        if (end := self._log.position()) is None:
            return
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            rows = self.query(_APPLIED) or []
            if dict(rows).get("log_end", 0) >= end.offset and _place(dict(rows)) >= (
                end.number,
                end.position,
            ):
                return
            time.sleep(CHECKPOINT_LOOK_S)

    def bounds(self, name: str) -> LetterBounds | None:
        """Of the queue of this name; None when it has never been stored."""
        found = self.query(_GENERATION, (name,)) or [(None,)]
        generation = found[0][0]
        if generation is None:
            return None
        start, end = (self.query(_BOUNDS, (generation,)) or [(None, None)])[0]
        return LetterBounds(generation, start or 0, end or 0)

    def runs(self, bounds: LetterBounds) -> list[tuple[int, int]]:
        """The sequences in their order, without the widest gaps: a restored backup leaves one, of many more numbers
        than dead letters. Always the widest run is parted in its middle, and what is not there is left out."""
        found = [(bounds.start, bounds.end)]
        while len(found) < RUNS_MAX:
            start, end = widest = max(found, key=lambda run: run[1] - run[0])
            if end - start <= PIECE_SEQUENCES:
                break
            middle = (start + end) // 2
            below = max(start, self._number(_BELOW, bounds.generation, middle, start))
            above = min(end, self._number(_FROM, bounds.generation, middle, end))
            at = found.index(widest)
            found[at : at + 1] = [(start, below), (above, end)]
        return [run for run in found if run[0] < run[1]]

    def _number(self, statement: str, generation: int, middle: int, otherwise: int) -> int:
        """`otherwise` when there is none on that side."""
        found: int | None = (self.query(statement, (generation, middle)) or [(None,)])[0][0]
        return otherwise if found is None else found

    def letters(self, generation: int, start: int, end: int) -> Iterator[list[Letter]]:
        """The dead letters among the sequences [start, end), in their order, page by page."""
        while start < end:
            rows = self.query(_ENTRIES, (generation, start, end, ROWS_PER_READ)) or []
            yield [
                Letter(sequence, offset, key, about)
                for sequence, offset, key, rest in rows
                if rest is not None and (about := decode_rest(rest).dead_letter) is not None
            ]
            if len(rows) < ROWS_PER_READ:
                return
            start = rows[-1][0] + 1

    def record(self, offset: int) -> bytes | None:
        """One record; None when nobody has it. The batch of the log that was read last is kept."""
        if not self._holds(offset):
            self._load(offset)
        if self._holds(offset):
            return self._frames[offset - self._base]
        # After the log: in between it may have let go, and it copies first.
        kept = self.query(_KEPT, (offset,))
        return kept[0][0] if kept else None

    def _holds(self, offset: int) -> bool:
        return self._base <= offset < self._base + len(self._frames)

    def _load(self, offset: int) -> None:
        self._frames = []
        for batch in self._log.batches(offset, offset + 1):
            self._base, self._frames = batch.base, split_batch(batch.body, batch.count)

    def close(self) -> None:
        super().close()
        self._log.close()


def _place(applied: dict[str, int]) -> tuple[int, int]:
    return applied.get("log_file", 0), applied.get("log_position", 0)


class LetterRange(InputPartition):
    """Sequences [start, end), for one task."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__((start, end))
        self.start = start
        self.end = end


class DeadLettersSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return letter_schema(with_messages=self.options["with_messages"] == "1")

    def reader(self, schema: StructType) -> DataSourceReader:
        return _DeadLetterReader(dict(self.options), schema)


class _DeadLetterReader(DataSourceReader):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        start, end = int(self._options["start"]), int(self._options["end"])
        file = LetterFile(Path(self._options["path"]))
        try:
            runs = file.runs(LetterBounds(int(self._options["generation"]), start, end))
        finally:
            file.close()
        size = sum(end - start for start, end in runs)
        pieces = max(1, min(int(self._options["tasks"]), size // PIECE_SEQUENCES))
        cuts = [start, *(_at(runs, size * piece // pieces) for piece in range(1, pieces)), end]
        return [LetterRange(*cut) for cut in pairwise(cuts)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        piece = cast(LetterRange, partition)
        generation, queue = int(self._options["generation"]), self._options["queue"]
        file = LetterFile(Path(self._options["path"]))
        try:
            for page in file.letters(generation, piece.start, piece.end):
                ours = [letter for letter in page if not queue or letter.about.queue == queue]
                if self._options["with_messages"] == "1":
                    yield from self._with_messages(file, generation, ours)
                elif ours:
                    yield self._batch(generation, ours, {})
        finally:
            file.close()

    def _with_messages(
        self, file: LetterFile, generation: int, letters: list[Letter]
    ) -> "Iterator[pa.RecordBatch]":
        """In the order of the log, so that each of its batches is read once, not once a message: they die in another
        one. No more in one batch after the letter that makes it large."""
        rows = RecordRows(to_arrow_schema(record_schema(), timezone="UTC"))
        held: list[Letter] = []
        size = 0
        for letter in sorted(letters, key=lambda letter: letter.offset):
            record = file.record(letter.offset)
            reason = "the record is not there any more"
            size += rows.add((letter.offset, record) if record is not None else BrokenRow(0, 1, reason, b""))
            held.append(letter)
            if size >= BYTES_PER_BATCH:
                yield self._batch(generation, held, _columns(rows.take()))
                held, size = [], 0
        if held:
            yield self._batch(generation, held, _columns(rows.take()))

    def _batch(
        self, generation: int, letters: list[Letter], messages: "dict[str, pa.Array]"
    ) -> "pa.RecordBatch":
        import pyarrow as pa

        about = [letter.about for letter in letters]
        columns: dict[str, list[object]] = {
            "sequence": [letter.sequence for letter in letters],
            "id": [message_id_of(generation, letter.sequence) for letter in letters],
            "message_id": [one.message_id for one in about],
            "queue": [one.queue for one in about],
            "group": [one.group for one in about],
            "reason": [one.reason for one in about],
            "deliveries": [one.attempts.deliveries for one in about],
            "failures": [one.attempts.failures for one in about],
            "last_error": [one.attempts.last_error for one in about],
            "first_delivered_at": [one.attempts.first_delivered_ms * 1_000 or None for one in about],
            "moved_at": [one.moved_ms * 1_000 for one in about],
            "key": [letter.key for letter in letters],
        }
        schema = to_arrow_schema(self._schema, timezone="UTC")
        arrays = [
            pa.array(columns[field.name], field.type) if field.name in columns else messages[field.name]
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _at(runs: Sequence[tuple[int, int]], number: int) -> int:
    """The sequence that so many of the runs are before."""
    for start, end in runs:
        if number < end - start:
            return start + number
        number -= end - start
    raise AssertionError("there are no more")


def _columns(batch: "pa.RecordBatch") -> "dict[str, pa.Array]":
    return dict(zip(batch.schema.names, batch.columns, strict=True))
