"""How many of each kind there are, here and there."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from google_crc32c import extend as extend_crc32c

KINDS = (
    "accounts",
    "sessions",
    "subscriptions",
    "wills",
    "packet ids of incoming QoS 2 messages",
    "messages stored for clients",
    "messages of application logs",
    "parked messages",
    "shared subscriptions of applications",
    "retained messages",
    "archived messages",
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


class Fingerprint:
    """Another one when a broker has run in between, whatever it has done."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, stored: object) -> None:
        """In the order in which it is read."""
        self.value = extend_crc32c(self.value, msgspec.json.encode(stored))
