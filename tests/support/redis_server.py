"""A real redis-server on a free loopback port, for tests that store in it, pause it or kill it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from tests.support.broker_process import free_port
from tests.support.server_process import ServerProcess

ANSWER_S = 60.0

Fsync = Literal["always", "everysec", "no"]


class RedisServer(ServerProcess):
    """`redis-server` on one folder; keeps its port and data over restarts.

    `settings` are further words of redis.conf, for example `{"maxmemory": "2mb"}`. With `password` it wants one; with
    `certificate` (PEM file, with key) and `authority` its port speaks TLS and nothing else. `wrapper` is put before the
    command, and has to become it.
    """

    name = "redis-server"
    start_s = 40.0

    def __init__(
        self,
        folder: Path,
        *,
        appendonly: bool = True,
        appendfsync: Fsync = "everysec",
        password: str = "",
        certificate: Path | None = None,
        authority: Path | None = None,
        settings: Mapping[str, str] | None = None,
        wrapper: Sequence[str] = (),
    ) -> None:
        super().__init__(folder)
        self.wrapper = wrapper
        self.port = free_port()
        self.password = password
        self.authority = authority
        self.settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(folder),
            "save": "",
            "appendonly": "yes" if appendonly else "no",
            "appendfsync": appendfsync,
            "repl-diskless-sync-delay": "0",
            "enable-debug-command": "local",
        }
        if password:
            self.settings |= {"requirepass": password, "masterauth": password}
        if certificate is not None:
            self.settings |= {
                "port": "0",
                "tls-port": str(self.port),
                "tls-cert-file": str(certificate),
                "tls-key-file": str(certificate),
                "tls-ca-cert-file": str(authority),
                "tls-auth-clients": "no",
            }
        self.settings |= settings or {}
        self._connection: Any = None

    @property
    def url(self) -> str:
        """As `stores.session` takes it, with the password if there is one."""
        scheme = "rediss" if "tls-port" in self.settings else "redis"
        user = f":{self.password}@" if self.password else ""
        return f"{scheme}://{user}127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        words = chain(*((f"--{name}", value) for name, value in self.settings.items()))
        return [*self.wrapper, "redis-server", *words]

    def answers(self) -> bool:
        """Whether it answers a PING, which it does not while it is down or reads its data."""
        try:
            return bool(self.ask("PING") == b"PONG")
        except redis.RedisError:
            return False

    def ask(self, *words: str | bytes | float) -> Any:
        """The answer to one command as the server gives it, texts as bytes; asked once. Raises redis.RedisError."""
        if self._connection is None:
            self._connection = self._new_connection()
        try:
            self._connection.send_command(*words)
            return self._connection.read_response()
        except redis.ConnectionError:
            self.forget_connection()
            raise

    def _new_connection(self) -> Any:
        """One of redis-py's connections, which have few types."""
        tls = "tls-port" in self.settings
        kind: Any = redis.SSLConnection if tls else redis.Connection
        settings = {
            "host": "127.0.0.1",
            "port": self.port,
            "password": self.password or None,
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": ANSWER_S,
            "protocol": 2,
        }
        return kind(**settings, **({"ssl_ca_certs": str(self.authority)} if tls else {}))

    def flush(self) -> None:
        """Delete all that is stored and all scripts that are loaded."""
        self.ask("FLUSHALL", "SYNC")
        self.ask("SCRIPT", "FLUSH", "SYNC")

    def forget_connection(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = None
