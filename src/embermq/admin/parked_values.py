"""What operations on parked messages take and answer: messages that applications did not acknowledge, however often
they were sent."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from embermq.admin.session_values import ClientRequest

Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""As wide as stores have them."""


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


class ParkedPageRequest(ClientRequest, frozen=True, kw_only=True):
    """A page of a client's messages."""

    after: Annotated[Number, Meta(description="Numbers behind this one")] = 0
    limit: Annotated[int, Meta(ge=1, le=500)] = 500


class ParkedRequest(ClientRequest, frozen=True, kw_only=True):
    """One of a client's messages."""

    number: Number


class ParkedNumbersRequest(ClientRequest, frozen=True, kw_only=True):
    """A client's messages by their numbers; all of them when none is given."""

    number: tuple[Number, ...] = ()
