"""Settings: of one queue, as JSON [queues-33], and of all groups together."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct, field

from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.ports.store_url import without_password
from embermq.queues.durations import Duration, parse_duration
from embermq.queues.errors import NameRefused, SettingsRefused
from embermq.queues.names import (
    DEAD_LETTER_PREFIX,
    QUEUE_PREFIX,
    RESPONSE_PREFIX,
    QueueKind,
    check_name,
    kind_of,
    queue_name,
)

PARTITIONS_MAX = 1_024
VALUE_CHARACTERS_MAX = 80
WEBHOOK = "dlq_config.alert_webhook"
WEBHOOK_CHARACTERS_MAX = 2_000
NO_TTL = "0s"
"""Of `limits.message_ttl`: messages end only by their publisher's expiry, dead letters never."""
NAME_PLACE = "<name>"
"""Stands for the queue's name in `dlq_config.topic`."""


class Ordering(StrEnum):
    """In which order consumers of a group get messages [queues-30]."""

    NONE = "none"
    PARTITION = "partition"
    STRICT = "strict"


class NackDelay(StrEnum):
    """When a nacked message comes again, unless the consumer says so itself [queues-23]."""

    FIRST_IMMEDIATE = "first-immediate"
    IMMEDIATE = "immediate"
    BACKOFF = "backoff"


class Overflow(StrEnum):
    """What happens to a message for a full queue [queues-31]."""

    REJECT = "reject"
    DROP_HEAD = "drop-head"
    DROP_NEW = "drop-new"


class TtlAction(StrEnum):
    """What happens to a message that nobody took in time [queues-31]."""

    DROP = "drop"
    DLQ = "dlq"


class RetryPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """How often, after what pauses and for how long a message is tried again [queues-24] [queues-25]."""

    max_retries: Annotated[int, Meta(ge=0, le=1_000)] = 10
    initial_backoff: Duration = Duration(5_000)
    max_backoff: Duration = Duration(300_000)
    backoff_multiplier: Annotated[float, Meta(ge=1, le=100)] = 2.0
    total_timeout: Duration = Duration(3 * 3_600_000)
    nack_delay: NackDelay = NackDelay.FIRST_IMMEDIATE


class DeadLetterConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Where messages go when retries are exhausted. Not enabled: they are dropped and counted."""

    enabled: bool = True
    topic: str = f"{QUEUE_PREFIX}{DEAD_LETTER_PREFIX}{NAME_PLACE}"
    alert_webhook: str | None = None


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes in bytes, depth in messages."""

    max_message_size: Annotated[int, Meta(ge=1, le=256 * 1024 * 1024)] = 1_048_576
    max_queue_depth: Annotated[int, Meta(ge=1, le=100_000_000)] = 100_000
    message_ttl: Duration = Duration(168 * 3_600_000)
    overflow: Overflow = Overflow.REJECT
    ttl_action: TtlAction = TtlAction.DROP


class Performance(Struct, frozen=True, forbid_unknown_fields=True):
    """`batch_size`: messages handed to one consumer before the next; `prefetch`: unsettled ones it may have."""

    delivery_timeout: Duration = Duration(30_000)
    batch_size: Annotated[int, Meta(ge=1, le=65_535)] = 1
    prefetch: Annotated[int, Meta(ge=1, le=65_535)] = 32


class QueueSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of one queue, validated."""

    name: str
    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)] = 10
    ordering: Ordering = Ordering.PARTITION
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    dlq_config: DeadLetterConfig = field(default_factory=DeadLetterConfig)
    limits: Limits = field(default_factory=Limits)
    performance: Performance = field(default_factory=Performance)

    @property
    def dead_letter_queue(self) -> str:
        """Name of the queue of its dead letters; "" when it has none: they are dropped, or it is one itself."""
        if not self.dlq_config.enabled or kind_of(self.name) is QueueKind.DEAD_LETTERS:
            return ""
        return self.dlq_config.topic.removeprefix(QUEUE_PREFIX).replace(NAME_PLACE, self.name)


DEAD_LETTERS_SHARE = 0.1
"""The share of `log.disk_budget_bytes` that dead letters of all queues may take. They have no time to live unless one
is set; past it queues keep what would become a dead letter and do not deliver it, so the rest stays for the log."""


class GroupSettings(Struct, frozen=True):
    """What holds for the groups of all queues."""

    join_debounce_ms: Annotated[int, Meta(ge=0, le=60_000)] = 100
    """How long a consumer that joins others waits for more to come before partitions move [queues-16]."""
    disconnect_grace_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 5_000
    """How long a consumer with a session that is kept stays in its group when its connection is gone [queues-19]."""
    idle_expiry_ms: Annotated[int, Meta(ge=100)] = 7 * 24 * 3_600_000
    """A group without consumers is removed after so long [queues-18]."""
    dedup_window_ms: Annotated[int, Meta(ge=0, le=24 * 3_600_000)] = 120_000
    """How long a `dedup-id` is remembered [queues-11]; one queue remembers 100,000 at most, the latest ones."""


OFF = "durable queues are switched off (queues.enabled)"
"""What everybody hears who wants something of them."""


class BrokerQueueSettings(GroupSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Durable queues: what holds for all of them; composed by app into the one schema (section `queues`).
    What one queue may have of its own is in [durable queues](queues.md)."""

    enabled: bool = True
    """Whether `$queue/...` topics are queues. Off: publishes, wills and subscriptions to them are refused with 0x83,
    the API answers 409, and `queues.file` is not applied; what is stored stays, and sessions may unsubscribe."""
    auto_create: bool = True
    """Whether a queue is made, with default settings, by the first publish or subscription that names it. Off: only by
    `queues.file`, the API, `embermq queues create` and `$admin/queue/<name>/config`."""
    queues_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    """Queues at a time, those of dead letters too; creating more is refused."""
    groups_max: Annotated[int, Meta(ge=1, le=100_000)] = 1_000
    """Consumer groups of one queue: each costs memory for every message that it has not settled. A
    subscription that would add one is refused with 0x97."""
    file: str = ""
    """A TOML or JSON file with the settings of single queues, applied at every start; empty for none."""
    allow_ack_mode_none: bool = False
    """Whether a subscription with the user property `ack-mode: none` is accepted: at most once, QoS 0,
    settled when it is sent."""


def parse_settings(name: str, text: bytes) -> QueueSettings:
    """Read a JSON object; see `settings_of`. Raises SettingsRefused."""
    return settings_of(name, json_object(name, text))


def json_object(name: str, text: bytes) -> dict[str, object]:
    """What is given for a queue as JSON. Raises SettingsRefused."""
    try:
        raw = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SettingsRefused(f"settings of queue {name}: no valid JSON: {error}") from None
    except RecursionError:
        raise SettingsRefused(f"settings of queue {name}: lists or objects in one another too deep") from None
    if not isinstance(raw, dict):
        raise SettingsRefused(f"settings of queue {name}: a JSON object is needed")
    return raw


