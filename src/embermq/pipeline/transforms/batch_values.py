"""Values that are others with each batch, in expressions that stay the same.

A plain literal is part of the code that Spark generates: with another number each batch would have code of its own,
compiled anew and begun by the JVM's interpreter.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

from embermq.formats.log_record import FIELD_SLOT
from embermq.pipeline.schema import COPY, MISSING, RECEIPTS


def looked_up(values: Sequence[int], index: Column) -> Column:
    """`values[index]`, null where there is none; `index` has to depend on the row."""
    listed = ",".join(map(str, values)) or "0"
    return F.get(F.split(F.lit(listed), ",").cast("array<bigint>"), index)


def is_new(done: Mapping[int, int]) -> Column:
    """Whether a row is past what its partition has done; `partition` is RECEIPTS and below for those of receipts."""
    partition = F.col("partition")
    of_log = looked_up(_by_number(done), partition)
    of_receipts = looked_up(
        _by_number({RECEIPTS - number: at for number, at in done.items()}), RECEIPTS - partition
    )
    return F.col("offset") >= F.coalesce(F.when(partition >= 0, of_log).otherwise(of_receipts), F.lit(0))


def is_missing() -> Column:
    """Whether a row is a range that the log does not hold any more; null for one that is all right."""
    return F.col("error").startswith(MISSING)


def is_rejected() -> Column:
    """Whether a row is a record that cannot be understood; null for one that is all right."""
    return ~(is_missing() | (F.col("error") == COPY))


def is_copy() -> Column:
    """Whether a record is a copy of another slot's."""
    found = F.exists("unknown_fields", lambda one: one["tag"] == FIELD_SLOT)
    return F.coalesce(found, F.lit(False))


def _by_number(done: Mapping[int, int]) -> list[int]:
    last = max(done, default=-1)
    return [done.get(number, 0) for number in range(last + 1)]
