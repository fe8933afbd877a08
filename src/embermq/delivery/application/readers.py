"""Delivery to APPLICATION sessions from their logs, wherever those are kept.

All calls are made on the broker's thread, and none waits.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

from embermq.delivery.application.shared_readers import SharedReaders
from embermq.routing.router import Receiver
from embermq.sessions.session import Delivery, Session
from embermq.sessions.tick import Accepted


class ApplicationDelivery(ABC):
    """The readers of a broker: one for each connected APPLICATION session."""

    lost = 0
    """Messages that the log no longer had when they were to be sent."""

    @abstractmethod
    def __len__(self) -> int:
        """How many sessions are being read for."""

    @property
    @abstractmethod
    def failing(self) -> str:
        """Why application logs cannot be read now; "" when they can."""

    @abstractmethod
    def recall(self, session: Session, then: Callable[[], None]) -> None:
        """The session's client is about to be connected: make sure that its log is there, and read what it has not
        acknowledged. `then` is called once, possibly before this returns; while the log's store is away it waits. What
        cannot be had is not answered: who waits gives up."""

    @abstractmethod
    def resume(self, session: Session) -> None:
        """The client is connected: what it has not acknowledged is to be resent, then comes what follows."""

    @abstractmethod
    def suspend(self, session: Session) -> None:
        """The client is gone, or will not come after `recall`: its state is in store already."""

    @abstractmethod
    def ended(self, session: Session) -> None:
        """The session has ended, its subscriptions are gone: nothing that is accepted from now on is for it."""

    @abstractmethod
    def poll(self) -> None:
        """Called again and again while there is somebody to read for."""

    @abstractmethod
    def pump(self, session: Session) -> None:
        """Send the next pack if there is room for it."""

    @abstractmethod
    def deliver(self, receiver: Receiver, accepted: Accepted) -> None:
        """A record that is stamped for the session is committed."""

    @abstractmethod
    def delivered(self, log_end: int) -> None:
        """Every record below it has been told of."""

    @abstractmethod
    def settled(self, session: Session, delivery: Delivery) -> None:
        """Count a message as settled: PUBACK or PUBCOMP came for it."""

    def refused(self, session: Session, delivery: Delivery) -> None:
        """The client has answered with an error; `settled` follows."""
        return

    @abstractmethod
    def released(self, session: Session, delivery: Delivery) -> None:
        """The client has sent PUBREC: it has the message, and PUBREL is what is left."""


class OwnAndShared(ApplicationDelivery):
    """Hands each call to those whom it is for. A client's own log comes first."""

    def __init__(self, own: ApplicationDelivery, shared: SharedReaders) -> None:
        self._own = own
        self._shared = shared

    def __len__(self) -> int:
        return max(len(self._own), len(self._shared))

    @property
    def failing(self) -> str:
        return self._own.failing or self._shared.failing

    def recall(self, session: Session, then: Callable[[], None]) -> None:
        self._own.recall(session, partial(self._shared.recall, session, then))

    def resume(self, session: Session) -> None:
        self._own.resume(session)
        self._shared.resume(session)

    def suspend(self, session: Session) -> None:
        self._shared.suspend(session)
        self._own.suspend(session)

    def ended(self, session: Session) -> None:
        self._shared.suspend(session)
        self._own.ended(session)

    def poll(self) -> None:
        self._own.poll()
        self._shared.poll()
        self.lost = self._own.lost

    def pump(self, session: Session) -> None:
        self._own.pump(session)
        self._shared.pump(session)

    def deliver(self, receiver: Receiver, accepted: Accepted) -> None:
        self._own.deliver(receiver, accepted)

    def delivered(self, log_end: int) -> None:
        self._own.delivered(log_end)

    def settled(self, session: Session, delivery: Delivery) -> None:
        """The others have the first turn: with a Receive Maximum of 1 it is the only one."""
        if self._shared.settled(session, delivery):
            self._own.pump(session)
            self._shared.pump(session)
            return
        if len(session.window) + 1 >= session.window_max:
            self._shared.pump(session)
        self._own.settled(session, delivery)

    def refused(self, session: Session, delivery: Delivery) -> None:
        """Nobody is told of it where the log is a group's."""
        if not self._shared.has(session, delivery):
            self._own.refused(session, delivery)

    def released(self, session: Session, delivery: Delivery) -> None:
        if not self._shared.released(session, delivery):
            self._own.released(session, delivery)
