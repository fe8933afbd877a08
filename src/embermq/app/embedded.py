"""The embedded profile: the message log in segment files, with broker.db as their checkpoint for everything else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from embermq.access.authorization.rule_set import RuleSet
from embermq.adapters.sqlite.application_log import SqliteApplicationLog, SqliteReaderPositions
from embermq.adapters.sqlite.connection import apply_broker_schema, log_identity, open_writer
from embermq.adapters.sqlite.device_queue import SqliteDeviceQueue, SqliteQueueHistory
from embermq.adapters.sqlite.parked_messages import SqliteParkedBodies, SqliteParkedMessages
from embermq.adapters.sqlite.queue_store import SqliteQueueStore
from embermq.adapters.sqlite.sessions import SqliteSessionStore
from embermq.adapters.sqlite.snapshot import skip_message_ids
from embermq.adapters.sqlite.tick_tables import TickTables
from embermq.app.clock_file import ClockFile
from embermq.app.config import Settings
from embermq.app.log_side import Post
from embermq.app.opened import (
    OpenedBroker,
    call_all,
    make_broker,
    make_parking,
    make_state,
    open_queues,
    open_retention,
)
from embermq.app.segment_log import open_segment_log
from embermq.delivery.application.embedded_feeds import EmbeddedFeeds
from embermq.delivery.application.fed_readers import FedReaders
from embermq.delivery.application.log_place import LogPlace
from embermq.durability.recovery import Recovery
from embermq.formats.log_record import RecordError
from embermq.ports.errors import StoreError
from embermq.sessions.tick import Tick

DATABASE = "broker.db"


def open_embedded(
    data_dir: Path,
    settings: Settings,
    post: Post,
    rules: RuleSet | None = None,
    *,
    found_log: Callable[[int], None] | None = None,
    accept_loss: bool = False,
) -> OpenedBroker:
    """Open or create the stores in `data_dir`, read them, repair what a crash left. `rules`: who may do what, None for
    everybody everything. `found_log` is told which message log broker.db belongs to, and may object. `accept_loss`: go
    on without what is damaged or missing. Raises StoreError."""
    path = data_dir / DATABASE
    clock = ClockFile(data_dir)
    tick = Tick(clock.clock.now_ms(), clock.clock.offset_ms)
    database = open_writer(
        path, synchronous="NORMAL"
    )  # what a loss of power takes is applied again from the log
    apply_broker_schema(database)
    if found_log is not None:
        found_log(log_identity(database))
    tables = TickTables(database, clock.clock.now_ms)
    log_side = open_segment_log(settings, data_dir, tables, post, accept_loss=accept_loss)
    skip_message_ids(database)

    application_log = SqliteApplicationLog(database, data_dir / "applications.db")
    bodies = SqliteParkedBodies(data_dir)
    state = make_state(settings, rules, tick)
    parking = make_parking(state, settings, SqliteParkedMessages(database))
    feeds = EmbeddedFeeds(application_log, log_side.log, bodies)
    readers = FedReaders(state, LogPlace(feeds, SqliteReaderPositions(database)), parking)
    broker, delivery = make_broker(state, settings, SqliteDeviceQueue(tables), readers)
    own = None if settings.log.durability == "memory" else path
    queue_store = SqliteQueueStore(tables, own, log_side.open_reader, post)

    try:
        queues = open_queues(state, settings, queue_store, log_side, data_dir, post=post)
        store = SqliteSessionStore(tables)
        stored, retained = log_side.begin(store.load()), store.load_retained()
        parking.restore(broker.restore(stored, retained))
        recovery = Recovery(state, delivery.device, log_side.log, SqliteQueueHistory(tables))
        redelivered = recovery.run(stored.dispatcher_floor)
    except RecordError as error:  # damaged, or written by a version that this one does not know
        raise StoreError(f"cannot read what {DATABASE} holds: {error}") from error

    retention, close_retention = open_retention(data_dir, settings, log_side)
    ends = [close_retention, queue_store.close, bodies.close, application_log.close]
    return OpenedBroker(
        broker,
        delivery,
        parking,
        log_side,
        log_side.ticks,
        None,
        retention,
        partial(call_all, [queues.close, *ends, log_side.close, clock.note]),
        redelivered,
        queues.alerts,
        clock,
        None,
    )
