"""The seed of tests that kill: from the clock, so that runs differ, or from SEED, so that one can be had again. It is
printed at the start of a run and stands in the names of its tests. FAULT_ROUNDS of them follow one another (one unless
told); what takes long (`@pytest.mark.long_rounds`) has a third of them."""

from __future__ import annotations

import os
import time

import pytest

VARIABLE = "SEED"
ROUNDS = int(os.environ.get("FAULT_ROUNDS", "1"))


def choose_seed() -> None:
    """Once a run: the processes that it starts, xdist's workers among them, inherit it."""
    given = os.environ.setdefault(VARIABLE, str(int(time.time())))
    if not given.isascii() or not given.isdigit():
        raise pytest.UsageError(f"{VARIABLE} is {given!r}, it is a number from 0 on")


def seed_line() -> str:
    """What is printed."""
    return f"tests that kill: {VARIABLE}={os.environ[VARIABLE]}"


def give_seeds(metafunc: pytest.Metafunc) -> None:
    """A test with the argument `seed` runs once a round, unless it names its seeds itself."""
    own = any("seed" in str(mark.args[0]) for mark in metafunc.definition.iter_markers("parametrize"))
    if "seed" in metafunc.fixturenames and not own:
        is_long = metafunc.definition.get_closest_marker("long_rounds") is not None
        first = int(os.environ[VARIABLE])
        seeds = range(first, first + (max(1, ROUNDS // 3) if is_long else ROUNDS))
        metafunc.parametrize("seed", seeds, ids=[f"seed-{seed}" for seed in seeds])
