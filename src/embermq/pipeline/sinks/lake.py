"""The lake: a Delta Lake table with each message once."""

from pathlib import Path

from pyspark.sql import DataFrame

from embermq.pipeline.places import Places
from embermq.pipeline.settings import PipelineSettings, is_s3
from embermq.pipeline.sinks.delta_table import OF_MESSAGES
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
