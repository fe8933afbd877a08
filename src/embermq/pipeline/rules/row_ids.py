"""Which row of which message one is, and what it has: for tables, in which a row is looked for by its id."""

from datetime import UTC, datetime

from pyspark.sql import Row

from embermq.pipeline.rules.set_aside import ROWS_MAX


def id_prefix(rule: str, log_id: int) -> str:
    """What the ids of a rule begin with, of one log."""
    return f"{rule}:{log_id}"


def row_id(prefix: str, partition: int, number: int) -> str:
    """The same whenever the message comes again."""
    return f"{prefix}:{partition}:{number // ROWS_MAX}:{number % ROWS_MAX}"


def columns_of(row: Row) -> tuple[tuple[str, ...], tuple[object, ...]]:
    """Names and values of what the author has selected, times in UTC. Raises ValueError, OverflowError for a time that
    has none."""
    found = row["columns"].asDict()
    return tuple(found), tuple(map(_value, found.values()))


def _value(value: object) -> object:
    """Spark gives times as this machine's, without a zone."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None)
    return bytes(value) if isinstance(value, bytearray) else value
