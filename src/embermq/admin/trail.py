"""The audit trail: who has changed what, by which operation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, Protocol

from msgspec import Meta, Struct, to_builtins

from embermq.admin.access import Scope
from embermq.admin.errors import status_of
from embermq.admin.operation import AdminOperation

VALUE_CHARACTERS_MAX = 256
VALUES_MAX = 20
"""Of a list in an object."""
DONE = "done"


class ChangeBegun(Struct, frozen=True, kw_only=True):
    """What somebody is about to change. `by` is `token NAME`, `user NAME` of the operating system, "this machine" for a
    program on it without a token, or "the broker", which bans. `peer` is an address, "" for the broker's own machine.
    `over` is http, grpc, control or command, failures where those made the broker ban, and
    node where another node of the cluster was asked. `object` is what the
    operation is about: never a password or a payload."""

    by: str
    peer: str
    over: str
    operation: str
    object: Mapping[str, Any]


class ChangeView(Struct, frozen=True, kw_only=True):
    """A change as it is listed. `at` is ISO 8601 in UTC; `outcome` is `done`, why it was refused or failed, or
    `unknown` while it is under way and when the broker died or the caller left before it was over."""

    id: str
    at: str
    by: str
    peer: str
    over: str
    operation: str
    object: Mapping[str, Any]
    outcome: str


class ListChangesRequest(Struct, frozen=True, kw_only=True):
    """A page of the audit trail, newest first."""

    by: Annotated[str, Meta(description="Only what this one has done, such as `token deploy`")] = ""
    what: Annotated[str, Meta(description="Only this operation, such as `PutBan`")] = ""
    after: Annotated[str, Meta(description="Changes older than the one with this id")] = ""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


class Trail(Protocol):
    """Notes what operators change: each change twice, before it is tried and when its outcome is known."""

    async def begin(self, change: ChangeBegun) -> str:
        """Returns the id of the change, when it is on disk; a trail that cannot be written is told of in the log."""
        ...

    def end(self, change_id: str, outcome: str) -> None:
        """Note what came of the change with the id that `begin` gave; returns at once, before that is on disk."""
        ...


class TrailDesk(Protocol):
    """Shows the changes that were noted."""

    async def page(self, asked: ListChangesRequest) -> Sequence[ChangeView]:
        """Newest first. Raises StoreError."""
        ...


class NoTrail:
    """Notes nothing: for a broker without an audit trail."""

    async def begin(self, change: ChangeBegun) -> str:
        """Returns "": nothing is noted, so no change has an id."""
        return ""

    def end(self, change_id: str, outcome: str) -> None:
        """Nothing is noted."""


NO_TRAIL = NoTrail()


def is_change(operation: AdminOperation) -> bool:
    """Whether it is kept in the trail: what anybody with the scope read may ask changes nothing."""
    return operation.method != "GET" and operation.scope is not Scope.READ and not operation.is_inner


def object_of(operation: AdminOperation, request: Struct) -> dict[str, object]:
    """What is named by the operation's path, and by `names`."""
    in_paths = [
        name for name in request.__struct_fields__ if any(f"{{{name}}}" in p for p in operation.paths)
    ]
    found = {name: getattr(request, name) for name in dict.fromkeys((*in_paths, *operation.names))}
    return {name: _short(value) for name, value in found.items() if value not in ("", None, (), [])}


def _short(value: object) -> object:
    plain = to_builtins(value, str_keys=True)
    if isinstance(plain, str) and len(plain) > VALUE_CHARACTERS_MAX:
        return f"{plain[:VALUE_CHARACTERS_MAX]}…"
    if isinstance(plain, list | tuple) and len(plain) > VALUES_MAX:
        return [*plain[:VALUES_MAX], f"… {len(plain)} in all"]
    return plain


@asynccontextmanager
async def recorded(
    trail: Trail, operation: AdminOperation, request: Struct, *, by: str, peer: str, over: str
) -> AsyncIterator[None]:
    """Have it in the trail before it is done, and afterwards what became of it."""
    if not is_change(operation):
        yield
        return
    about = object_of(operation, request)
    change_id = await trail.begin(
        ChangeBegun(by=by, peer=peer, over=over, operation=operation.name, object=about)
    )
    try:
        yield
    except Exception as error:
        status = status_of(error)
        told = f"refused: {error}" if status is not None else "failed, the broker's log says more"
        trail.end(change_id, told[:VALUE_CHARACTERS_MAX])
        raise
    trail.end(change_id, DONE)
