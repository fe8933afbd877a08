"""The way to persistent sessions: the device queue for all, and for APPLICATION sessions their log beside it.

An APPLICATION session uses the queue for what its log does not carry: retained messages and shared subscriptions.
"""

from collections.abc import Callable
from functools import partial

from embermq.delivery.application.readers import ApplicationDelivery
from embermq.delivery.device.path import DevicePath
from embermq.formats.receipts import SAMPLE
from embermq.model.client_type import ClientType
from embermq.model.message import Message
from embermq.mqtt.topics.names import first_level
from embermq.routing.router import MatchedGroup, Receiver, Subscriber
from embermq.sessions.delivery_path import DeliveryPath
from embermq.sessions.session import Delivery, Session
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Accepted

SAMPLE_EVERY = 16
"""One settled delivery in so many is sampled."""
ROOT_BYTES_MAX = 255


class Receipts:
    """Whoever settles deliveries counts `until_next` down, and has the one noted with which it is 0."""

    def __init__(self) -> None:
        self.until_next = SAMPLE_EVERY

    def note(self, state: BrokerState, session: Session, delivery: Delivery) -> None:
        """Write down that a client has acknowledged a live or stored message, and begin to count anew."""
        self.until_next = SAMPLE_EVERY
        message = delivery.message
        if not message.accepted_ms:
            return  # only its packet id was left
        latency_us = min(max(0, state.tick.date_ms - message.accepted_ms) * 1000, 0xFFFFFFFF)
        root = first_level(message.topic).encode()
        if len(root) > ROOT_BYTES_MAX:  # cut between two characters
            root = root[:ROOT_BYTES_MAX].decode(errors="ignore").encode()
        head = SAMPLE.pack(message.accepted_ms, latency_us, session.client_type, len(root))
        state.tick.writes.receipts.append(head + root)


APPLICATION = ClientType.APPLICATION


class DurablePath(DeliveryPath):
    """Hands each call to the room that owns the delivery."""

    def __init__(self, state: BrokerState, device: DevicePath, applications: ApplicationDelivery) -> None:
        self.device = device
        self.applications = applications
        self._receipts = Receipts()
        self._state = state

    def deliver(self, session: Session, receiver: Receiver, accepted: Accepted) -> None:
        self.device.deliver(session, receiver, accepted)

    def deliver_stamped(self, receiver: Receiver, accepted: Accepted) -> None:
        self.applications.deliver(receiver, accepted)

    def holds_back(self, group: MatchedGroup, accepted: Accepted) -> bool:
        return self.device.holds_back(group, accepted)

    def joined(self, subscriber: Subscriber) -> None:
        self.device.groups.joined(subscriber)

    def parted(self, subscriber: Subscriber) -> None:
        self.device.groups.parted(subscriber)

    def delivered(self, log_end: int) -> None:
        self.applications.delivered(log_end)

    def deliver_retained(self, session: Session, receiver: Receiver, message: Message, record: bytes) -> None:
        self.device.deliver_retained(session, receiver, message, record)

    def settled(self, session: Session, delivery: Delivery) -> None:
        receipts = self._receipts
        receipts.until_next -= 1
        if not receipts.until_next:
            receipts.note(self._state, session, delivery)
        if delivery.application:
            self.applications.settled(session, delivery)
            self.device.refill(session)
            return
        self.device.settled(session, delivery)
        if session.client_type is APPLICATION and session.persistent:
            self.applications.pump(session)

    def refused(self, session: Session, delivery: Delivery) -> None:
        if delivery.application:
            self.applications.refused(session, delivery)

    def released(self, session: Session, delivery: Delivery) -> None:
        if delivery.application:
            self.applications.released(session, delivery)
        else:
            self.device.released(session, delivery)

    def recall(self, session: Session, then: Callable[[list[Delivery]], None]) -> None:
        if session.is_application:
            self.applications.recall(session, partial(self.device.recall, session, then))
        else:
            self.device.recall(session, then)

    def may_return(self, session: Session) -> bool:
        """An application's marks are read from the store when it comes; its floor is not."""
        if session.is_application:
            for writes in self._state.tick.unstored():
                if any(mark.generation == session.generation for mark in writes.application_marks):
                    return False
        return self.device.may_return(session)

    def resume(self, session: Session, owed: list[Delivery]) -> None:
        self.device.resume(session, owed)
        if session.is_application:
            self.applications.resume(session)
            self.device.refill(session)
            self.applications.pump(session)

    def hand_over(
        self,
        session: Session,
        take: Callable[[Delivery], bool],
        *,
        ended: bool,
        then: Callable[[], None] | None = None,
    ) -> None:
        self.device.hand_over(session, take, ended=ended, then=then)

    def write_down(self, session: Session) -> None:
        self.device.write_down(session)

    def suspend(self, session: Session) -> None:
        self.device.suspend(session)
        if session.is_application:
            self.applications.suspend(session)

    def forget(self, session: Session) -> None:
        self.device.forget(session)
        if session.is_application:
            self.applications.ended(session)

    def writable(self, session: Session) -> None:
        self.device.writable(session)
        if session.is_application:
            self.applications.pump(session)
