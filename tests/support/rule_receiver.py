"""A receiver of webhooks on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Got = tuple[str, str, bytes, str]
"""Id, path, body, Authorization."""


class RuleReceiver:
    """Answers with `statuses`, then 200; keeps what it got."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.url = f"http://127.0.0.1:{server.server_address[1]}/secret-path?key=1"
        self.got: list[Got] = []
        self.statuses: list[int] = []
        self.connections = 0


@contextmanager
def receiving() -> Iterator[RuleReceiver]:
    """Until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            receiver.connections += 1

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            said = self.headers
            receiver.got.append((said["EmberMQ-Id"], self.path, body, said.get("Authorization", "")))
            status = receiver.statuses.pop(0) if receiver.statuses else 200
            if status == 0:
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            """Nothing is said."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = RuleReceiver(server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
