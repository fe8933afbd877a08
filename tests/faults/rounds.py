"""Seeded rounds: FAULT_ROUNDS of them (one unless told), from FAULT_SEED on; the seed stands in the test's name. What
takes long (`@pytest.mark.long_rounds`) has a third of them."""

from __future__ import annotations

import os

import pytest

ROUNDS = int(os.environ.get("FAULT_ROUNDS", "1"))
FIRST_SEED = int(os.environ.get("FAULT_SEED", "1"))


def give_seeds(metafunc: pytest.Metafunc) -> None:
    """A test with the argument `seed` runs once a round."""
    if "seed" in metafunc.fixturenames:
        is_long = metafunc.definition.get_closest_marker("long_rounds") is not None
        seeds = range(FIRST_SEED, FIRST_SEED + (max(1, ROUNDS // 3) if is_long else ROUNDS))
        metafunc.parametrize("seed", seeds, ids=[f"seed-{seed}" for seed in seeds])
