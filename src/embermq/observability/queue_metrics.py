"""Durable queues as metrics [queues-39]: of the queues and groups that hold most, so that names have an end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from embermq.queues.inspection import GroupView, QueueFigures, QueueStats
from embermq.queues.names import QUEUE_PREFIX

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
