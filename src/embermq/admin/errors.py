"""What an operation answers when it does not do what was asked, whatever the protocol, and what is counted of it.

What HTTP and gRPC did not answer, or refused, counted by why: no log tells it, since what strangers do would fill
that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from enum import StrEnum
from http import HTTPStatus

from msgspec import Struct

from embermq.ports.errors import StoreError
from embermq.queues.errors import SettingsRefused

_log = logging.getLogger(__name__)


def tell_of_fault(doing: str, error: Exception) -> None:
    """Log it. A MemoryError goes to the event loop as well, whose handler ends the process: the servers of HTTP and
    gRPC would go on after it."""
    if isinstance(error, MemoryError):
        context = {"message": f"{doing} failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
    _log.error("%s failed", doing, exc_info=error)


class Problem(Struct, frozen=True):
    """An error answer [RFC 9457]."""

    type: str
    title: str
    status: int
    detail: str


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


class OperationRefused(Exception):
    """It cannot be done now: why."""


class NotFound(OperationRefused):
    """There is nothing of that name."""


class AlreadyExists(OperationRefused):
    """Only a new one was wanted, and there is one."""


class QueueElsewhere(OperationRefused):
    """Another node of the cluster has the queue: which."""


class LogsRefused(Exception):
    """Application logs cannot be told of: why."""


class RequestRefused(Exception):
    """What was asked cannot be meant: which field, why."""


class RequestTooLarge(RequestRefused):
    """The request has too many bytes."""


class AccessRefused(Exception):
    """`status` is 401 when another token may help, else 403."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


STATUSES: tuple[tuple[type[Exception], HTTPStatus], ...] = (
    (NotFound, HTTPStatus.NOT_FOUND),
    (AlreadyExists, HTTPStatus.PRECONDITION_FAILED),
    (QueueElsewhere, HTTPStatus.MISDIRECTED_REQUEST),
    (OperationRefused, HTTPStatus.CONFLICT),
    (RequestTooLarge, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (RequestRefused, HTTPStatus.BAD_REQUEST),
    (SettingsRefused, HTTPStatus.UNPROCESSABLE_ENTITY),
    (StoreError, HTTPStatus.SERVICE_UNAVAILABLE),
    (LogsRefused, HTTPStatus.SERVICE_UNAVAILABLE),
)
"""The first that fits; AccessRefused has its own. gRPC has a code for each status."""


def status_of(error: Exception) -> HTTPStatus | None:
    """None for a fault of the broker's."""
    if isinstance(error, AccessRefused):
        return HTTPStatus(error.status)
    return next((status for kind, status in STATUSES if isinstance(error, kind)), None)
