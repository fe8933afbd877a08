"""What routing and sessions ask of the queue of a shared subscription (`delivery/device/group_queue.py`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from embermq.model.message import Message
    from embermq.model.session import SessionRow
    from embermq.ports.sessions import StoredSession
    from embermq.routing.router import Receiver
    from embermq.sessions.session import Delivery, Session
    from embermq.sessions.tick import Accepted

GROUP_PREFIX = "$share/"
"""What is stored for a group stands under its whole filter, in place of a client id; no client may have such an id."""


def number_of(name: str) -> int:
    """The number of a shared subscription in what is stored of its messages: the same in every run, and another one for
    each of those that a session is a member of."""
    return crc32(name.encode()) or 1


class SharedQueue(ABC):
    """The messages of QoS 1 and 2 of one shared subscription that has a member with a kept session, until a member has
    acknowledged them, or, with QoS 2, has been given them for good. Called on the broker's thread, inside a tick."""

    @abstractmethod
    def deliver(self, receivers: list[Receiver], accepted: Accepted) -> None:
        """A message of QoS 1 or 2 for one of the members, which are those that may receive its topic."""

    @abstractmethod
    def settled(self, delivery: Delivery) -> None:
        """The member that has it has acknowledged or refused it."""

    @abstractmethod
    def joined(self, session: Session) -> None:
        """A session is a member from now on."""

    @abstractmethod
    def left(self, session: Session) -> None:
        """It is not a member any more. What is in flight to it goes to another one if the session is over, and else
        stays with the session."""

    @abstractmethod
    def comes(self, session: Session) -> None:
        """The client of a member is there."""

    @abstractmethod
    def goes(self, session: Session) -> None:
        """It is gone, and its window about to be forgotten."""

    @abstractmethod
    def end(self) -> None:
        """The last member has left: what is queued goes."""

    @abstractmethod
    def store_late(self, message: Message, record: bytes, offset: int, seq: int) -> None:
        """A row that a crash kept from being written; `seq` puts it before what came after it, 0 at the end."""

    @abstractmethod
    def begin(self, given: set[int]) -> None:
        """The start has repaired what there was to repair. Members hold stored copies of messages at the offsets
        `given`."""

    @abstractmethod
    def adopt(self, stored: StoredSession) -> None:
        """This is what an earlier run stored of it."""

    @abstractmethod
    def give(self) -> None:
        """Hand out what waits to members that are there and have room."""

    number: int
    """See `number_of`."""

    @property
    @abstractmethod
    def session(self) -> Session:
        """Stands for the group in stores: it has a device queue and no client."""


class SharedQueues:
    """All queues of shared subscriptions: which of them have something to hand out."""

    def __init__(self) -> None:
        self.open: set[SharedQueue] = set()
        self.wanting: dict[SharedQueue, set[int]] = {}
        """Those with messages for members that are there: the generations of these."""
        self.awake: dict[SharedQueue, None] = {}
        """Those to be asked in this tick."""

    def has_room(self, session: Session) -> None:
        """The window of a session has room again."""
        for queue, present in self.wanting.items():
            if session.generation in present:
                self.awake[queue] = None

    def wake(self) -> None:
        """Something has changed for all of them."""
        self.awake.update(dict.fromkeys(self.wanting))

    def give(self) -> None:
        """Let those that were woken hand out what they can."""
        awake, self.awake = self.awake, {}
        for queue in awake:
            queue.give()

    @property
    def sessions(self) -> list[Session]:
        """What stands for them in stores."""
        return [queue.session for queue in self.open]

    @property
    def queued(self) -> int:
        """Messages stored for groups."""
        return sum(queue.session.queued for queue in self.open)

    @property
    def queued_bytes(self) -> int:
        """Bytes of their records."""
        return sum(queue.session.queued_bytes for queue in self.open)


def is_group(row: SessionRow) -> bool:
    """Whether what is stored is a group's, not a client's."""
    return row.client_id.startswith(GROUP_PREFIX)
