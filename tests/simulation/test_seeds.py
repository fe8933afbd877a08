"""Brokers on simulated stores, network and clocks keep their promises, whatever goes wrong."""

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
print(World({seed}, nodes={nodes}, slots={slots}).run().digest)
"""
CLUSTERS = (3, 2), (4, 3), (3, 3), (2, 2)
"""Nodes and slots: a seed has one of them, the first one most often."""


def told(outcome: Outcome, test: str) -> str:
    """What a person needs who looks into it."""
    options = f"--seeds 1 --cluster-seeds 1 --first-seed {outcome.seed} -n 0 -k {test}"
    again = f"{sys.executable} -m pytest tests/simulation/test_seeds.py {options}"
    trace = "\n".join(outcome.trace)
    return f"seed {outcome.seed}: {outcome.broken}\nrepeat it: {again}\nwhat happened last:\n{trace}"


@pytest.mark.promise("repositories-4")
@pytest.mark.promise("device-5")
def test_nothing_that_was_promised_is_broken(seeds: range) -> None:
    for seed in seeds:
        outcome = World(seed).run()
        assert not outcome.broken, told(outcome, "promised")
        assert outcome.messages, "nobody has published"


@pytest.mark.promise("cluster-16")
def test_a_node_that_stands_by_takes_over_while_the_other_goes_on_sleeps_or_is_dead(
    seeds: range,
) -> None:
    for seed in seeds:
        outcome = World(seed, nodes=2).run()
        assert not outcome.broken, told(outcome, "takes_over")


@pytest.mark.promise(
    "cluster-3", "cluster-5", "cluster-7", "cluster-8", "cluster-9", "cluster-11", "cluster-12"
)
@pytest.mark.promise("cluster-16", "cluster-17", "cluster-18")
def test_nodes_that_serve_a_slot_each_are_as_one_broker(cluster_seeds: range) -> None:
    for seed in cluster_seeds:
        nodes, slots = CLUSTERS[max(0, seed % 6 - 2)]
        outcome = World(seed, nodes=nodes, slots=slots).run()
        assert not outcome.broken, told(outcome, "slot")


@pytest.mark.parametrize(("nodes", "slots"), [(1, 1), (3, 2)])
def test_a_seed_is_always_the_same_run(nodes: int, slots: int) -> None:
    """In this process and in another one, where texts have other hashes and objects other places."""
    one = World(7, nodes=nodes, slots=slots).run()
    assert World(7, nodes=nodes, slots=slots).run().digest == one.digest
    assert World(8, nodes=nodes, slots=slots).run().digest != one.digest
    program = DIGEST.format(tests=str(ROOT / "tests"), seed=7, nodes=nodes, slots=slots)
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "12"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == one.digest
