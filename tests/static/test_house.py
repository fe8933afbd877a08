"""The source itself: lint, format, types, contracts, house rules, promises. The same commands as `make check`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent

COMMANDS: dict[str, list[str]] = {
    "lint": [f"{BIN}/ruff", "check", "."],
    "format": [f"{BIN}/ruff", "format", "--check", "."],
    "tidy": [sys.executable, "scripts/tidy"],
    "types": [f"{BIN}/mypy"],
    "contracts": [f"{BIN}/lint-imports"],
    "contracts-bench": [f"{BIN}/lint-imports", "--config", "bench/.importlinter"],
    "contracts-migrate": [f"{BIN}/lint-imports", "--config", "migrate/.importlinter"],
    "conformance": [sys.executable, "scripts/conformance-page", "--check"],
    "configuration": [sys.executable, "scripts/configuration-page", "--check"],
    "messages": [sys.executable, "scripts/rpc-messages", "--check"],
    "promises": [sys.executable, "scripts/promises", "--strict"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_source(name: str) -> None:
    """What `make check` says of the source; mypy is the dearest: a minute of a core on a fresh clone."""
    done = subprocess.run(COMMANDS[name], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("lock", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda path: path.name)
def test_locks_name_versions_and_hashes_only(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    requirements = [line for line in text.splitlines() if line and not line.startswith((" ", "#", "\t"))]
    assert requirements
    assert all("==" in line and line.endswith("\\") for line in requirements)
    assert text.count("--hash=sha256:") >= len(requirements)
