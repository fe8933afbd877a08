"""The façade of parked messages: what applications did not acknowledge, however often it was sent to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import UNSET, Struct, UnsetType


class ParkedClientView(Struct, frozen=True, kw_only=True):
    """A client that has `messages` here, `parked` of which nobody has had sent again."""

    client_id: str
    messages: int
    parked: int


class ParkedView(Struct, frozen=True, kw_only=True):
    """One message. Times are ISO 8601 in UTC. `state` is "parked", "due" when it is to be sent again, or "under way";
    `received`: the client has it (PUBREC) and has not completed the exchange."""

    number: int
    topic: str
    qos: int
    retain: bool
    payload_bytes: int
    parked: str
    attempts: int
    state: str
    received: bool


class ParkedDetail(Struct, frozen=True, kw_only=True):
    """With the message itself; `payload` is text, or `payload_base64` where it is not UTF-8; neither when the body was
    lost before it was parked."""

    about: ParkedView
    publisher: str
    accepted: str | None
    expires: str | None
    properties: dict[str, object]
    payload: str | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET


class ParkedCount(Struct, frozen=True):
    """How many it was done to."""

    messages: int


class ParkedService(Protocol):
    """Implemented in app; called on the event loop. None is the answer for a client id without a session. `numbers`
    None is all of them; those that are not there, or are being sent again, are passed over. Raises StoreError."""

    def clients(self) -> Sequence[ParkedClientView]:
        """Who has something here, by client id."""
        ...

    def page(self, client_id: str, after: int, limit: int) -> Sequence[ParkedView] | None:
        """Up to `limit` of a client's messages with greater numbers."""
        ...

    def message(self, client_id: str, number: int) -> ParkedDetail | None:
        """One of them; None when there is none of that number, too."""
        ...

    async def redrive(self, client_id: str, numbers: Sequence[int] | None) -> int | None:
        """Have messages sent again; returns when that is durable."""
        ...

    async def delete(self, client_id: str, numbers: Sequence[int] | None) -> int | None:
        """Delete messages for good; returns when that is durable."""
        ...
