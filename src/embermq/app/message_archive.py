"""The store of archived messages that the settings name, and what broker and pipeline tell one another about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from embermq.adapters.sqlite.connection import log_identity, open_reader
from embermq.adapters.sqlite.log_readers import SqliteLogReaders
from embermq.adapters.sqlite.message_store import SqliteMessageStore
from embermq.app.config import Settings
from embermq.app.errors import UserError
from embermq.app.pipeline_side import kafka_log_id
from embermq.app.settings import SQLITE
from embermq.app.static_store import named_store, static_url
from embermq.pipeline.errors import PipelineError
from embermq.pipeline.places import Places
from embermq.ports.message_store import MessageStore

SEARCH_S = 3_600.0
"""What looks through a whole store may take so long."""


@contextmanager
def message_store_of(settings: Settings, answer_s: float = SEARCH_S) -> Iterator[MessageStore]:
    """What a broker with these settings has archived; a server may take `answer_s` for an answer. Raises UserError when
    there is nothing yet, or StartError."""
    places = Places(Path(settings.data_dir))
    url = static_url(settings)
    if url is None:
        if not places.messages.is_file():
            raise UserError(
                f"{places.data_dir} has no message store: the pipeline's query `archive` has not run there"
            )
        is_kafka = settings.stores.log != SQLITE
        with closing(SqliteMessageStore(places.messages, is_kafka=is_kafka)) as store:
            yield store
        return
    if settings.stores.log == SQLITE and not places.broker.is_file():
        raise UserError(f"{places.data_dir} is not the data directory of a broker; name it with --data-dir")
    log_id = _log_id(settings, places)
    with named_store(url):
        from embermq.adapters.sql.database import Database
        from embermq.adapters.sql.message_store import SqlMessageStore
        from embermq.adapters.sql.tables import make_tables

        make_tables(url, settings.sql)
        found = SqlMessageStore(Database(url, settings.sql, timeout_s=answer_s), log_id)
    with closing(found) as store:
        yield store


def _log_id(settings: Settings, places: Places) -> int:
    """Which log the rows on a server are of. Raises UserError when Kafka does not tell."""
    if settings.stores.log != SQLITE:
        try:
            return kafka_log_id(settings)
        except PipelineError as error:
            raise UserError(f"stores.log: {error}") from error
    with closing(open_reader(places.broker)) as connection:
        return log_identity(connection)


def confirmed_offset(settings: Settings, log_id: int) -> int:
    """The first offset that no query of the pipeline has confirmed: this log gives no lower one to a new record.

    A server is asked itself: the data directory may have been put back to an earlier day.
    """
    places = Places(Path(settings.data_dir))
    url = static_url(settings)
    if url is None:
        # The store has moved back into the data directory: nobody is to believe what the server had.
        for suffix in ("", "-wal", "-shm"):
            places.archive.with_name(places.archive.name + suffix).unlink(missing_ok=True)
    positions = SqliteLogReaders(places.data_dir).positions()
    if url is not None:
        from embermq.adapters.sql.database import Database
        from embermq.adapters.sql.message_store import SqlLogReaders

        with closing(Database(url, settings.sql)) as database:
            positions += SqlLogReaders(database, log_id).positions()
    return max((position.next_offset for position in positions), default=0)
