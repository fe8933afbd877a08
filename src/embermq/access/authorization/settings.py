"""Settings of authorisation; composed by app into the broker's one schema (section `authorization`)."""

from typing import Literal

from msgspec import Struct


class AuthorizationSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rules for publishing, subscribing and receiving; see [authorization](authorization.md)."""

    rules: str = ""
    """A file of rules in TOML, read again when it changes; empty = none."""
    mosquitto_acl: str = ""
    """An ACL file as Mosquitto takes it, asked after `rules`; empty = none."""
    no_match: Literal["auto", "allow", "deny"] = "auto"
    """What holds where no rule matches; `auto` denies when there is a file of rules, and allows without one."""


def check_settings(settings: AuthorizationSettings) -> None:
    """Raise ValueError for settings that contradict one another."""
    if settings.no_match == "deny" and not (settings.rules or settings.mosquitto_acl):
        raise ValueError(
            "authorization.no_match: deny refuses everything to everybody when there is neither"
            " authorization.rules nor authorization.mosquitto_acl"
        )
    for name in ("rules", "mosquitto_acl"):
        if "\0" in getattr(settings, name):
            raise ValueError(f"authorization.{name}: {getattr(settings, name)!r} is not the name of a file")
