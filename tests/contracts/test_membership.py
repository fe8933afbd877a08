"""Membership: one suite for this process and for etcd."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from tests.support.membership_in_memory import MembershipInMemory
from tests.support.waiting import wait_until

from embermq.adapters.etcd.address import parse_address
from embermq.adapters.etcd.membership import EtcdMembership
from embermq.ports.membership import ClusterView, MemberRefused, Membership, NodeAbout, NodeLease

if TYPE_CHECKING:
    from tests.support.etcd_server import EtcdServer

WAIT_S = 60.0
TTL_S = 2
LONG_S = 300


@dataclass
class Places:
    """`pass_time` lets leases end that are not renewed."""

    new: Callable[[], Membership]
    pass_time: Callable[[Callable[[], bool]], None]


@pytest.fixture(params=["memory", "etcd"])
def places(request: pytest.FixtureRequest) -> Iterator[Places]:
    opened: list[Membership] = []
    if request.param == "memory":
        now = [0.0]
        shared = MembershipInMemory("cars", lambda: now[0])

        def pass_by_hand(_until: Callable[[], bool]) -> None:
            now[0] += TTL_S + 1

        yield Places(lambda: shared, pass_by_hand)
        return
    server: EtcdServer = request.getfixturevalue("etcd")

    def new() -> Membership:
        opened.append(EtcdMembership(parse_address(f"{server.url}/cars")))
        return opened[-1]

    yield Places(new, lambda until: wait_until(until, WAIT_S, "the lease ends"))
    for one in opened:
        one.close()


def about(node: str) -> NodeAbout:
    return NodeAbout(node=node, version="0.1.0", started="2026-11-24T05:00:00+00:00", host="box")


def names(view: ClusterView) -> list[str]:
    return [node.about.node for node in view.nodes]


def test_who_joins_is_seen_with_slots_until_it_leaves(places: Places) -> None:
    one, other = places.new(), places.new()
    lease = one.join(about("b"), (0, 3), LONG_S)
    other.join(about("a"), (2,), LONG_S)
    view = other.view()
    assert view.name == "cars"
    assert [(node.about, list(node.slots)) for node in view.nodes] == [
        (about("a"), [2]),
        (about("b"), [0, 3]),
    ]
    assert view.nodes[0].epoch > view.nodes[1].epoch
    assert all(0 < (node.lease_left_s or 0) <= LONG_S for node in view.nodes)
    one.leave(lease)
    assert names(other.view()) == ["a"]
    one.leave(lease)  # it has ended


@pytest.mark.parametrize(("node", "slots"), [("a", (7,)), ("b", (0,)), ("b", (7, 0))])
def test_an_id_and_a_slot_are_one_nodes_and_all_is_refused(
    places: Places, node: str, slots: tuple[int, ...]
) -> None:
    one, other = places.new(), places.new()
    lease = one.join(about("a"), (0,), LONG_S)
    with pytest.raises(MemberRefused) as refused:
        other.join(about(node), slots, LONG_S)
    assert [each.about for each in refused.value.nodes] == [about("a")]
    assert [list(each.slots) for each in one.view().nodes] == [[0]]
    one.leave(lease)
    other.join(about(node), slots, LONG_S)


def test_a_node_that_has_registered_takes_a_slot_when_it_is_free(places: Places) -> None:
    one, other = places.new(), places.new()
    first = one.join(about("a"), (0,), LONG_S)
    second = other.join(about("b"), (), LONG_S)
    with pytest.raises(MemberRefused) as refused:
        other.claim(second, about("b"), (1, 0))
    assert [list(each.slots) for each in refused.value.nodes] == [[0], []]
    one.leave(first)
    other.claim(second, about("b"), (1, 0))
    other.claim(second, about("b"), (0,))  # it has it
    assert [(each.about.node, list(each.slots)) for each in one.view().nodes] == [("b", [0, 1])]
    other.leave(second)
    assert not one.view().nodes
    with pytest.raises(MemberRefused):
        other.claim(second, about("b"), (0,))


def test_a_lease_that_is_renewed_lasts_and_one_that_is_not_ends(places: Places) -> None:
    one, other = places.new(), places.new()
    lease = one.join(about("a"), (0,), TTL_S)
    assert lease.ttl_s >= TTL_S
    assert 0 < one.renew(lease, WAIT_S) <= lease.ttl_s
    places.pass_time(lambda: not other.view().nodes)
    assert names(other.view()) == []
    assert one.renew(lease, WAIT_S) == 0
    again = other.join(about("a"), (0,), LONG_S)
    assert one.renew(lease, WAIT_S) == 0
    assert other.renew(again, WAIT_S) > 0


def test_a_lease_that_never_was_is_over(places: Places) -> None:
    assert places.new().renew(NodeLease(12345, 5.0), WAIT_S) == 0


def test_who_watches_is_told_what_there_is_and_what_there_is_after_each_change(places: Places) -> None:
    one, other = places.new(), places.new()
    first = one.join(about("a"), (0,), LONG_S)
    told: list[list[str]] = []
    other.watch(lambda view: told.append(names(view)))
    wait_until(lambda: told == [["a"]], WAIT_S, "what there is")
    one.join(about("b"), (1,), LONG_S)
    wait_until(lambda: told[-1] == ["a", "b"], WAIT_S, "the second")
    one.leave(first)
    wait_until(lambda: told[-1] == ["b"], WAIT_S, "the first is gone")


def test_clusters_of_other_names_are_not_seen(etcd: EtcdServer) -> None:
    cars, cars2 = (EtcdMembership(parse_address(f"{etcd.url}/{name}")) for name in ("cars", "cars2"))
    cars.join(about("a"), (0,), LONG_S)
    cars2.join(about("a"), (0,), LONG_S)
    assert names(cars.view()) == names(cars2.view()) == ["a"]
    cars.close()
    cars2.close()


def test_a_lease_is_not_over_before_its_time(etcd: EtcdServer) -> None:
    one = EtcdMembership(parse_address(etcd.url))
    lease = one.join(about("a"), (0,), TTL_S)
    asked_s = time.monotonic()
    left_s = one.renew(lease, WAIT_S)
    wait_until(lambda: not one.view().nodes, WAIT_S, "the lease ends")
    assert time.monotonic() - asked_s >= left_s
    one.close()


def test_all_nodes_have_the_secret_that_the_first_one_made(places: Places) -> None:
    secrets = {places.new().secret() for _ in range(3)}
    assert len(secrets) == 1
