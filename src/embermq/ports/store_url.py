"""Stores are named by URLs, and URLs hold passwords."""

import re

_USER = re.compile(r"(?<=://)([^:]*):.*@", re.DOTALL)
_PARAMETER = re.compile(r"([?&][^=&]*(?:pass|secret|key)[^=&]*=)[^&]*", re.IGNORECASE)


def without_password(url: str) -> str:
    """The same text to be shown: `***` stands where a password does, also one that should have been quoted."""
    return _PARAMETER.sub(r"\1***", _USER.sub(r"\1:***@", url))
