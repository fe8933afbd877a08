"""What operations on the archive take and answer: QoS 1 and 2 messages that the pipeline has stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Protocol

from msgspec import UNSET, Meta, Struct, UnsetType

from embermq.admin.message_values import Topic
from embermq.admin.queue_values import Moment

BEFORE_ALL = -1
PAGE_MAX = 500
PAGE_BYTES_MAX = 4 * 1024 * 1024
"""Of messages as they are answered: a page ends behind the one that reaches it."""
PRUNED_AT_ONCE = 5_000
"""Deleted in one transaction: the pipeline waits for so long to go on writing."""

Slot = Annotated[int, Meta(ge=0, description="Of a cluster with several slots: whose messages")] | None


class ArchivedMessage(Struct, frozen=True, kw_only=True):
    """A message at its offset in the log. Times are ISO 8601 in UTC; `payload` is text, or `payload_base64` where it is
    not UTF-8."""

    offset: int
    topic: str
    accepted: str
    expires: str | None
    qos: int
    retain: bool
    publisher: str
    payload: str | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET
    properties: dict[str, object] | UnsetType = UNSET


class ListArchivedRequest(Struct, frozen=True, kw_only=True):
    """A page of the messages of one topic."""

    topic: Topic
    after: Annotated[int, Meta(ge=BEFORE_ALL, le=2**63 - 1, description="Offsets behind this one")] = (
        BEFORE_ALL
    )
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 100
    slot: Slot = None


class OlderRequest(Struct, frozen=True, kw_only=True):
    """Messages that the broker accepted before a time."""

    before: Moment
    slot: Slot = None


class ArchivedCount(Struct, frozen=True):
    """How many it is true of, or was done to."""

    messages: int


class ArchiveDesk(Protocol):
    """The archive; implemented in app, by what commands use too. Raises OperationRefused where there is none (yet),
    RequestRefused, and StoreError when it does not answer."""

    async def page(self, asked: ListArchivedRequest) -> Sequence[ArchivedMessage]:
        """In log order. Fewer than `limit` where there are no more, or when they have reached
        PAGE_BYTES_MAX."""
        ...

    async def count(self, asked: OlderRequest) -> ArchivedCount:
        """Reads the whole archive."""
        ...

    async def prune(self, asked: OlderRequest) -> ArchivedCount:
        """Delete up to PRUNED_AT_ONCE of them; fewer when no other one is left."""
        ...
