"""One slot, several nodes, everything that can go wrong on the way to etcd: who answers clients has the slot."""

from __future__ import annotations

import pytest
from tests.simulation.nodes import TTL_S, SimulatedNode, World

from embermq.cluster.kept_lease import CERTAIN, KeptLease
from embermq.ports.membership import NodeAbout

NODES = 3
FAULTY_S = 200.0
CALM_S = 8 * TTL_S
SEEDS = 200


class OnlyUntilRenewedAgain(KeptLease):
    """Counts from the answer, not from the question: as if it had been asked a little later."""

    def renewed(self, asked_s: float, left_s: float) -> None:
        super().renewed(asked_s, left_s)
        if left_s > 0:
            self.certain_until_s += TTL_S / 4


class WithoutTenth(KeptLease):
    """Trusts that clocks run at one rate, and a little more."""

    def is_certain(self, now_s: float) -> bool:
        return super().is_certain(now_s - TTL_S * (1.05 - CERTAIN))


class HopesForTheBest(KeptLease):
    """Goes on while nobody says that the lease has ended."""

    ended = False

    def is_certain(self, now_s: float) -> bool:
        return not self.ended

    def renewed(self, asked_s: float, left_s: float) -> None:
        super().renewed(asked_s, left_s)
        self.ended = left_s <= 0

    def timeout_s(self, now_s: float) -> float:
        return 1.0


def run_seed(seed: int, lease: type[KeptLease] = KeptLease) -> list[str]:
    """Every answer of a node that had not the slot, and what did not come right in the end."""
    wrong: list[str] = []
    world = World(seed)
    acted: list[NodeAbout] = []

    def act(about: NodeAbout) -> None:
        acted.append(about)
        if world.holder() != about:
            wrong.append(f"seed {seed}: {about.node} at {world.now_s:.3f}, {world.holder()} has the slot")

    nodes = [SimulatedNode(world, f"n{number}", lease, act) for number in range(NODES)]
    world.run_until(FAULTY_S)
    if not acted:
        wrong.append(f"seed {seed}: nobody ever served")
    world.faults = False
    world.run_until(FAULTY_S + CALM_S)
    acted.clear()
    world.run_until(FAULTY_S + 2 * CALM_S)
    if len({about.node for about in acted}) != 1 or sum(node.kept is not None for node in nodes) != 1:
        wrong.append(f"seed {seed}: {acted[:1]} and {len(nodes)} nodes in the end")
    return wrong


@pytest.mark.parametrize("seed", range(SEEDS))
def test_who_answers_has_the_slot_and_in_the_end_one_serves(seed: int) -> None:
    assert run_seed(seed) == []


@pytest.mark.parametrize("broken", [OnlyUntilRenewedAgain, WithoutTenth, HopesForTheBest])
def test_what_is_broken_on_purpose_is_found(broken: type[KeptLease]) -> None:
    assert any(run_seed(seed, broken) for seed in range(5 * SEEDS))


def test_a_seed_repeats_itself() -> None:
    assert run_seed(1, HopesForTheBest) == run_seed(1, HopesForTheBest)
