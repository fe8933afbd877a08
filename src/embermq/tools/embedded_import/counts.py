"""How many of each kind there are, here and there."""

from __future__ import annotations

from collections.abc import Mapping

KINDS = (
    "accounts",
    "sessions",
    "subscriptions",
    "wills",
    "packet ids of incoming QoS 2 messages",
    "messages stored for clients",
    "messages of application logs",
    "parked messages",
    "retained messages",
    "queues",
    "groups of queues",
    "messages in queues",
    "delayed messages",
    "messages that groups have tried",
    "replays",
)
"""In the order in which they are shown."""


class Counts(dict[str, int]):
    """By kind; what is not there is 0."""

    def __init__(self, found: Mapping[str, int] | None = None) -> None:
        super().__init__(dict.fromkeys(KINDS, 0))
        for kind, count in (found or {}).items():
            self.add(kind, count)

    def add(self, kind: str, count: int = 1) -> None:
        """So many more."""
        assert kind in KINDS, kind
        self[kind] += count
