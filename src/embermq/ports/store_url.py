"""Stores are named by URLs, and URLs hold passwords."""

import re
from collections.abc import Collection, Sequence
from urllib.parse import unquote

from msgspec import Struct

_USER = re.compile(r"(?<=://)([^:]*):.*@", re.DOTALL)
_PARAMETER = re.compile(
    r"([?&][^=&]*(?:pass|secret|key|token|sig|auth|credential)[^=&]*(?<!_file)=)[^&]*", re.IGNORECASE
)


def without_password(url: str) -> str:
    """The same text to be shown: `***` stands where a password does, also one that should have been quoted."""
    return _PARAMETER.sub(r"\1***", _USER.sub(r"\1:***@", url))


class UrlParts(Struct, frozen=True):
    """`scheme://[username[:password]@]place[?options]`, user, password and options unquoted."""

    scheme: str
    username: str
    password: str | None
    place: str
    options: dict[str, str]


def split_url(url: str, schemes: Sequence[str], options: Collection[str]) -> UrlParts:
    """Take a store's URL apart. User, password and values of options are percent-encoded where they have one of
    `:/?#@%&`. Raises ValueError with what is wrong, never with what stands before the `@` or behind a `=`."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in schemes:
        shown = scheme if separator and scheme.replace("+", "").isalnum() else "no known scheme"
        raise ValueError(f"begins with {shown}, not with one of {', '.join(s + '://' for s in schemes)}")
    credentials, _, place = rest.rpartition("@")
    for mark in "?#":
        if mark in credentials:
            raise ValueError(f"has a {mark!r} before the '@'; in passwords write %{ord(mark):X}")
    if "#" in place:
        raise ValueError("has a '#'; in passwords write %23")
    if "/" in credentials:
        raise ValueError("has a '/' before the '@'; in passwords write %2F")
    place, question, text = place.partition("?")
    username, colon, password = credentials.partition(":")
    return UrlParts(
        scheme,
        unquote(username),
        unquote(password) if colon else None,
        place,
        _options(text, options) if question else {},
    )


def _options(text: str, known: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.split("&"):
        name, _, value = part.partition("=")
        if name not in known:  # it may be a piece of a password: not shown
            raise ValueError(
                f"has an option behind the '?' that is none of {', '.join(known)}; in passwords write %3F"
            )
        if name in found:
            raise ValueError(f"has the option {name} twice")
        if not value:
            raise ValueError(f"has the option {name} without a value")
        found[name] = unquote(value)
    return found
