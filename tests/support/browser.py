"""Chromium, steered by pieces of JavaScript for Playwright (tests/clients/browser.mjs)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tests.support.foreign_clients import BUILT, SOURCES

PACKAGES = BUILT / "dashboard" / "node_modules"
_STOP_S = 60


class Browser:
    """One page that lives on from test to test."""

    def __init__(self, to: IO[str], answers: IO[str]) -> None:
        self._to = to
        self._answers = answers

    def run(self, js: str, **given: object) -> Any:
        """What the piece returns, with `page`, `fresh`, `axe`, `problems` and `given` in it. Raises AssertionError with
        its error; what it waits for has to come within a minute."""
        self._to.write(json.dumps({"js": js, "given": given}) + "\n")
        self._to.flush()
        line = self._answers.readline()
        assert line, "the browser has ended"
        told = json.loads(line)
        assert "error" not in told, told["error"]
        return told["answer"]


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Ends with the block; what it has printed is in a file in `folder`."""
    executable = shutil.which("chromium")
    assert executable is not None, "Chromium is not there: scripts/foreign-clients"
    without_sandbox = "yes" if os.geteuid() == 0 else "no"  # it does not start for root otherwise
    with (folder / "browser.log").open("w") as log:
        process = subprocess.Popen(
            ["node", str(SOURCES / "browser.mjs"), executable, without_sandbox],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "NODE_PATH": str(PACKAGES), "TMPDIR": str(folder)},
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            yield Browser(process.stdin, process.stdout)
        finally:
            process.stdin.close()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
