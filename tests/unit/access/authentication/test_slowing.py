"""Failures of one address are answered later and later, within bounds."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.users_in_memory import UsersInMemory
from tests.support.waiting import wait_for

from embermq.access.authentication import slowing as slowing_module
from embermq.access.authentication.certificates import CertificateStep
from embermq.access.authentication.gate import Visitor
from embermq.access.authentication.identity import Identity, Refusal
from embermq.access.authentication.passwords import PasswordHashes
from embermq.access.authentication.settings import AuthenticationSettings
from embermq.access.authentication.slowing import ADDRESSES_MAX, FailureCounts, Slowing, network_of
from embermq.app import authentication as build
from embermq.app.authentication import Authentication
from embermq.edge.settings import ClientSettings
from embermq.model.client_type import ClientType
from embermq.model.counters import Counters
from embermq.mqtt.wire.packets import Connect
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.errors import StoreUnavailable
from embermq.ports.users import User

HASHES = PasswordHashes()
ANN = User("ann", HASHES.make(b"secret"), ClientType.DEVICE, False, 0)
HOME = Visitor(False, None, ClientType.DEVICE, None, "192.0.2.1")
ELSEWHERE = Visitor(False, None, ClientType.DEVICE, None, "192.0.2.2")


WRONG = ReasonCode.BAD_USER_NAME_OR_PASSWORD


def code_of(answer: Identity | Refusal) -> ReasonCode:
    return ReasonCode.SUCCESS if isinstance(answer, Identity) else answer.code


def connect(password: bytes) -> Connect:
    return Connect("c", ProtocolVersion.V5, True, 0, "ann", password)


def test_the_delay_doubles_up_to_its_maximum_and_ends_with_the_window() -> None:
    slowing = Slowing(free=3)
    assert [slowing.failed("192.0.2.1", number) for number in range(8)] == [0, 0, 0, 0.25, 0.5, 1.0, 2.0, 3.0]
    assert slowing.failed("192.0.2.2", 8) == 0
    assert slowing.failed("192.0.2.1", 67) == 3.0
    assert slowing.failed("192.0.2.1", 127.5) == 0


def test_very_many_failures_do_not_overflow() -> None:
    slowing = Slowing(free=0)
    assert {slowing.failed("192.0.2.1", 0) for _ in range(2_000)} == {0.25, 0.5, 1.0, 2.0, 3.0}


def test_addresses_are_bounded_and_the_quietest_is_forgotten() -> None:
    slowing = Slowing(free=1)
    slowing.failed("192.0.2.1", 0)
    for number in range(ADDRESSES_MAX - 1):
        slowing.failed(f"10.{number >> 8}.{number & 255}.1", 0)
    assert slowing.failed("192.0.2.1", 1) == 0.25
    slowing.failed("192.0.2.2", 1)
    slowing.failed("192.0.2.3", 1)
    assert len(slowing) == ADDRESSES_MAX
    assert slowing.failed("192.0.2.1", 1) == 0.5
    assert slowing.failed("10.0.0.1", 1) == 0


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix:/run/mq.sock", "unix:/run/mq.sock"),
        ("", ""),
    ],
)
def test_what_is_counted_together(address: str, network: str) -> None:
    assert network_of(address) == network


def test_only_failures_wait_and_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slowing_module, "DELAY_MAX_S", 60.0)
    monkeypatch.setattr(build, "LATE_MAX", 2)
    monkeypatch.setattr(build, "FAILURES_FREE", 1)

    async def scenario() -> None:
        users, counters = UsersInMemory(ANN), Counters()
        made = Authentication(users, AuthenticationSettings(), ClientSettings(), counters, hashes=HASHES)
        made.gate._slowing._failures["192.0.2.1"] = (50, asyncio.get_running_loop().time())

        async def enter(password: bytes, visitor: Visitor = HOME) -> Identity | Refusal:
            return await made.gate.check(connect(password), visitor)

        late = [asyncio.create_task(enter(b"wrong")) for _ in range(2)]
        await wait_for(lambda: counters.login_answers_delayed == 2, what="both are late")
        assert isinstance(await enter(b"secret"), Identity)
        assert code_of(await enter(b"wrong", ELSEWHERE)) is WRONG
        assert code_of(await enter(b"wrong")) is WRONG
        assert not any(task.done() for task in late)
        assert (counters.logins_failed, counters.login_answers_delayed) == (4, 2)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        assert made.gate._late == 0
        await made.close()

    asyncio.run(scenario())


def test_a_refusal_that_is_not_the_clients_fault_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "FAILURES_FREE", 0)

    async def scenario() -> None:
        users, counters = UsersInMemory(ANN), Counters()
        made = Authentication(
            users,
            AuthenticationSettings(),
            ClientSettings(),
            counters,
            hashes=HASHES,
        )
        users.error = StoreUnavailable("locked")
        assert code_of(await made.gate.check(connect(b"secret"), HOME)) is ReasonCode.SERVER_UNAVAILABLE
        assert (counters.logins_failed, counters.logins_unchecked, counters.login_answers_delayed) == (
            0,
            1,
            0,
        )
        assert len(made.gate._slowing) == 0
        await made.close()

    asyncio.run(scenario())


def test_a_step_that_answers_at_once_has_no_check() -> None:
    with pytest.raises(NotImplementedError, match="certificate answers at once"):
        asyncio.run(CertificateStep().check(None))  # type: ignore[arg-type]


GUESSER = "192.0.2.1"


def test_one_too_many_within_the_window_and_the_count_begins_anew() -> None:
    counts = FailureCounts(failures_max=3, window_s=10)
    assert [counts.failed(GUESSER, now) for now in (0, 1, 2, 3, 4, 5)] == ["", "", GUESSER, "", "", GUESSER]
    assert counts.failed("192.0.2.2", 6) == ""


def test_what_is_older_than_the_window_is_forgotten() -> None:
    counts = FailureCounts(failures_max=3, window_s=10)
    assert [counts.failed(GUESSER, now) for now in (0, 9, 10)] == ["", "", GUESSER]
    counts = FailureCounts(failures_max=3, window_s=10)
    assert [counts.failed(GUESSER, now) for now in (0, 1, 10.5, 11, 12)] == ["", "", "", "", GUESSER]


def test_an_ipv6_network_counts_as_one() -> None:
    counts = FailureCounts(failures_max=2, window_s=10)
    counts.failed("2001:db8::1", 0)
    assert counts.failed("2001:db8::ffff:2", 1) == "2001:db8::/64"
    counts.failed("::ffff:192.0.2.1", 0)
    assert counts.failed(GUESSER, 1) == GUESSER


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.8.0.1", "::1", "::2", "::ffff:127.0.0.1", "unix:/run/embermq.sock", ""]
)
def test_this_machine_is_never_banned(address: str) -> None:
    """`::2` is in the network of `::1`, which a ban of it would hit."""
    counts = FailureCounts(failures_max=1, window_s=10)
    assert counts.failed(address, 0) == ""
    assert len(counts) == 0


def test_nobody_is_banned_unless_it_is_asked_for() -> None:
    counts = FailureCounts(failures_max=0, window_s=10)
    assert {counts.failed(GUESSER, 0) for _ in range(1_000)} == {""}


def test_the_address_that_has_been_quiet_longest_goes_first() -> None:
    counts = FailureCounts(failures_max=2, window_s=1e9)
    for number in range(ADDRESSES_MAX + 1):
        counts.failed(f"10.0.{number >> 8}.{number & 255}", number)
    assert len(counts) == ADDRESSES_MAX
    assert counts.failed("10.0.0.0", ADDRESSES_MAX + 1) == ""
    assert counts.failed("10.0.0.2", ADDRESSES_MAX + 1) == "10.0.0.2"
