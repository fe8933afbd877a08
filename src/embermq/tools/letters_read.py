"""Where Spark reads dead letters: broker.db, or a copy of what Redis has of them, which is made for one run."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from embermq.adapters.sqlite.connection import apply_broker_schema, open_writer
from embermq.adapters.sqlite.queue_tables import QueueTables
from embermq.app.config import Settings
from embermq.app.errors import UserError
from embermq.app.places_noted import GIVE, noted_places
from embermq.app.settings import SQLITE
from embermq.app.store_addresses import redis_address
from embermq.model.queue_rows import QueueWrites
from embermq.queues.names import DEAD_LETTER_PREFIX

if TYPE_CHECKING:  # the clients of servers are not there in every installation
    from embermq.adapters.redis.blocking import BlockingRedis


@contextmanager
def letters_file(settings: Settings, queue: str, *, with_bodies: bool) -> Iterator[Path]:
    """A broker.db with the dead letters in `queue`, and their records on request. Raises UserError, StoreError."""
    data_dir = Path(settings.data_dir).absolute()
    own = data_dir / "broker.db"
    if own.is_file():
        yield own
        return
    if settings.stores.session == SQLITE:
        if noted_places(data_dir).is_on_servers:
            raise UserError(f"stores.session: the dead letters of {data_dir} are in a Redis; {GIVE}")
        raise UserError(f"{data_dir} is not the data directory of a broker; name it with --data-dir")
    with tempfile.TemporaryDirectory(prefix="embermq-") as folder:
        path = Path(folder) / "broker.db"
        _copy(settings, queue, path, with_bodies=with_bodies)
        yield path


@contextmanager
def all_letters_file(settings: Settings) -> Iterator[Path]:
    """The same with the dead letters of every queue, without their records. Raises StoreError."""
    if settings.stores.session == SQLITE:
        yield Path(settings.data_dir).absolute() / "broker.db"
        return
    from embermq.adapters.redis.blocking import BlockingRedis
    from embermq.adapters.redis.queue_messages import queue_names

    with tempfile.TemporaryDirectory(prefix="embermq-") as folder:
        path = Path(folder) / "broker.db"
        with (
            BlockingRedis(redis_address(settings.stores.session), settings.redis) as redis,
            closing(open_writer(path, synchronous="OFF")) as writer,
        ):
            apply_broker_schema(writer)
            for name in queue_names(redis):
                if name.startswith(DEAD_LETTER_PREFIX):
                    _copy_queue(redis, name, writer, with_bodies=False)
        yield path


def _copy(settings: Settings, queue: str, path: Path, *, with_bodies: bool) -> None:
    from embermq.adapters.redis.blocking import BlockingRedis

    with (
        BlockingRedis(redis_address(settings.stores.session), settings.redis) as redis,
        closing(open_writer(path, synchronous="OFF")) as writer,
    ):
        apply_broker_schema(writer)
        _copy_queue(redis, queue, writer, with_bodies=with_bodies)


def _copy_queue(redis: BlockingRedis, queue: str, writer: sqlite3.Connection, *, with_bodies: bool) -> None:
    from embermq.adapters.redis.queue_messages import RedisQueueMessages

    tables, messages = QueueTables(writer), RedisQueueMessages(redis, queue)
    found = messages.queue()
    if found is None:
        return
    tables.apply(QueueWrites(queues={found.generation: found}), 0)
    for page in messages.entries(found.generation):
        entries = {(row.queue, row.sequence): row for row in page}
        offsets = {row.sequence: row.offset for row in page}
        bodies = messages.bodies(list(offsets)) if with_bodies else ()
        writer.execute("BEGIN")
        tables.apply(QueueWrites(entries=entries), 0)
        for sequence, body in bodies:
            tables.apply(QueueWrites(bodies_at={offsets[sequence]: body}), 0)
        tables.write()
        writer.execute("COMMIT")
