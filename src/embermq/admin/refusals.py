"""What HTTP and gRPC did not answer, or refused, counted by why: no log tells it, since what strangers do would fill
that."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Why(StrEnum):
    """Why a request was refused, as metrics name it."""

    CONNECTIONS_MAX = "connections_max"
    """No room for a connection: each of the others had a request under way."""
    MADE_ROOM = "made_room"
    """A connection without a request, ended for a new one."""
    CALLS_MAX = "calls_max"
    """No room for a call of gRPC."""
    TIMEOUT = "timeout"
    """A request that did not come in in time, or an answer that was not taken."""
    MALFORMED = "malformed"
    """What came was no request, or ended before there was one."""
    TOO_LARGE = "too_large"
    """A request, its body or its headers."""
    UNAUTHENTICATED = "unauthenticated"
    """A token that is missing, wrong or over."""
    DENIED = "denied"
    """A token without the scope, or none where only this machine needs none."""


class Refusals:
    """Of the listeners of one protocol, since the start."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = dict.fromkeys(Why, 0)

    @property
    def counts(self) -> Mapping[str, int]:
        """How often, each reason at least with 0."""
        return self._counts

    def add(self, why: Why) -> None:
        self._counts[why] += 1
