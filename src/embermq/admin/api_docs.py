"""The page at /api/v1/docs: OpenAPI as HTML, without a script and without anything from another host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from starlette.responses import HTMLResponse

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
    for field, about in schema.get("properties", {}).items():
        default = about.get("default", "")
        yield f"<tr><td><code>{escape(field)}</code><td>{_type(about)}<td>{escape(str(default))}"
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
