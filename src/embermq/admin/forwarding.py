"""Operations on what another node of the cluster has: that one does them, for the operator who has asked this one.

Who may do it is asked where the operator comes in, and it is in the audit trails of both nodes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from inspect import isawaitable
from typing import Any, Protocol

import msgspec
from msgspec import Raw, Struct

from embermq.admin.errors import STATUSES, NotFound, OperationRefused, RequestRefused, tell_of_fault
from embermq.admin.operation import AdminOperation
from embermq.admin.operations import OPERATIONS
from embermq.admin.queue_values import QueueRequest
from embermq.admin.session_values import ClientRequest
from embermq.admin.trail import Trail, is_change, recorded
from embermq.admin.values import PublishRequest
from embermq.ports.errors import StoreError, StoreUnavailable
from embermq.queues.durations import Duration, parse_duration
from embermq.queues.names import queue_name
from embermq.routing.queue_target import QUEUE_PREFIX
from embermq.sessions.member_ids import is_member_id

OVER = "node"
"""What the trail of the node that does it calls the way in."""
DONE_S, LISTED_S = 30.0, 3.0
"""How long another node may take for an operation, and for its part of a list."""
_log = logging.getLogger(__name__)
_BY_NAME = {each.name: each for each in OPERATIONS}
_KINDS = {kind.__name__: kind for kind, _ in STATUSES}


class OtherNodes(Protocol):
    """The nodes of the cluster by their slots, which are numbered from 0. Called on the event loop."""

    @property
    def slot(self) -> int:
        """The one of this node."""
        ...

    @property
    def others(self) -> Sequence[int]:
        """All other slots."""
        ...

    def slot_of_client(self, client_id: str) -> int:
        """Which slot this client belongs to, whether it was ever here or not."""
        ...

    def slot_of_queue(self, name: str) -> int:
        """The same of a durable queue, by its name without `$queue/`."""
        ...

    def is_mute(self, slot: int) -> bool:
        """Whether its node has just let somebody wait in vain."""
        ...

    async def ask(self, slot: int, told: bytes, answer_s: float) -> bytes:
        """What `answered` says at the node that has a slot. Raises StoreUnavailable when nobody has it, or no answer
        has come in time, and OperationRefused for what is too large."""
        ...


class SharedDesk(Struct, frozen=True):
    """A desk whose operations are about what belongs to slots."""

    desk: object
    nodes: OtherNodes


class Forwarded(Struct, frozen=True, kw_only=True):
    """What a node asks another one. `by` and `peer` are the operator's, as the trail has them."""

    operation: str
    request: Raw
    by: str
    peer: str


