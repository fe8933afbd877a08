"""The page at /: what is served here, for who types the address into a browser. Without a script and without anything
from another host."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from starlette.responses import HTMLResponse

ALWAYS = (
    ("/health", "whether the broker is well: 200 or 503"),
    ("/ready", "whether clients are served, and the state of each part: 200 or 503"),
    ("/metrics", "figures for Prometheus"),
    ("/api/v1/pipeline", "what the pipeline does, as JSON"),
)
"""What every broker answers."""
API = (
    ("/api/v1/docs", "the API for operators, described"),
    ("/api/v1/openapi.json", "the same for machines"),
)
"""Where the API is served."""
_HEADERS = {
    "content-security-policy": "default-src 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
}


def front_page(served: Sequence[tuple[str, str]]) -> HTMLResponse:
    """Addresses, each with what is there."""
    lines = [f"<li><a href={escape(path)}>{escape(path)}</a>: {escape(about)}\n" for path, about in served]
    head = "<!doctype html><html lang=en><meta charset=utf-8><title>EmberMQ</title><h1>EmberMQ</h1>\n"
    said = f"<p>The HTTP side of an MQTT broker has:\n<ul>\n{''.join(lines)}</ul>\n"
    return HTMLResponse(head + said, headers=_HEADERS)
