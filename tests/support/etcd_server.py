"""A real etcd on free loopback ports, of one member, for tests that ask it, pause it or kill it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.broker_process import free_port
from tests.support.server_process import ServerProcess

COMMAND_S = 60


class EtcdServer(ServerProcess):
    """`etcd` on one folder; keeps its ports and data over restarts. With `certificate` (PEM file, with key) and
    `authority` it speaks TLS, and lets in who has a certificate of that."""

    name = "etcd"
    start_s = 60.0

    def __init__(
        self, folder: Path, *, certificate: Path | None = None, authority: Path | None = None
    ) -> None:
        super().__init__(folder)
        self.port, self._peer_port = free_port(), free_port()
        self._certificate, self._authority = certificate, authority
        self._user: list[str] = []

    @property
    def url(self) -> str:
        """As `cluster.etcd` takes it, without a user."""
        return f"{'etcd+ssl' if self._certificate else 'etcd'}://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        peer = f"http://127.0.0.1:{self._peer_port}"
        client = f"{'https' if self._certificate else 'http'}://127.0.0.1:{self.port}"
        words = {
            "name": "one",
            "data-dir": str(self.folder / "data"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"one={peer}",
            "heartbeat-interval": "20",
            "election-timeout": "200",
            "log-level": "warn",
            "logger": "zap",
        }
        if self._certificate:
            words |= {
                "cert-file": str(self._certificate),
                "key-file": str(self._certificate),
                "trusted-ca-file": str(self._authority),
                "client-cert-auth": "",
            }
        return ["etcd", *(f"--{name}={value}" if value else f"--{name}" for name, value in words.items())]

    def answers(self) -> bool:
        return self._run("get", "any").returncode == 0

    def control(self, *words: str) -> str:
        """What `etcdctl` prints."""
        done = self._run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def want_password(self, user: str, password: str) -> None:
        """Nobody is let in without one from now on; this user may do what a broker has to."""
        self.control("user", "add", f"root:{password}")
        self.control("user", "grant-role", "root", "root")
        self.control("role", "add", "brokers")
        self.control("role", "grant-permission", "--prefix=true", "brokers", "readwrite", "/embermq/")
        self.control("user", "add", f"{user}:{password}")
        self.control("user", "grant-role", user, "brokers")
        self.control("auth", "enable")
        self._user = [f"--user=root:{password}"]

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        tls = []
        if self._certificate:
            tls = [f"--cacert={self._authority}", f"--cert={self._certificate}", f"--key={self._certificate}"]
        scheme = "https" if self._certificate else "http"
        return subprocess.run(
            ["etcdctl", f"--endpoints={scheme}://127.0.0.1:{self.port}", *tls, *self._user, *words],
            env={**os.environ, "ETCDCTL_API": "3"},
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )
