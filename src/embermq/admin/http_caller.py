"""Who asks over HTTP."""

from __future__ import annotations

from starlette.requests import Request

from embermq.admin.access import is_loopback, names_a_proxy

_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
_SAME_SITE = ("same-origin", "none")
"""What browsers say of requests that their user made, or a page of ours."""
_PROXY_VERSION = "1.0"
"""Which programs do not speak any more, and nginx does to what stands behind it."""


class HttpCaller:
    """Who asks by one HTTP request: address, token and certificate, as `access` looks at them."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.authorization = request.headers.get("authorization", "")
        self.certificate = str(request.scope.get("certificate", ""))
        self.peer = request.client.host if request.client is not None else ""
        """The address that asks, "" over a Unix socket."""

    def shown(self, token: str) -> str:
        """Who it is, for the audit trail."""
        if token:
            return f"token {token}"
        user = self._request.scope.get("os_user", "")
        return f"user {user}" if user else "this machine"

    def is_foreign_page(self) -> bool:
        """A page of somebody else's, for which a browser shows the certificate of its user."""
        request = self._request
        origin, host = request.headers.get("origin"), request.headers.get("host", "")
        if origin is not None and origin != f"{request.scope['scheme']}://{host}":
            return True
        return request.headers.get("sec-fetch-site", "none") not in _SAME_SITE

    def is_of_this_machine(self) -> bool:
        """Another page in a browser on this machine, and a proxy on it, are others. A proxy that says nothing of itself
        cannot be told from a program here."""
        request = self._request
        host = request.headers.get("host", "")
        is_proxied = request.scope.get("http_version") == _PROXY_VERSION or names_a_proxy(request.headers)
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        return (
            is_loopback(self.peer) and not is_proxied and not self.is_foreign_page() and name in _LOCAL_NAMES
        )
