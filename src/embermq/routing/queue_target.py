"""Where a topic below `$queue/` or `$admin/queue/` leads: to no subscriber, but to durable queues."""

from enum import Enum

from msgspec import Struct


class QueueAim(Enum):
    """What a PUBLISH asks of durable queues."""

    ENQUEUE = "enqueue"
    RESPOND = "respond"
    """Put into a queue of responses: in memory, without a record."""
    SETTLE = "settle"
    CONFIGURE = "configure"


class QueueTarget(Struct, frozen=True):
    """A topic to publish to. `name` is that of the queue; `verb` says how a consumer settles."""

    aim: QueueAim
    name: str
    verb: str = ""
