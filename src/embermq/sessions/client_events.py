"""What happens at the door, for the log: who came, who left and why, who was refused what.

Rooms make the events; what becomes of them (their rate, their form) is for observability. Texts of clients are in them
as they came, secrets never are.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct

from embermq.mqtt.wire.reason_codes import ReasonCode


class EventKind(StrEnum):
    """What a client's event says has happened."""

    CONNECTED = "connected"
    """The client has its CONNACK."""
    DISCONNECTED = "disconnected"
    """The connection of a client that had its CONNACK is over."""
    LOGIN_FAILED = "login failed"
    """The client did not prove who it is."""
    DENIED = "denied"
    """The rules do not allow what it wanted."""
    REFUSED = "refused"
    """The connection ended before CONNACK for another reason."""


class ClientEvent(Struct, frozen=True, kw_only=True):
    """One of them. `user` is the name that the client gave, or proved once it is connected; `code` is the reason code
    that it was told, or told us, None when neither did."""

    kind: EventKind
    peer: str
    listener: str
    client_id: str = ""
    user: str = ""
    reason: str = ""
    code: int | None = None
    topic: str = ""
    protocol: str = ""
    session_present: bool | None = None


Tell = Callable[[ClientEvent], None]


def ignore(_event: ClientEvent) -> None:
    """Nobody wants to hear of it."""


def words(code: int) -> str:
    """A reason code as people read it."""
    try:
        return ReasonCode(code).name.lower().replace("_", " ")
    except ValueError:
        return f"0x{code:02X}"
