"""Values of the façade as messages of queue_admin.proto, and requests as what the façade takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from msgspec import Struct
from msgspec.structs import fields

from embermq.admin.queue_service import RequestRefused
from embermq.queues.durations import Duration

M = TypeVar("M", bound=Message)
TIME_MAX_MS = 253_402_300_799_999
"""The end of the year 9999."""


class _Place(NamedTuple):
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
        if given is not None:
            found[place.name] = _written(place.kind, given)
    made: M = kind(**found)
    return made


def _written(kind: type[Message] | None, given: Any) -> Any:
    if kind is None:
        if isinstance(given, Duration):
            return str(given)
        return dict(given) if isinstance(given, Mapping) else given
    if isinstance(given, datetime):
        moment = Timestamp()
        moment.FromDatetime(given)
        return moment
    return written(kind, given) if isinstance(given, Struct) else many(kind, given)


def many(kind: type[M], values: Sequence[Struct]) -> list[M]:
    """One for each."""
    return [written(kind, value) for value in values]


@cache
def _places(kind: Any, struct: type[Struct]) -> tuple[_Place, ...]:
    """The fields that both have."""
    theirs = kind.DESCRIPTOR.fields_by_name
    return tuple(
        _Place(info.name, _kind(theirs[info.name])) for info in fields(struct) if info.name in theirs
    )


def _kind(field: Any) -> type[Message] | None:
    inner = field.message_type
    if inner is None or inner.GetOptions().map_entry:
        return None
    found: type[Message] = inner._concrete_class
    return found


def given(message: Message) -> dict[str, Any]:
    """What a request has set, messages in it as dicts."""
    return {
        field.name: given(value) if isinstance(value, Message) else value
        for field, value in message.ListFields()
    }


def time_ms(message: Message, name: str) -> int | None:
    """Unix milliseconds of a field that is a time; None when it is not set. Raises RequestRefused."""
    if not message.HasField(name):
        return None
    moment: Timestamp = getattr(message, name)
    found: int = moment.seconds * 1_000 + moment.nanos // 1_000_000
    if not 0 <= found <= TIME_MAX_MS:
        raise RequestRefused(f"{name}: {moment.seconds} s since 1970 is before it, or after the year 9999")
    return found