class Answered(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`answer` is that of the operation for the status of HTTP; or `refused` names a kind of error, and `detail` says
    why."""

    status: int = 0
    answer: Raw = Raw(b"null")
    refused: str = ""
    detail: str = ""


class OperationDone(Struct, frozen=True):
    """What an operation answers. `missing` are slots whose part of a list is not in it."""

    answer: Any
    missing: Sequence[int] = ()


async def do_on_any_node(
    operation: AdminOperation, desk: object, request: Any, *, by: str, peer: str
) -> OperationDone:
    """Do it here, at the node that has what it is about, or, for a list, at all. Raises what the operation does, and
    StoreUnavailable when that node does not answer: what was asked for may have been done. Of a list, what another
    slot does not answer is missing."""
    if not isinstance(desk, SharedDesk):
        return OperationDone(await _do(operation, desk, request))
    told = Forwarded(
        operation=operation.name, request=Raw(msgspec.json.encode(request, enc_hook=str)), by=by, peer=peer
    )
    if operation.is_list_of_all:
        return await _list(operation, desk, request, told)
    refusal: NotFound | None = None
    failure: StoreError | None = None
    for slot in sorted(_slots_of(desk.nodes, request), key=desk.nodes.is_mute):
        try:
            if slot == desk.nodes.slot:
                return OperationDone(await _do(operation, desk.desk, request))
            return OperationDone(await _ask(operation, desk.nodes, slot, told, DONE_S))
        except NotFound as error:
            refusal = refusal or error
        except StoreError as error:  # another slot may have it; if none has, this one may
            failure = failure or error
    told_last = failure or refusal
    assert told_last is not None, "there is a slot"
    raise told_last


def _slots_of(nodes: OtherNodes, request: Any) -> Sequence[int]:
    """Where to look. A member session may be at any slot: its name does not say."""
    if isinstance(request, QueueRequest):
        return [nodes.slot_of_queue(request.queue)]
    if isinstance(request, PublishRequest) and request.topic.startswith(QUEUE_PREFIX):
        return [nodes.slot_of_queue(queue_name(request.topic))]
    if isinstance(request, ClientRequest):
        if is_member_id(request.client_id):
            return [nodes.slot, *nodes.others]
        return [nodes.slot_of_client(request.client_id)]
    return [nodes.slot]


async def _list(operation: AdminOperation, desk: SharedDesk, request: Any, told: Forwarded) -> OperationDone:
    """Of all slots, in the order in which each has its own."""
    asked = (_ask_for_part(operation, desk.nodes, slot, told) for slot in desk.nodes.others)
    parts = await asyncio.gather(_do(operation, desk.desk, request), *asked, return_exceptions=True)
    missing: list[int] = []
    found: list[Any] = []
    for slot, part in zip((desk.nodes.slot, *desk.nodes.others), parts, strict=True):
        if isinstance(part, StoreUnavailable) or part is None:
            missing.append(slot)
        elif isinstance(part, BaseException):
            raise part
        else:
            found += part
    names = tuple(operation.pages.values())
    if names:
        found.sort(key=lambda each: _key(each, names))
    return OperationDone(list(_page(found, names, getattr(request, "limit", 0))), sorted(missing))


async def _ask_for_part(operation: AdminOperation, nodes: OtherNodes, slot: int, told: Forwarded) -> Any:
    """None when it is missing."""
    if nodes.is_mute(slot):  # each page of a list would wait for it
        return None
    try:
        return await _ask(operation, nodes, slot, told, LISTED_S)
    except StoreUnavailable:
        return None
    except tuple(_KINDS.values()) as error:
        _log.warning(
            "%s: the part of slot %d is missing: its node refuses it: %s", operation.name, slot, error
        )
        return None


def _page(found: Sequence[Any], names: Sequence[str], limit: int) -> Iterator[Any]:
    """As many as were asked for. Who asks for the next page names the last one of this: what has the same names, at
    another slot, is on this one, too."""
    for number, each in enumerate(found):
        if names and limit and number >= limit and _key(each, names) != _key(found[number - 1], names):
            return
        yield each


def _key(value: Any, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in names)


async def _do(operation: AdminOperation, desk: object, request: Any) -> Any:
    answer = operation.do(desk, request)
    return await answer if isawaitable(answer) else answer


async def _ask(
    operation: AdminOperation, nodes: OtherNodes, slot: int, told: Forwarded, answer_s: float
) -> Any:
    try:
        found = await nodes.ask(slot, msgspec.json.encode(told), answer_s)
    except StoreUnavailable as error:
        doubt = "; it may have been done" if is_change(operation) else ""
        raise StoreUnavailable(f"{error}{doubt}") from None
    try:
        answered = msgspec.json.decode(found, type=Answered)
        if answered.refused:
            raise _KINDS.get(answered.refused, OperationRefused)(answered.detail)
        if (kind := operation.answers.get(answered.status)) is None:
            return None
        return msgspec.json.decode(answered.answer, type=kind, dec_hook=_durations)
    except msgspec.MsgspecError as error:
        raise StoreError(f"the node of slot {slot} answers what is not understood: {error}") from error


async def answered(desks: Mapping[str, object], trail: Trail, told: bytes) -> bytes:
    """Do what another node asks for an operator."""
    name = "an operation for another node"
    try:
        forwarded = msgspec.json.decode(told, type=Forwarded)
        name = forwarded.operation
        operation = _BY_NAME.get(name)
        desk = desks.get(operation.desk) if operation is not None else None
        if operation is None or not isinstance(desk, SharedDesk):
            raise OperationRefused(
                f"{name[:80]}: the other node has no such operation, or lacks the part for it"
            )
        request = msgspec.json.decode(forwarded.request, type=operation.request, dec_hook=_durations)
        async with recorded(trail, operation, request, by=forwarded.by, peer=forwarded.peer, over=OVER):
            answer = await _do(operation, desk.desk, request)
        status = operation.status(answer) if operation.status is not None else next(iter(operation.answers))
        return msgspec.json.encode(
            Answered(status=status, answer=Raw(msgspec.json.encode(answer, enc_hook=str)))
        )
    except msgspec.MsgspecError as error:
        return _refusal(RequestRefused.__name__, str(error))
    except Exception as error:
        kind = next((kind.__name__ for kind, _ in STATUSES if isinstance(error, kind)), "")
        if kind:
            return _refusal(kind, str(error))
        tell_of_fault(name, error)
        return _refusal(StoreError.__name__, "it failed at the node that has it, whose log says more")


def _refusal(kind: str, detail: str) -> bytes:
    return msgspec.json.encode(Answered(refused=kind, detail=detail))


def _durations(wanted: type, value: object) -> Duration:
    """The only type that JSON does not have."""
    if wanted is not Duration or not isinstance(value, str):
        raise ValueError(f"{wanted.__name__} is not understood")
    return parse_duration(value)
