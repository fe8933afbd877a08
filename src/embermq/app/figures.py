"""The broker's figures, taken once a second and kept for some minutes."""

from __future__ import annotations

import os
import platform
import time
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from embermq import __version__
from embermq.admin.event_stream import CLIENT, FIGURES, EventStream
from embermq.admin.service import Readiness
from embermq.admin.values import HISTORY_S, BrokerFigures, BrokerView, NodeFigures
from embermq.app.config import Settings
from embermq.app.opened import OpenedBroker
from embermq.durability.retention import DISPATCHER
from embermq.edge.mqtt_server import MqttServer
from embermq.edge.tick_loop import TickLoop
from embermq.model.counters import Counters
from embermq.model.durations import DurationCounts, quantile_s
from embermq.observability.client_events import fields_of, time_text
from embermq.pipeline.status import PipelineStatus
from embermq.queues.mqtt.mqtt_queues import MqttQueues
from embermq.sessions.client_events import ClientEvent
from embermq.sessions.durable_queues import DurableQueues

if TYPE_CHECKING:
    from embermq.app.service import BrokerService

DROPPED = tuple(name for name in Counters.__struct_fields__ if name.startswith("dropped_"))
TOTALS = (
    "connections_accepted",
    "connections_refused",
    "logins_failed",
    "messages_received",
    "messages_sent",
    "messages_stored",
    "publishes_refused",
    "publishes_denied",
    "subscriptions_denied",
    "bytes_received",
    "bytes_sent",
    "sessions_expired",
    "takeovers",
    "protocol_errors",
    "commits_failed",
    "damaged_records",
    "unexpected_errors",
)
STORES = ("log", "session_store", "other_slots")
"""Parts that are servers, or logs on them."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Figures:
    """Of one broker. `look` is called once a second, on the event loop."""

    def __init__(
        self,
        settings: Settings,
        opened: OpenedBroker,
        ticks: TickLoop,
        server: MqttServer,
        service: BrokerService,
    ) -> None:
        self._settings = settings
        self._opened = opened
        self._ticks = ticks
        self._server = server
        self._service = service
        self.stream = EventStream()
        self._started_s = self._taken_s = time.monotonic()
        self._started = datetime.now(UTC)
        self._cpu_s = _cpu_s()
        self._totals = self._count()
        self._durations = self._measured()
        self._history: deque[BrokerFigures] = deque(maxlen=HISTORY_S)

    def look(self) -> None:
        """Take the figures of this moment, and tell who follows."""
        found = self._figures()
        self._history.append(found)
        self.stream.publish(FIGURES, found)

    def tell(self, event: ClientEvent) -> None:
        """Hand a client's event to who follows."""
        if self.stream.wants(CLIENT):
            self.stream.publish(CLIENT, {"time": time_text(), **fields_of(event)})

    def history(self) -> Sequence[BrokerFigures]:
        return list(self._history)

    def overview(self) -> BrokerView:
        if not self._history:
            self.look()
        service, settings = self._service, self._settings
        ready: Readiness = service.ready()
        shown = settings.stores.shown()
        counters = self._opened.broker.state.counters
        return BrokerView(
            version=__version__,
            python=platform.python_version(),
            node=settings.cluster.node or platform.node(),
            started=_text(self._started),
            uptime_s=time.monotonic() - self._started_s,
            ready=ready.ready,
            parts=ready.parts,
            listeners={kind: [str(one) for one in bound] for kind, bound in service.bound.items()},
            places={"log": shown.log, "sessions": shown.session, "accounts": shown.static},
            durability=settings.log.durability,
            has_queues=service.queues is not None,
            connections_max=settings.clients.connections_max,
            now=self._history[-1],
            totals={name: getattr(counters, name) for name in TOTALS},
        )

    def of_node(self) -> NodeFigures:
        """What a cluster is told of this node."""
        state, ready = self._opened.broker.state, self._service.ready()
        retained = self._service.retained
        pins = (
            [pin for pin in retained.pins if pin.name != DISPATCHER and not pin.generation]
            if retained
            else []
        )
        slowest = max(pins, key=lambda pin: pin.behind, default=None)
        return NodeFigures(
            node=self._settings.cluster.node or platform.node(),
            connections=self._server.connections,
            sessions=len(state.sessions),
            queues=len(_depths(state.queues)),
            lag_messages=slowest.behind if slowest is not None else 0,
            lagging=slowest.name if slowest is not None else "",
            ready=ready.ready,
            stores={name: ready.parts[name] for name in STORES if name in ready.parts},
        )

    def _figures(self) -> BrokerFigures:
        """Rates are of what has come since the last time."""
        state, now_s, cpu_s = self._opened.broker.state, time.monotonic(), _cpu_s()
        before, self._totals = self._totals, self._count()
        elapsed_s = max(now_s - self._taken_s, 1e-3)
        rates = {f"{name}_per_s": (total - before[name]) / elapsed_s for name, total in self._totals.items()}
        cpu_percent = 100 * (cpu_s - self._cpu_s) / elapsed_s
        self._taken_s, self._cpu_s = now_s, cpu_s
        depths = _depths(state.queues)
        acknowledged, commits = self._new_durations()
        retained = self._service.retained
        lag_messages, lag_s = _lag(self._service.pipeline)
        return BrokerFigures(
            time=_text(datetime.now(UTC)),
            connections=self._server.connections,
            sessions=len(state.sessions),
            subscriptions=len(state.router),
            retained=len(state.retained),
            **rates,
            acknowledged_p50_ms=_ms(acknowledged, 0.5),
            acknowledged_p99_ms=_ms(acknowledged, 0.99),
            commit_p50_ms=_ms(commits, 0.5),
            commit_p99_ms=_ms(commits, 0.99),
            queues=len(depths),
            queue_depth=sum(depths),
            parked=len(self._opened.parking),
            pipeline_lag_messages=lag_messages,
            pipeline_lag_s=lag_s,
            log_records=retained.end_offset - retained.start_offset if retained is not None else 0,
            log_bytes=retained.body_bytes if retained is not None else 0,
            memory_bytes=_memory_bytes(),
            cpu_percent=cpu_percent,
        )

    def _count(self) -> Mapping[str, int]:
        counters = self._opened.broker.state.counters
        return {
            "messages_in": counters.messages_received,
            "messages_out": counters.messages_sent,
            "bytes_in": counters.bytes_received,
            "bytes_out": counters.bytes_sent,
            "connects": counters.connections_accepted,
            "dropped": sum(getattr(counters, name) for name in DROPPED),
            "refused": counters.publishes_refused,
        }

    def _measured(self) -> tuple[DurationCounts, DurationCounts]:
        found = self._ticks.statistics()
        return found.acknowledged, found.commits

    def _new_durations(self) -> list[tuple[int, ...]]:
        """What was counted since the last time, as `_measured` has it."""
        before, self._durations = self._durations, self._measured()
        return [
            tuple(a - b for a, b in zip(now.counts, then.counts, strict=True))
            for now, then in zip(self._durations, before, strict=True)
        ]


def _ms(counts: tuple[int, ...], share: float) -> float | None:
    found = quantile_s(counts, share)
    return None if found is None else found * 1_000


def _depths(queues: DurableQueues | None) -> list[int]:
    """How many messages each durable queue holds."""
    core = queues.core if isinstance(queues, MqttQueues) else None
    return [core.queue(name).depth() for name in core.names()] if core is not None else []


def _lag(pipeline: PipelineStatus | None) -> tuple[int, float]:
    queries = pipeline.queries if pipeline is not None else ()
    return (
        max((query.lag_messages for query in queries), default=0),
        max((query.lag_s for query in queries), default=0.0),
    )


def _cpu_s() -> float:
    found = os.times()
    return found.user + found.system


def _memory_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * PAGE_BYTES


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")
