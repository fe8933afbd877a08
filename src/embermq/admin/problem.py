"""What an error answer says over HTTP."""

from msgspec import Struct


class Problem(Struct, frozen=True):
    """An error answer [RFC 9457]."""

    type: str
    title: str
    status: int
    detail: str
