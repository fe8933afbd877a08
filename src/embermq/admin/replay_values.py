"""What the operation on replays takes and answers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

MESSAGES_MAX = 1_000
PIECE_BYTES_MAX = 400 * 1024 * 1024
"""Of a request: the largest MQTT packet in Base64."""


class PieceAsked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages `first` and on of a replay, as records of the log; null is passed over. `client` is the APPLICATION
    client that they are for alone, "" for whoever their topics lead to."""

    first: Annotated[int, Meta(ge=0)]
    messages: Annotated[tuple[bytes | None, ...], Meta(max_length=MESSAGES_MAX)] = ()
    client: str = ""


class ReplayRequest(PieceAsked, frozen=True, kw_only=True):
    """The same of one replay."""

    replay: Annotated[str, Meta(min_length=1, max_length=64)]


class ReplayTaken(Struct, frozen=True, kw_only=True):
    """Messages below `next` are in the log. `refused` says why the next one is not, "" when all were taken; where it
    `passes` the same one may be taken later."""

    next: int
    refused: str = ""
    passes: bool = False