def settings_of(name: str, raw: Mapping[str, object]) -> QueueSettings:
    """What JSON or TOML said; what it does not name has its default, and `strict` without `partitions` has one; dead
    letters have no time to live unless they are given one [queues-34]. `name` in it may be the topic of the queue,
    `$queue/<name>`.

    Raises SettingsRefused, naming the setting.
    """
    raw = {"name": name, **raw}
    if isinstance(raw["name"], str):
        raw["name"] = queue_name(raw["name"])
    if raw.get("ordering") == Ordering.STRICT:
        raw = {"partitions": 1, **raw}
    limits = raw.get("limits", {})
    if kind_of(name) is QueueKind.DEAD_LETTERS and isinstance(limits, Mapping):
        raw = {**raw, "limits": {"message_ttl": NO_TTL, **limits}}
    try:
        settings = msgspec.convert(raw, QueueSettings, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise SettingsRefused(f"settings of queue {name}: {_told(str(error), raw)}") from None
    if settings.name != name:
        raise SettingsRefused(f"settings of queue {name}: name: is {settings.name[:80]!r}")
    check_settings(settings)
    return settings


def operator_settings(given_name: str, raw: Mapping[str, object]) -> QueueSettings:
    """What an operator says of a queue, by its name or its topic: the name is looked at too. Raises SettingsRefused."""
    name = queue_name(given_name)
    try:
        check_name(name, ReasonCode.TOPIC_NAME_INVALID)
    except NameRefused as refusal:
        raise SettingsRefused(refusal.message) from None
    if kind_of(name) is QueueKind.RESPONSES:
        raise SettingsRefused(f"queue {name}: names below {RESPONSE_PREFIX} are for answers, in memory alone")
    return settings_of(name, raw)


def parse_operator_settings(name: str, text: bytes) -> QueueSettings:
    """The same as JSON. Raises SettingsRefused."""
    return operator_settings(name, json_object(name, text))


def format_settings(settings: QueueSettings) -> bytes:
    """The same as JSON, with every value."""
    return msgspec.json.encode(settings, enc_hook=str)


def check_settings(settings: QueueSettings) -> None:
    """Raise SettingsRefused when values contradict one another."""
    retries = settings.retry_policy
    positive = {
        "retry_policy.max_backoff": retries.max_backoff,
        "retry_policy.total_timeout": retries.total_timeout,
        "performance.delivery_timeout": settings.performance.delivery_timeout,
    }
    problem = next(
        (f"{key}: is {value}, must be more than 0" for key, value in positive.items() if value <= 0), ""
    )
    if settings.ordering is Ordering.STRICT and settings.partitions != 1:
        problem = f"partitions: is {settings.partitions}, ordering strict has 1"
    elif retries.initial_backoff > retries.max_backoff:
        problem = (
            f"retry_policy.initial_backoff: {retries.initial_backoff} is more than"
            f" max_backoff {retries.max_backoff}"
        )
    if not problem:
        problem = _about_dead_letters(settings) or _about_webhook(settings.dlq_config.alert_webhook)
    if problem:
        raise SettingsRefused(f"settings of queue {settings.name}: {problem}")


def check_change(before: QueueSettings, after: QueueSettings, depth: int) -> None:
    """Raise SettingsRefused when a queue with `depth` messages cannot take other settings [queues-10]."""
    for key, old, new in (
        ("partitions", before.partitions, after.partitions),
        ("ordering", before.ordering, after.ordering),
    ):
        if depth and old != new:
            raise SettingsRefused(
                f"settings of queue {after.name}: {key}: {old} cannot become {new} while the queue holds {depth}"
                " messages; it must be empty"
            )


def _about_dead_letters(settings: QueueSettings) -> str:
    topic = settings.dlq_config.topic
    if not topic.startswith(QUEUE_PREFIX + DEAD_LETTER_PREFIX):
        return f"dlq_config.topic: {topic[:80]!r} does not start with {QUEUE_PREFIX}{DEAD_LETTER_PREFIX}"
    target = settings.dead_letter_queue
    if target:
        try:
            check_name(target, ReasonCode.TOPIC_NAME_INVALID)
        except NameRefused as refusal:
            return f"dlq_config.topic: {refusal.message}"
    return ""


def _about_webhook(url: str | None) -> str:
    """Which addresses may be called is asked when one is."""
    if url is None:
        return ""
    place = f"{WEBHOOK}: "
    if len(url) > WEBHOOK_CHARACTERS_MAX:
        return f"{place}has {len(url)} characters, the limit is {WEBHOOK_CHARACTERS_MAX}"
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits or not all("!" <= character <= "~" for character in url) or "#" in url:
        return f"{place}is not an address with https or http, in ASCII and without a fragment"
    if parts.username is not None or parts.password is not None:
        return f"{place}has a user name or password in it; requests are signed instead"
    return ""


def _decode(wanted: type, value: object) -> Duration:
    """The only type that JSON does not have."""
    if wanted is not Duration or not isinstance(value, str):
        raise ValueError("a duration is a text such as 5s, 5m or 3h")
    return parse_duration(value)


def _told(error: str, raw: Mapping[str, object]) -> str:
    """`text - at `$.a.b`` becomes `a.b: is 0, text`."""
    found = re.fullmatch(r"(.*?)(?: - at `\$\.?(.*?)`)?", error, re.DOTALL)
    assert found is not None
    text, place = found[1], found[2] or ""
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", text)
    if unknown:
        return f"{place}{'.' if place else ''}{unknown[1]}: there is no such setting"
    return f"{place}: {_value_at(place, raw, text)}{text[0].lower()}{text[1:]}" if place else text


def _value_at(place: str, raw: object, told: str) -> str:
    """What is given there, where that is not `told` already; nothing of an address, which may hold a password."""
    if place == WEBHOOK:
        return ""
    for name in place.split("."):
        if not isinstance(raw, Mapping) or name not in raw:
            return ""
        raw = raw[name]
    if not isinstance(raw, str | int | float) or (isinstance(raw, str) and repr(raw) in told):
        return ""
    return f"is {without_password(repr(raw))[:VALUE_CHARACTERS_MAX]}, "
