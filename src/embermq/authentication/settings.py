"""Settings of who may enter. Sections `authentication`, `jwt`, `http_hook`."""

from typing import Literal

from msgspec import Struct

StepName = Literal["certificate", "password", "jwt", "scram", "http", "anonymous"]
SERVED: tuple[StepName, ...] = ("certificate", "password", "anonymous")
"""Steps of this version; the others are in the schema so that they are refused by name."""


class AuthenticationSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which proofs are taken, and what happens to those who fail."""

    chain: tuple[StepName, ...] = ("certificate", "password", "anonymous")
    """Steps that are asked in this order who a client is, until one knows it: `certificate`, `password`, `jwt`,
    `scram`, `http`, `anonymous`."""


def check_settings(settings: AuthenticationSettings) -> None:
    """Raise ValueError, naming the setting, for a chain that cannot be."""
    if not settings.chain:
        raise ValueError("authentication.chain: is empty, nobody could enter")
    for name in settings.chain:
        if settings.chain.count(name) > 1:
            raise ValueError(f"authentication.chain: {name!r} is named twice")
        if name not in SERVED:
            raise ValueError(f"authentication.chain: {name!r} is not served by this version")
