"""Messages of application logs that were settled without an acknowledgement of the client."""

from enum import IntEnum

from msgspec import Struct


class WhyUnacknowledged(IntEnum):
    """Those before `FIRST_SENT` were passed over, the others had been sent; ENDED speaks of all from an offset on."""

    EXPIRED = 1
    DENIED = 2
    """The client may not have it any more."""
    UNREADABLE = 3
    """Nobody has its record any more, or it is damaged."""
    TOO_LARGE = 10
    """The client takes no message of that size."""
    SKIPPED = 11
    """Sent in vain, and given up as `ack_strategy` wants it."""
    PARKED = 12
    """Sent in vain, and kept aside: what became of it is told by the parked messages."""
    REFUSED = 13
    """The client has answered with an error."""
    ENDED = 20
    """The session has ended."""


FIRST_SENT = WhyUnacknowledged.TOO_LARGE

OUTCOMES: dict[WhyUnacknowledged, str] = {
    WhyUnacknowledged.EXPIRED: "expired",
    WhyUnacknowledged.DENIED: "denied",
    WhyUnacknowledged.UNREADABLE: "lost",
    WhyUnacknowledged.TOO_LARGE: "too large",
    WhyUnacknowledged.SKIPPED: "skipped",
    WhyUnacknowledged.PARKED: "parked",
    WhyUnacknowledged.REFUSED: "refused",
}
"""What became of it, in a word."""


class Unacknowledged(Struct, frozen=True, gc=False):
    """The record at `position` of the message log needs no acknowledgement of that session any more, without having
    had one."""

    generation: int
    position: int
    why: WhyUnacknowledged
