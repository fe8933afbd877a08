"""Tests that kill differ from run to run, and a run that failed can be had again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KILLS = "tests/faults/test_broker_kill.py"


def collected(**environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("SEED", "FAULT_ROUNDS")}
    words = [sys.executable, "-m", "pytest", "--collect-only", "-n", "0", "-p", "no:cacheprovider", KILLS]
    done = subprocess.run(
        words, cwd=ROOT, env=kept | environment, capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + done.stderr


def test_the_seed_comes_from_the_clock_and_is_printed() -> None:
    before = int(time.time())
    told = collected()
    (printed,) = re.findall(r"SEED=(\d+)", told)
    assert before <= int(printed) <= int(time.time())
    assert set(re.findall(r"seed-(\d+)\]", told)) == {printed}


def test_the_seed_can_be_given() -> None:
    told = collected(SEED="7", FAULT_ROUNDS="3")
    assert "SEED=7" in told
    assert set(re.findall(r"seed-(\d+)\]", told)) == {"7", "8", "9"}
    assert "SEED is 'seven', it is a number" in collected(SEED="seven")
