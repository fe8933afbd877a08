"""What operations on durable queues take and answer, whatever the protocol."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from embermq.model.message import Message
from embermq.mqtt.value import replace
from embermq.ports.errors import StoreError
from embermq.queues.inspection import REASONS, GroupView, LetterFilter, MessageView, QueueStats
from embermq.queues.names import queue_name
from embermq.queues.settings import QueueSettings

PEEKED_BYTES_MAX = 64 * 1024
"""Bytes of one body that are shown."""
UTF8_BYTES_MAX = 4


class ShownBody(Struct, frozen=True):
    """What is shown of a message: the rest of a large payload is let go of as soon as it is there."""

    message: Message
    piece: bytes
    size: int


def shown_body(message: Message) -> ShownBody:
    """Keep of a message what is shown: its payload up to PEEKED_BYTES_MAX bytes."""
    size = len(message.payload)
    if size <= PEEKED_BYTES_MAX:
        return ShownBody(message, message.payload, size)
    return ShownBody(replace(message, payload=b""), bytes(message.payload[:PEEKED_BYTES_MAX]), size)


def peeked(view: MessageView, body: ShownBody | None) -> PeekedMessage:
    """A message with what is known of its body, None when it cannot be read any more."""
    if body is None:
        return PeekedMessage(about=view, publisher="", payload_bytes=0, properties={})
    message, piece = body.message, body.piece
    properties = msgspec.to_builtins(message.properties) if message.properties is not None else {}
    shown: dict[str, str] = {}
    try:
        shown["payload"] = piece.decode()
    except UnicodeDecodeError as error:
        if len(piece) < body.size and error.start >= len(piece) - UTF8_BYTES_MAX:
            shown["payload"] = piece[: error.start].decode()
        else:
            shown["payload_base64"] = b64encode(piece).decode()
    return PeekedMessage(
        about=view,
        publisher=message.publisher,
        payload_bytes=body.size,
        properties={name: value for name, value in properties.items() if value not in (None, (), [])},
        **shown,
    )


LETTERS_MAX = 1_000
"""Dead letters that one request puts back by their ids, in one transaction."""
RETRY_MAX = 100_000
QUEUES_NAMED_MAX = 100
"""Queues that are named as missing: a queue of dead letters may be that of very many."""

LetterId = Annotated[str, Meta(max_length=80)]
Name = Annotated[
    str,
    Meta(
        min_length=1,
        description="The queue: percent-encoded, or with $ for /",
        examples=["$queue$tasks$images"],
    ),
]
Limit = Annotated[int, Meta(ge=1, le=1_000, description="How many at most")]
PeekLimit = Annotated[int, Meta(ge=1, le=100, description="How many at most")]
BehindName = Annotated[str, Meta(description="Names behind this one: the last of the page before")]
BehindSequence = Annotated[int, Meta(ge=0, description="Sequences behind this one")]
Moment = Annotated[datetime, Meta(tz=True)]


class ListQueuesRequest(Struct, frozen=True, kw_only=True):
    """A page of queues."""

    limit: Limit = 100
    after: BehindName = ""
    match: Annotated[str, Meta(max_length=300, description="Shell wildcards over names")] = "*"


class QueueRequest(Struct, frozen=True, kw_only=True):
    """One queue, by its name or its topic, `$queue/` and the name."""

    name: Name

    @property
    def queue(self) -> str:
        return queue_name(self.name)


class ListGroupsRequest(QueueRequest, frozen=True, kw_only=True):
    """A page of its groups."""

    limit: Limit = 100
    after: BehindName = ""


class ListConsumersRequest(QueueRequest, frozen=True, kw_only=True):
    """A page of its consumers."""

    limit: Limit = 100
    after_group: Annotated[
        str, Meta(description="Behind this group, or in it behind after: of the last of the page before")
    ] = ""
    after: Annotated[str, Meta(description="In that group, client ids behind this one")] = ""


class PeekRequest(QueueRequest, frozen=True, kw_only=True):
    """A page of messages with their bodies."""

    after: BehindSequence = 0
    limit: PeekLimit = 10


class MessageRequest(QueueRequest, frozen=True, kw_only=True):
    """Asks for one message of a queue by its id."""

    message_id: str


class GroupRequest(QueueRequest, frozen=True, kw_only=True):
    """One group; "" is the whole queue where that can be meant."""

    group: str = ""


class LettersWanted(Struct, frozen=True, kw_only=True):
    """Which dead letters; what is not given is for any."""

    group: Annotated[str, Meta(description="Of this group")] = ""
    reason: Annotated[str, Meta(description=f"One of {', '.join(REASONS)}")] = ""
    error: Annotated[str, Meta(max_length=300, description="The last error, with * and ?")] = ""
    message_id: Annotated[str, Meta(max_length=80, description="The dead letter's id, or the one it had")] = (
        ""
    )
    moved_after: Annotated[Moment | None, Meta(description="Moved later, ISO 8601 with zone")] = None
    moved_before: Annotated[Moment | None, Meta(description="Moved earlier, with zone too")] = None

    def __post_init__(self) -> None:
        if self.reason not in ("", *REASONS):
            raise ValueError(f"reason: is {self.reason[:40]!r}, there are {', '.join(REASONS)}")

    @property
    def filter(self) -> LetterFilter:
        """As queues understand it."""
        return LetterFilter(
            group=self.group,
            reason=self.reason,
            error=self.error,
            message_id=self.message_id,
            moved_after_ms=_ms(self.moved_after),
            moved_before_ms=_ms(self.moved_before),
        )


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1_000)


class ListDeadLettersRequest(QueueRequest, frozen=True, kw_only=True):
    """A page of dead letters."""

    filter: LettersWanted = LettersWanted()
    limit: Limit = 100
    after: Annotated[LetterId, Meta(description="Behind the one with this id")] = ""


class RetryDeadLetterRequest(QueueRequest, frozen=True, kw_only=True):
    """One dead letter, by its id or the one that the message had."""

    id: str


class RetryDeadLettersRequest(QueueRequest, frozen=True, kw_only=True):
    """All dead letters of a filter; with a rate, one after another."""

    filter: LettersWanted = LettersWanted()
    rate: Annotated[float, Meta(ge=0.001, le=1_000_000, description="Messages a second")] | None = None
    limit: Annotated[int, Meta(ge=1, le=RETRY_MAX, description="How many at most, without a rate")] | None = (
        None
    )

    def __post_init__(self) -> None:
        if self.rate is not None and self.limit is not None:
            raise ValueError("limit: cannot be given together with a rate")


class RedriveDeadLettersRequest(QueueRequest, frozen=True, kw_only=True):
    """Dead letters by their own ids."""

    ids: Annotated[tuple[LetterId, ...], Meta(min_length=1, max_length=LETTERS_MAX)]


class PutQueueRequest(QueueRequest, frozen=True, kw_only=True):
    """Settings of a queue; with `only_new` a queue that is there stays as it is."""

    settings: dict[str, Any] = {}
    only_new: bool = False


class QueueDetail(Struct, frozen=True, kw_only=True):
    """A queue with its settings, and its first 100 groups by name."""

    settings: QueueSettings
    stats: QueueStats
    groups: Sequence[GroupView]


def without_webhook(detail: QueueDetail) -> QueueDetail:
    """The same, with the host alone of the address that alerts go to: the rest is a secret with some services."""
    letters = detail.settings.dlq_config
    if not letters.alert_webhook:
        return detail
    shown = f"{'/'.join(letters.alert_webhook.split('/', 3)[:3])}/***"
    hidden = replace(detail.settings, dlq_config=replace(letters, alert_webhook=shown))
    return replace(detail, settings=hidden)


class PeekedMessage(Struct, frozen=True, kw_only=True):
    """A message with its body, which nobody consumes by looking at it. `payload` is text, or `payload_base64` where it
    is not UTF-8, of large ones the first 64 KiB; neither when the body cannot be read any more."""

    about: MessageView
    publisher: str
    payload_bytes: int
    properties: Mapping[str, object]
    payload: str | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET


class Configured(Struct, frozen=True):
    """Whether the queue was made by it, and its settings now."""

    created: bool
    settings: QueueSettings


class Done(Struct, frozen=True):
    """How many messages it was done to."""

    messages: int


class LettersAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """Dead letters by their own ids, as a list of them tells: 1 to 1,000."""

    ids: Annotated[tuple[LetterId, ...], Meta(min_length=1, max_length=LETTERS_MAX)]


class PutBack(Struct, frozen=True, kw_only=True):
    """What became of dead letters that were asked for by id: `put_back` into their queues; `held` by a consumer of the
    dead-letter queue, where they stay; `gone`, no dead letters any more, also when they had been put back before;
    `orphaned`, which stay as well, since the queues that they come from, `missing_queues`, are not there any more: the
    first 100 by name; and `crowded`, which stay since their consumer group was removed and the queues, `full_queues`,
    have as many others as may be."""

    put_back: int
    held: int
    gone: int
    orphaned: int
    missing_queues: Sequence[str]
    crowded: int
    full_queues: Sequence[str]


class Retried(Struct, frozen=True, kw_only=True):
    """What became of all dead letters of a filter: `messages` are back in their queues, the others see `PutBack`."""

    messages: int
    held: int
    orphaned: int
    missing_queues: Sequence[str]
    crowded: int
    full_queues: Sequence[str]


class RetryJob(Struct, frozen=True, kw_only=True):
    """Dead letters that go back one after another, `rate` a second, of which `retried` have; the others see
    `PutBack`."""

    queue: str
    rate: float
    matched: int
    retried: int = 0
    running: bool = False
    held: int = 0
    orphaned: int = 0
    missing_queues: Sequence[str] = ()
    crowded: int = 0
    full_queues: Sequence[str] = ()


BodiesRead = Callable[[Mapping[int, Message | None] | StoreError], None]


class MessageBodies(Protocol):
    """Reads bodies of messages in durable queues."""

    def ask(self, queue: int, messages: Sequence[tuple[int, int]], then: BodiesRead) -> None:
        """Of messages of a queue, by offset and number. `then` is called on this thread, once or several times, with
        some of them each time."""
        ...
