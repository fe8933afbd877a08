"""What `python -m benchmarks.logins` measures is measured to the last client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.logins import Figures
from tests.support.measuring import judge

ROOT = Path(__file__).resolve().parents[3]
FLEET = 10_000
BACK_S = 10.0
LOGINS_PER_CPU_S = 3_000


def measured(*words: str) -> dict[str, list[float]]:
    """Row -> logins, seconds, seconds of the processor, logins for one of these."""
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.logins", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    sys.stdout.write(told.stdout)
    rows = (line.replace(",", "").rsplit(maxsplit=4) for line in told.stdout.splitlines()[2:])
    return {name: [float(figure) for figure in figures] for name, *figures in rows}


def test_every_login_is_one() -> None:
    found = measured("--generated", "5", "--chosen", "2", "--rounds", "3")
    assert {name: figures[0] for name, figures in found.items()} == {
        "generated all at once": 5,
        "chosen the first time": 2,
        "chosen again and left": 6,
    }


@pytest.mark.in_perf
def test_a_fleet_is_back_soon_and_who_comes_again_costs_little() -> None:
    found = measured("--generated", str(FLEET))
    judge(found["generated all at once"][1], BACK_S, f"s until {FLEET} devices are back")
    a_login_us = 1e6 / found["chosen again and left"][3]
    judge(a_login_us, 1e6 / LOGINS_PER_CPU_S, "µs of the processor for a login of who came before")


def test_logins_are_counted_for_a_second_of_the_processor() -> None:
    assert Figures("again", 600, took_s=9.0, processor_s=0.2).per_processor_s == 3_000
