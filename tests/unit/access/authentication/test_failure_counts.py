"""Which addresses have failed so often that they are to be banned."""

from __future__ import annotations

import pytest

from embermq.access.authentication.failure_counts import FailureCounts
from embermq.access.authentication.slowing import ADDRESSES_MAX

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
