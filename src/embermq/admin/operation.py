"""What one operation is: a row of the table."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct

from embermq.admin.access import Scope
from embermq.admin.errors import RequestRefused

SHOWN_MAX = 40
_MSGSPEC = re.compile(r"(?P<told>.*?)(?: - at `\$\.?(?P<field>.*)`)?", re.DOTALL)
_OWN_WORDS = ("Expected", "Integer", "Invalid", "Number", "Object", "Timestamp")


def request_of(operation: AdminOperation, said: Mapping[str, Any], *, as_text: bool) -> Any:
    """`as_text`: numbers and times in it are texts. Raises RequestRefused, naming the field."""
    try:
        return msgspec.convert(said, operation.request, strict=not as_text)
    except msgspec.ValidationError as error:
        raise RequestRefused(_told(str(error), said)) from None


def _told(text: str, said: Mapping[str, Any]) -> str:
    found = _MSGSPEC.fullmatch(text)
    assert found is not None
    told, place = found["told"].rstrip(), found["field"] or ""
    if not told.startswith(_OWN_WORDS):
        return told  # our own, which names its field
    value: Any = said
    for part in re.findall(r"[^.\[\]]+", place):
        value = value[int(part)] if part.isdecimal() else value.get(part)
    shown = repr(value) if len(repr(value)) <= SHOWN_MAX else f"{repr(value)[:SHOWN_MAX]}…"
    name = place.removeprefix("filter.")
    if value == "":
        return f"{name}: is empty"
    return f"{name}: is {shown}, {told[0].lower()}{told[1:]}" if name else told


D = TypeVar("D")
D_co = TypeVar("D_co", covariant=True)
R = TypeVar("R", bound=Struct)

BODY_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminOperation:
    """What can be asked of a broker. `name` is also the call of gRPC, where `queue_admin.proto` has one. `is_inner`:
    only the broker's own pipeline and commands ask it, by the control socket. `is_stream`: what is answered goes on, as
    server-sent events. `needs_token`: a listener does it for tokens alone, never for a program on this machine without
    one, since it decides who may do what.

    `do` takes the desk and a `request` that has been checked, on the event loop; it returns an answer or an awaitable
    of it, or raises what `admin.errors` has a status for. Over HTTP, fields of the request are parts of one of the
    `paths`, else query parameters; those of a field that is a struct itself are parameters too. `body` is what the
    HTTP request brings as JSON: fields of the request, or all of the field `body_as`. `answers` are what there can be
    by status of HTTP, where 204 has no content; `status` chooses where there are several. `pages` are the fields of a
    request for the next page, and what the last entry of a page has for them. `without_secrets` makes of an answer what
    those see who may not do what is of the scope admin. `names` are fields that say, besides those in the path, what is
    changed: the audit trail has them, so none of them is a secret. `is_list_of_all`: each node of a cluster has a part
    of the list, and all are asked.
    """

    desk: str
    name: str
    method: str
    paths: tuple[str, ...]
    scope: Scope
    request: type[Struct]
    answers: Mapping[int, Any]
    do: Callable[[Any, Any], Any]
    summary: str
    about: str = ""
    body: type[Struct] | None = None
    body_as: str = ""
    status: Callable[[Any], int] | None = None
    pages: Mapping[str, str] = field(default_factory=dict)
    body_bytes_max: int = BODY_BYTES_MAX
    is_inner: bool = False
    is_stream: bool = False
    needs_token: bool = False
    without_secrets: Callable[[Any], Any] | None = None
    names: tuple[str, ...] = ()
    is_list_of_all: bool = False


class Row(Protocol[D_co]):
    """The second half of a row, without a name of its own."""

    def __call__(
        self, request: type[R], answer: Any, do: Callable[[D_co, R], object], **more: Any
    ) -> AdminOperation:
        """`answer`: a type, None for nothing, or types by status."""


class RowsOf(Generic[D]):
    """Makes the rows of one desk."""

    def __init__(self, desk: str) -> None:
        self._desk = desk

    def __call__(self, name: str, at: str, scope: Scope, summary: str) -> Row[D]:
        """What a user sees of it; then what it takes, answers and does. `at`: the method, and paths."""
        method, *paths = at.split()
        what = partial(AdminOperation, desk=self._desk, name=name, summary=summary)
        seen = partial(what, method=method, paths=tuple(paths), scope=scope)

        def row(request: type[R], answer: Any, do: Callable[[D, R], object], **more: Any) -> AdminOperation:
            answers = answer if isinstance(answer, dict) else {204 if answer is None else 200: answer}
            return seen(request=request, answers=answers, do=do, **more)

        return row
