"""What nodes of a cluster have in common: all know it soon, and who changes it knows it at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.waiting import wait_until

from embermq.adapters.alone.membership import MembershipAlone
from embermq.adapters.etcd.address import parse_address
from embermq.adapters.etcd.link import EtcdLink
from embermq.adapters.etcd.membership import EtcdMembership
from embermq.ports.errors import StoreUnavailable
from embermq.ports.membership import NodeAbout, SharedTexts

if TYPE_CHECKING:
    from tests.support.etcd_server import EtcdServer

WAIT_S = 60.0
ABOUT = NodeAbout(node="a", version="0.1.0", started="2026-11-24T05:00:00+00:00", host="box")
Told = list[Mapping[str, bytes]]


@pytest.fixture
def membership(etcd: EtcdServer) -> Iterator[Callable[[], EtcdMembership]]:
    opened: list[EtcdMembership] = []

    def new() -> EtcdMembership:
        opened.append(EtcdMembership(parse_address(f"{etcd.url}/cars")))
        return opened[-1]

    yield new
    for one in opened:
        one.close()


def watched(of: EtcdMembership) -> tuple[SharedTexts, Told]:
    found = of.texts("bans")
    told: Told = []
    found.watch(told.append)
    return found, told


def test_all_are_told_and_who_changes_it_at_once(membership: Callable[[], EtcdMembership]) -> None:
    (one, first), (other, second) = watched(membership()), watched(membership())
    assert first[0] == {}
    one.put("user/ann", b"x", 0)
    assert first[-1] == {"user/ann": b"x"}
    wait_until(lambda: second[-1] == {"user/ann": b"x"}, WAIT_S, "the other one is told")
    other.put("user/ann", b"y", 1_000)
    other.put("user/bob", b"z", 0)
    other.delete("user/nobody")
    wait_until(lambda: first[-1] == {"user/ann": b"y", "user/bob": b"z"}, WAIT_S, "both changes")
    one.delete("user/ann")
    assert first[-1] == {"user/bob": b"z"}
    assert watched(membership())[1][0] == {"user/bob": b"z"}, "who comes later"
    one.delete("user/bob")


@pytest.mark.promise("cluster-23")
def test_nobody_overwrites_what_it_has_not_been_told_of(membership: Callable[[], EtcdMembership]) -> None:
    (one, _), late = watched(membership()), membership().texts("bans")
    assert one.put("user/ann", b"x", 0)
    assert not late.put("user/ann", b"y", 0)
    assert one.put("user/ann", b"z", 0)
    assert not late.delete("user/ann")
    assert watched(membership())[1][0] == {"user/ann": b"z"}
    assert late.put("user/ann", b"y", 0), "it has been told now"
    assert late.put("user/ann", b"y", 0)
    assert late.delete("user/ann")
    assert late.delete("user/ann"), "there is none"
    assert watched(membership())[1][0] == {}


def test_a_change_whose_answer_does_not_come_is_made_all_the_same(
    membership: Callable[[], EtcdMembership], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = watched(membership())
    call = EtcdLink.call

    def asked_twice(link: EtcdLink, name: str, *asked: Any) -> Any:
        if name == "KV/Txn":
            call(link, name, *asked)
        return call(link, name, *asked)

    monkeypatch.setattr(EtcdLink, "call", asked_twice)
    assert one.put("user/ann", b"x", 0)
    assert one.put("user/ann", b"y", 0)
    assert one.delete("user/ann")


def test_what_lasts_for_a_time_is_over_then(
    membership: Callable[[], EtcdMembership], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embermq.adapters.etcd.membership.MARGIN_S", 0)
    one, told = watched(membership())
    one.put("user/ann", b"x", 1)
    assert told[-1]
    wait_until(lambda: not told[-1], WAIT_S, "its time is over")


def test_nodes_are_apart_from_it(membership: Callable[[], EtcdMembership]) -> None:
    one, other = membership(), membership()
    texts_of_one, told = watched(one)
    seen: list[int] = []
    other.watch(lambda view: seen.append(len(view.nodes)))
    lease = one.join(ABOUT, (0,), 300)
    wait_until(lambda: seen[-1:] == [1], WAIT_S, "the node")
    before = len(seen)
    texts_of_one.put("user/ann", b"x", 0)
    one.leave(lease)
    wait_until(lambda: seen[-1:] == [0], WAIT_S, "it has left")
    assert len(seen) == before + 1
    texts_of_one.delete("user/ann")
    assert [each for each in told if each] == [{"user/ann": b"x"}] * sum(map(bool, told))


def test_it_goes_on_behind_a_restart(etcd: EtcdServer, membership: Callable[[], EtcdMembership]) -> None:
    (one, _), (_, told) = watched(membership()), watched(membership())
    etcd.kill()
    with pytest.raises(StoreUnavailable):
        one.put("user/ann", b"x", 0)
    etcd.start()
    one.put("user/bob", b"x", 0)
    wait_until(lambda: "user/bob" in told[-1], WAIT_S, "what was put behind the restart")
    one.delete("user/bob")


def test_a_broker_alone_shares_nothing() -> None:
    assert MembershipAlone().texts("bans") is None
