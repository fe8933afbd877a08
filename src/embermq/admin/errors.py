"""What an operation answers when it does not do what was asked, whatever the protocol."""

from http import HTTPStatus

from embermq.ports.errors import StoreError
from embermq.queues.errors import SettingsRefused


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
