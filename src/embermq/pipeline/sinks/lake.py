"""The lake: a Delta Lake table with each message once."""

from pathlib import Path

from pyspark.sql import DataFrame

from embermq.pipeline.places import Places
from embermq.pipeline.schema import PARTITION
from embermq.pipeline.settings import PipelineSettings, is_s3
from embermq.pipeline.sinks.delta_table import OF_MESSAGES
from embermq.pipeline.sinks.lake_file import make_lake_file
from embermq.pipeline.sinks.positioned_table import PositionedTable
from embermq.pipeline.sinks.sink_file import SinkFile
from embermq.pipeline.transforms.archive import lake_schema

READER = "lake"
LEDGER = ((__package__ or ""), "lake.sql")
"""How far a table is, in the file of its query."""


def lake_place(settings: PipelineSettings, places: Places) -> str:
    """Where the lake is: a folder or a URL."""
    if is_s3(settings):
        return settings.lake_dir
    return str(Path(settings.lake_dir).absolute() if settings.lake_dir else places.lake)


class Lake(PositionedTable):
    """Takes what `lake_rows` gives."""

    def __init__(self, place: str, places: Places, *, shared: bool = False) -> None:
        file = SinkFile(places.lake_ledger, READER, LEDGER)
        super().__init__(place, OF_MESSAGES, lake_schema(), file=file, lock=places.lake_lock, shared=shared)

    def _made(self, rows: DataFrame) -> DataFrame:
        return rows.where("error IS NULL")

    def write_file(self, rows: Path) -> int:
        """As `write`, of a batch of the embedded log in its file. What it makes is copied into the lake and then
        committed: what a kill leaves in between is no part of the table, and goes with a vacuum."""
        made = make_lake_file(self.table.spark, rows, self._log_id, self._done.get(PARTITION, 0))
        if made is None:
            return 0
        one = made.covered
        try:
            file = made.path if one.good else None
            self.table.append_file(file, made.statistics, self._log_id, one.partition, one.end)
        finally:
            made.path.unlink(missing_ok=True)
        self._committed(one)
        return one.end - one.first
