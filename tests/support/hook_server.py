"""An HTTP service on loopback that says who may enter, as tests want it."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

Said = tuple[int, bytes]


class HookServer:
    """Answers with what `answer` makes of the JSON that came; `held` keeps every answer back until it is set free.
    `asked` has what came, `cookies` the cookies that came with it. `certificate` is a file with key and certificate,
    for HTTPS; `headers` go out with every answer."""

    def __init__(
        self,
        answer: Callable[[dict[str, object]], Said] | Said,
        *,
        certificate: Path | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._answer = answer
        self.asked: list[dict[str, object]] = []
        self.paths: list[str] = []
        self.cookies: list[str | None] = []
        self.free = threading.Event()
        self.free.set()
        self.at_once = 0
        self.at_once_max = 0
        self._lock = threading.Lock()
        served = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                served.cookies.append(self.headers["cookie"])
                status, said = served._respond(self.path, json.loads(body))
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                if 300 <= status < 400:
                    self.send_header("location", "/elsewhere")
                if status != 204:
                    self.send_header("content-length", str(len(said)))
                self.end_headers()
                if status != 204:
                    with suppress(ConnectionError):  # who asked has not waited
                        self.wfile.write(said)

            def do_GET(self) -> None:
                """Nobody should come so."""
                served.paths.append(self.path)
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}/enter"

    def _respond(self, path: str, asked: dict[str, object]) -> Said:
        with self._lock:
            self.asked.append(asked)
            self.paths.append(path)
            self.at_once += 1
            self.at_once_max = max(self.at_once_max, self.at_once)
        self.free.wait(30)
        with self._lock:
            self.at_once -= 1
        return self._answer(asked) if callable(self._answer) else self._answer

    def __enter__(self) -> HookServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.free.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def said(result: str, **more: object) -> Said:
    """An answer as the broker understands it."""
    return 200, json.dumps({"result": result, **more}).encode()
