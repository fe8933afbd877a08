"""The embedded profile: SQLite stores and the broker on them."""

import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from embermq.adapters.sqlite.application_log import SqliteApplicationLog
from embermq.adapters.sqlite.connection import apply_broker_schema, log_identity, open_reader, open_writer
from embermq.adapters.sqlite.device_queue import SqliteDeviceQueue, SqliteQueueHistory
from embermq.adapters.sqlite.log_readers import SqliteLogReaders
from embermq.adapters.sqlite.message_log import SqliteMessageLog
from embermq.adapters.sqlite.parked_bodies import SqliteParkedBodies
from embermq.adapters.sqlite.sessions import SqliteSessionStore
from embermq.adapters.sqlite.tick_store import Post, SqliteTickStore
from embermq.app.config import Settings
from embermq.app.message_archive import confirmed_offset
from embermq.authorization.rule_set import RuleSet
from embermq.broker.broker import Broker
from embermq.broker.state import BrokerState
from embermq.broker.tick import Tick
from embermq.delivery.application.reader import ApplicationReaders
from embermq.delivery.device.path import DevicePath
from embermq.delivery.direct.path import DirectPath
from embermq.delivery.durable import DurablePath
from embermq.delivery.recovery import Recovery
from embermq.delivery.retention import Retention, RetentionLimits
from embermq.model.log_record import RecordError
from embermq.ports.errors import StoreError

SYNCHRONOUS = {"fsync": "FULL", "os": "NORMAL", "memory": "OFF"}


class Embedded(Struct):
    """The broker and what it stands on."""

    broker: Broker
    delivery: DurablePath
    store: SqliteTickStore
    log: SqliteMessageLog
    retention: Retention
    close: Callable[[], None]
    redelivered: int
    """Deliveries that were repaired after the last end of the broker."""


def open_embedded(data_dir: Path, settings: Settings, post: Post, rules: RuleSet | None = None) -> Embedded:
    """Open or create the stores in `data_dir`, read them, repair what a crash left. `rules`: who may do what, None for
    everybody everything. Raises StoreError."""
    durability = settings.log.durability
    writer = open_writer(data_dir / "broker.db", synchronous=SYNCHRONOUS[durability])
    apply_broker_schema(writer)
    reader = writer if durability == "memory" else open_reader(data_dir / "broker.db")
    store = SqliteTickStore(writer, durability=durability, post=post)
    log = SqliteMessageLog(reader, store)
    queue = SqliteDeviceQueue(reader)
    application_log = SqliteApplicationLog(reader, data_dir / "applications.db")

    direct = DirectPath()
    device = DevicePath(queue, settings.device)
    parked = SqliteParkedBodies(data_dir)
    applications = ApplicationReaders(application_log, log, parked, settings.application)
    delivery = DurablePath(device, applications)
    state = BrokerState(settings.mqtt, Tick(), direct, delivery, settings.authorization)
    state.rules = rules
    direct.attach(state)
    delivery.attach(state)
    broker = Broker(state)
    state.tick.now_ms = time.time_ns() // 1_000_000

    sessions = SqliteSessionStore(reader)
    stored = sessions.load()
    store.begin_at(confirmed_offset(settings, log_identity(writer)))
    try:
        broker.restore(stored, sessions.load_retained())
        state.log_end = store.log_end
        redelivered = Recovery(state, device, log, SqliteQueueHistory(reader)).run(stored.dispatcher_floor)
    except RecordError as error:  # damaged, or written by a version that this one does not understand
        raise StoreError(f"cannot read what broker.db holds: {error}") from error

    retention, close_retention = _open_retention(data_dir, settings, store)

    def close() -> None:
        close_retention()
        parked.close()
        application_log.close()
        if reader is not writer:
            reader.close()
        store.close()

    return Embedded(
        broker,
        delivery,
        store,
        log,
        retention,
        close,
        redelivered,
    )


def _open_retention(
    data_dir: Path, settings: Settings, store: SqliteTickStore
) -> tuple[Retention, Callable[[], None]]:
    """Retention runs on a thread of its own, so it gets connections of its own."""
    log = settings.log
    reader = open_reader(data_dir / "broker.db")
    applications = SqliteApplicationLog(reader, data_dir / "applications.db")
    parked = SqliteParkedBodies(data_dir)
    limits = RetentionLimits(
        age_ms=int(log.retention_hours * 3_600_000),
        kept_bytes=log.retention_bytes,
        pin_bytes=int(log.disk_budget_bytes * log.pin_limit_share),
        budget_bytes=log.disk_budget_bytes,
        policy=log.pin_policy,
    )
    retention = Retention(
        SqliteMessageLog(reader, store), SqliteLogReaders(data_dir), applications, parked, limits
    )

    def close() -> None:
        applications.close()
        parked.close()
        reader.close()

    return retention, close
