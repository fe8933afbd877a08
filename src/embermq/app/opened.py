"""A broker and what it stands on, in either profile, and how what both have in common is put together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from embermq.access.authorization.rule_set import RuleSet
from embermq.adapters.sqlite.parked_messages import SqliteParkedBodies
from embermq.adapters.sqlite.settings import PIN_LIMIT_SHARE
from embermq.adapters.webhook.alerts import WebhookAlerts
from embermq.app.clock_file import ClockFile
from embermq.app.config import Settings, queue_settings
from embermq.app.log_side import LogSide, Post
from embermq.app.log_thread import LogTimes
from embermq.app.memory import memory_bytes, with_memory_limits
from embermq.app.slots import reader_policies
from embermq.delivery.application.log_lifecycle import LogLifecycle
from embermq.delivery.application.parking import Parking
from embermq.delivery.application.readers import ApplicationDelivery
from embermq.delivery.device.path import DevicePath
from embermq.delivery.direct.path import DirectPath
from embermq.delivery.durable_path import DurablePath
from embermq.durability.retention import Retention, RetentionLimits
from embermq.formats.application_logs import ApplicationLogNames
from embermq.intake.broker import Broker
from embermq.pipeline.settings import pin_policies
from embermq.ports.dead_letter_alerts import DeadLetterAlerts
from embermq.ports.device_queue import DeviceQueue
from embermq.ports.parked_messages import ParkedMessages
from embermq.ports.queue_store import QueueStore
from embermq.ports.tick_store import TickStore
from embermq.queues.mqtt.mqtt_queues import MqttQueues
from embermq.queues.settings import DEAD_LETTERS_SHARE
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Tick

if TYPE_CHECKING:
    from embermq.app.peers import Peers
    from embermq.app.redis_state import RedisState

LOG = logging.getLogger("embermq")


class OpenedBroker(Struct):
    """The broker and what it stands on."""

    broker: Broker
    delivery: DurablePath
    parking: Parking
    """What applications did not acknowledge, however often it was sent."""
    log_side: LogSide
    """What the message log stands on."""
    ticks: TickStore
    """What ticks are handed to."""
    session_store: RedisState | None
    """What is kept besides the log; None where that is beside it."""
    retention: Retention
    close: Callable[[], None]
    """After the session store."""
    redelivered: int
    """Deliveries that were repaired after the last end of the broker."""
    alerts: DeadLetterAlerts
    """Who is told of dead letters."""
    clock: ClockFile
    """Broker time."""
    log_life: LogLifecycle | None
    """None where application logs are a part of the message log."""
    peers: Peers | None = None
    """The logs of other nodes that serve; None where there are none."""


def make_state(settings: Settings, rules: RuleSet | None, tick: Tick) -> BrokerState:
    """Without anything that is stored, and without its ways to sessions."""
    state = BrokerState(with_memory_limits(settings.mqtt, memory_bytes()), tick, settings.authorization)
    state.rules = rules
    if not settings.application.client_id_validation:
        state.strict_names = ApplicationLogNames(settings.kafka.prefix, client_id_validation=False)
    return state


def make_parking(state: BrokerState, settings: Settings, store: ParkedMessages) -> Parking:
    """Operators are told in the log."""
    return Parking(state, settings.application, store, partial(LOG.warning, "%s"))


def make_broker(
    state: BrokerState, settings: Settings, queue: DeviceQueue, applications: ApplicationDelivery
) -> tuple[Broker, DurablePath]:
    """With its ways to sessions."""
    delivery = DurablePath(state, DevicePath(state, queue, queue_settings(settings)), applications)
    state.direct, state.durable = DirectPath(state), delivery
    return Broker(state), delivery


class OpenedQueues(Struct):
    """Durable queues with what is stored of them. They are opened before sessions come, which subscribe to them."""

    queues: MqttQueues
    alerts: WebhookAlerts
    """Who is told of dead letters."""
    close: Callable[[], None]


def open_queues(
    state: BrokerState,
    settings: Settings,
    store: QueueStore,
    log_side: LogSide,
    data_dir: Path,
    *,
    post: Post,
) -> OpenedQueues:
    """Read them. Raises StoreError."""
    times = LogTimes(log_side, post, state.counters)
    alerts = WebhookAlerts(settings.webhook, data_dir)

    def find(date_ms: int, then: Callable[..., None]) -> None:
        times.find(date_ms if log_side.has_dates else state.tick.from_date(date_ms), then)

    queues = MqttQueues(
        state,
        settings.queues,
        store,
        find,
        alerts=alerts,
        letter_bytes_max=int(settings.log.disk_budget_bytes * DEAD_LETTERS_SHARE),
    )
    queues.restore()
    state.queues = queues
    return OpenedQueues(queues, alerts, partial(call_all, [times.close, alerts.close]))


def open_retention(
    data_dir: Path, settings: Settings, log_side: LogSide
) -> tuple[Retention, Callable[[], None]]:
    """Retention runs on a thread of its own, so it gets connections of its own."""
    log = settings.log
    parked = SqliteParkedBodies(data_dir)
    limits = RetentionLimits(
        age_ms=int(log.retention_hours * 3_600_000),
        kept_bytes=log.retention_bytes,
        pin_bytes=int(log.disk_budget_bytes * PIN_LIMIT_SHARE),
        budget_bytes=log.disk_budget_bytes,
        policy=log.pin_policy,
        query_policies=pin_policies(settings.pipeline) | reader_policies(settings),
    )
    own = log_side.open_for_retention()
    retention = Retention(own.log, own.readers, own.applications, parked, limits)
    return retention, partial(call_all, [own.close, parked.close])


def call_all(calls: Iterable[Callable[[], None]]) -> None:
    """Make these calls one after the other."""
    for call in calls:
        call()
