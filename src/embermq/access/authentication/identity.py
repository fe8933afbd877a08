"""Who a client is: what it proved, why it was refused, and the steps of a method that finds out."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from embermq.model.client_type import ClientType
from embermq.mqtt.wire.reason_codes import ReasonCode


class Identity(Struct, frozen=True):
    """The authenticated identity of a client. `new_client_id` is for one that brought none; `client_id`, when it is
    not empty, whatever it brought.

    `expires_ms` (Unix time) is when its proof ends, and its connection with it, 0 never. `account_version` is that of
    the account whose password it showed, 0 when it entered by something else. `certificate` is the
    subject of its verified certificate (RFC 4514), "" without one. `is_member`: another node of the cluster has proved
    it, whose client is a member of groups here.
    """

    username: str
    client_type: ClientType
    new_client_id: str
    expires_ms: int = 0
    account_version: int = 0
    certificate: str = ""
    client_id: str = ""
    is_member: bool = False


class Refusal(Struct, frozen=True):
    """The client may not enter, or stay. It is told `code` alone; `why` is for the log, and never holds what it
    showed."""

    code: ReasonCode
    why: str = ""


class Question(Struct, frozen=True):
    """The method needs an answer of the client to `data`."""

    data: bytes | None


class Proof(Struct, frozen=True):
    """The client is who it says; `data` is what it gets with the good news."""

    identity: Identity
    data: bytes | None


MethodStep: TypeAlias = Question | Proof | Refusal
"""What a method makes of the client's data."""
