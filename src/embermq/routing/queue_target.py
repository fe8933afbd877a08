"""Where a topic below `$queue/` or `$admin/queue/` leads: to no subscriber, but to durable queues."""

from enum import Enum

from msgspec import Struct

from embermq.mqtt.topics.names import SHARE_PREFIX

QUEUE_PREFIX = "$queue/"
DEAD_LETTER_PREFIX = "dlq/"
"""Begins the name of a queue of dead letters."""


class QueueAim(Enum):
    """What a PUBLISH asks of durable queues."""

    ENQUEUE = "enqueue"
    RESPOND = "respond"
    """Put into a queue of responses: in memory, without a record."""
    SETTLE = "settle"
    CONFIGURE = "configure"


class QueueTarget(Struct, frozen=True):
    """A topic to publish to. `name` is that of the queue; `verb` says how a consumer settles. `elsewhere` is the name
    of a queue that belongs to another slot of the cluster, "" for one that is here."""

    aim: QueueAim
    name: str
    verb: str = ""
    elsewhere: str = ""


def place_of_queue(name: str) -> str:
    """What decides which slot of a cluster has a queue: dead letters are where they come from."""
    return QUEUE_PREFIX + name.removeprefix(DEAD_LETTER_PREFIX)


def place_of_filter(topic_filter: str) -> str:
    """Likewise, of what is shared: by the queue that it names, else by the whole text, which is a group's name."""
    topic = topic_filter
    if topic.startswith(SHARE_PREFIX):
        topic = topic[len(SHARE_PREFIX) :].partition("/")[2]
    return place_of_queue(topic[len(QUEUE_PREFIX) :]) if topic.startswith(QUEUE_PREFIX) else topic_filter
