"""The archive of a log in Kafka, written where Spark's tasks run: records stream to them in Arrow batches.

A batch of the query is bounded in records only, for Kafka does not tell how large they are. So nothing of it is
collected: a task holds one Arrow batch of at most `session.ARROW_BATCH_BYTES` and one record, commits it together with
its position, and takes the next one. A batch that dies in the middle goes on behind what was committed.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from embermq.pipeline.errors import MessageServerError

_COVERED = "covered long"
_COVERED_SCHEMA = pa.schema([("covered", pa.int64())])


class MessageWriter(Protocol):
    """Writes messages of one partition, from the position that its store has."""

    def write_table(self, table: pa.Table) -> int:
        """Take what `stored_messages` gives, in the order of the log; returns how many positions it covered."""

    def close(self) -> None:
        """Release files and connections."""


OpenWriter = Callable[[], MessageWriter]
"""Opens the writer of one partition inside a task; Spark pickles it on the way there."""


def write_by_tasks(messages: DataFrame, writers: Mapping[int, OpenWriter], *, side_by_side: bool) -> int:
    """Write what `stored_messages` gives, partition by partition; returns how many positions it covered.

    Each task of Spark's Kafka source reads one partition in order. `side_by_side` is False for a store with room for
    one writer at a time: a single task then reads one partition after the other.
    """
    open_writers = dict(writers)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        covered = 0
        with ExitStack() as opened:
            found: dict[int, MessageWriter] = {}
            for batch in batches:
                table = pa.Table.from_batches([batch])
                for number in table["partition"].unique().to_pylist():
                    if number not in found:
                        found[number] = opened.enter_context(closing(open_writers[number]()))
                    covered += _write(found[number], table.filter(pc.equal(table["partition"], number)))
        yield pa.RecordBatch.from_pydict({"covered": [covered]}, _COVERED_SCHEMA)

    rows = messages if side_by_side else messages.coalesce(1)
    return sum(row["covered"] for row in rows.mapInArrow(write, _COVERED).collect())


def _write(writer: MessageWriter, table: pa.Table) -> int:
    try:
        return writer.write_table(table)
    except MessageServerError as error:
        # Spark shows the whole chain of errors of a task; the driver's own may name the password.
        raise MessageServerError(str(error)) from None
