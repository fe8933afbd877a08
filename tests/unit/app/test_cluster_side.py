"""A node takes its place, keeps it, and ends when it may have lost it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest
from msgspec.structs import replace
from tests.support.membership_in_memory import MembershipInMemory
from tests.support.waiting import wait_until

from embermq.app import cluster_side
from embermq.app.cluster_side import ClusterSide
from embermq.app.config import Settings
from embermq.app.errors import StartError
from embermq.cluster.settings import ClusterSettings
from embermq.ports.errors import StoreUnavailable
from embermq.ports.membership import ClusterView, NodeAbout, NodeLease

WAIT_S = 30.0
TTL_S = 5
IN_ETCD = Settings(cluster=ClusterSettings(etcd="etcd://127.0.0.1:1", node="one", lease_ttl_s=TTL_S))


OTHER = NodeAbout(node="two", version="9", started="2026-11-24T00:00:00", host="box")


class Silent(MembershipInMemory):
    """Renewals are not answered while `is_away`; their times are noted."""

    is_away = False
    renewals = 0
    told: Callable[[ClusterView], None]

    def renew(self, lease: NodeLease, timeout_s: float) -> float:
        self.renewals += 1
        if self.is_away:
            raise StoreUnavailable("away")
        return super().renew(lease, timeout_s)

    def watch(self, changed: Callable[[ClusterView], None]) -> None:
        self.told = changed


class Side:
    """A ClusterSide by a clock that is moved by hand."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        service: Silent | None = None,
        *,
        node: str = "one",
        slots: int = 1,
    ) -> None:
        self.now_s = 1_000.0
        self.ended: list[str] = []
        self.service = service or Silent("cars", lambda: self.now_s)
        monkeypatch.setattr(cluster_side, "open_membership", lambda _settings: self.service)
        monkeypatch.setattr(cluster_side, "RETRY_S", 0.001)
        monkeypatch.setattr(cluster_side, "RENEWALS", 1_000)
        settings = replace(IN_ETCD, cluster=replace(IN_ETCD.cluster, node=node, slots=slots))
        self.side = ClusterSide(settings, end=self.ended.append, clock=lambda: self.now_s)


def test_a_broker_without_a_cluster_is_alone() -> None:
    side = ClusterSide(Settings())
    side.join()
    (node,) = side.membership.view().nodes
    assert (list(node.slots), node.lease_left_s) == ([0], None)
    side.leave()


def test_a_node_whose_certificate_cannot_be_read_does_not_even_stand_by(tmp_path: Path) -> None:
    given = replace(IN_ETCD.cluster, slots=2, cert=str(tmp_path / "none.pem"), ca=str(tmp_path / "ca.pem"))
    with pytest.raises(StartError, match=r"^cluster\.cert: cannot read .*none\.pem"):
        ClusterSide(replace(IN_ETCD, cluster=given))


def epochs(found: Side) -> list[int]:
    """Of those that are there."""
    return [node.epoch for node in found.service.view().nodes]


def test_a_node_serves_on_while_etcd_is_away_and_registers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Side(monkeypatch)
    found.side.join()
    wait_until(lambda: found.service.renewals > 2, WAIT_S, "renewals")
    found.service.is_away = True
    found.now_s += TTL_S * 2
    assert epochs(found) == []
    asked = found.service.renewals
    wait_until(lambda: found.service.renewals > asked + 3, WAIT_S, "it goes on to ask")
    found.service.is_away = False
    wait_until(lambda: epochs(found) == [2], WAIT_S, "it is there again")
    assert found.ended == []
    found.side.leave()
    assert epochs(found) == []


def test_a_node_that_an_operator_has_taken_out_registers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Side(monkeypatch)
    found.side.join()
    found.service.leave(NodeLease(1, TTL_S))  # its lease is revoked
    wait_until(lambda: epochs(found) == [2], WAIT_S, "it is there again")
    found.service.told(ClusterView(name="cars", place="", nodes=[]))  # from before that
    asked = found.service.renewals
    wait_until(lambda: found.service.renewals > asked + 3, WAIT_S, "it goes on")
    assert (epochs(found), found.ended) == ([2], [])
    found.side.leave()


class Emptied(Silent):
    """While the third renewal is answered, what the cluster has there is deleted, but for the lease."""

    def renew(self, lease: NodeLease, timeout_s: float) -> float:
        super().renew(lease, timeout_s)
        if self.renewals == 3:
            self.leave(lease)
            self.told(self.view())
        return TTL_S


