"""The dashboard at /: a page with its script and style, which `dashboard/` is built into (`scripts/dashboard`).

It holds nothing of this broker: what it shows it asks the API for, with a token that whoever looks gives it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
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
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'{sockets};"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
"""Nothing from elsewhere, nothing inline, nothing that is made into code, in nobody's frame. `sockets` are the broker's
own listeners for WebSocket, under the name by which the page was asked for."""
HOST = re.compile(r"([A-Za-z0-9.-]{1,253})(:\d{1,5})?")
"""What may stand in a policy; it has no way to write an IPv6 address."""
SocketPorts = Callable[[], Sequence[tuple[str, int]]]
"""`ws` or `wss` and the port of each listener that is open."""


def no_sockets() -> Sequence[tuple[str, int]]:
    """There is no listener for WebSocket."""
    return ()


def dashboard_routes(ports: SocketPorts) -> Iterator[Route]:
    """One for each file; they are read once, about 100 KB."""
    for found in (files("embermq.admin") / "page").iterdir():
        path = "/" if found.name == PAGE else BELOW + found.name
        yield Route(path, _served(found.read_bytes(), TYPES[found.name.rpartition(".")[2]], ports))


def _served(content: bytes, kind: str, ports: SocketPorts) -> Callable[[Request], Awaitable[Response]]:
    headers = {
        "content-type": kind,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-cache",  # asked for again each time, so that an upgrade is seen at once
    }

    of_content = sha256(content)

    async def answer(request: Request) -> Response:
        policy = POLICY.format(sockets=_sockets(request, ports()))
        digest = of_content.copy()
        digest.update(policy.encode())  # a browser keeps the policy with the page
        etag = f'"{digest.hexdigest()[:32]}"'
        told = {**headers, "content-security-policy": policy, "etag": etag}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=told)
        return Response(content, headers=told)

    return answer


def _sockets(request: Request, ports: Sequence[tuple[str, int]]) -> str:
    host = HOST.fullmatch(request.headers.get("host", ""))
    return "".join(f" {kind}://{host[1]}:{port}" for kind, port in ports) if host is not None else ""
