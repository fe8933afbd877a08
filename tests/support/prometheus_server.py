"""A real Prometheus on a free loopback port, for tests that ask it what a broker's metrics become."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.broker_process import free_port
from tests.support.server_process import ServerProcess

ANSWER_S = 60.0


class PrometheusServer(ServerProcess):
    """`prometheus` with one job, `embermq`, that reads one target each second, and with these rules."""

    name = "prometheus"
    start_s = 60.0

    def __init__(self, folder: Path, *, target: str, rules: Path) -> None:
        super().__init__(folder)
        self.port = free_port()
        self._config = folder / "prometheus.yml"
        self._config.write_text(
            f"""
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: embermq
    static_configs: [{{targets: ["{target}"]}}]
"""
        )

    def command(self) -> list[str]:
        return [
            "prometheus",
            f"--config.file={self._config}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
        ]

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=ANSWER_S) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def query(self, expression: str) -> list[Any]:
        """The series that an expression has now. What Prometheus refuses fails the test."""
        found: list[Any] = self._ask(f"query?{urllib.parse.urlencode({'query': expression})}")["result"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """Each rule as Prometheus sees it."""
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def _ask(self, path: str) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/api/v1/{path}", timeout=ANSWER_S
            ) as answer:
                found: dict[str, Any] = json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.read().decode()}") from error
        return found
