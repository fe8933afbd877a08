"""MQTT.js in headless Chromium: a page that speaks to the real server over WebSocket, plain and secure."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlencode

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tests.support.foreign_clients import BUILT, SOURCES, V5, V311, OpenBroker, check_reports
from tests.support.waiting import wait_until

PAGE_S = 60.0
FILES = {
    "/page.html": (SOURCES / "javascript" / "page.html", "text/html"),
    "/scenario.mjs": (SOURCES / "javascript" / "scenario.mjs", "text/javascript"),
    "/mqtt.min.js": (
        BUILT / "javascript" / "node_modules" / "mqtt" / "dist" / "mqtt.min.js",
        "text/javascript",
    ),
}
LAST = ("end", "failed")


class Site(ThreadingHTTPServer):
    """Gives a browser the page and takes what it reports."""

    daemon_threads = True

    def __init__(self) -> None:
        self.lines: list[str] = []
        super().__init__(("127.0.0.1", 0), Visit)

    def is_done(self) -> bool:
        return bool(self.lines) and json.loads(self.lines[-1])["step"] in LAST


class Visit(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = FILES.get(self.path.partition("?")[0])
        body, kind = (found[0].read_bytes(), found[1]) if found else (b"", "text/plain")
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        line = self.rfile.read(int(self.headers["Content-Length"])).decode()
        assert isinstance(self.server, Site)
        self.server.lines.append(line)  # first: the page sends its next one when it has the answer
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


@contextmanager
def serving() -> Iterator[Site]:
    with Site() as site:
        thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield site
        finally:
            site.shutdown()
            thread.join()


@contextmanager
def browsing(address: str, certificate: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Chromium on one page, with a profile of its own, that trusts this one certificate besides the usual ones."""
    key = x509.load_pem_x509_certificates(certificate.read_bytes())[0].public_key()
    digest = hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()
    command = [
        "chromium",
        "--headless=new",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-default-apps",
        "--disable-sync",
        "--no-proxy-server",
        f"--user-data-dir={folder / 'profile'}",
        f"--ignore-certificate-errors-spki-list={base64.b64encode(digest).decode()}",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),  # it does not start for root otherwise
        "--remote-debugging-port=0",  # without it, headless Chromium prints the page and ends
        address,
    ]
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)


@pytest.mark.parametrize(
    ("transport", "version"),
    [pytest.param("wss", V311, marks=pytest.mark.in_faults), ("wss", V5), ("ws", V5)],
)
def test_mqttjs_in_chromium(
    open_broker: OpenBroker, name: str, transport: str, version: int, tmp_path: Path
) -> None:
    with serving() as site:
        query = urlencode({"url": open_broker.url(transport), "version": version, "name": name})
        address = f"http://127.0.0.1:{site.server_address[1]}/page.html?{query}"
        with browsing(address, open_broker.certificate, tmp_path) as chromium:
            wait_until(
                lambda: site.is_done() or chromium.poll() is not None, PAGE_S, "the page's last report"
            )
        assert site.is_done(), (tmp_path / "chromium.log").read_text()[-4_000:]
        check_reports(site.lines, version, name)
