"""Names of queues, and the topics by which plain MQTT clients reach them.

    $queue/<name>                       publish: enqueue; subscribe: consume                  [queues-1]
    $queue/<name>/$ack  $nack  $reject  $extend      publish: settle, never enqueued          [queues-5]
    $share/<group>/$queue/<name>        subscribe: consume in that group                      [queues-7]
    $queue/dlq/<name>                   dead letters of a queue: consumed, filled by the broker alone
    $queue/responses/<id>               answers to requests: in memory

A name has at most 255 bytes of UTF-8, no empty level, no wildcard, no level that starts with `$` [queues-6].
"""

from enum import Enum, StrEnum
from functools import lru_cache

from msgspec import Struct

from embermq.mqtt.topics.names import SHARE_PREFIX, shown
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.queues.errors import NameRefused
from embermq.routing import queue_target

QUEUE_PREFIX, DEAD_LETTER_PREFIX = queue_target.QUEUE_PREFIX, queue_target.DEAD_LETTER_PREFIX
RESPONSE_PREFIX = "responses/"
NAME_BYTES_MAX = 255
"""Of a dead-letter queue: what stands behind `dlq/`."""
TOPICS_REMEMBERED = 4_096
"""Publishers name the same few again and again; a name has a few hundred bytes at most, or is refused and forgotten."""


class Verb(StrEnum):
    """What a control topic asks for."""

    ACK = "$ack"
    NACK = "$nack"
    REJECT = "$reject"
    EXTEND = "$extend"


class QueueKind(Enum):
    """What a name says about its queue."""

    ORDINARY = "ordinary"
    DEAD_LETTERS = "dead letters"
    RESPONSES = "responses"


class QueueTopic(Struct, frozen=True):
    """A topic to publish to. `verb` is None for a message."""

    name: str
    verb: Verb | None


class QueueFilter(Struct, frozen=True):
    """A filter to consume by. `group` is that of a `$share` filter, "" when it names none."""

    name: str
    group: str


_VERBS = {str(verb): verb for verb in Verb}


def queue_name(given: str) -> str:
    """The name of a queue that is given by its name or by its topic, `$queue/<name>`."""
    return given.removeprefix(QUEUE_PREFIX)


def is_queue_filter(topic_filter: str) -> bool:
    """Whether a filter, shared or not, leaves the ordinary path."""
    if topic_filter.startswith(SHARE_PREFIX):
        return topic_filter[len(SHARE_PREFIX) :].partition("/")[2].startswith(QUEUE_PREFIX)
    return topic_filter.startswith(QUEUE_PREFIX)


@lru_cache(TOPICS_REMEMBERED)
def parse_topic(topic: str) -> QueueTopic:
    """Read the topic of a PUBLISH or a will that begins with `QUEUE_PREFIX`. Raises NameRefused with 0x90."""
    name = topic[len(QUEUE_PREFIX) :]
    base, separator, last = name.rpartition("/")
    verb = _VERBS.get(last)
    if verb is not None:
        if not separator:
            raise NameRefused(f"topic {shown(topic)} names no queue", ReasonCode.TOPIC_NAME_INVALID)
        name = base
    check_name(name, ReasonCode.TOPIC_NAME_INVALID)
    if verb is None and kind_of(name) is QueueKind.DEAD_LETTERS:
        raise NameRefused(
            f"topic {shown(topic)}: dead letters are written by the broker alone",
            ReasonCode.TOPIC_NAME_INVALID,
        )
    return QueueTopic(name, verb)


def parse_filter(topic_filter: str) -> QueueFilter:
    """Read a filter for which `is_queue_filter` holds. Raises NameRefused with 0x8F [queues-13]."""
    group = ""
    if topic_filter.startswith(SHARE_PREFIX):
        group, _, topic_filter = topic_filter[len(SHARE_PREFIX) :].partition("/")
        if not group or "+" in group or "#" in group:
            raise NameRefused(
                f"group {shown(group)} is empty or has a wildcard", ReasonCode.TOPIC_FILTER_INVALID
            )
    name = topic_filter[len(QUEUE_PREFIX) :]
    check_name(name, ReasonCode.TOPIC_FILTER_INVALID)
    return QueueFilter(name, group)


def check_name(name: str, reason_code: ReasonCode) -> None:
    """Raise NameRefused, with that code, unless it is the name of a queue."""
    own = name.removeprefix(DEAD_LETTER_PREFIX)
    size = len(own.encode())
    if size > NAME_BYTES_MAX:
        raise NameRefused(
            f"queue name {shown(name)} has {size} bytes, the limit is {NAME_BYTES_MAX}", reason_code
        )
    if own is not name and own.startswith(DEAD_LETTER_PREFIX):
        raise NameRefused(f"queue name {shown(name)}: dead letters have no dead letters", reason_code)
    if "\0" in name:  # no topic has it [MQTT-1.5.4-2], but an operator's JSON or address may
        raise NameRefused(f"queue name {shown(name)} has U+0000", reason_code)
    for level in name.split("/"):
        if not level:
            raise NameRefused(f"queue name {shown(name)} has an empty level", reason_code)
        if level[0] == "$":
            raise NameRefused(
                f"queue name {shown(name)}: level {shown(level)} starts with '$'; behind a name stand"
                f" {', '.join(_VERBS)} alone",
                reason_code,
            )
        if "+" in level or "#" in level:
            raise NameRefused(f"queue name {shown(name)} has a wildcard", reason_code)


def kind_of(name: str) -> QueueKind:
    """What kind of queue has this name, which its prefix says."""
    if name.startswith(DEAD_LETTER_PREFIX):
        return QueueKind.DEAD_LETTERS
    if name.startswith(RESPONSE_PREFIX):
        return QueueKind.RESPONSES
    return QueueKind.ORDINARY


def default_group(client_id: str) -> str:
    """The group of a consumer that names none: its id up to the first `-`, the whole id when that is empty
    [queues-13]."""
    return client_id.partition("-")[0] or client_id
