"""An HTTP service on loopback that takes dead-letter alerts, as tests want it."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from msgspec import Struct


class Posted(Struct, frozen=True):
    """One request as it came; names of headers in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def said(self) -> dict[str, Any]:
        """The JSON in it."""
        found: dict[str, Any] = json.loads(self.body)
        return found


class WebhookReceiver:
    """Answers with `statuses` one after the other, then with 204; `free` cleared keeps every answer back.

    A redirect leads to `/elsewhere` of itself.
    """

    def __init__(self, *statuses: int) -> None:
        self._statuses = list(statuses)
        self.posted: list[Posted] = []
        self.free = threading.Event()
        self.free.set()
        served = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status = served._take(Posted(self.path, headers, body))
                served.free.wait(30)
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("location", f"{served.url}elsewhere")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """Who asked has gone: that is what some tests are about."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._lock = threading.Lock()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Its address, with a slash at its end."""
        return f"http://127.0.0.1:{self.port}/"

    def bodies(self) -> Sequence[dict[str, Any]]:
        """What all requests said, in their order."""
        return [posted.said for posted in tuple(self.posted)]

    def __enter__(self) -> WebhookReceiver:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.free.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _take(self, posted: Posted) -> int:
        with self._lock:
            self.posted.append(posted)
            return self._statuses.pop(0) if self._statuses else 204
