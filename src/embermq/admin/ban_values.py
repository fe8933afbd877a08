"""What operations on bans take and answer."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

REASON_MAX = 200


class BanView(Struct, frozen=True, kw_only=True):
    """Who may not come in, and until when: None until that is lifted. Times are ISO 8601 in UTC."""

    kind: str
    value: str
    since: str
    until: str | None
    reason: str


class BanRequest(Struct, frozen=True, kw_only=True):
    """One ban. `value` is a client id, a user, or an address or network such as 10.0.0.0/8."""

    kind: Literal["client_id", "user", "address"]
    value: Annotated[str, Meta(min_length=1, max_length=65_535)]


class BanAsked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`lasts` is a duration such as 15m, 12h or 30d, "" until it is lifted. `even_own`: also what has the address that
    asks."""

    lasts: str = ""
    reason: Annotated[str, Meta(max_length=REASON_MAX)] = ""
    even_own: bool = False


class PutBanRequest(BanRequest, frozen=True, kw_only=True):
    """A ban, or another time for one. `caller` is the address that asks, "" for the broker's own socket."""

    lasts: str = ""
    reason: Annotated[str, Meta(max_length=REASON_MAX)] = ""
    even_own: bool = False
    caller: str = ""


class BanPut(Struct, frozen=True, kw_only=True):
    """The ban, and how many clients of the node that was asked were sent away."""

    ban: BanView
    disconnected: int


class ListBansRequest(Struct, frozen=True, kw_only=True):
    """A page of bans."""

    after_kind: str = ""
    after: Annotated[str, Meta(description="Values behind this one")] = ""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1_000
