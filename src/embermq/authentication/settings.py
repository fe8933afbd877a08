"""Settings of who may enter. Sections `authentication`, `scram`, `jwt`, `http_hook`."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

StepName = Literal["certificate", "password", "jwt", "scram", "http", "anonymous"]
SERVED: tuple[StepName, ...] = ("certificate", "password", "scram", "anonymous")
"""Steps of this version; the others are in the schema so that they are refused by name."""


class AuthenticationSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which proofs are taken, and what happens to those who fail."""

    chain: tuple[StepName, ...] = ("certificate", "password", "scram", "anonymous")
    """Steps that are asked in this order who a client is, until one knows it: `certificate`, `password`, `jwt`,
    `scram`, `http`, `anonymous`."""
    failures_free: Annotated[int, Meta(ge=0, le=1_000_000)] = 5
    """Wrong credentials from one address (IPv6: one network of 64 bits) that are answered at once. Each one more is
    answered later, from 0.25 s on twice as late each time. Right credentials never wait."""
    failures_window_s: Annotated[float, Meta(ge=1, le=86_400)] = 60.0
    """An address without a failure for so long begins anew."""
    failures_delay_max_s: Annotated[float, Meta(ge=0, le=60)] = 5.0
    """The latest answer; 0 = all are answered at once."""
    failures_waiting_max: Annotated[int, Meta(ge=0, le=100_000)] = 1_000
    """Answers that are late at a time, of all addresses; others are then given at once."""


class ScramSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """SCRAM-SHA-256 and SCRAM-SHA-512, for accounts that were added with `embermq users add --scram`."""

    iterations: Annotated[int, Meta(ge=4_096, le=10_000_000)] = 4_096
    """How much work a guess at a password is, for accounts added from now on; the client does as much at each CONNECT,
    within `clients.connect_timeout_s`."""


def check_settings(settings: AuthenticationSettings) -> None:
    """Raise ValueError, naming the setting, for a chain that cannot be."""
    if not settings.chain:
        raise ValueError("authentication.chain: is empty, nobody could enter")
    for name in settings.chain:
        if settings.chain.count(name) > 1:
            raise ValueError(f"authentication.chain: {name!r} is named twice")
        if name not in SERVED:
            raise ValueError(f"authentication.chain: {name!r} is not served by this version")
