"""The life of a message in one group, as a table [queues-20] [queues-23] [queues-28].

    QUEUED     owed; also what came back from a consumer: then it has attempts, and the last holder may still ack
    DELIVERED  a consumer holds it; its lease begins when the PUBLISH is written to the socket
    RETRY      waits for its time; nobody holds it, the last holder may still ack
    ACKED, DLQ the group is done with it: no event reaches it

What is not in the table cannot happen: KeyError is a fault of ours.
"""

from enum import Enum, auto
from typing import Final

from embermq.model.queue_rows import MessageState
from embermq.queues.names import Verb


class Event(Enum):
    """What happens to a message."""

    __hash__ = object.__hash__  # that of Enum is a function of Python, and each event is looked up
    ACK = auto()
    NACK = auto()
    REJECT = auto()
    EXTEND = auto()
    LEASE_OVER = auto()
    HOLDER_GONE = auto()
    """Its consumer has left, or its connection is lost."""
    DUE = auto()
    """The time of a retry has come."""


class MessageAction(Enum):
    """What a group does about a message after an event."""

    FINISH = auto()
    """ACKED: this group owes it no more."""
    FAIL = auto()
    """Charge a failure: DLQ, RETRY or QUEUED, as the retry policy says."""
    BURY = auto()
    """DLQ, whatever the policy says."""
    RENEW = auto()
    """The lease begins anew."""
    GIVE_BACK = auto()
    """QUEUED at once. What had reached the socket is a suspect, and charged if it was one before."""
    QUEUE = auto()
    """QUEUED, or DLQ when the total time is over."""
    IGNORE = auto()
    """Too late."""


VERB_EVENTS: Final = {
    Verb.ACK: Event.ACK,
    Verb.NACK: Event.NACK,
    Verb.REJECT: Event.REJECT,
    Verb.EXTEND: Event.EXTEND,
}

_S, _E, _A = MessageState, Event, MessageAction

TRANSITIONS: Final[dict[tuple[MessageState, Event], MessageAction]] = {
    (_S.QUEUED, _E.ACK): _A.FINISH,
    (_S.QUEUED, _E.NACK): _A.IGNORE,
    (_S.QUEUED, _E.REJECT): _A.IGNORE,
    (_S.QUEUED, _E.EXTEND): _A.IGNORE,
    (_S.DELIVERED, _E.ACK): _A.FINISH,
    (_S.DELIVERED, _E.NACK): _A.FAIL,
    (_S.DELIVERED, _E.REJECT): _A.BURY,
    (_S.DELIVERED, _E.EXTEND): _A.RENEW,
    (_S.DELIVERED, _E.LEASE_OVER): _A.FAIL,
    (_S.DELIVERED, _E.HOLDER_GONE): _A.GIVE_BACK,
    (_S.RETRY, _E.ACK): _A.FINISH,
    (_S.RETRY, _E.NACK): _A.IGNORE,
    (_S.RETRY, _E.REJECT): _A.IGNORE,
    (_S.RETRY, _E.EXTEND): _A.IGNORE,
    (_S.RETRY, _E.DUE): _A.QUEUE,
}
