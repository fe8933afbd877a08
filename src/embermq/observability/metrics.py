"""Prometheus metrics from snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from msgspec import Struct
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from embermq.cluster.slots import ClusterStatistics
from embermq.durability.retention import RetentionState
from embermq.edge.clock import ClockStatistics
from embermq.edge.mqtt_server import ServerStatistics
from embermq.edge.tick_loop import TickStatistics
from embermq.model.counters import Counters
from embermq.model.durations import BOUNDS_S, DurationCounts
from embermq.model.position import offset_of, partition_of
from embermq.observability.metric_help import help_of
from embermq.pipeline.status import PIPELINE_STATES, QUERY_STATES, PipelineStatus
from embermq.pipeline.supervisor import SupervisorStatistics
from embermq.ports.dead_letter_alerts import AlertStatistics
from embermq.ports.receipt_log import ReceiptStatistics
from embermq.ports.state_writer import SessionStoreStatistics
from embermq.queues.inspection import GroupView, QueueFigures, QueueStats
from embermq.queues.names import QUEUE_PREFIX
from embermq.sessions.quotas import Quotas

_GAUGES: dict[str, tuple[str, Callable[[QueueStats], float]]] = {
    "depth": ("messages that the slowest group has not settled", lambda queue: queue.depth),
    "delayed": ("messages whose time has not come", lambda queue: queue.delayed),
    "in_flight": ("messages that consumers hold", lambda queue: queue.in_flight),
    "in_backoff": ("messages that wait for a retry", lambda queue: queue.in_backoff),
    "blocked_keys": ("keys with an unsettled message that others wait for", lambda queue: queue.blocked_keys),
    "groups": ("consumer groups", lambda queue: queue.groups),
    "idle_groups": ("groups without consumers", lambda queue: queue.idle_groups),
    "idle_lag": (
        "messages that the slowest group without consumers has not settled",
        lambda queue: queue.idle_lag,
    ),
    "oldest_age_seconds": ("age of the oldest message", lambda queue: queue.oldest_age_s),
}
_COUNTERS: dict[str, tuple[str, Callable[[QueueStats], float]]] = {
    "enqueue": ("messages that were enqueued", lambda queue: queue.enqueued),
    "dequeue": ("deliveries, repeated ones too", lambda queue: queue.delivered),
    "ack": ("messages that were acked", lambda queue: queue.acked),
    "nack": ("nacks", lambda queue: queue.nacked),
    "reject": ("messages that were rejected", lambda queue: queue.rejected),
    "purged": ("messages that operators deleted", lambda queue: queue.purged),
    "dlq_retried": ("dead letters that came back", lambda queue: queue.retried),
}
_OF_GROUPS: dict[str, tuple[str, Callable[[GroupView], float]]] = {
    "active_consumers": ("consumers of a group", lambda group: group.consumers),
    "lag": ("messages that a group has not settled", lambda group: group.lag),
    "group_in_flight": ("messages that consumers of a group hold", lambda group: group.in_flight),
}


def queue_metrics(figures: QueueFigures) -> Iterator[Metric]:
    """The label `queue` is the topic of the queue. A name that a client chose is in it as it is: the text format
    escapes it."""
    yield GaugeMetricFamily("mqtt_queues", "durable queues", value=figures.queues)
    yield GaugeMetricFamily(
        "mqtt_queue_dlq_bytes", "bytes that dead letters of all queues take", value=figures.dead_letter_bytes
    )
    yield GaugeMetricFamily(
        "mqtt_queue_dlq_bytes_max",
        "bytes that they may take; past it queues keep failed messages",
        value=figures.dead_letter_bytes_max,
    )
    for name, (text, value) in _GAUGES.items():
        gauge = GaugeMetricFamily(f"mqtt_queue_{name}", text, labels=["queue"])
        for queue in figures.shown:
            gauge.add_metric([_topic(queue.name)], value(queue))
        yield gauge
    for name, (text, value) in _COUNTERS.items():
        counter = CounterMetricFamily(f"mqtt_queue_{name}", text, labels=["queue"])
        for queue in figures.shown:
            counter.add_metric([_topic(queue.name)], value(queue))
        yield counter
    for name, text in (
        ("dlq", "messages that became dead letters"),
        ("dropped", "messages that ended without having been settled by all"),
    ):
        by_reason = CounterMetricFamily(f"mqtt_queue_{name}", text, labels=["queue", "reason"])
        for queue in figures.shown:
            counts = queue.dead_lettered if name == "dlq" else queue.dropped
            for reason, count in sorted(counts.items()):
                by_reason.add_metric([_topic(queue.name), reason], count)
        yield by_reason
    for name, (text, of_group) in _OF_GROUPS.items():
        gauge = GaugeMetricFamily(f"mqtt_queue_{name}", text, labels=["queue", "group"])
        for queue_name, groups in figures.groups.items():
            for group in groups:
                gauge.add_metric([_topic(queue_name), group.name], of_group(group))
        yield gauge
    yield _latency(figures)


def _topic(name: str) -> str:
    return QUEUE_PREFIX + name


def _latency(figures: QueueFigures) -> Metric:
    """A summary with quantiles, which the client library's own has not."""
    summary = Metric(
        "mqtt_queue_delivery_latency_seconds",
        "from when a message may be delivered to its first delivery; quantiles of the last minute",
        "summary",
    )
    for queue in figures.shown:
        labels = {"queue": _topic(queue.name)}
        for quantile, seconds in queue.delivery_latency_s.items():
            summary.add_sample(summary.name, {**labels, "quantile": quantile}, seconds)
        count, total_s = figures.latency[queue.name]
        summary.add_sample(f"{summary.name}_count", labels, count)
        summary.add_sample(f"{summary.name}_sum", labels, total_s)
    return summary


