"""`embermq pipeline migrate`: hold the broker's data directory, take generations for the sessions, start Spark.

The generations are taken where they are counted, beside the sessions: a broker that starts there later gives none of
them to anybody else.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from embermq.adapters.sqlite.connection import apply_broker_schema, open_writer
from embermq.app.config import Settings
from embermq.app.data_lock import held_data_dir
from embermq.app.errors import EmberError, OptionError, UserError
from embermq.app.settings import SQLITE
from embermq.app.store_addresses import redis_address
from embermq.pipeline.settings import PipelineSettings

if TYPE_CHECKING:
    from embermq_migrate.job import MigrationReport, MigrationTerms, Progress
    from embermq_migrate.redis_sessions import RedisPlace

EXIT_REJECTED = 3
"""Everything went well, but some rows were not taken."""
FILE = "migration.db"


class MigrationFailed(EmberError):
    """The world's fault: the message says what was not to be had. What is done stays done."""


class MigrationOrder(Struct, frozen=True, kw_only=True):
    """What an operator asks for. Addresses may be `env:NAME` or `file:PATH`; `target` is `sqlite` for
    the data directory, and "" for what `stores.session` says.
    Times are seconds; None takes the broker's setting."""

    source: str
    schema: str
    target: str
    dry_run: bool
    rejects: Path | None
    message_ttl_s: int | None
    session_expiry_s: int | None
    zero_expires: bool
    tasks: int


def run_migration(order: MigrationOrder, settings: Settings, progress: Progress) -> MigrationReport:
    """Raises EmberError, PipelineError. Interrupted or failed, the next one goes on where it ended."""
    source, target = address(order.source, "--from"), address(order.target or settings.stores.session, "--to")
    if source.partition("://")[0] not in ("postgresql", "postgres"):
        raise OptionError("--from: a URL postgresql://USER:PASSWORD@HOST:PORT/DATABASE is needed")
    place = None if target == SQLITE else redis_place(target)
    umask = os.umask(0o077)
    try:
        if order.rejects is not None:
            order.rejects.touch()  # that it cannot be written is said before, not after hours
        with _stores(order, settings, is_embedded=place is None) as (data_dir, work):
            terms = _terms(order, settings, (source, place), data_dir, work)
            return _migrate(terms, order, settings.pipeline, work, progress)
    except sqlite3.Error as error:
        raise MigrationFailed(f"cannot use {FILE} or broker.db: {error}") from error
    finally:
        os.umask(umask)


def address(text: str, option: str) -> str:
    """A URL, `env:NAME` or `file:PATH` with the URL in it, so that passwords need not be typed. Raises OptionError,
    UserError."""
    kind, _, name = text.partition(":")
    if kind == "env":
        if not os.environ.get(name):
            raise OptionError(f"{option}: there is no environment variable {name}")
        return os.environ[name].strip()
    if kind == "file":
        try:
            return Path(name).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{option}: cannot read {name}: {getattr(error, 'strerror', error)}") from error
    return text


def redis_place(url: str) -> RedisPlace:
    """Where a URL leads to, with its options, the password file read. Raises OptionError, without what is before the
    `@`."""
    from embermq_migrate.redis_sessions import RedisPlace

    try:
        found = redis_address(url)
    except ValueError as error:
        raise OptionError(f"--to: {error}; or {SQLITE} for the data directory") from None
    return RedisPlace(
        shown=str(found),
        nodes=tuple((node.host, node.port) for node in found.nodes),
        cluster=found.cluster,
        database=found.database,
        username=found.username,
        password=found.password,
        tls=found.tls,
        ca_file=found.ca_file,
        certificate_file=found.cert_file,
    )


@contextmanager
def _stores(order: MigrationOrder, settings: Settings, *, is_embedded: bool) -> Iterator[tuple[Path, Path]]:
    """(where broker.db is if it is embedded, where Spark may work). A dry run takes no lock: the broker may run."""
    data_dir = Path(settings.data_dir)
    with tempfile.TemporaryDirectory(prefix="embermq-") as work:
        if not order.dry_run:
            with held_data_dir(data_dir):
                if is_embedded:
                    _make_broker_db(data_dir)
                yield data_dir, Path(work)
        elif not is_embedded or (data_dir / "broker.db").is_file():
            yield data_dir, Path(work)
        else:
            _make_broker_db(Path(work))
            yield Path(work), Path(work)


def _make_broker_db(data_dir: Path) -> None:
    connection = open_writer(data_dir / "broker.db", synchronous="FULL")
    try:
        apply_broker_schema(connection)
    finally:
        connection.close()


def _terms(
    order: MigrationOrder,
    settings: Settings,
    stores: tuple[str, RedisPlace | None],
    data_dir: Path,
    work: Path,
) -> MigrationTerms:
    from embermq_migrate.job import MigrationTerms

    source, place = stores
    expiry_s = order.session_expiry_s
    return MigrationTerms(
        source=source,
        schema=order.schema,
        redis=place,
        broker_db=str((data_dir / "broker.db").absolute()),
        file=str(((work if order.dry_run else data_dir) / FILE).absolute()),
        queue_limit=settings.device.queue_limit,
        payload_bytes_max=settings.mqtt.packet_bytes_max,
        ttl_s=order.message_ttl_s or settings.device.ttl_s,
        session_expiry_s=settings.mqtt.session_expiry_max_s if expiry_s is None else expiry_s,
        zero_expires=order.zero_expires,
        dry=order.dry_run,
    )


def _migrate(
    terms: MigrationTerms, order: MigrationOrder, pipeline: PipelineSettings, work: Path, progress: Progress
) -> MigrationReport:
    from embermq.pipeline.batch import batch_session
    from embermq_migrate.job import migrate
    from embermq_migrate.old_tables import OldTables
    from embermq_migrate.redis_sessions import claim_store, take_generations
    from embermq_migrate.sqlite_sessions import prepare, settle

    broker_db = Path(terms.broker_db)
    OldTables(terms.source, terms.schema).close()  # what is wrong there is said before Spark is started
    if terms.redis is not None:
        claim_store(terms.redis, read_only=terms.dry)
        reserve = partial(take_generations, terms.redis)
    else:
        reserve = partial(reserve_generations, broker_db)
        if not terms.dry:
            prepare(broker_db)
    try:
        with batch_session(pipeline, order.tasks, work) as spark:
            report = migrate(spark, terms, reserve, progress)
    finally:
        if terms.redis is None and not terms.dry:
            settle(broker_db)
    if order.rejects is not None:
        write_rejects(terms, order.rejects)
    return report


def reserve_generations(broker_db: Path, count: int) -> int:
    """Take `count` generations that no session has or gets; returns the first. The broker is down."""
    connection = open_writer(broker_db, synchronous="FULL")
    try:
        connection.execute("BEGIN IMMEDIATE")
        row = connection.execute("SELECT value FROM meta WHERE name = 'generation_reserved'").fetchone()
        first = int(row[0]) if row else 1
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('generation_reserved', ?)", (first + count,))
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise MigrationFailed(f"cannot write {broker_db}: {error}") from error
    finally:
        connection.close()
    return first


def write_rejects(terms: MigrationTerms, path: Path) -> None:
    """The rows that were not taken, as one JSON object a line."""
    from embermq_migrate.migration_file import MigrationFile

    file = MigrationFile(Path(terms.file))
    try:
        with path.open("wb") as lines:
            for rejected in file.rejects():
                lines.write(msgspec.json.encode(rejected) + b"\n")
    finally:
        file.close()
