"""What commands that read past messages have in common: data directory, places in the log, and folder of a report."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from embermq.app.config import Settings
from embermq.app.errors import JobFailed, OptionError, UserError
from embermq.app.pipeline_side import driver_settings
from embermq.app.places_noted import GIVE, noted_places
from embermq.app.settings import SQLITE
from embermq.model.position import OFFSET_END, PARTITION_END, offset_of, partition_of, position_of, told_place
from embermq.pipeline.jobs.past_range import PastRange
from embermq.pipeline.jobs.replay_values import ReplayRange
from embermq.pipeline.places import Places

EARLIEST = "earliest"
_POSITION = re.compile(r"(?:([0-9]{1,6}):)?([0-9]{1,14})")


def place_in_log(option: str, text: str) -> tuple[int | None, int | None]:
    """A position, as 1200 or 0:1200, or a time in Unix milliseconds. Raises OptionError."""
    if found := _POSITION.fullmatch(text):
        partition, offset = int(found[1] or 0), int(found[2])
        if partition < PARTITION_END and offset < OFFSET_END:
            return position_of(partition, offset), None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        earliest = f", nor {EARLIEST}" if option == "--from" else ""
        raise OptionError(
            f"{option}: {text!r} is neither an offset of the log nor a time as 2026-01-31T12:00{earliest}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return None, round(moment.timestamp() * 1_000)


def told_position(position: int) -> str:
    """As people read it, and type it."""
    return told_place(partition_of(position), offset_of(position))


TABLES = "tables"
"""Where Spark writes, in an unfinished folder."""


class PastOrder(Struct, frozen=True, kw_only=True):
    """What an operator asks for. `into`: the folder, which must not be there; "" for one in the data directory.
    `tasks` of Spark at a time, 0 for one a core. `slot`: of a cluster with several the only one; else all are one."""

    start: str = EARLIEST
    end: str = ""
    into: str = ""
    dry_run: bool = False
    tasks: int = 0
    slot: int | None = None


def data_of(settings: Settings, *, by_slot: bool = False) -> Path:
    """The data directory of a broker, wherever its log is. `by_slot`: the log is that of one slot, where there are
    several. Raises UserError."""
    data_dir = Path(settings.data_dir).absolute()
    if settings.cluster.slots > 1 and not by_slot:
        raise UserError(
            f"cluster.slots is {settings.cluster.slots}: each slot has a log of its own, and this command reads one"
        )
    if settings.stores.log != SQLITE:
        return data_dir
    if noted_places(data_dir).is_on_servers:
        raise UserError(f"stores.log: the message log of {data_dir} is in Kafka; {GIVE}")
    if not (data_dir / "broker.db").is_file():
        raise UserError(f"{data_dir} is not the data directory of a broker; name it with --data-dir")
    return data_dir


def past_range(start_text: str, end_text: str, logs: int = 1) -> PastRange:
    """Of `--from` and `--to`, in so many logs. Raises OptionError."""
    start, start_ms = (None, None) if start_text == EARLIEST else place_in_log("--from", start_text)
    end, end_ms = place_in_log("--to", end_text) if end_text else (None, None)
    for option, text, position in (("--from", start_text, start), ("--to", end_text, end)):
        if logs > 1 and position is not None:
            raise OptionError(
                f"{option}: {text} is a position in the log of one slot: name that with --slot, or give a time"
            )
    if (start is not None and end is not None and start >= end) or (
        start_ms is not None and end_ms is not None and start_ms >= end_ms
    ):
        raise OptionError(f"--to: {end_text} is not behind --from, {start_text}")
    return PastRange(start=start, start_ms=start_ms, end=end, end_ms=end_ms)


def log_end(settings: Settings, places: Places) -> int:
    """The position of the next record, wherever the log is. Raises StartError, PipelineError."""
    from embermq.pipeline.jobs.past_messages import past_messages

    with closing(past_messages(driver_settings(settings), places)) as past:
        return past.log_end


def replay_range(past: PastRange, topic_filter: str, log_end: int) -> ReplayRange:
    """In a log that ends there. Raises OptionError."""
    if past.start is not None and past.start > log_end:
        start, end = told_position(past.start), told_position(log_end)
        raise OptionError(f"--from: {start} is behind the end of the log, which is {end}")
    return ReplayRange(
        topic_filter=topic_filter,
        log_end=log_end,
        start=past.start,
        start_ms=past.start_ms,
        end_offset=past.end,
        end_ms=past.end_ms,
    )


def report_folder(given: str, folder: Path, made_at: datetime) -> Path:
    """Where a report is to be: `given`, or a new one in `folder`. Raises UserError when it is there already."""
    found = Path(given).absolute() if given else folder / made_at.strftime("%Y%m%dT%H%M%S.%fZ")
    if found.exists():
        raise UserError(f"{found} is there already; a report gets a folder of its own")
    return found


@contextmanager
def unfinished(folder: Path) -> Iterator[Path]:
    """A folder for the files of a report, which becomes `folder` at the end; on a failure it goes. Raises JobFailed."""
    work = None
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".unfinished", dir=folder.parent))
        yield work
        work.rename(folder)
    except OSError as error:
        raise JobFailed(f"the report cannot be written: {error}") from error
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)


def lift_tables(folder: Path) -> None:
    """Spark has written folders of parts; of a report each table is one file."""
    for table in (folder / TABLES).iterdir():
        (part,) = table.glob("*.parquet")
        part.rename(folder / f"{table.name}.parquet")
    shutil.rmtree(folder / TABLES)


def now() -> datetime:
    """The time of now, in UTC: when a report is made."""
    return datetime.now(UTC)
