"""Any node shows all nodes of its cluster, with the figures of those that serve and answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
import pytest
from tests.support.membership_in_memory import MembershipInMemory
from tests.unit.admin.test_forwarding import SLOTS, Fleet, Node

from embermq.admin.cluster_desk import ClusterDesk
from embermq.admin.forwarding import SharedDesk
from embermq.admin.operations import CLUSTER, GET_CLUSTER
from embermq.admin.session_values import NoRequest
from embermq.admin.values import ClusterStatus, NodeFigures
from embermq.cli import cluster as command
from embermq.ports.membership import NodeAbout

TROUBLE = "redis://h:1: connection refused"


def figures(slot: int) -> NodeFigures:
    return NodeFigures(
        node=f"n{slot}",
        connections=10 * slot,
        sessions=100 * slot,
        queues=slot,
        lag_messages=1_000 * slot,
        lagging="archive",
        ready=slot != 2,
        stores={
            "log": "ok",
            "session_store": TROUBLE if slot == 2 else "ok",
            "other_slots": "ok; none refused",
        },
    )


class Cluster(Fleet):
    """A node for each slot, and `spare`, which stands by."""

    def __init__(self) -> None:
        super().__init__()
        self.membership = MembershipInMemory("plant")
        for slot in range(SLOTS):
            self.membership.join(about(f"n{slot}"), (slot,), 60)
        self.membership.join(about("spare"), (), 60)

    def of(self, slot: int) -> Mapping[str, object]:
        nodes = Node(self, slot)
        own = (lambda: figures(slot)) if slot >= 0 else None
        return {CLUSTER: SharedDesk(ClusterDesk(self.membership, own, nodes), nodes)}


def about(node: str) -> NodeAbout:
    return NodeAbout(node=node, version="1", started="2026-01-01T00:00:00", host="h")


@pytest.mark.promise("cluster-2")
@pytest.mark.parametrize("at", [0, 1, -1])
def test_all_nodes_are_shown_with_the_figures_of_those_that_serve(at: int) -> None:
    """-1: a node that stands by, to which all slots are others'."""
    cluster = Cluster()
    found: ClusterStatus = asyncio.run(cluster.ask(GET_CLUSTER, NoRequest(), at))
    assert [each.about.node for each in found.nodes] == ["n0", "n1", "n2", "spare"]
    assert [each.figures for each in found.nodes] == [*map(figures, range(SLOTS)), None]
    told = msgspec.json.encode(found)
    assert msgspec.json.encode(msgspec.json.decode(told, type=ClusterStatus)) == told


@pytest.mark.promise("cluster-2")
def test_a_node_that_does_not_answer_is_shown_without_figures() -> None:
    cluster = Cluster()
    cluster.away.add(1)
    found: ClusterStatus = asyncio.run(cluster.ask(GET_CLUSTER, NoRequest()))
    assert [each.figures is not None for each in found.nodes] == [True, False, True, False]
    cells = {row[0]: row[4:6] + row[8:] for row in map(command._cells, found.nodes)}
    assert cells == {
        "n0": ("0", "ok", "0", "0", "0", "0"),
        "n1": ("1", "?", "?", "?", "?", "?"),
        "n2": ("2", "session_store", "20", "200", "2", "2000"),
        "spare": ("-", "-", "-", "-", "-", "-"),
    }
