"""What a group knows of single messages, and what it says of them."""

from __future__ import annotations

from msgspec import Struct

from embermq.model.queue_rows import Attempts, MessageState

NO_ATTEMPTS = Attempts()


class Finish(Struct, frozen=True, gc=False):
    """The group owes a message no more. `reason` is "" when it was acked, else why it goes to the dead letters."""

    sequence: int
    reason: str
    attempts: Attempts


class Handed(Struct, frozen=True, gc=False):
    """A message for a consumer. Each time that one is handed out makes another of these: that tells the times apart."""

    sequence: int
    client_id: str
    epoch: int
    attempts: Attempts
    """Before this delivery."""


class MessageStatus(Struct, gc=False):
    """What a group knows of a message that was handed out before; `handed` is None since before a start."""

    state: MessageState
    holder: str = ""
    epoch: int = 0
    is_written: bool = False
    is_carried: bool = False
    """Its holder has been on another connection since it got it."""
    due_ms: int = 0
    attempts: Attempts = NO_ATTEMPTS
    handed: Handed | None = None
