"""The servers profile: the message log in Kafka, everything else on a Redis. Imported only when needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from embermq.access.authorization.rule_set import RuleSet
from embermq.app import kafka_log
from embermq.app.clock_file import ClockFile
from embermq.app.config import Settings
from embermq.app.kafka_log import KafkaLogSide
from embermq.app.log_side import Post
from embermq.app.log_thread import LogReads
from embermq.app.opened import (
    OpenedBroker,
    call_all,
    make_broker,
    make_parking,
    make_state,
    open_queues,
    open_retention,
)
from embermq.app.peers import Peers, other_slots
from embermq.app.places_noted import noted_places
from embermq.app.redis_state import EmptiedRedis, Memory, RedisState
from embermq.app.slots import cluster_of, reader_name, slot_settings
from embermq.cluster.slots import slot_of_queue
from embermq.delivery.application.fed_readers import FedReaders
from embermq.delivery.application.log_lifecycle import LogLifecycle
from embermq.delivery.application.readers import OwnAndShared
from embermq.delivery.application.shared_readers import SharedReaders
from embermq.durability.log_first import LogFirstStore
from embermq.durability.recovery import Recovery, complete, lagging
from embermq.formats.application_logs import ApplicationLogNames
from embermq.formats.log_record import RecordError
from embermq.ports.errors import StoreError
from embermq.ports.known_log import KnownLog
from embermq.ports.sessions import StoredState
from embermq.queues.mqtt.tail import enqueue_tail
from embermq.routing.shared_logs import SharedLogs
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Tick

SETTLE_MARGIN_MS = 100
"""The floor stays behind by more than what is kept to be sent again: of what is below it, Redis does not know any more
that it had it."""


def open_servers(
    data_dir: Path, settings: Settings, slot: int, post: Post, rules: RuleSet | None = None
) -> OpenedBroker:
    """Open the stores, read them, complete from the log what a crash left. Redis comes first: it knows which log is
    ours, and how far that went. `slot` is this node's, of the cluster that the settings are for. `rules`: who may do
    what, None for everybody everything. Raises StartError for settings that cannot be, StoreError."""
    whole, settings = settings, slot_settings(settings, slot)
    clock = ClockFile(data_dir)
    redis = RedisState(settings.stores.session, settings.redis, post)
    log_side: KafkaLogSide | None = None
    cluster = cluster_of(settings)
    try:
        known = redis.notes.known()
        redis.notes.check_cluster(known, cluster)
        known = redis.take_over(is_guarded=bool(settings.cluster.etcd))
        clock.clock.go_on_from(known.time_ms)
        tick = Tick(clock.clock.now_ms(), clock.clock.offset_ms)
        if not known.is_any and not settings.kafka.adopt_log:
            _check_is_new(data_dir, redis.place)
        if known.is_any:
            redis.notes.check_whole(accept_loss=settings.kafka.adopt_log)
        log_side = KafkaLogSide(settings, known, post)
        if not known.is_any:
            redis.notes.begin(log_side.log_end)
        redis.notes.open(log_side.log_id, cluster)
        slots = whole.cluster.slots
        stores = _Stores(
            redis, log_side, known, clock, tick, post, lambda name: slot_of_queue(name, slots) == slot
        )
        opened = _read(data_dir, settings, rules, stores)
        if settings.cluster.slots > 1:
            opened.peers = _peers(whole, slot, opened, stores)
        return opened
    except BaseException as error:
        redis.abandon()
        if log_side is not None:
            log_side.close()
        if isinstance(error, RecordError):  # damaged, or written by a version that this one does not know
            raise StoreError(f"cannot read what the stores hold: {error}") from error
        raise


def _peers(settings: Settings, slot: int, opened: OpenedBroker, stores: _Stores) -> Peers:
    log_side = stores.log_side
    peers = Peers(
        settings, slot, broker=opened.broker, redis=stores.redis, log=log_side.log, post=stores.post
    )
    log_side.readers = tuple(map(reader_name, other_slots(settings, slot)))
    log_side.kept_from = lambda: peers.kept_from
    return peers


def _check_is_new(data_dir: Path, place: str) -> None:
    """Raises StoreError for a Redis that knows nothing, when there was one that did."""
    before = noted_places(data_dir)
    if before.is_on_servers:
        raise StoreError(
            f"stores.session: {place} knows no log, and sessions of this broker are kept in {before.session}: they "
            "would miss what comes; name that one, or set kafka.adopt_log when what knew of them is lost"
        )


class _Stores(Struct, frozen=True):
    """What has been opened."""

    redis: RedisState
    log_side: KafkaLogSide
    known: KnownLog
    clock: ClockFile
    tick: Tick
    post: Post
    owns_queue: Callable[[str], bool]
    """Whether a durable queue belongs to this node's slot, by its name."""


