"""Figures that are promised. Where other tests run beside them they are mostly those of the others, so only `make perf`
judges them, with the machine to itself; it sets the variable."""

from __future__ import annotations

import os
import sys

VARIABLE = "PERF"


def is_judged() -> bool:
    """Whether this is `make perf`."""
    return VARIABLE in os.environ


def judge(figure: float, limit: float, what: str) -> None:
    """Tell what was measured (`pytest -rP` shows it); AssertionError in `make perf` when it is not below its limit."""
    told = f"{what}: {figure:.4g}, the limit is {limit:g}"
    sys.stdout.write(told + "\n")
    assert not is_judged() or figure < limit, told
