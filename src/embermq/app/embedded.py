"""The broker on its stores: the message log in SQLite or a Kafka, session data beside it or on a Redis."""

import logging
import sqlite3
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from embermq.access.authorization.rule_set import RuleSet
from embermq.adapters.sqlite.application_log import SqliteApplicationLog
from embermq.adapters.sqlite.connection import apply_broker_schema, log_identity, open_reader, open_writer
from embermq.adapters.sqlite.log_state import Post
from embermq.adapters.sqlite.parked_bodies import SqliteParkedBodies
from embermq.adapters.sqlite.parked_messages import SqliteParkedMessages
from embermq.adapters.sqlite.queue_store import SqliteQueueStore
from embermq.adapters.sqlite.reader_positions import SqliteReaderPositions
from embermq.adapters.sqlite.restored import skip_message_ids
from embermq.adapters.sqlite.session_cursors import SqliteSessionCursors
from embermq.adapters.sqlite.sessions import SqliteSessionStore
from embermq.adapters.sqlite.shared_tables import SqliteSharedGroups
from embermq.adapters.sqlite.tick_tables import TickTables
from embermq.adapters.webhook.alerts import WebhookAlerts
from embermq.app.clock_file import ClockFile
from embermq.app.config import Settings
from embermq.app.log_side import LogSide, open_log_side
from embermq.app.log_times import LogTimes
from embermq.app.memory import memory_bytes, with_memory_limits
from embermq.app.message_archive import read_archive
from embermq.app.session_store import SessionSide, open_session_store
from embermq.app.settings import SQLITE
from embermq.delivery.application.embedded_feeds import EmbeddedFeeds
from embermq.delivery.application.fed_readers import FedReaders
from embermq.delivery.application.log_lifecycle import LogLifecycle
from embermq.delivery.application.log_place import LogPlace
from embermq.delivery.application.own_and_shared import OwnAndShared
from embermq.delivery.application.parking import Parking
from embermq.delivery.application.readers import ApplicationDelivery
from embermq.delivery.application.shared_readers import SharedReaders
from embermq.delivery.device.path import DevicePath
from embermq.delivery.direct.path import DirectPath
from embermq.delivery.durable_path import DurablePath
from embermq.durability.lost_data import LostData
from embermq.durability.recovery import Recovery
from embermq.durability.retention import Retention, RetentionLimits
from embermq.durability.split.completion import complete
from embermq.durability.split.store import SplitStore
from embermq.formats.application_logs import ApplicationLogNames
from embermq.formats.log_record import RecordError
from embermq.intake.broker import Broker
from embermq.model.session import RetainedRow
from embermq.pipeline.settings import pin_policies
from embermq.ports.application_log import ApplicationLog
from embermq.ports.dead_letter_alerts import DeadLetterAlerts
from embermq.ports.errors import StoreError
from embermq.ports.queue_store import QueueStore
from embermq.ports.reader_positions import ReaderPositions
from embermq.ports.sessions import StoredState
from embermq.ports.tick_store import TickStore
from embermq.queues.mqtt.mqtt_queues import MqttQueues
from embermq.queues.mqtt.tail import enqueue_tail
from embermq.queues.settings import DEAD_LETTERS_SHARE
from embermq.sessions.durable_queues import OffsetFound
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Tick

if TYPE_CHECKING:
    from embermq.app.redis_sessions import RedisSessions

LOG = logging.getLogger("embermq")
SYNCHRONOUS = {"fsync": "FULL", "os": "NORMAL", "memory": "OFF"}
SETTLE_MARGIN_MS = 100
"""The log stays behind by more than what is kept to be sent again: of what the log has passed, Redis does not know any
more that it had it."""


class Embedded(Struct):
    """The broker and what it stands on."""

    broker: Broker
    delivery: DurablePath
    parking: Parking
    """What applications did not acknowledge, however often it was sent."""
    log_side: LogSide
    """What the message log stands on."""
    ticks: TickStore
    """What ticks are handed to: the message log's store, or that and the session store behind it."""
    session_store: "RedisSessions | None"
    """None while sessions are kept beside the log."""
    retention: Retention
    close: Callable[[], None]
    """After the session store."""
    redelivered: int
    """Deliveries that were repaired after the last end of the broker."""
    queue_store: QueueStore
    """Where durable queues are stored."""
    alerts: DeadLetterAlerts
    """Who is told of dead letters."""
    clock: ClockFile
    """Broker time."""
    log_life: LogLifecycle | None
    """None where application logs are a part of the message log."""


