"""JSON Schema of what the API takes and answers, from the values themselves."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

import msgspec
from msgspec import NODEFAULT, Meta, Struct, defstruct, field
from msgspec.structs import fields

from embermq.admin.problem import Problem
from embermq.admin.queue_service import (
    Configured,
    Done,
    LettersAsked,
    PeekedMessage,
    PutBack,
    QueueDetail,
    Retried,
    RetryJob,
)
from embermq.queues.durations import Duration
from embermq.queues.explaining import Reason
from embermq.queues.inspection import ConsumerView, DeadLetterView, GroupView, MessageView, QueueStats
from embermq.queues.settings import QueueSettings

_Written = Annotated[str, Meta(description="A duration: 500ms, 5s, 5m, 3h, 7d", examples=["5s"])]
REFERENCE = "#/components/schemas/{name}"
_TYPES = (
    Configured,
    ConsumerView,
    DeadLetterView,
    Done,
    GroupView,
    LettersAsked,
    MessageView,
    PeekedMessage,
    Problem,
    PutBack,
    QueueDetail,
    QueueSettings,
    QueueStats,
    Reason,
    Retried,
    RetryJob,
)


def components() -> dict[str, Any]:
    """Schemas by name."""
    _, found = msgspec.json.schema_components(
        [_as_written(struct) for struct in _TYPES], schema_hook=_anything, ref_template=REFERENCE
    )
    return found


def answers(of: type, *, many: bool = False, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """What FastAPI is told of an answer."""
    reference = {"$ref": REFERENCE.format(name=of.__name__)}
    schema = {"type": "array", "items": reference} if many else reference
    return {status: {"description": "Done", "content": {"application/json": {"schema": schema}}}} | problems()


def problems() -> dict[int | str, dict[str, Any]]:
    """What any request may hear."""
    schema = {"$ref": REFERENCE.format(name="Problem")}
    content = {"application/problem+json": {"schema": schema}}
    return {
        400: {"description": "The request is not understood", "content": content},
        401: {"description": "A token is needed, or another one", "content": content},
        403: {"description": "The token may not", "content": content},
        404: {"description": "There is no such queue, message, group or dead letter", "content": content},
        409: {"description": "It cannot be done now", "content": content},
        422: {"description": "The settings cannot be", "content": content},
        503: {"description": "The store has not answered; it may be done all the same", "content": content},
    }


def takes(of: type) -> dict[str, Any]:
    """What FastAPI is told of a body."""
    schema = {"$ref": REFERENCE.format(name=of.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _anything(wanted: type) -> dict[str, Any]:
    """Properties of a message have many types."""
    if wanted is object:
        return {"description": "Any JSON"}
    raise NotImplementedError


@cache
def _as_written(struct: type[Struct]) -> type[Struct]:
    """The same with texts for durations, which JSON does not have."""
    infos = fields(struct)
    if not any(_has_durations(info.type) for info in infos):
        return struct
    written: list[tuple[str, Any, Any]] = []
    for info in infos:
        if info.type is Duration:
            written.append((info.name, _Written, str(info.default)))
        elif _has_durations(info.type):
            inner = _as_written(info.type)
            written.append((info.name, inner, NODEFAULT if info.required else field(default_factory=inner)))
        elif info.default_factory is not NODEFAULT:
            written.append((info.name, info.type, field(default_factory=info.default_factory)))
        else:
            written.append((info.name, info.type, info.default))
    given = [each if each[2] is not NODEFAULT else each[:2] for each in written]
    made = defstruct(struct.__name__, given, kw_only=True)
    made.__doc__ = struct.__doc__
    return made


def _has_durations(wanted: Any) -> bool:
    if wanted is Duration:
        return True
    is_struct = isinstance(wanted, type) and issubclass(wanted, Struct)
    return is_struct and any(_has_durations(info.type) for info in fields(wanted))
