"""Values of operations as messages of queue_admin.proto, and messages as what requests are made of."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple, TypeVar

import msgspec
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from msgspec import UNSET, Struct
from msgspec.structs import fields

from embermq.admin.errors import RequestRefused
from embermq.admin.queue_values import PeekedMessage
from embermq.queues.durations import Duration

M = TypeVar("M", bound=Message)
TIME_MAX_S = 253_402_300_799
"""The end of the year 9999."""


class _FieldPlan(NamedTuple):
    """A field that both sides have. `kind` is the message of a field that is one, None for what stands for itself."""

    name: str
    kind: type[Message] | None


def written(kind: type[M], value: Struct) -> M:
    """The message that says what `value` says, field by field of the same name. What is None, and what the message has
    no field for, is left out."""
    found: dict[str, Any] = {}
    any_kind: Any = kind
    for place in _places(any_kind, type(value)):
        given = getattr(value, place.name)
        if given is not None and given is not UNSET:
            found[place.name] = _written(place.kind, given)
    if isinstance(value, PeekedMessage):
        found |= _body(value)
    made: M = kind(**found)
    return made


def _body(peeked: PeekedMessage) -> dict[str, Any]:
    """What JSON has in another form."""
    found: dict[str, Any] = {"properties": msgspec.json.decode(msgspec.json.encode(peeked.properties))}
    if peeked.payload is not UNSET:
        found["payload"] = peeked.payload.encode()
    elif peeked.payload_base64 is not UNSET:
        found["payload"] = b64decode(peeked.payload_base64)
    return found


def _written(kind: type[Message] | None, given: Any) -> Any:
    if isinstance(given, Mapping):
        return dict(given)
    if kind is None:
        return str(given) if isinstance(given, Duration) else given
    if isinstance(given, datetime):
        moment = Timestamp()
        moment.FromDatetime(given)
        return moment
    return written(kind, given) if isinstance(given, Struct) else many(kind, given)


def many(kind: type[M], values: Sequence[Struct]) -> list[M]:
    """A message of `kind` for each value, in their order."""
    return [written(kind, value) for value in values]


@cache
def _places(kind: Any, struct: type[Struct]) -> tuple[_FieldPlan, ...]:
    """The fields that both have."""
    theirs = kind.DESCRIPTOR.fields_by_name
    return tuple(
        _FieldPlan(info.name, _kind(theirs[info.name])) for info in fields(struct) if info.name in theirs
    )


def _kind(field: Any) -> type[Message] | None:
    inner = field.message_type
    if inner is None or inner.GetOptions().map_entry:
        return None
    found: type[Message] = inner._concrete_class
    return found


def said(message: Any, request: type[Struct]) -> dict[str, Any]:
    """What a message says for a request: fields that are set, and those that a request must have. Raises
    RequestRefused for a time that is none."""
    found = {field.name: _said(field.name, value) for field, value in message.ListFields()}
    for info in fields(request):
        if info.required and info.encode_name not in found:
            found[info.encode_name] = _said(info.name, getattr(message, info.name))
    return found


def _said(name: str, value: Any) -> Any:
    if isinstance(value, Timestamp):
        if not 0 <= value.seconds <= TIME_MAX_S:
            raise RequestRefused(f"{name}: {value.seconds} s since 1970 is before it, or after the year 9999")
        try:
            return value.ToDatetime(UTC)
        except ValueError as error:
            raise RequestRefused(f"{name}: {error}") from None
    if isinstance(value, Message):
        return {field.name: _said(field.name, inner) for field, inner in value.ListFields()}
    return value if isinstance(value, (str, int, float, bytes)) else list(value)
