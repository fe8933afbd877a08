"""The façade: what the broker tells operators, whatever the protocol they ask in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct


class Health(Struct, frozen=True):
    """The process lives and its event loop turns."""

    status: str
    """`ok`, or one word for what is wrong."""
    version: str
    uptime_s: float

    @property
    def is_ok(self) -> bool:
        """Whether a supervisor may leave the process alone."""
        return self.status == "ok"


class Readiness(Struct, frozen=True):
    """Whether clients are served, and the state of each part by name (`listeners`, `log`, `pipeline`, ...)."""

    ready: bool
    parts: dict[str, str]


class AdminService(Protocol):
    """What a broker, or a node that stands by, tells of itself over HTTP. Every call is made on the event loop, answers
    from memory within a millisecond or so, and raises nothing."""

    def health(self) -> Health:
        """What `GET /health` answers."""
        ...

    def ready(self) -> Readiness:
        """What `GET /ready` answers: whether clients are served, and the state of each part."""
        ...

    def metrics_text(self) -> str:
        """For `/metrics`: the text format of Prometheus, version 0.0.4."""
        ...

    def pipeline_status(self) -> Mapping[str, object]:
        """For `/api/v1/pipeline`: every query's state, position, lag, last batch, last error; values JSON can hold."""
        ...
