"""What a publisher asks of a queue by user properties, and what the broker stamps on a delivery."""

from datetime import datetime
from functools import lru_cache

from msgspec import Struct

from embermq.model.queue_rows import DeadLetter
from embermq.mqtt.topics.names import shown
from embermq.mqtt.wire.data_types import encode_text
from embermq.mqtt.wire.properties import encode_user_property, encode_user_property_name
from embermq.queues.durations import DURATION_MAX_MS, parse_delay
from embermq.queues.errors import PropertyRefused

UserProperties = tuple[tuple[str, str], ...]

PARTITION_KEY = "partition-key"
DEDUP_ID = "dedup-id"
DELAY = "delay"
DELIVER_AT = "deliver-at"
KEY_BYTES_MAX = 1_024
"""Of a partition key or a dedup id."""

_READ = frozenset({PARTITION_KEY, DEDUP_ID, DELAY, DELIVER_AT})
_STAMPED = frozenset(
    {"message-id", "group-id", "delivery-count", "partition", "sequence", "first-delivered-at"}
)
_STAMPED_PREFIX = "dlq-"
_MESSAGE_ID = encode_user_property_name("message-id")
_SEQUENCE = encode_user_property_name("sequence")
USUAL_REMEMBERED = 1_024
"""Stamps that many deliveries have in common, whose bytes are kept."""


class Publication(Struct, frozen=True, gc=False):
    """`key` and `dedup_id` are None when they are absent; `visible_ms` is 0 for at once."""

    key: str | None = None
    dedup_id: str | None = None
    visible_ms: int = 0


PLAIN = Publication()


class Stamps(Struct, frozen=True, gc=False):
    """What the broker says about one delivery [queues-21] [queues-34]."""

    message_id: str
    group: str
    delivery_count: int
    partition: int
    sequence: int
    first_delivered_ms: int
    dead_letter: DeadLetter | None = None


def read_publication(properties: UserProperties, now_ms: int, *, offset_ms: int | None = 0) -> Publication:
    """`offset_ms` is what dates are ahead of `now_ms`, None when the clock has not been set. Raises PropertyRefused
    [queues-8] [queues-11] [queues-12]."""
    found: dict[str, str] = {}
    for name, value in properties:
        if name in _READ:
            if name in found:
                raise PropertyRefused(f"user property {name} stands there more than once")
            found[name] = value
    if not found:
        return PLAIN
    for name in (PARTITION_KEY, DEDUP_ID):
        size = len(found.get(name, "").encode())
        if size > KEY_BYTES_MAX:
            raise PropertyRefused(f"user property {name} has {size} bytes, the limit is {KEY_BYTES_MAX}")
    if DELAY in found and DELIVER_AT in found:
        raise PropertyRefused(f"user properties {DELAY} and {DELIVER_AT} exclude one another")
    visible_ms = 0
    try:
        if DELAY in found:
            visible_ms = now_ms + parse_delay(found[DELAY])
        elif DELIVER_AT in found:
            if offset_ms is None:
                raise ValueError("the broker's clock has not been set, so it knows no dates")
            visible_ms = parse_time(found[DELIVER_AT]) - offset_ms
    except ValueError as error:
        raise PropertyRefused(f"user property {DELAY if DELAY in found else DELIVER_AT}: {error}") from None
    if visible_ms > now_ms + DURATION_MAX_MS:
        raise PropertyRefused(f"user property {DELIVER_AT} is more than ten years away")
    return Publication(
        found.get(PARTITION_KEY), found.get(DEDUP_ID), visible_ms if visible_ms > now_ms else 0
    )


def parse_time(text: str) -> int:
    """Unix milliseconds, or a time with its zone as in RFC 3339; as Unix milliseconds. Raises ValueError."""
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(
            f"{shown(text)} is neither Unix milliseconds nor a time with zone as 2030-01-31T12:00:00Z"
        )
    return round(moment.timestamp() * 1_000)


def without_reserved(properties: UserProperties) -> UserProperties:
    """Those that a publisher may send."""
    return tuple(
        pair for pair in properties if pair[0] not in _STAMPED and not pair[0].startswith(_STAMPED_PREFIX)
    )


@lru_cache(USUAL_REMEMBERED)
def _usual(group: str, delivery_count: int, partition: int) -> bytes:
    told = (("group-id", group), ("delivery-count", str(delivery_count)), ("partition", str(partition)))
    return b"".join([encode_user_property(name, text) for name, text in told])


@lru_cache(USUAL_REMEMBERED)
def _first_delivered(moment_ms: int) -> bytes:
    return encode_user_property("first-delivered-at", str(moment_ms))


def encode_stamps(stamps: Stamps) -> bytes:
    """User properties of the broker, behind those of the publisher [queues-3]."""
    parts = [
        _MESSAGE_ID,
        encode_text(stamps.message_id),
        _usual(stamps.group, stamps.delivery_count, stamps.partition),
        _SEQUENCE,
        encode_text(str(stamps.sequence)),
        _first_delivered(stamps.first_delivered_ms),
    ]
    letter = stamps.dead_letter
    if letter is not None:
        told = [
            ("dlq-queue", letter.queue),
            ("dlq-group", letter.group),
            ("dlq-reason", letter.reason),
            ("dlq-attempts", str(letter.attempts.deliveries)),
            ("dlq-first-delivered-at", str(letter.attempts.first_delivered_ms)),
            ("dlq-moved-at", str(letter.moved_ms)),
            ("dlq-last-error", letter.attempts.last_error),
            ("dlq-message-id", letter.message_id),
        ]
        parts += [encode_user_property(name, text) for name, text in told]
    return b"".join(parts)
