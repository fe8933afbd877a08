"""What the broker asks of the delivery rooms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embermq.model.message import Message
    from embermq.routing.router import MatchedGroup, Receiver, Subscriber
    from embermq.sessions.session import Delivery, Session
    from embermq.sessions.tick import Accepted


class DeliveryPath(ABC):
    """Carries messages to sessions. Called on the broker's thread, inside a tick."""

    @abstractmethod
    def deliver(self, session: Session, receiver: Receiver, accepted: Accepted) -> None:
        """A message for the session; `accepted.offset` is set for what the log holds."""

    def deliver_stamped(self, receiver: Receiver, accepted: Accepted) -> None:
        """A message that its record is stamped with the session for; it comes by the pipeline, too."""
        return

    def holds_back(self, _group: MatchedGroup, _accepted: Accepted) -> bool:
        """Whether a message for a shared subscription stays in the log for now, and is read from there later."""
        return False

    def joined(self, _subscriber: Subscriber) -> None:
        """A client that is there has subscribed to what others share: it may have what waits for them."""
        return

    def parted(self, _subscriber: Subscriber) -> None:
        """It is not there any more, or has unsubscribed."""
        return

    def delivered(self, log_end: int) -> None:
        """Every record below it has been handed on."""
        return

    @abstractmethod
    def deliver_retained(self, session: Session, receiver: Receiver, message: Message, record: bytes) -> None:
        """A retained message for a new subscription."""

    @abstractmethod
    def settled(self, session: Session, delivery: Delivery) -> None:
        """PUBACK or PUBCOMP came, or PUBREC with an error; the packet id is free again."""

    def refused(self, session: Session, delivery: Delivery) -> None:
        """The client has answered with an error; `settled` follows."""
        return

    @abstractmethod
    def released(self, session: Session, delivery: Delivery) -> None:
        """PUBREC came: PUBREL may leave once that is durable."""

    @abstractmethod
    def recall(self, session: Session, then: Callable[[list[Delivery]], None]) -> None:
        """The session's client is about to be connected: read what it has not acknowledged on a connection before.
        `then` is called once, possibly before this returns; while the store is away it waits."""

    @abstractmethod
    def may_return(self, session: Session) -> bool:
        """Whether a client may be let in for the session while the store takes nothing, so that what changed last of it
        is in memory alone."""

    @abstractmethod
    def resume(self, session: Session, owed: list[Delivery]) -> None:
        """The session's client is connected, CONNACK is queued: send what is owed, first what `recall` has read."""

    @abstractmethod
    def hand_over(
        self,
        session: Session,
        take: Callable[[Delivery], bool],
        *,
        ended: bool,
        then: Callable[[], None] | None = None,
    ) -> None:
        """The session's client is gone: offer what came by shared subscriptions and is not under way with QoS 2; what
        `take` returns True for is another session's now. With `ended` what is stored is offered as well. `then` is
        called when all has been offered, possibly before this returns; while the store is away it waits."""

    @abstractmethod
    def write_down(self, session: Session) -> None:
        """A subscription goes: what it has brought must be owed without it, also after a crash [MQTT-3.10.4-3]."""

    @abstractmethod
    def suspend(self, session: Session) -> None:
        """The session's client is gone: nothing of it may live in memory only."""

    @abstractmethod
    def forget(self, session: Session) -> None:
        """The session has ended: let go of everything."""

    @abstractmethod
    def writable(self, session: Session) -> None:
        """The client's socket takes data again."""
