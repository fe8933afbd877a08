"""OpenAPI of a table of operations, from the operations and their values themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from http import HTTPStatus
from typing import Annotated, Any, get_args

import msgspec
from msgspec import NODEFAULT, Meta, Struct, defstruct, field
from msgspec.structs import fields

from embermq.admin.operation import AdminOperation
from embermq.admin.problem import Problem
from embermq.queues.durations import Duration

PREFIX = "/api/v1"
DESCRIPTION = """\
What operators ask of EmberMQ and do to it. Names in an address are percent-encoded; a queue's may have `$` for `/`:
`tasks%2Fimages` and `$queue$tasks$images` are the queue `tasks/images`. Lists come in pages:
`after` is for the next one. Errors are `application/problem+json`."""
REFERENCE = "#/components/schemas/{name}"
PROBLEMS = {
    400: "The request is not understood",
    401: "A token is needed, or another one",
    403: "The token may not",
    404: "There is nothing of that name",
    409: "It cannot be done now",
    422: "The settings cannot be",
    503: "The store has not answered; it may be done all the same",
}
_Written = Annotated[str, Meta(description="A duration: 500ms, 5s, 5m, 3h, 7d", examples=["5s"])]


class Parameter(Struct, frozen=True):
    """A field of a request that has a place in the address. `inside` is the field that holds it, "" for the request."""

    name: str
    schema: dict[str, Any]
    is_in_path: bool
    inside: str = ""

    @property
    def is_list(self) -> bool:
        """Whether it may be given several times."""
        return self.schema.get("type") == "array"

    @property
    def is_text(self) -> bool:
        """Whether it is taken as it is."""
        return self.schema.get("type") == "string"


def parameters(operation: AdminOperation) -> Iterator[Parameter]:
    """All of them; those that one of its paths has are in the path."""
    elsewhere = {"only_new", "caller", operation.body_as}
    if operation.body is not None and not operation.body_as:
        elsewhere |= set(operation.body.__struct_fields__)
    schemas = _schemas((operation.request,))
    for name, schema in schemas[operation.request.__name__]["properties"].items():
        if name in elsewhere:
            continue
        if "$ref" in schema:
            inner = schemas[schema["$ref"].rpartition("/")[2]]["properties"]
            for each, about in inner.items():
                yield Parameter(each, about, is_in_path=False, inside=name)
        else:
            yield Parameter(name, schema, any(f"{{{name}}}" in path for path in operation.paths))


def described(operations: Sequence[AdminOperation]) -> dict[str, Any]:
    """The OpenAPI 3.1 document of these operations, as it is sent as JSON."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        for path in operation.paths:
            paths.setdefault(path, {})[operation.method.lower()] = _described(operation, path)
    kinds = {kind for each in operations for kind in (each.body, *map(_inner, each.answers.values()))}
    named = sorted((kind for kind in kinds if _is_struct(kind)), key=lambda kind: kind.__name__)
    return {
        "openapi": "3.1.0",
        "info": {"title": "EmberMQ", "version": "1", "description": DESCRIPTION},
        "servers": [{"url": PREFIX}],
        "paths": paths,
        "components": {
            "schemas": _schemas((*map(_as_written, named), Problem)),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _described(operation: AdminOperation, path: str) -> dict[str, Any]:
    found: dict[str, Any] = {"operationId": operation.name, "summary": operation.summary}
    if path != operation.paths[0]:
        found["operationId"] += "OfGroup"
    if operation.about:
        found["description"] = operation.about
    found["description"] = f"{found.get('description', '')} Scope {operation.scope}.".strip()
    shown = [each for each in parameters(operation) if not each.is_in_path or f"{{{each.name}}}" in path]
    if shown:
        found["parameters"] = [
            {
                "name": each.name,
                "in": "path" if each.is_in_path else "query",
                "required": each.is_in_path,
                "description": each.schema.get("description", ""),
                "schema": {key: value for key, value in each.schema.items() if key != "description"},
            }
            for each in shown
        ]
    if operation.body is not None:
        content = {"application/json": {"schema": _reference(operation.body)}}
        found["requestBody"] = {"required": not operation.body_as, "content": content}
    responses: dict[str, Any] = {}
    for status, kind in operation.answers.items():
        responses[str(status)] = {"description": "Done"}
        if status != HTTPStatus.NO_CONTENT:
            media = "text/event-stream" if operation.is_stream else "application/json"
            responses[str(status)]["content"] = {media: {"schema": _reference(kind)}}
    problem = {"application/problem+json": {"schema": _reference(Problem)}}
    for status, told in PROBLEMS.items():
        responses[str(status)] = {"description": told, "content": problem}
    return {**found, "responses": responses}


def _inner(kind: Any) -> Any:
    return get_args(kind)[0] if get_args(kind) else kind


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _reference(kind: Any) -> dict[str, Any]:
    inner = _inner(kind)
    found = {"$ref": REFERENCE.format(name=inner.__name__)} if _is_struct(inner) else {"type": "string"}
    return found if inner is kind else {"type": "array", "items": found}


@cache
def _schemas(kinds: tuple[type[Struct], ...]) -> dict[str, Any]:
    _, found = msgspec.json.schema_components(kinds, schema_hook=_anything, ref_template=REFERENCE)
    return found


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
