"""What a node leaves to the others of its cluster; alone it leaves them nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from embermq.model.message import Message
from embermq.routing.retained import RetainOrder
from embermq.sessions.durable_queues import OffsetFound

if TYPE_CHECKING:
    from embermq.mqtt.wire.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel, Subscription
    from embermq.mqtt.wire.properties import Properties
    from embermq.routing.queue_target import QueueTarget
    from embermq.sessions.link import Link
    from embermq.sessions.session import Session

Answers = dict[str, tuple[int, str]]
"""By topic filter the reason code of MQTT 5, and what is said of it, "" for nothing."""
Answered = Callable[[Answers | None], None]
"""Told what became of a SUBSCRIBE or UNSUBSCRIBE; None when nobody knows."""


class GroupMembers(ABC):
    """Shared subscriptions and durable queues of this node's clients that belong to another slot. Called inside a
    tick."""

    @abstractmethod
    def is_here(self, name: str) -> bool:
        """Whether the group or queue of this subscription, as clients spell it, belongs to this node."""

    @abstractmethod
    def subscribe(
        self, link: Link, asked: Sequence[Subscription], properties: Properties | None, answered: Answered
    ) -> None:
        """Have a client be a member of groups, or a consumer of queues, that are elsewhere. `answered` is called once,
        while the link is there."""

    @abstractmethod
    def unsubscribe(self, link: Link, names: Sequence[str], answered: Answered) -> None:
        """Likewise, for what it is to leave."""

    @abstractmethod
    def publish(self, link: Link, packet: Publish, target: QueueTarget) -> None:
        """Send what a client publishes to a queue that is elsewhere; it is answered as that one answers."""

    @abstractmethod
    def released(self, link: Link, packet: Pubrel) -> bool:
        """A client releases a packet id that its own session does not hold; True when another slot may, which answers
        then."""

    @abstractmethod
    def give_up(self, link: Link) -> None:
        """Answer what a client has asked of slots that have not been reached: it does not hold, and never will."""

    @abstractmethod
    def connected(self, link: Link, session: Session) -> None:
        """A client is there, its CONNACK is queued."""

    @abstractmethod
    def left(self, link: Link) -> None:
        """The connection is over; may be called again."""

    @abstractmethod
    def ended(self, client_id: str, generation: int) -> None:
        """A session that was kept has ended, and that is stored."""

    @abstractmethod
    def answered(self, link: Link, packet: Puback | Pubrec | Pubcomp) -> bool:
        """A client answers what its own session has not sent; True when another slot has."""

    @abstractmethod
    def stood_still(self) -> None:
        """The process did nothing for a while, and another one may have its slot by now: what other slots have sent,
        they may have given to others since. None of it goes to a client before it is sure that this one has its
        slot."""

    @abstractmethod
    def writable(self, link: Link) -> None:
        """The client's socket takes data again."""


def _always(_name: str) -> bool:
    return True


def _nowhere(_client_id: str) -> str:
    return ""


def _nobody(_message: Message) -> None:
    """There is nobody else."""


class NodeShare(Struct):
    """`is_own` tells whether a client belongs to this node, by its id, and `owns_queue` whether a durable queue does,
    by its name; `own_id` makes an id that does, of one that was to be assigned. `relay` sends a message that gets no
    record to the others. `retained` says which retained message is the newer one, and `catch_up` calls back when
    what the others have taken up to now is here; both, and `members`, are None where there are no others. `packet_ids`:
    this node gives those that leave the second number when divided by the first. `elsewhere` ends a sentence for
    operators that there is no session of this client id: where to ask."""

    is_own: Callable[[str], bool] = _always
    own_id: Callable[[str], str] = str
    relay: Callable[[Message], None] = _nobody
    retain_order: RetainOrder | None = None
    catch_up: Callable[[OffsetFound], None] | None = None
    members: GroupMembers | None = None
    packet_ids: tuple[int, int] = (1, 0)
    elsewhere: Callable[[str], str] = _nowhere
    owns_queue: Callable[[str], bool] = _always
