"""Asking the broker of a data directory, over its control socket."""

import http.client
import os
import socket
from pathlib import Path


def asked(
    path: Path, method: str, url: str, body: bytes | None, timeout_s: float
) -> tuple[int, bytes]:  # wide: an HTTP request
    """Status and body of the answer; `body` is JSON. Raises OSError, http.client.HTTPException."""
    connection = _SocketConnection(path, timeout_s)
    try:
        connection.request(method, url, body, {"Content-Type": "application/json"} if body else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


class _SocketConnection(http.client.HTTPConnection):
    """To a socket in the file system, however long the name of its directory is."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("broker", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        directory = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(self.timeout)
            self.sock.connect(f"/proc/self/fd/{directory}/{self._path.name}")
        finally:
            os.close(directory)
