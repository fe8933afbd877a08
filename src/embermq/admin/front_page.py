"""The dashboard at /: a page with its script and style, which `dashboard/` is built into (`scripts/dashboard`).

It holds nothing of this broker: what it shows it asks the API for, with a token that whoever looks gives it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PAGE = "index.html"
BELOW = "/dashboard/"
TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
"""Nothing from elsewhere, nothing inline, nothing that is made into code, in nobody's frame."""


def dashboard_routes() -> Iterator[Route]:
    """One for each file; they are read once, about 100 KB."""
    for found in (files("embermq.admin") / "page").iterdir():
        path = "/" if found.name == PAGE else BELOW + found.name
        yield Route(path, _served(found.read_bytes(), TYPES[found.name.rpartition(".")[2]]))


def _served(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    headers = {
        "content-type": kind,
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-cache",  # asked for again each time, so that an upgrade is seen at once
        "etag": f'"{sha256(content).hexdigest()[:32]}"',
    }

    async def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        return Response(content, headers=headers)

    return answer
