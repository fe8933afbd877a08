"""Somebody outside who wants to hear of dead letters [queues-36]."""

from abc import ABC, abstractmethod

from msgspec import Struct

from embermq.model.queue_rows import DeadLetter


class DeadLetterAlert(Struct, frozen=True):
    """`url` is where it goes, `queue` the queue of dead letters that `letter` is in now; the body of the message is not
    told."""

    url: str
    queue: str
    letter: DeadLetter


class AlertStatistics(Struct, frozen=True, kw_only=True):
    """Totals since start, and what waits now."""

    sent: int
    """Taken by the webhook."""
    failed: int
    """Given up: it refused them, or did not answer often enough."""
    refused: int
    """Never sent: its address is not one that may be called."""
    dropped: int
    """Never sent: too many waited, or the broker was stopped."""
    waiting: int


class DeadLetterAlerts(ABC):
    """Alerts are advice: they are told after the dead letter is durable, may be lost with the process, and may come
    twice."""

    @abstractmethod
    def tell(self, alert: DeadLetterAlert) -> None:
        """Returns at once, whatever the receiver does: past the limit of what may wait the alert is dropped and
        counted. Called on the broker's thread, after the commit."""

    @abstractmethod
    def statistics(self) -> AlertStatistics:
        """What was sent, dropped and is waiting, at this moment; may be called on any thread."""

    @abstractmethod
    def close(self) -> None:
        """Give what waits a moment, then drop it. Nothing is told after that."""
