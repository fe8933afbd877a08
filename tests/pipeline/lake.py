"""What is in a lake, as a reader without Spark and EmberMQ has it."""

from __future__ import annotations

import deltalake

from embermq.pipeline.places import Places


def rows_in(places: Places, *columns: str) -> list[tuple[object, ...]]:
    """All rows, in no order."""
    table = deltalake.DeltaTable(str(places.lake)).to_pyarrow_table(columns=list(columns))
    return list(zip(*(table[name].to_pylist() for name in columns), strict=True))


def offsets_in(places: Places) -> list[int]:
    """Sorted, repeats included."""
    return sorted(int(str(row[0])) for row in rows_in(places, "offset"))
