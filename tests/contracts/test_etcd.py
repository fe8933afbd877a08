"""Membership in etcd: what can happen to a server and to the way to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from tests.support.broker_process import free_port
from tests.support.certificates import Authority
from tests.support.etcd_server import EtcdServer
from tests.support.waiting import wait_until

from embermq.adapters.etcd import membership
from embermq.adapters.etcd.address import parse_address
from embermq.adapters.etcd.membership import EtcdMembership, changes
from embermq.ports.errors import StoreError, StoreUnavailable
from embermq.ports.membership import NodeAbout, NodeLease

if TYPE_CHECKING:
    from embermq.ports.membership import ClusterView

WAIT_S = 60.0
LONG_S = 300
ABOUT = NodeAbout(node="a", version="0.1.0", started="2026-11-24T05:00:00+00:00", host="box")


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """For a test that changes how it lets in."""
    with EtcdServer(tmp_path / "etcd") as server:
        yield server


def test_a_watch_goes_on_behind_a_restart_and_a_compaction(etcd: EtcdServer) -> None:
    one, other = EtcdMembership(parse_address(etcd.url)), EtcdMembership(parse_address(etcd.url))
    told: list[ClusterView] = []
    other.watch(told.append)
    wait_until(lambda: bool(told), WAIT_S, "what there is")
    etcd.kill()
    etcd.start()
    lease = one.join(ABOUT, (0,), LONG_S)
    revision = str(other.view().nodes[0].epoch)
    etcd.control("put", "elsewhere", "x")
    etcd.control("compact", revision)
    wait_until(lambda: bool(told[-1].nodes), WAIT_S, "who joined behind the restart")
    assert one.renew(lease, WAIT_S) > 0
    one.leave(lease)
    wait_until(lambda: not told[-1].nodes, WAIT_S, "who left behind the compaction")
    one.close()
    other.close()


def test_a_watch_from_a_compacted_revision_ends(etcd: EtcdServer) -> None:
    one = EtcdMembership(parse_address(etcd.url))
    for value in "xyz":
        etcd.control("put", "elsewhere", value)
    lease = one.join(ABOUT, (0,), LONG_S)
    revision = one.view().nodes[0].epoch
    etcd.control("compact", str(revision))
    assert list(changes(one._link, one._keys, revision - 2)) == []
    one.leave(lease)
    one.close()


def test_another_member_is_asked_when_one_does_not_answer(etcd: EtcdServer, tmp_path: Path) -> None:
    with EtcdServer(tmp_path / "hangs") as hangs:
        hangs.pause()
        address = parse_address(
            f"etcd://127.0.0.1:{hangs.port},127.0.0.1:{free_port()},127.0.0.1:{etcd.port}"
        )
        one = EtcdMembership(address)
        lease = one.join(ABOUT, (0,), LONG_S)
        assert one.renew(lease, WAIT_S) > 0
        one.close()
        hangs.resume()


def test_silence_is_told_by_the_place_that_is_silent(
    etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "ANSWER_S", 0.5)
    one = EtcdMembership(parse_address(etcd.url))
    lease = one.join(ABOUT, (0,), LONG_S)
    etcd.pause()
    with pytest.raises(StoreUnavailable, match=f"etcd://127.0.0.1:{etcd.port}/embermq: deadline exceeded"):
        one.view()
    with pytest.raises(StoreUnavailable, match="deadline exceeded"):
        one.renew(lease, 0.5)
    etcd.resume()
    wait_until(lambda: _renews(one, lease), WAIT_S, "it answers again")
    one.close()


def _renews(one: EtcdMembership, lease: NodeLease) -> bool:
    try:
        return one.renew(lease, 5.0) > 0
    except StoreUnavailable:
        return False


def test_a_password_is_asked_for_and_a_token_that_is_not_known_any_more_made_anew(
    own_etcd: EtcdServer,
) -> None:
    own_etcd.want_password("ember", "s3cr:et")
    address = parse_address(f"{own_etcd.url.replace('://', '://ember:s3cr%3Aet@')}/cars")
    one = EtcdMembership(address)
    told: list[ClusterView] = []
    one.watch(told.append)
    lease = one.join(ABOUT, (0,), LONG_S)
    own_etcd.restart()  # knows no token of before
    wait_until(lambda: _renews(one, lease), WAIT_S, "it answers again")
    one.leave(lease)
    wait_until(lambda: bool(told) and not told[-1].nodes, WAIT_S, "who left")
    one.close()
    for wrong in ("", "wrong"):
        refused = EtcdMembership(replace(address, username="ember" if wrong else "", password=wrong))
        with pytest.raises(StoreError, match=r"invalid argument|user name is empty") as error:
            refused.view()
        assert not isinstance(error.value, StoreUnavailable)
        assert "s3cr" not in f"{error.value}{address}{address!r}"
        refused.close()


def test_tls_in_both_directions(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    certificate = ours.server()
    with EtcdServer(tmp_path / "etcd", certificate=certificate, authority=ours.certificate) as server:
        options = f"ca_file={ours.certificate}&cert_file={ours.client()}"
        one = EtcdMembership(parse_address(f"{server.url}?{options}"))
        lease = one.join(ABOUT, (0,), LONG_S)
        assert one.renew(lease, WAIT_S) > 0
        one.close()
        for refused in (
            f"ca_file={theirs.certificate}&cert_file={ours.client()}",
            f"ca_file={ours.certificate}",
        ):
            other = EtcdMembership(parse_address(f"{server.url}?{refused}"))
            with pytest.raises(StoreUnavailable):
                other.renew(lease, 2.0)
            other.close()


@pytest.mark.parametrize("option", ["ca_file", "cert_file"])
def test_files_that_cannot_be_used_are_named(option: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("nothing")
    with pytest.raises(ValueError, match=rf"^cluster.etcd: {option} '.*broken.pem': "):
        EtcdMembership(parse_address(f"etcd+ssl://box?{option}={broken}"))
    with pytest.raises(ValueError, match=rf"{option} '.*missing.pem': No such file"):
        EtcdMembership(parse_address(f"etcd+ssl://box?{option}={tmp_path / 'missing.pem'}"))
