"""What the broker's log says about the pipeline, the readers of the message log, and room for dead letters."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from embermq.durability.retention import RetentionState
from embermq.model.amounts import counted
from embermq.pipeline.status import PipelineStatus
from embermq.queues.dead_letter_quota import DeadLetterQuota

if TYPE_CHECKING:
    from embermq.pipeline.supervisor import SupervisorStatistics


News = tuple[int, str]
"""Level of `logging`, and the line."""

_OWN = "pipeline.pin_policies"
_COMMON = "log.pin_policy"


class PinNews:
    """Compares each round of retention with the one before."""

    def __init__(self, own: Iterable[str]) -> None:
        """`own`: the queries that have a policy of their own."""
        self._settings: Mapping[str, str] = dict.fromkeys(own, _OWN)
        self._near: frozenset[str] = frozenset()
        self._passed: frozenset[str] = frozenset()
        self._was_over = False

    def since(self, now: RetentionState) -> list[News]:
        """What is worth a line now."""
        news = [(logging.WARNING, self._near_line(query, now)) for query in sorted({*now.near} - self._near)]
        news += [(logging.ERROR, _passed_line(query, now)) for query in sorted({*now.passed} - self._passed)]
        self._near = frozenset(now.near)
        # What is dropped brings a query back to the limit, and what comes next past it again: that is told once.
        self._passed = (self._passed & self._near) | frozenset(now.passed)
        if now.over_limit and not self._was_over:
            first = now.pins[0]
            line = f"the log holds {now.body_bytes} bytes, more than readers may hold back; furthest behind: "
            news.append((logging.WARNING, f"{line}{first.name}, by {first.behind} records"))
        elif self._was_over and not (now.over_limit or now.near):
            news.append((logging.INFO, "the log is within its limits again"))
        self._was_over = now.over_limit or (self._was_over and bool(now.near))
        return news

    def _near_line(self, query: str, now: RetentionState) -> str:
        return (
            f"{query} holds back more than half of what readers may hold back of the log ({now.body_bytes} of "
            f"{now.pin_limit_bytes} bytes); past that, {self._settings.get(query, _COMMON)} decides"
        )


def _passed_line(query: str, now: RetentionState) -> str:
    if query in now.to_pause:
        return (
            f"{query} is paused: it held back more of the log than readers may. What the log drops meanwhile will be "
            f"missing there; `embermq pipeline resume {query}` lets it go on"
        )
    return (
        f"{query} is so far behind that the log goes on without it: its oldest records are dropped, and counted as "
        "missing"
    )


LOG = logging.getLogger("embermq")


class LetterNews:
    """Says once that there is little room, once that there is none, and once that there is again."""

    def __init__(self) -> None:
        self._level = 0
        """0 while there is room, 1 when there is little left, 2 when there is none."""

    def look(self, room: DeadLetterQuota) -> None:
        """Called every now and then."""
        level = room.is_alarming + room.is_full
        takes = f"dead letters take {room.used_bytes} of {room.limit_bytes} bytes (a tenth of log.disk_budget_bytes)"
        if level > self._level:
            what = "queues keep what would become one" + ("" if room.is_full else " when that is full")
            LOG.warning("%s; %s: put some back, or purge them", takes, what)
        elif level < self._level:
            LOG.info("%s", takes)
        self._level = level


"""Level of `logging`, and the line."""


class PipelineNews:
    """Compares each look with the one before."""

    def __init__(self) -> None:
        self._state = "starting"
        self._stumbling: frozenset[str] = frozenset()
        self._restarts = 0
        self._waiting = False

    def without_pipeline(self, waiting: int) -> list[News]:
        """Of a broker that starts none. `waiting`: records that application logs wait for, 0 when nobody wants any."""
        before, self._waiting = self._waiting, waiting > 0
        if self._waiting and not before:
            return [
                (
                    logging.WARNING,
                    f"the pipeline is not running: application logs wait for {counted(waiting, 'record')}",
                )
            ]
        return []

    def since(self, supervisor: SupervisorStatistics, found: PipelineStatus) -> list[News]:
        """What is worth a line now."""
        news: list[News] = []
        before = self._state
        self._state = _state(supervisor, found)
        if supervisor.restarts > self._restarts and self._state != "failed":
            news.append((logging.WARNING, f"the pipeline was restarted: {supervisor.last_error}"))
        self._restarts = supervisor.restarts
        told, self._stumbling = self._stumbling, _stumbling(found)
        if self._state == before and not (self._state == "degraded" and self._stumbling - told):
            return news
        if self._state == "running":
            news.append((logging.INFO, f"the pipeline runs (Spark {found.spark}, Java {found.java})"))
        elif self._state == "degraded":
            news.append((logging.WARNING, _told(found)))
        elif self._state == "down":
            news.append(
                (logging.ERROR, f"the pipeline is down, its driver is restarted: {supervisor.stalled}")
            )
        elif self._state == "failed":
            news.append(
                (
                    logging.ERROR,
                    f"the pipeline keeps failing and is restarted at growing intervals: {supervisor.last_error}",
                )
            )
        return news


def waiting_text(found: PipelineStatus) -> str:
    """What `ready` says of application logs; "ok" when they have everything."""
    dispatch = next((query for query in found.queries if query.name == "dispatch"), None)
    if not found.waiting:
        return "ok"
    age = f", the oldest for {dispatch.lag_s:.1f} s" if dispatch is not None else ""
    return f"{counted(found.waiting, 'record')} to come{age}"


def _state(supervisor: SupervisorStatistics, found: PipelineStatus) -> str:
    if supervisor.stalled and supervisor.state != "failed":
        return "down"
    return found.state if supervisor.state == "running" else supervisor.state


def _told(found: PipelineStatus) -> str:
    failing = [f"{query.name}: {query.last_error}" for query in found.queries if query.state == "backoff"]
    paused = [query.name for query in found.queries if query.state == "paused"]
    parts = [f"the pipeline has a query that fails: {'; '.join(failing)}"] if failing else []
    parts += [f"the pipeline goes on without {', '.join(paused)}, until it is resumed"] if paused else []
    return "; ".join(parts)


def _stumbling(found: PipelineStatus) -> frozenset[str]:
    return frozenset(query.name for query in found.queries if query.state in ("backoff", "paused"))