PINS_SHOWN_MAX = 50


class MetricsSnapshot(Struct, frozen=True, kw_only=True):
    """Everything that is measured, at one moment."""

    counters: Counters
    build: Mapping[str, str]
    """What runs here: version, Python, durability."""
    refusals: Mapping[str, Mapping[str, int]]
    """By listener and reason, what HTTP and gRPC did not answer."""
    connections: int
    sessions: int
    sessions_loaded: int
    sessions_behind: int
    quotas: Quotas
    subscriptions: int
    retained: int
    application_readers: int
    application_lost: int
    application_parked: int
    ticks: TickStatistics
    clock: ClockStatistics
    server: ServerStatistics
    retention: RetentionState | None
    pipeline: PipelineStatus | None
    supervisor: SupervisorStatistics | None
    session_store: SessionStoreStatistics | None = None
    """None while sessions are kept beside the log."""
    receipts: ReceiptStatistics | None = None
    """None while samples of latency are kept beside the log."""
    alerts: AlertStatistics | None = None
    queues: QueueFigures | None = None
    """None where there are no durable queues."""
    cluster: ClusterStatistics | None = None
    """None where no other node serves."""


class Metrics(Collector):
    """Turns the newest snapshot into the text format."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._snapshot: MetricsSnapshot | None = None
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self, snapshot: MetricsSnapshot) -> str:
        """Version 0.0.4 of the text format."""
        self._snapshot = snapshot
        return generate_latest(self._registry).decode()

    def collect(self) -> Iterator[Metric]:
        """Build all metrics from the newest snapshot. Called by the registry of Prometheus."""
        snapshot = self._snapshot
        if snapshot is None:
            return
        yield _build(snapshot.build)
        for name in snapshot.counters.__struct_fields__:
            total: int = getattr(snapshot.counters, name)
            yield CounterMetricFamily(f"embermq_{name}", help_of(name), value=total)
        gauges = {
            "connections": snapshot.connections,
            "sessions": snapshot.sessions,
            "sessions_behind": snapshot.sessions_behind,
            "sessions_loaded": snapshot.sessions_loaded,
            "sessions_kept": snapshot.quotas.kept,
            "sessions_kept_limit": snapshot.quotas.sessions_max,
            "subscriptions": snapshot.subscriptions,
            "subscriptions_bytes": snapshot.quotas.filter_bytes,
            "subscriptions_bytes_limit": snapshot.quotas.filter_bytes_max,
            "retained_messages": snapshot.retained,
            "application_readers": snapshot.application_readers,
            "parked_messages": snapshot.application_parked,
            "application_entries_lost": snapshot.application_lost,
            "connections_limit": snapshot.server.connections_max,
            "tls_handshakes": snapshot.server.tls_handshakes,
            "readers_paused": snapshot.server.readers_paused,
            "publishers_paused": snapshot.server.publishers_paused,
            "store_failing": int(bool(snapshot.ticks.failing)),
            "clock_set": int(snapshot.clock.offset_ms is not None),
            "clock_offset_seconds": (snapshot.clock.offset_ms or 0) / 1000,
        }
        for name, value in gauges.items():
            yield GaugeMetricFamily(f"embermq_{name}", help_of(name), value=value)
        listeners = GaugeMetricFamily(
            "embermq_listener_connections", "connections of a listener", labels=["listener"]
        )
        for listener, connections in snapshot.server.by_listener.items():
            listeners.add_metric([listener], connections)
        yield listeners
        refused = CounterMetricFamily(
            "embermq_api_refused", "requests and connections refused", labels=["listener", "reason"]
        )
        for listener, reasons in snapshot.refusals.items():
            for reason, total in reasons.items():
                refused.add_metric([listener, reason], total)
        yield refused
        yield from _ticks(snapshot.ticks)
        yield CounterMetricFamily(
            "embermq_clock_steps", "moves of the wall clock by more than a minute", value=snapshot.clock.steps
        )
        if snapshot.session_store is not None:
            yield from _session_store(snapshot.session_store)
        if snapshot.receipts is not None:
            yield from _receipts(snapshot.receipts)
        if snapshot.alerts is not None:
            yield from _alerts(snapshot.alerts)
        if snapshot.queues is not None:
            yield from queue_metrics(snapshot.queues)
        if snapshot.cluster is not None:
            yield from _cluster(snapshot.cluster)
        if snapshot.retention is not None:
            yield from _retention(snapshot.retention)
        if snapshot.supervisor is not None:
            yield CounterMetricFamily(
                "embermq_pipeline_restarts",
                "restarts of the pipeline driver",
                value=snapshot.supervisor.restarts,
            )
        if snapshot.pipeline is not None:
            yield from _pipeline(snapshot.pipeline)


def _build(labels: Mapping[str, str]) -> Metric:
    build = GaugeMetricFamily("embermq_build_info", help_of("build_info"), labels=list(labels))
    build.add_metric(list(labels.values()), 1)
    return build


def _ticks(state: TickStatistics) -> Iterator[Metric]:
    yield CounterMetricFamily("embermq_ticks", "ticks of the event loop", value=state.ticks)
    yield _durations("commit_seconds", state.commits)
    yield _durations("acknowledged_seconds", state.acknowledged)
    delivered = HistogramMetricFamily(
        "embermq_delivered_seconds", help_of("delivered_seconds"), labels=["client_type"]
    )
    for client_type, found in zip(("DEVICE", "APPLICATION"), state.delivered, strict=True):
        delivered.add_metric([client_type], _buckets(found), found.sum_s)
    yield delivered
    if state.syncs is not None:
        yield _durations("sync_seconds", state.syncs)


def _durations(name: str, found: DurationCounts) -> Metric:
    return HistogramMetricFamily(
        f"embermq_{name}", help_of(name), buckets=_buckets(found), sum_value=found.sum_s
    )


def _buckets(found: DurationCounts) -> list[tuple[str, float]]:
    bounds = [*map(str, BOUNDS_S), "+Inf"]
    return list(zip(bounds, accumulate(found.counts), strict=True))


def _session_store(state: SessionStoreStatistics) -> Iterator[Metric]:
    gauges = {
        "failing": int(bool(state.failing)),
        "waiting_ticks": state.waiting_ticks,
        "waiting_bytes": state.waiting_bytes,
    }
    for name, value in gauges.items():
        text = help_of(f"session_store_{name}")
        yield GaugeMetricFamily(f"embermq_session_store_{name}", text, value=value)
    counts = {
        "operations": state.operations,
        "round_trips": state.round_trips,
        "retries": state.retries,
        "refused": state.refused,
        "fenced": state.fenced,
        "unreadable": state.unreadable,
        "connections": state.connections,
        "resent": state.resent,
        "settling_let_go": state.settling_let_go,
        "former_ended": state.former_ended,
    }
    for name, value in counts.items():
        text = help_of(f"session_store_{name}")
        yield CounterMetricFamily(f"embermq_session_store_{name}", text, value=value)


def _cluster(state: ClusterStatistics) -> Iterator[Metric]:
    counts = {
        "copied": state.copied,
        "delivered": state.delivered,
        "refused": state.refused,
        "unsent": state.unsent,
    }
    for name, value in counts.items():
        yield CounterMetricFamily(f"embermq_cluster_{name}", help_of(f"cluster_{name}"), value=value)
    links = help_of("cluster_member_links")
    yield GaugeMetricFamily("embermq_cluster_member_links", links, value=state.member_links)
    for name in ("sent", "sent_bytes", "taken", "failovers", "given_up"):
        total = CounterMetricFamily(
            f"embermq_cluster_peer_{name}", help_of(f"cluster_peer_{name}"), labels=["slot"]
        )
        for peer in state.peers:
            total.add_metric([str(peer.slot)], getattr(peer, name))
        yield total
    for name in ("is_connected", "waiting_bytes"):
        shown = name.removeprefix("is_")
        now = GaugeMetricFamily(
            f"embermq_cluster_peer_{shown}", help_of(f"cluster_peer_{shown}"), labels=["slot"]
        )
        for peer in state.peers:
            now.add_metric([str(peer.slot)], int(getattr(peer, name)))
        yield now
    for name, attribute in (("round_trip", "round_trips"), ("away", "away")):
        shown = f"cluster_peer_{name}_seconds"
        lengths = HistogramMetricFamily(f"embermq_{shown}", help_of(shown), labels=["slot"])
        for peer in state.peers:
            found: DurationCounts = getattr(peer, attribute)
            lengths.add_metric([str(peer.slot)], _buckets(found), found.sum_s)
        yield lengths


def _receipts(state: ReceiptStatistics) -> Iterator[Metric]:
    yield CounterMetricFamily("embermq_receipts_stored", "samples of latency in Kafka", value=state.stored)
    yield CounterMetricFamily("embermq_receipts_dropped", "samples of latency dropped", value=state.dropped)
    yield GaugeMetricFamily(
        "embermq_receipts_waiting_bytes", "samples of latency not in Kafka yet", value=state.waiting_bytes
    )


def _alerts(state: AlertStatistics) -> Iterator[Metric]:
    alerts = CounterMetricFamily("embermq_dead_letter_alerts", "alerts of dead letters", labels=["outcome"])
    for outcome in ("sent", "failed", "refused", "dropped"):
        alerts.add_metric([outcome], getattr(state, outcome))
    yield alerts
    yield GaugeMetricFamily(
        "embermq_dead_letter_alerts_waiting", "alerts of dead letters that wait", value=state.waiting
    )


def _retention(state: RetentionState) -> Iterator[Metric]:
    for name, text, position in (
        ("embermq_log_start_offset", "first offset kept, of its partition", state.start_offset),
        (
            "embermq_log_end_offset",
            "first offset not used yet, of the partition written to",
            state.end_offset,
        ),
    ):
        place = GaugeMetricFamily(name, text, labels=["partition"])
        place.add_metric([str(partition_of(position))], offset_of(position))
        yield place
    yield GaugeMetricFamily("embermq_log_body_bytes", "bytes of record bodies kept", value=state.body_bytes)
    yield GaugeMetricFamily(
        "embermq_log_parked_bytes", "bytes of record bodies parked for applications", value=state.parked_bytes
    )
    yield CounterMetricFamily(
        "embermq_log_dropped_entries", "entries that drop-oldest took from applications", value=state.dropped
    )
    yield GaugeMetricFamily(
        "embermq_log_pin_limit_bytes",
        "bytes of bodies that readers may hold back",
        value=state.pin_limit_bytes,
    )
    near = GaugeMetricFamily(
        "embermq_log_reader_near_limit", "1 for a query past half of the pin limit", labels=["reader"]
    )
    for name in state.near:
        near.add_metric([name], 1)
    yield near
    yield GaugeMetricFamily("embermq_log_over_pin_limit", "1 past the pin limit", value=int(state.over_limit))
    pinned = GaugeMetricFamily(
        "embermq_log_reader_behind", "records that a reader has not confirmed", labels=["reader"]
    )
    for pin in state.pins[:PINS_SHOWN_MAX]:
        pinned.add_metric([pin.name], pin.behind)
    yield pinned


_COUNTED = {
    "records": "records of the log that a query has covered",
    "bytes": "bytes of payload that a query has written",
    "rejected": "records that could not be understood",
    "missing": "records that were gone from the log before a query read them",
    "late": "records that came after the watermark of their window",
}


def _pipeline(status: PipelineStatus) -> Iterator[Metric]:
    state = GaugeMetricFamily("embermq_pipeline_state", "1 for the current state, else 0", labels=["state"])
    for name in PIPELINE_STATES:
        state.add_metric([name], int(status.state == name))
    yield state
    lag = GaugeMetricFamily("embermq_pipeline_lag_messages", "records behind the log's end", labels=["query"])
    seconds = GaugeMetricFamily(
        "embermq_pipeline_lag_seconds", "age of the oldest record not read", labels=["query"]
    )
    restarts = CounterMetricFamily("embermq_pipeline_query_restarts", "restarts of a query", labels=["query"])
    for query in status.queries:
        lag.add_metric([query.name], query.lag_messages)
        seconds.add_metric([query.name], query.lag_s)
        restarts.add_metric([query.name], query.restarts)
    yield lag
    yield seconds
    yield restarts
    yield from _query_work(status)


def _query_work(status: PipelineStatus) -> Iterator[Metric]:
    """What each query is doing, and what it has counted over the life of its sink."""
    running = GaugeMetricFamily(
        "embermq_pipeline_query_state", "1 for the current state, else 0", labels=["query", "state"]
    )
    batch = GaugeMetricFamily(
        "embermq_pipeline_batch_seconds", "how long the last batch took", labels=["query"]
    )
    records = GaugeMetricFamily(
        "embermq_pipeline_batch_records", "records of the last batch", labels=["query"]
    )
    for query in status.queries:
        for name in QUERY_STATES:
            running.add_metric([query.name, name], int(query.state == name))
        batch.add_metric([query.name], query.last_batch_ms / 1000)
        records.add_metric([query.name], query.last_batch_records)
    yield from (running, batch, records)
    for what, text in _COUNTED.items():
        counter = CounterMetricFamily(f"embermq_pipeline_{what}", text, labels=["query"])
        for query in status.queries:
            counter.add_metric([query.name], query.totals.get(what, 0))
        yield counter