def test_a_node_that_is_deleted_while_its_lease_is_renewed_registers_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = Side(monkeypatch, Emptied("cars", lambda: 1_000.0))
    found.side.join()
    wait_until(lambda: epochs(found) == [2], WAIT_S, "it is there again")
    found.side.leave()


@pytest.mark.parametrize("by", ["watch", "lease"])
def test_a_node_whose_place_another_one_has_ends(monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    found = Side(monkeypatch)
    found.side.join()
    found.service.told(found.service.view())
    assert found.ended == []
    found.service.is_away = True
    found.service.leave(NodeLease(1, TTL_S))
    found.service.join(OTHER, (0,), TTL_S)
    if by == "watch":
        found.service.told(found.service.view())
    found.service.is_away = False
    wait_until(lambda: bool(found.ended), WAIT_S, "the end")
    assert found.ended[0].startswith("cluster: node 'two' on box, EmberMQ 9, started 2026-11-24")
    assert found.ended[0].endswith("has taken over from 'one'")
    found.side.leave()


def test_a_node_stands_by_and_serves_when_the_other_one_is_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Side(monkeypatch)
    monkeypatch.setattr(found.service, "watch", found.service._watchers.append)
    first = found.service.join(OTHER, (0,), math.inf)
    assert not found.side.join()
    assert found.side.standing_by.startswith("'two' on box")
    with ThreadPoolExecutor(1) as pool:
        turn = pool.submit(found.side.stand_by)
        wait_until(lambda: len(found.service.view().nodes) == 2, WAIT_S, "it is there")
        asked = found.service.renewals
        wait_until(lambda: found.service.renewals > asked + 3, WAIT_S, "it stays there")
        found.service.is_away = True
        found.now_s += TTL_S * 2
        asked = found.service.renewals
        wait_until(lambda: found.service.renewals > asked + 3, WAIT_S, "it stays while etcd is away")
        found.service.is_away = False
        wait_until(lambda: len(found.service.view().nodes) == 2, WAIT_S, "it is there again")
        found.service.leave(first)
        asked = found.service.renewals
        wait_until(lambda: found.service.renewals > asked + 3, WAIT_S, "it waits: etcd has just been away")
        assert not turn.done()
        found.now_s += TTL_S - 0.1
        asked = found.service.renewals
        wait_until(lambda: found.service.renewals > asked + 3, WAIT_S, "its own lease is renewed")
        found.now_s += 0.2
        assert turn.result(WAIT_S)
    (node,) = found.service.view().nodes
    assert (node.about.node, list(node.slots), found.side.standing_by) == ("one", [0], "")
    wait_until(lambda: found.service.renewals > asked + 3, WAIT_S, "it keeps its place")
    assert found.ended == []
    found.side.leave()


def test_a_node_that_stands_by_asks_again_as_soon_as_it_may_have_a_free_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not when it renews its lease the next time."""
    found = Side(monkeypatch)
    side = found.side
    monkeypatch.setattr(cluster_side, "RENEWALS", 3)
    side._answered_from_s = found.now_s
    assert side._pause_s() == TTL_S / 3
    found.now_s += TTL_S - 0.25
    assert side._pause_s() == 0.25
    found.now_s += 0.25
    assert side._pause_s() == TTL_S / 3


def test_a_node_that_stands_by_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Side(monkeypatch)
    found.service.join(OTHER, (0,), math.inf)
    assert not found.side.join()
    with ThreadPoolExecutor(1) as pool:
        turn = pool.submit(found.side.stand_by)
        wait_until(lambda: len(found.service.view().nodes) == 2, WAIT_S, "it is there")
        found.side.stop_waiting()
        assert not turn.result(WAIT_S)
    found.side.leave()
    assert [node.about.node for node in found.service.view().nodes] == ["two"]


def test_two_nodes_of_one_id_do_not_both_stand_by(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Side(monkeypatch)
    found.service.join(OTHER, (0,), math.inf)
    found.service.join(NodeAbout(node="one", version="9", started="2026", host="box"), (), math.inf)
    assert not found.side.join()

    def passes(_timeout_s: float) -> bool:
        found.now_s += 1.0
        return False

    monkeypatch.setattr(found.side._due, "wait", passes)
    with pytest.raises(StartError, match=r"has a node 'one' on box.*; set cluster\.node"):
        found.side.stand_by()
    found.side.leave()


def test_a_start_waits_for_a_node_that_is_not_renewed_and_is_refused_by_one_that_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = Side(monkeypatch)
    first.service.is_away = True
    first.side.join()
    second = Side(monkeypatch, first.service)

    def tick(_delay_s: float) -> None:
        first.now_s += 1.0
        second.now_s += 1.0

    monkeypatch.setattr("embermq.app.cluster_side.time.sleep", tick)
    second.side.join()  # the first one's lease has ended meanwhile
    assert second.now_s - 1_000.0 == TTL_S
    assert [node.epoch for node in second.service.view().nodes] == [2]

    third = Side(monkeypatch, first.service)

    def renewed(_delay_s: float) -> None:
        third.now_s += 1.0
        first.service.is_away = False
        assert first.service.renew(NodeLease(2, TTL_S), 1.0)

    monkeypatch.setattr("embermq.app.cluster_side.time.sleep", renewed)
    with pytest.raises(
        StartError, match=r"has a node 'one' on .*; set cluster\.node to a name that no other"
    ):
        third.side.join()
    for each in (first, second, third):
        each.side.leave()


def test_etcd_that_stays_away_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Side(monkeypatch)

    def away(*_given: object) -> NoReturn:
        raise StoreUnavailable("etcd://box/cars: deadline exceeded")

    def tick(_delay_s: float) -> None:
        found.now_s += 10.0

    monkeypatch.setattr(found.service, "join", away)
    monkeypatch.setattr(found.service, "view", away)
    monkeypatch.setattr("embermq.app.cluster_side.time.sleep", tick)
    with pytest.raises(StartError, match=r"^cluster.etcd: etcd://box/cars: deadline exceeded"):
        found.side.join()
    found.side.leave()


def test_a_start_behind_an_outage_of_etcd_stands_by_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that serves on has the time of a lease to register again."""
    found = Side(monkeypatch)
    joins, answers = found.service.join, iter([StoreUnavailable("away")])

    def join(about: NodeAbout, slots: Sequence[int], ttl_s: float) -> NodeLease:
        for error in answers:
            raise error
        return joins(about, slots, ttl_s)

    monkeypatch.setattr(found.service, "join", join)
    assert not found.side.join()
    with ThreadPoolExecutor(1) as pool:
        turn = pool.submit(found.side.stand_by)
        asked = found.service.renewals
        wait_until(lambda: found.service.renewals > asked + 3, WAIT_S, "it is there")
        assert not turn.done() and [list(node.slots) for node in found.service.view().nodes] == [[]]
        found.now_s += TTL_S - 0.1  # its own lease lasts
        wait_until(lambda: found.service.renewals > asked + 6, WAIT_S, "it stays there")
        assert not turn.done()
        found.now_s += 0.2
        assert turn.result(WAIT_S)
    found.side.leave()


def test_a_node_that_is_stopped_while_it_takes_over_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Side(monkeypatch)
    found.side.join()
    found.side.stop_waiting()
    assert found.side.is_stopped
    found.side.leave()


def test_the_end_is_told_and_nothing_is_closed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    end: Callable[[str], object] = cluster_side.end_at_once
    end("cluster: why")
    assert codes == [1]
    assert capfd.readouterr().err == "embermq: cluster: why: the broker ends, another one may serve by now\n"


def test_each_node_takes_a_free_slot_and_one_more_stands_by_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = Side(monkeypatch, node="a", slots=2)
    second = Side(monkeypatch, first.service, node="b", slots=2)
    third = Side(monkeypatch, first.service, node="c", slots=2)
    assert first.side.join() and second.side.join()
    assert (first.side.slot, second.side.slot) == (0, 1)
    assert not third.side.join()
    assert third.side.standing_by.count("'") == 4
    with ThreadPoolExecutor(1) as pool:
        turn = pool.submit(third.side.stand_by)
        wait_until(lambda: len(first.service.view().nodes) == 3, WAIT_S, "it is there")
        third.now_s += TTL_S + 1
        second.side.leave()
        assert turn.result(WAIT_S)
    assert third.side.slot == 1
    assert [list(node.slots) for node in first.service.view().nodes] == [[0], [1]]
    assert first.ended == second.ended == third.ended == []
    first.side.leave()
    third.side.leave()


def test_nodes_that_count_other_slots_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Side(monkeypatch, node="a", slots=2)
    assert first.side.join()
    for slots in (1, 3):
        other = Side(monkeypatch, first.service, node="b", slots=slots)
        with pytest.raises(StartError, match=f"has 2, and this one {slots}"):
            other.side.join()
        other.side.leave()
    first.side.leave()
