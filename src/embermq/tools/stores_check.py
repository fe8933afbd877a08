"""Whether what the stores hold belongs together, as after a restore of each from its own copy. Changes nothing.

Every store may be older than the log, as long as the log still has what it lacks. What is ahead of the log knows of
messages that are lost.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Literal

from msgspec import Struct

from embermq.adapters.sqlite.connection import SCHEMA, log_identity, open_reader, stored_version
from embermq.adapters.sqlite.log_readers import SqliteLogReaders
from embermq.app.config import Settings
from embermq.app.data_lock import held_data_dir
from embermq.app.embedded import DATABASE
from embermq.app.errors import UserError
from embermq.app.places_noted import check_profile
from embermq.app.settings import SQLITE
from embermq.app.static_store import named_store, static_url
from embermq.formats.segment_reader import SegmentReader
from embermq.formats.segments import FILE_BYTES, FOLDER, SegmentError
from embermq.formats.stored_version import version_refusal
from embermq.model.position import records_between
from embermq.ports.errors import StoreError

State = Literal["fits", "repaired", "lost"]


class Finding(Struct, frozen=True):
    """What was found of one store: it fits, the next start puts it right, or something is lost."""

    store: str
    state: State
    text: str


class LogExtent(Struct, frozen=True):
    """What the log holds: records with these numbers, and by partition the offsets of a log in Kafka."""

    start: int
    end: int
    offsets: Mapping[int, tuple[int, int]] = {}

    def count(self, start: int, end: int) -> int:
        """How many records there are from one number to another."""
        return records_between(start, end, {one: stop for one, (_, stop) in self.offsets.items()})


def check_stores(settings: Settings) -> list[Finding]:
    """The broker must not run. Raises StoreError or UserError for what would keep it from starting."""
    data_dir = Path(settings.data_dir)
    check_profile(data_dir, settings)
    if settings.stores.log == SQLITE and not (data_dir / DATABASE).is_file():
        raise UserError(f"{data_dir} is not the data directory of a broker; name it with --data-dir")
    with held_data_dir(data_dir):
        if settings.stores.log == SQLITE:
            log_id, extent, found = _embedded(data_dir)
        else:
            log_id, extent, found = _servers(settings)
        if settings.stores.static != SQLITE:
            found += _static(settings, log_id, extent)
        return found


def behind(store: str, what: str, at: int, extent: LogExtent) -> Finding:
    """A store that is complete up to the number `at` of the log."""
    if at > extent.end:
        return Finding(
            store,
            "lost",
            f"{what} is {extent.count(extent.end, at)} records ahead of the log, which lacks them",
        )
    if at < extent.start:
        text = (
            f"{what} is complete up to {at}, and the log begins at {extent.start}: what is between is missing"
        )
        return Finding(store, "lost", text)
    if at < extent.end:
        return Finding(
            store, "repaired", f"{what} lacks {extent.count(at, extent.end)} records, which the log has"
        )
    return Finding(store, "fits", f"{what} has everything")


def _embedded(data_dir: Path) -> tuple[int, LogExtent, list[Finding]]:
    """Which log it is, what it holds, and what was found."""
    with closing(open_reader(data_dir / DATABASE)) as connection:
        try:
            if problem := version_refusal(DATABASE, stored_version(connection) or 0, SCHEMA):
                raise UserError(problem)
            meta = dict(connection.execute("SELECT name, value FROM meta").fetchall())
            log_id = log_identity(connection)
        except sqlite3.Error as error:
            raise StoreError(f"cannot read {data_dir / DATABASE}: {error}") from error
    end, floor = int(meta.get("log_end", 0)), int(meta.get("dispatcher_floor", 0))
    with closing(SegmentReader(data_dir / FOLDER)) as reader:
        try:
            heads = reader.segments()
            newest = heads[-1].base_offset if heads else 0
            for frame in reader.walk(heads[-1].number, FILE_BYTES) if heads else ():
                newest = frame.head.end_offset
        except (OSError, SegmentError) as error:
            raise StoreError(f"cannot read the message log: {error}") from error
    extent = LogExtent(heads[0].base_offset if heads else end, max(end, newest))
    found = [behind("data directory", "delivery", floor, extent)] if floor < extent.start else []
    found += [
        behind("data directory", f"the query {query.name}", query.next_offset, extent)
        for query in SqliteLogReaders(data_dir).positions()
    ]
    return log_id, extent, found


def _servers(settings: Settings) -> tuple[int, LogExtent, list[Finding]]:
    """The same of a Kafka and a Redis."""
    from embermq.adapters.redis.blocking import BlockingRedis
    from embermq.adapters.redis.floor_marks import ReadMarks
    from embermq.adapters.redis.log_notes import RedisLogNotes
    from embermq.app.pipeline_side import kafka_log_id
    from embermq.app.store_addresses import redis_address
    from embermq.tools.kafka_check import check_log  # its client is not there in every installation

    address = redis_address(settings.stores.session)
    with BlockingRedis(address, settings.redis) as redis:
        notes = RedisLogNotes(redis, str(address))
        known = notes.known()
        if known.is_any:
            notes.check_whole(accept_loss=False)
        extent, found = check_log(settings, known)
        if known.is_any:
            marks = ReadMarks(redis)
            # The masters of a cluster are copied one by one: a single one that is ahead is too much.
            at = marks.newest if marks.newest > extent.end else marks.oldest
            found.append(behind("session data", str(address), at, extent))
    return kafka_log_id(settings), extent, found


def _static(settings: Settings, log_id: int, extent: LogExtent) -> Iterator[Finding]:
    from embermq.adapters.sql.database import Database
    from embermq.adapters.sql.message_store import archived_positions
    from embermq.adapters.sql.tables import has_tables

    url = static_url(settings)
    assert url is not None
    with named_store(url):
        is_there = has_tables(url, settings.sql)
    if not is_there:
        yield Finding("accounts", "lost", f"{url.shown} has none of EmberMQ's tables")
        return
    yield Finding("accounts", "fits", f"{url.shown} has its tables")
    with closing(Database(url, settings.sql)) as database:
        found = archived_positions(database, log_id)
    for partition, offset in sorted(found.items()):
        first, end = extent.offsets.get(partition, (extent.start, extent.end))
        what = f"the archive, partition {partition}," if extent.offsets else "the archive"
        yield behind("archive", what, offset, LogExtent(first, end))
