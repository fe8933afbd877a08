"""A way to the broker that a test can cut."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType


class TcpProxy:
    """Passes bytes on to a port of 127.0.0.1, both ways, until it is told to `cut`. `changed` makes others of them."""

    def __init__(self, target_port: int, changed: Callable[[bytes], bytes] = bytes) -> None:
        self._target_port = target_port
        self._changed = changed
        self._server = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._refuses = False
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.getsockname()[1])

    def cut(self, *, refuse: bool = False) -> None:
        """End all connections at both ends; with `refuse` new ones too, until `allow`."""
        with self._lock:
            self._refuses = refuse
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def allow(self) -> None:
        """New connections are passed on again."""
        with self._lock:
            self._refuses = False

    def __enter__(self) -> TcpProxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut(refuse=True)
        self._thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                with self._lock:
                    if self._refuses:
                        near.close()
                        continue
                    try:
                        far = socket.create_connection(("127.0.0.1", self._target_port))
                    except ConnectionRefusedError:  # nobody listens there yet, or any more
                        near.close()
                        continue
                    self._pairs.append((near, far))
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(self._changed(data))
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)
        with source, suppress(OSError):
            source.shutdown(socket.SHUT_RD)
