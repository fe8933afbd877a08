"""What the broker's log says about the pipeline: one line when it comes, when it goes, when a query stumbles."""

import logging
from typing import TYPE_CHECKING

from embermq.model.amounts import counted
from embermq.pipeline.status import PipelineStatus

if TYPE_CHECKING:
    from embermq.pipeline.supervisor import SupervisorStatistics

News = tuple[int, str]
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

    def since(self, supervisor: "SupervisorStatistics", found: PipelineStatus) -> list[News]:
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


def _state(supervisor: "SupervisorStatistics", found: PipelineStatus) -> str:
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
