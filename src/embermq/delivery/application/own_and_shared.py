"""Delivery to APPLICATION clients from their own logs and from those of shared subscriptions."""

from collections.abc import Callable
from functools import partial

from embermq.delivery.application.readers import ApplicationDelivery
from embermq.delivery.application.shared_readers import SharedReaders
from embermq.routing.router import Receiver
from embermq.sessions.session import Delivery, Session
from embermq.sessions.tick import Accepted


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
