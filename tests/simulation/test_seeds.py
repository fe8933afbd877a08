"""A broker on simulated stores, network and clocks keeps its promises, whatever goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.simulation.world import Outcome, World

ROOT = Path(__file__).parents[2]
DIGEST = """
import sys, types
tests = sys.modules["tests"] = types.ModuleType("tests")
tests.__path__ = [{tests!r}]
from tests.simulation.world import World
print(World({seed}).run().digest)
"""


def told(outcome: Outcome) -> str:
    """What a person needs who looks into it."""
    test = "-k 'takes_over'" if outcome.nodes > 1 else "-k 'not takes_over'"
    options = f"--seeds 1 --first-seed {outcome.seed} -n 0 {test}"
    again = f"{sys.executable} -m pytest tests/simulation/test_seeds.py {options}"
    trace = "\n".join(outcome.trace)
    return f"seed {outcome.seed}: {outcome.broken}\nrepeat it: {again}\nwhat happened last:\n{trace}"


@pytest.mark.promise("repositories-4")
@pytest.mark.promise("device-5")
def test_nothing_that_was_promised_is_broken(seeds: range) -> None:
    for seed in seeds:
        outcome = World(seed).run()
        assert not outcome.broken, told(outcome)
        assert outcome.messages, "nobody has published"


@pytest.mark.promise("cluster-16")
def test_a_node_that_stands_by_takes_over_while_the_other_goes_on_sleeps_or_is_dead(
    seeds: range,
) -> None:
    for seed in seeds:
        outcome = World(seed, nodes=2).run()
        assert not outcome.broken, told(outcome)


def test_a_seed_is_always_the_same_run() -> None:
    """In this process and in another one, where texts have other hashes."""
    one = World(7).run()
    assert World(7).run().digest == one.digest
    assert World(8).run().digest != one.digest
    program = DIGEST.format(tests=str(ROOT / "tests"), seed=7)
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "12"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == one.digest
