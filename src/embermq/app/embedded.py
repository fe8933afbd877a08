"""The embedded profile: SQLite stores and the broker on them."""

import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from embermq.adapters.sqlite.application_log import SqliteApplicationLog
from embermq.adapters.sqlite.connection import apply_broker_schema, open_reader, open_writer
from embermq.adapters.sqlite.device_queue import SqliteDeviceQueue
from embermq.adapters.sqlite.log_readers import SqliteLogReaders
from embermq.adapters.sqlite.message_log import SqliteMessageLog
from embermq.adapters.sqlite.sessions import SqliteSessionStore
from embermq.adapters.sqlite.tick_store import Post, SqliteTickStore
from embermq.app.config import Settings
from embermq.broker.broker import Broker
from embermq.broker.state import BrokerState
from embermq.broker.tick import Tick
from embermq.delivery.application.reader import ApplicationReaders
from embermq.delivery.device.path import DevicePath
from embermq.delivery.direct.path import DirectPath
from embermq.delivery.durable import DurablePath
from embermq.delivery.recovery import Recovery

SYNCHRONOUS = {"fsync": "FULL", "os": "NORMAL", "memory": "OFF"}


class Embedded(Struct):
    """The broker and what it stands on."""

    broker: Broker
    delivery: DurablePath
    store: SqliteTickStore
    log: SqliteMessageLog
    readers: SqliteLogReaders
    close: Callable[[], None]
    application_floors: Callable[[], list[tuple[str, int]]]
    """(client id, first offset that it still needs) of every APPLICATION session."""
    redelivered: int
    """Deliveries that were repaired after the last end of the broker."""


def open_embedded(data_dir: Path, settings: Settings, post: Post) -> Embedded:
    """Open or create the stores in `data_dir`, read them, repair what a crash left. Raises StoreError."""
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
    applications = ApplicationReaders(application_log, log, settings.application)
    delivery = DurablePath(device, applications)
    state = BrokerState(settings.mqtt, Tick(), direct, delivery)
    for part in (direct, device, applications):
        part.attach(state)
    broker = Broker(state)
    state.tick.now_ms = time.time_ns() // 1_000_000

    sessions = SqliteSessionStore(reader)
    stored = sessions.load()
    broker.restore(stored, sessions.load_retained())
    redelivered = Recovery(state, device, log, queue).run(stored.dispatcher_floor)

    def close() -> None:
        application_log.close()
        if reader is not writer:
            reader.close()
        store.close()

    return Embedded(
        broker,
        delivery,
        store,
        log,
        SqliteLogReaders(data_dir),
        close,
        application_log.floors,
        redelivered,
    )
