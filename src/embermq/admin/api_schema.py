"""OpenAPI of a table of operations, from the operations and their values themselves, and the page that shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html import escape
from http import HTTPStatus
from typing import Annotated, Any, get_args

import msgspec
from msgspec import NODEFAULT, Meta, Struct, defstruct, field
from msgspec.structs import fields
from starlette.responses import HTMLResponse

from embermq.admin.errors import Problem
from embermq.admin.operation import AdminOperation
from embermq.queues.durations import Duration

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
code{background:#f2f2f2;padding:.1em .3em;border-radius:3px}summary{cursor:pointer;padding:.4rem 0}
details{border-bottom:1px solid #ddd}table{border-collapse:collapse;margin:.5rem 0 1rem}
td,th{text-align:left;vertical-align:top;padding:.2rem .8rem .2rem 0}.method{font-weight:600;display:inline-block;
width:5rem}.muted{color:#666}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def docs_page(described: Mapping[str, Any]) -> HTMLResponse:
    """For people; machines read openapi.json."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>EmberMQ API</title>",
        f"<style>{_STYLE}</style><h1>EmberMQ API</h1><p>{escape(described['info']['description'])}</p>",
        "<p>For machines: <a href=openapi.json>openapi.json</a></p><h2>Requests</h2>",
    ]
    base = described["servers"][0]["url"]
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            parts.append("".join(_operation(base + path, method, operation)))
    parts.append("<h2>Values</h2>")
    for name, schema in sorted(described["components"]["schemas"].items()):
        parts.append("".join(_value(name, schema)))
    return HTMLResponse(
        "".join(parts), headers={"content-security-policy": _POLICY, "x-content-type-options": "nosniff"}
    )


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"<details><summary><span class=method>{escape(method.upper())}</span><code>{escape(path)}</code> "
    yield f"{escape(operation.get('summary', ''))}</summary><p>{escape(operation.get('description', ''))}</p>"
    rows = [
        (escape(one["name"]), one["in"], escape(one.get("description", "")), _type(one.get("schema", {})))
        for one in operation.get("parameters", ())
    ]
    if rows:
        yield "<table><tr><th>parameter<th>in<th>meaning<th>type"
        for row in rows:
            yield "<tr>" + "".join(f"<td>{cell}" for cell in row)
        yield "</table>"
    for content in operation.get("requestBody", {}).get("content", {}).values():
        yield f"<p>Takes {_type(content.get('schema', {}))}</p>"
    yield "<table><tr><th>answer<th>when<th>what"
    for status, answer in operation.get("responses", {}).items():
        told = " ".join(_type(content.get("schema", {})) for content in answer.get("content", {}).values())
        yield f"<tr><td>{escape(status)}<td>{escape(answer['description'])}<td>{told}"
    yield "</table></details>"


def _value(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"<details id='{escape(name)}'><summary><code>{escape(name)}</code></summary>"
    yield f"<p>{escape(schema.get('description', ''))}</p><table><tr><th>name<th>type<th>default"
    for name_of_field, about in schema.get("properties", {}).items():
        default = about.get("default", "")
        yield f"<tr><td><code>{escape(name_of_field)}</code><td>{_type(about)}<td>{escape(str(default))}"
    yield "</table></details>"


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f"<a href='#{name}'>{name}</a>"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(escape(str(one)) for one in schema["enum"])
    told = escape(str(schema.get("format") or schema.get("type", "any")))
    if "prefixItems" in schema:
        return f"[{', '.join(map(_type, schema['prefixItems']))}]"
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    low, high = schema.get("minimum"), schema.get("maximum")
    return told + (
        f" <span class=muted>{low} to {high}</span>" if low is not None and high is not None else ""
    )


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
