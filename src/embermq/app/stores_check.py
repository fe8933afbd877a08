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
from embermq.adapters.sqlite.tick_tables import SESSIONS_PLACE
from embermq.app.config import Settings
from embermq.app.data_lock import held_data_dir
from embermq.app.errors import UserError
from embermq.app.places_noted import check_profile
from embermq.app.settings import SQLITE
from embermq.app.static_store import static_status, static_url
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


class BrokerFileState(Struct, frozen=True):
    """What broker.db says of the others."""

    log_id: int
    sessions_place: str
    floor: int
    """Below it everything was delivered, stored or owed to nobody."""


def check_stores(settings: Settings) -> list[Finding]:
    """The broker must not run. Raises StoreError or UserError for what would keep it from starting."""
    data_dir = Path(settings.data_dir)
    if not (data_dir / "broker.db").is_file():
        raise UserError(f"{data_dir} is not the data directory of a broker; name it with --data-dir")
    with held_data_dir(data_dir):
        check_profile(data_dir, settings)
        return _check(settings, data_dir)


def _check(settings: Settings, data_dir: Path) -> list[Finding]:
    broker = _broker_file(data_dir / "broker.db")
    found: list[Finding] = []
    if settings.stores.log == SQLITE:
        extent = _embedded(data_dir)
    else:
        from embermq.app.kafka_check import check_log  # its client is not there in every installation

        extent, found = check_log(settings, data_dir / "broker.db")
    found += _delivery(broker, extent)
    found += _pipeline_files(data_dir, extent)
    if settings.stores.session != SQLITE:
        found.append(_sessions(settings, broker, extent))
    if settings.stores.static != SQLITE:
        found += _static(settings, broker, extent)
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


def _broker_file(path: Path) -> BrokerFileState:
    with closing(open_reader(path)) as connection:
        try:
            if problem := version_refusal("broker.db", stored_version(connection) or 0, SCHEMA):
                raise UserError(problem)
            meta = dict(connection.execute("SELECT name, value FROM meta").fetchall())
            floor = int(meta.get("dispatcher_floor", 0))
            return BrokerFileState(log_identity(connection), str(meta.get(SESSIONS_PLACE, "")), floor)
        except sqlite3.Error as error:
            raise StoreError(f"cannot read {path}: {error}") from error


def _embedded(data_dir: Path) -> LogExtent:
    with closing(open_reader(data_dir / "broker.db")) as connection:
        row = connection.execute("SELECT value FROM meta WHERE name = 'log_end'").fetchone()
    end = int(row[0]) if row else 0
    with closing(SegmentReader(data_dir / FOLDER)) as reader:
        try:
            heads = reader.segments()
            newest = heads[-1].base_offset if heads else 0
            for frame in reader.walk(heads[-1].number, FILE_BYTES) if heads else ():
                newest = frame.head.end_offset
        except (OSError, SegmentError) as error:
            raise StoreError(f"cannot read the message log: {error}") from error
    return LogExtent(heads[0].base_offset if heads else end, max(end, newest))


def _delivery(broker: BrokerFileState, extent: LogExtent) -> Iterator[Finding]:
    if broker.floor < extent.start:
        yield behind("data directory", "delivery", broker.floor, extent)


def _pipeline_files(data_dir: Path, extent: LogExtent) -> Iterator[Finding]:
    """What queries have confirmed in files; on Kafka they say it by partition and in Kafka as well."""
    if extent.offsets:
        return
    for reader in SqliteLogReaders(data_dir).positions():
        yield behind("data directory", f"the query {reader.name}", reader.next_offset, extent)


def _sessions(settings: Settings, broker: BrokerFileState, extent: LogExtent) -> Finding:
    from embermq.adapters.redis.blocking import BlockingRedis
    from embermq.adapters.redis.floor_marks import ReadMarks
    from embermq.app.redis_sessions import belonging
    from embermq.app.store_addresses import redis_address

    address = redis_address(settings.stores.session)
    with BlockingRedis(address, settings.redis) as redis:
        if not belonging(redis, str(address), str(broker.log_id)):
            if broker.sessions_place:
                raise StoreError(
                    f"stores.session: {address}: is empty, and kept the sessions of this data directory"
                )
            return Finding("session data", "fits", f"{address} is empty, as it has been")
        marks = ReadMarks(redis)
        # The masters of a cluster are copied one by one: a single one that is ahead is too much.
        at = marks.newest if marks.newest > extent.end else marks.oldest
        return behind("session data", str(address), at, extent)


def _static(settings: Settings, broker: BrokerFileState, extent: LogExtent) -> Iterator[Finding]:
    from embermq.adapters.sql.database import Database
    from embermq.adapters.sql.message_store import archived_positions
    from embermq.adapters.sql.schema import State as SchemaState
    from embermq.app.pipeline_side import kafka_log_id

    url = static_url(settings)
    assert url is not None
    status = static_status(settings, url)
    if status.state is SchemaState.NEWER:
        raise StoreError(
            f"stores.static: {url.shown}: its tables are of a newer EmberMQ, version {status.version}"
        )
    if status.state is not SchemaState.CURRENT:
        text = f"{url.shown} has tables of version {status.version}, {status.newest} is needed"
        yield Finding("accounts", "lost" if status.state is SchemaState.EMPTY else "repaired", text)
        return
    yield Finding("accounts", "fits", f"{url.shown} has its tables")
    log_id = kafka_log_id(settings) if extent.offsets else broker.log_id
    with closing(Database(url, settings.sql)) as database:
        found = archived_positions(database, log_id)
    for partition, offset in sorted(found.items()):
        first, end = extent.offsets.get(partition, (extent.start, extent.end))
        what = f"the archive, partition {partition}," if extent.offsets else "the archive"
        yield behind("archive", what, offset, LogExtent(first, end))