def open_embedded(
    data_dir: Path,
    settings: Settings,
    post: Post,
    rules: RuleSet | None = None,
    *,
    found_log: Callable[[int], None] | None = None,
    accept_loss: bool = False,
) -> Embedded:
    """Open or create the stores in `data_dir`, read them, repair what a crash left. `rules`: who may do what, None for
    everybody everything. `found_log` is told which message log broker.db belongs to, and may object. `accept_loss`: go
    on without what is damaged or missing. Raises StoreError."""
    clock = ClockFile(data_dir)
    tick = Tick(clock.clock.now_ms(), clock.clock.offset_ms)
    writer, reader = _open_broker_db(data_dir, settings, found_log)
    tables = TickTables(writer, clock.clock.now_ms)
    log_side = open_log_side(settings, data_dir, tables, tick=tick, post=post, accept_loss=accept_loss)
    skip_message_ids(writer)
    side = open_session_store(settings, reader, post, log_identity(writer), tables.sessions_place)
    application_log = SqliteApplicationLog(reader, data_dir / "applications.db")

    device = DevicePath(side.queue, settings.device)
    bodies = SqliteParkedBodies(data_dir)
    parking = Parking(settings.application, SqliteParkedMessages(reader))
    feeds = EmbeddedFeeds(application_log, log_side.log, bodies)
    fed = _feed_applications(log_side, feeds, SqliteReaderPositions(reader), parking)
    shared = log_side.share_applications(SqliteSharedGroups(reader), parking)
    delivery = DurablePath(device, _with_shared(fed, shared))
    broker = _make_broker(settings, delivery, rules, tick)
    state = broker.state
    queue_store = _open_queue_store(settings, data_dir, reader, log_side, post)

    try:
        alerts, close_queues = _open_queues(broker, settings, queue_store, log_side, data_dir, post=post)
        stored, retained = side.load(log_side.behind(SqliteSessionStore(reader).load()))
        stored = log_side.begin(stored)
        _restore_shared(settings, log_side, state, shared)
        sessions = _restore_sessions(
            broker, log_side, side, stored, retained, application_log=application_log
        )
        parking.restore(sessions)
        lost = _begin_devices(device, sessions, stored, reader)
        # An archive of Kafka knows positions, not the numbers that are looked for.
        archive = None if log_side.is_apart else partial(read_archive, settings)
        redelivered = Recovery(state, device, log_side.log, side.history, archive).run(lost)
        ticks = _take_ticks(settings, log_side, side, state, post, tables=tables)
    except BaseException as error:
        _give_up(log_side, side, error)
        raise

    life = _begin_logs(settings, log_side, state, fed, shared, is_first_run=stored.generation_reserved <= 1)
    retention, close_retention = _open_retention(data_dir, settings, log_side)

    ends = [close_retention, queue_store.close, bodies.close, application_log.close]
    ends += [] if reader is writer else [reader.close]
    return Embedded(
        broker,
        delivery,
        parking,
        log_side,
        ticks,
        side.apart,
        retention,
        partial(_call_all, [close_queues, *ends, log_side.close, clock.note]),
        redelivered,
        queue_store,
        alerts,
        clock,
        life,
    )


def _restore_sessions(
    broker: Broker,
    log_side: LogSide,
    side: SessionSide,
    stored: StoredState,
    retained: list[RetainedRow],
    *,
    application_log: ApplicationLog,
) -> list[Session]:
    """What two stores hold that share no transaction is completed from the log."""
    if side.apart is None and not log_side.is_apart:
        return broker.restore(stored, retained)
    return complete(broker, stored, retained, log_side.log, application_log)


def _begin_devices(
    device: DevicePath, sessions: list[Session], stored: StoredState, reader: sqlite3.Connection
) -> LostData:
    """Returns what session data may lack."""
    cursors = SqliteSessionCursors(reader).load()
    lost = LostData(stored, cursors)
    device.begin(sessions, cursors, lost)
    return lost


def _give_up(log_side: LogSide, side: SessionSide, error: BaseException) -> None:
    """A start that fails. Raises StoreError for records that cannot be understood."""
    if side.apart is not None:
        side.apart.abandon()
    if log_side.is_apart:
        log_side.close()
    if isinstance(error, RecordError):  # damaged, or written by a version that this one does not know
        raise StoreError(f"cannot read what {log_side.place or 'broker.db'} holds: {error}") from error


def _open_queue_store(
    settings: Settings, data_dir: Path, reader: sqlite3.Connection, log_side: LogSide, post: Post
) -> SqliteQueueStore:
    path = None if settings.log.durability == "memory" else data_dir / "broker.db"
    return SqliteQueueStore(reader, path, None if log_side.is_apart else log_side.open_reader, post)


def _open_broker_db(
    data_dir: Path, settings: Settings, found_log: Callable[[int], None] | None
) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    """Who writes and who reads. A checkpoint needs no sync: what a loss of power takes of it is applied again from the
    log; and it is read before it is committed. Raises StoreError."""
    durability, is_checkpoint = settings.log.durability, settings.stores.log == SQLITE
    writer = open_writer(
        data_dir / "broker.db", synchronous="NORMAL" if is_checkpoint else SYNCHRONOUS[durability]
    )
    apply_broker_schema(writer)
    if found_log is not None:
        found_log(log_identity(writer))
    sees_uncommitted = is_checkpoint or durability == "memory"
    return writer, writer if sees_uncommitted else open_reader(data_dir / "broker.db")


