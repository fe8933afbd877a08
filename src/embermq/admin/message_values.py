"""What operations on retained messages and on publishing take and answer."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

RETAINED_MAX = 1_000
"""Of a page."""
PUBLISH_BYTES_MAX = 1024 * 1024
"""Of a request."""

Topic = Annotated[str, Meta(min_length=1, max_length=65_535)]


class RetainedView(Struct, frozen=True, kw_only=True):
    """A retained message without its payload. Times are ISO 8601 in UTC; `publisher` is a client id, "" where the
    broker or an operator has published it."""

    topic: str
    qos: int
    payload_bytes: int
    publisher: str
    published: str | None
    expires: str | None


class RetainedDetail(Struct, frozen=True, kw_only=True):
    """With the message itself; `payload` is text, or `payload_base64` where it is not UTF-8."""

    about: RetainedView
    properties: dict[str, object]
    payload: str | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET


class ListRetainedRequest(Struct, frozen=True, kw_only=True):
    """A page of retained messages."""

    filter: Annotated[str, Meta(description="A topic filter of MQTT")] = "#"
    after: Annotated[str, Meta(description="Topics behind this one")] = ""
    limit: Annotated[int, Meta(ge=1, le=RETAINED_MAX)] = RETAINED_MAX


class TopicRequest(Struct, frozen=True, kw_only=True):
    """The retained message of one topic."""

    topic: Topic


class PublishProperties(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Those of MQTT 5 that travel with a message."""

    payload_format_indicator: Annotated[int, Meta(ge=0, le=1)] | None = None
    message_expiry_interval: Annotated[int, Meta(ge=0, le=0xFFFF_FFFF, description="Seconds")] | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data_base64: str | None = None
    user_properties: tuple[tuple[str, str], ...] = ()


class PublishRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message: `payload` is text, or `payload_base64` is given in its place."""

    topic: Topic
    payload: str = ""
    payload_base64: str = ""
    qos: Annotated[int, Meta(ge=0, le=2)] = 1
    retain: bool = False
    properties: PublishProperties = PublishProperties()

    def __post_init__(self) -> None:
        if self.payload and self.payload_base64:
            raise ValueError("payload and payload_base64: only one of them may be given")


class PublishOutcome(Struct, frozen=True, kw_only=True):
    """What became of a message: `stored` is False for QoS 0 that is not retained, and where `told` says why a queue
    has taken it and not enqueued it."""

    stored: bool
    told: str = ""
