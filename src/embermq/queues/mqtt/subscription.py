"""What a SUBSCRIBE to a queue asks for, read from its filter, its options and its user properties [queues-13].

    consumer-group    the group; without one that of the `$share` filter, or the client id up to its first `-`
    start-position    earliest, latest, a sequence, or a time with its zone: of the group, when this founds it
    prefetch          messages that the consumer may have unsettled
    concurrency       messages of these that it works on at a time
    ack-mode          explicit (MQTT 5), puback (MQTT 3, which knows no other), none

None of them may stand there twice.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Struct

from embermq.model.session import SubscriptionRow
from embermq.mqtt.topics.names import shown
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.queues.errors import PropertyRefused, QueueRefusal
from embermq.queues.names import QueueKind, default_group, kind_of, parse_filter
from embermq.queues.publication import UserProperties, parse_time

CONSUMER_GROUP = "consumer-group"
START_POSITION = "start-position"
PREFETCH = "prefetch"
CONCURRENCY = "concurrency"
ACK_MODE = "ack-mode"
GROUP_BYTES_MAX = 255
PREFETCH_MAX = 65_535
CONCURRENCY_MAX = PREFETCH_MAX
_READ = frozenset({CONSUMER_GROUP, START_POSITION, PREFETCH, CONCURRENCY, ACK_MODE})


class AckMode(StrEnum):
    """What settles a delivery [queues-27]."""

    EXPLICIT = "explicit"
    """A message to a control topic."""
    PUBACK = "puback"
    """PUBACK or PUBCOMP."""
    NONE = "none"
    """That it was written to the socket: QoS 0."""


class Start(Struct, frozen=True):
    """The start position of a new group: at a sequence, at a time (Unix milliseconds; 0 for none), or behind all
    that is there."""

    sequence: int = 0
    time_ms: int = 0
    is_latest: bool = False


class QueueSubscription(Struct, frozen=True):
    """One filter of a session that is a consumer. `prefetch` is 0 for what the queue says."""

    topic_filter: str
    queue: str
    group: str
    qos: int
    identifier: int
    prefetch: int
    ack_mode: AckMode
    concurrency: int = 1

    @property
    def place(self) -> tuple[str, str]:
        """Names of queue and group."""
        return self.queue, self.group

    @property
    def row(self) -> SubscriptionRow:
        """All that is stored of it."""
        return SubscriptionRow(self.topic_filter, self.qos, self.identifier, 0, self.stored)

    @property
    def stored(self) -> str:
        """What is stored of it beside the filter, its options and its identifier."""
        stored = _StoredSubscription(self.group, self.prefetch, self.ack_mode, self.concurrency)
        return msgspec.json.encode(stored).decode()


class _StoredSubscription(Struct, frozen=True, omit_defaults=True):
    group: str
    prefetch: int = 0
    ack_mode: AckMode = AckMode.EXPLICIT
    concurrency: int = 1


class Asker(Struct, frozen=True):
    """The client that subscribes: client id, version, and whether `ack-mode: none` is allowed."""

    client_id: str
    version: ProtocolVersion
    allows_none: bool


def read_subscription(
    topic_filter: str, qos: int, identifier: int, properties: UserProperties, asker: Asker
) -> tuple[QueueSubscription, Start]:
    """`qos` is what would be granted. Raises QueueRefusal, for MQTT 5; the other versions know one failure."""
    named = parse_filter(topic_filter)
    found: dict[str, str] = {}
    for name, value in properties:
        if name in _READ:
            if name in found:
                raise PropertyRefused(f"user property {name} stands there more than once")
            found[name] = value
    subscription = QueueSubscription(
        topic_filter,
        named.name,
        _group(found.get(CONSUMER_GROUP), named.group, asker),
        qos,
        identifier,
        _number(PREFETCH, found.get(PREFETCH), PREFETCH_MAX) or 0,
        _ack_mode(found.get(ACK_MODE), qos, kind_of(named.name), asker),
        _number(CONCURRENCY, found.get(CONCURRENCY), CONCURRENCY_MAX) or 1,
    )
    return subscription, _start(found.get(START_POSITION))


def restored(topic_filter: str, qos: int, identifier: int, stored: str) -> QueueSubscription:
    """A subscription as `QueueSubscription.stored` wrote it. Raises ValueError."""
    named = parse_filter(topic_filter)
    rest = msgspec.json.decode(stored, type=_StoredSubscription)
    return QueueSubscription(
        topic_filter, named.name, rest.group, qos, identifier, rest.prefetch, rest.ack_mode, rest.concurrency
    )


def _group(asked: str | None, shared: str, asker: Asker) -> str:
    if asked is not None and shared and asked != shared:
        raise PropertyRefused(f"group {shown(shared)} of the filter is not {CONSUMER_GROUP} {shown(asked)}")
    group = (shared or default_group(asker.client_id)) if asked is None else asked
    size = len(group.encode())
    if not 0 < size <= GROUP_BYTES_MAX:
        whose = (
            CONSUMER_GROUP
            if asked is not None
            else f"the group of {'the filter' if shared else 'the client id'}"
        )
        raise PropertyRefused(f"{whose} has {size} bytes; it is 1 to {GROUP_BYTES_MAX}")
    return group


def _number(name: str, asked: str | None, most: int) -> int | None:
    if asked is None:
        return None
    if not (asked.isascii() and asked.isdigit() and len(asked) <= len(str(most)) and 1 <= int(asked) <= most):
        raise PropertyRefused(f"{name} is {shown(asked)}; it is a number from 1 to {most}")
    return int(asked)


def _ack_mode(asked: str | None, qos: int, kind: QueueKind, asker: Asker) -> AckMode:
    if kind is QueueKind.RESPONSES:
        return AckMode.PUBACK if qos else AckMode.NONE
    default = AckMode.EXPLICIT if asker.version is ProtocolVersion.V5 else AckMode.PUBACK
    try:
        mode = default if asked is None else AckMode(asked)
    except ValueError:
        raise PropertyRefused(f"{ACK_MODE} is {shown(asked or '')}; it is {', '.join(AckMode)}") from None
    if asker.allows_none and (mode is AckMode.NONE or (not qos and asker.version is not ProtocolVersion.V5)):
        return AckMode.NONE
    if mode is AckMode.NONE:
        raise PropertyRefused(f"{ACK_MODE} {AckMode.NONE} is not allowed here (queues.allow_ack_mode_none)")
    if not qos:
        raise QueueRefusal("a queue is consumed with QoS 1 or 2", ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
    return mode


def _start(asked: str | None) -> Start:
    if asked is None or asked == "earliest":
        return Start()
    if asked == "latest":
        return Start(is_latest=True)
    if asked.isascii() and asked.isdigit() and len(asked) <= 18:
        return Start(sequence=int(asked))
    try:
        return Start(time_ms=parse_time(asked))
    except ValueError:
        raise PropertyRefused(
            f"{START_POSITION} is {shown(asked)}; it is earliest, latest, a sequence, or a time with zone as"
            " 2030-01-31T12:00:00Z"
        ) from None