def _take_ticks(
    settings: Settings,
    log_side: LogSide,
    side: SessionSide,
    state: BrokerState,
    post: Post,
    *,
    tables: TickTables,
) -> TickStore:
    """What ticks are handed to, and what may be in them; sessions are at their place from now on."""
    static = settings.stores.shown().static
    tables.note_places(
        sessions=side.apart.place if side.apart is not None else "", static="" if static == SQLITE else static
    )
    state.record_bytes_sure, state.record_objection = log_side.bytes_sure, log_side.objection
    if side.apart is not None or log_side.is_apart:
        state.connect_wait_ms = int(settings.session_store.connect_wait_s * 1000)
    if side.apart is None:
        return log_side.ticks
    settle_ms = int(settings.redis.settle_s * 1000) + SETTLE_MARGIN_MS
    ticks = SplitStore(
        log_side.ticks, side.apart.writer, state, settings.session_store, post, settle_ms=settle_ms
    )
    side.apart.begin()
    return ticks


def _call_all(calls: Iterable[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _feed_applications(
    log_side: LogSide, embedded: EmbeddedFeeds, store: ReaderPositions, parking: Parking
) -> FedReaders:
    """Delivery from logs beside the message log, or from those that are a part of it."""
    fed = log_side.feed_applications(store, parking)
    return FedReaders(LogPlace(embedded, store), parking) if fed is None else fed


def _with_shared(own: ApplicationDelivery, shared: SharedReaders | None) -> ApplicationDelivery:
    return own if shared is None else OwnAndShared(own, shared)


def _restore_shared(
    settings: Settings, log_side: LogSide, state: BrokerState, shared: SharedReaders | None
) -> None:
    """Shared subscriptions have logs beside the message log, where clients have."""
    if shared is not None and log_side.application_logs is not None:
        partitions = settings.application.shared_partitions
        shared.restore(state.share_by_logs(log_side.application_logs, partitions))


def _begin_logs(
    settings: Settings,
    log_side: LogSide,
    state: BrokerState,
    readers: FedReaders,
    shared: SharedReaders | None,
    *,
    is_first_run: bool,
) -> LogLifecycle | None:
    """Logs of APPLICATION clients that are beside the message log; None where they are a part of it."""
    if log_side.application_logs is None:
        return None
    names = ApplicationLogNames(settings.kafka.prefix)
    life = LogLifecycle(state, log_side.application_logs, names)
    state.application_logs = readers.life = life
    life.committed = readers.committed
    if shared is not None:
        life.shared_committed = shared.committed
    if state.shared_logs is not None:
        state.shared_logs.begin()
    life.restored = readers.restored
    life.reconcile(may_delete=not is_first_run)
    return life


def _make_broker(settings: Settings, delivery: DurablePath, rules: RuleSet | None, tick: Tick) -> Broker:
    """Without anything that is stored."""
    direct = DirectPath()
    mqtt = with_memory_limits(settings.mqtt, memory_bytes())
    state = BrokerState(mqtt, tick, direct, delivery, settings.authorization)
    state.rules = rules
    if not settings.application.client_id_validation:
        state.strict_names = ApplicationLogNames(settings.kafka.prefix, client_id_validation=False)
    direct.attach(state)
    delivery.attach(state)
    return Broker(state)


def _open_queues(
    broker: Broker, settings: Settings, store: QueueStore, log_side: LogSide, data_dir: Path, *, post: Post
) -> tuple[DeadLetterAlerts, Callable[[], None]]:
    """Durable queues with what is stored of them; before sessions come, which have subscriptions to them. Returns who
    is told of dead letters, and how to close what is open."""
    times = LogTimes(log_side, post, broker.state.counters)
    alerts = WebhookAlerts(settings.webhook, data_dir)
    queues = MqttQueues(
        broker.state,
        settings.queues,
        store,
        times.find if log_side.is_apart else partial(_find_date, times, broker.state.tick),
        alerts=alerts,
        letter_bytes_max=int(settings.log.disk_budget_bytes * DEAD_LETTERS_SHARE),
    )
    queues.restore()
    if log_side.is_apart and settings.queues.enabled:  # else they would be other queues of the same names
        enqueue_tail(queues.core, broker.state.tick, log_side.log, log_side.kept_to)
    broker.state.queues = queues
    return alerts, partial(_call_all, [times.close, alerts.close])


def _find_date(times: LogTimes, tick: Tick, date_ms: int, then: OffsetFound) -> None:
    """Batches in broker.db have the broker's time; records in Kafka have dates."""
    times.find(tick.from_date(date_ms), then)


def _open_retention(
    data_dir: Path, settings: Settings, log_side: LogSide
) -> tuple[Retention, Callable[[], None]]:
    """Retention runs on a thread of its own, so it gets connections of its own."""
    log = settings.log
    parked = SqliteParkedBodies(data_dir)
    limits = RetentionLimits(
        age_ms=int(log.retention_hours * 3_600_000),
        kept_bytes=log.retention_bytes,
        pin_bytes=int(log.disk_budget_bytes * log.pin_limit_share),
        budget_bytes=log.disk_budget_bytes,
        policy=log.pin_policy,
        query_policies=pin_policies(settings.pipeline),
    )
    own = log_side.open_for_retention()
    retention = Retention(own.log, own.readers, own.applications, parked, limits)

    def close() -> None:
        own.close()
        parked.close()

    return retention, close