def _read(data_dir: Path, settings: Settings, rules: RuleSet | None, stores: _Stores) -> OpenedBroker:
    """Read them into a broker. Raises RecordError, StoreError."""
    redis, log_side, known = stores.redis, stores.log_side, stores.known
    tick, post = stores.tick, stores.post
    state = make_state(settings, rules, tick)
    state.share.owns_queue = stores.owns_queue
    state.retained.remembers_ends = settings.cluster.slots > 1
    parking = make_parking(state, settings, redis.parked)
    readers = log_side.feed_applications(state, redis.readers, parking)
    shared = log_side.share_applications(state, redis.shared, parking, readers)
    broker, delivery = make_broker(state, settings, redis.queue, OwnAndShared(readers, shared))

    queues = open_queues(state, settings, redis.queues, log_side, data_dir, post=post)
    stored, retained = redis.sessions.load(), redis.sessions.load_retained()
    stored = _behind_log(stored, known, log_side, max((row.offset + 1 for row in retained), default=0))
    if settings.queues.enabled:
        first = redis.queues.log_start() if known.is_any else stored.log_end
        enqueue_tail(queues.queues.core, tick, log_side.log, first, redis.queues.complete_to)
    partitions = settings.application.shared_partitions
    # With several slots a group is of all of them, and applications are members of it as devices are.
    share = state.share_by_logs if settings.cluster.slots == 1 else partial(SharedLogs, state)
    shared.restore(share(log_side.application_logs, partitions, shared))
    sessions = complete(broker, stored, retained, log_side.log)
    parking.restore(sessions)
    recovery = Recovery(state, delivery.device, log_side.log, redis.history)
    redelivered = recovery.run(stored.dispatcher_floor, lagging(stored))

    state.record_bytes_sure, state.record_objection = log_side.bytes_sure, log_side.objection
    state.connect_wait_ms = int(kafka_log.CONNECT_WAIT_S * 1000)
    ticks = LogFirstStore(
        log_side.appender,
        redis.writer,
        state,
        post,
        log_end=log_side.log_end,
        settle_ms=int(settings.redis.settle_s * 1000) + SETTLE_MARGIN_MS,
        receipts=log_side.receipt_log,
    )
    log_side.ticks = ticks
    reads = LogReads(log_side, post)
    delivery.device.behind.read_log = reads.read
    close = partial(call_all, [queues.close, reads.close])
    redis.before_close = ticks.finish
    redis.begin(log_side.end)
    redis.queues.log = log_side.records
    memory = Memory(broker, queues.queues, readers, shared, settings.device.ttl_s)
    EmptiedRedis(redis, ticks, memory, log_side.log_id, cluster_of(settings))
    life = _begin_logs(settings, log_side, state, readers, shared, is_first_run=not known.is_any)
    retention, close_retention = open_retention(data_dir, settings, log_side)
    return OpenedBroker(
        broker,
        delivery,
        parking,
        log_side,
        ticks,
        redis,
        retention,
        partial(
            call_all,
            [close, close_retention, redis.queues.close, log_side.close, stores.clock.note],
        ),
        redelivered,
        queues.alerts,
        stores.clock,
        life,
    )


def _behind_log(
    stored: StoredState, known: KnownLog, log_side: KafkaLogSide, retained_end: int
) -> StoredState:
    """What Redis holds, with the log as it is. A log that ends before what Redis knows of has lost its end, and goes on
    elsewhere: no position is used twice. A Redis that has nothing of a log with records is not owed them."""
    log_side.continue_behind(max(stored.log_end, retained_end))
    end = log_side.log_end
    floor = stored.dispatcher_floor if known.is_any else end
    return replace(stored, dispatcher_floor=floor, log_end=end, generation_reserved=known.generations)


def _begin_logs(
    settings: Settings,
    log_side: KafkaLogSide,
    state: BrokerState,
    readers: FedReaders,
    shared: SharedReaders,
    *,
    is_first_run: bool,
) -> LogLifecycle:
    """Logs of APPLICATION clients, beside the message log."""
    names = ApplicationLogNames(settings.kafka.prefix)
    life = LogLifecycle(state, log_side.application_logs, names)
    state.application_logs = readers.life = life
    life.committed = readers.committed
    life.shared_committed = shared.committed
    if state.shared_logs is not None:
        state.shared_logs.begin()
    life.restored = readers.restored
    life.reconcile(may_delete=not is_first_run)
    return life
