"""How long a lease is certain."""

from __future__ import annotations

import pytest

from embermq.cluster.kept_lease import KeptLease


def test_a_lease_is_certain_for_nine_tenths_from_when_it_was_asked_for() -> None:
    kept = KeptLease(asked_s=100.0, ttl_s=10.0)
    assert kept.is_certain(108.9)
    assert not kept.is_certain(109.0)


def test_a_renewal_counts_from_when_it_was_asked_for() -> None:
    kept = KeptLease(asked_s=100.0, ttl_s=9.0)
    assert kept.due_s == 103.0
    kept.renewed(103.0, 9.0)
    assert kept.due_s == 106.0
    assert kept.certain_until_s == pytest.approx(111.1)
    kept.renewed(101.0, 9.0)  # an answer that was overtaken
    assert kept.certain_until_s == pytest.approx(111.1)


def test_a_lease_that_has_ended_stays_so() -> None:
    kept = KeptLease(asked_s=100.0, ttl_s=10.0)
    kept.renewed(103.0, 0.0)
    assert not kept.is_certain(103.0)
    kept.renewed(104.0, 10.0)
    assert not kept.is_certain(104.0)


def test_a_lease_that_was_uncertain_once_stays_so() -> None:
    kept = KeptLease(asked_s=100.0, ttl_s=10.0)
    kept.renewed(109.5, 10.0)
    assert not kept.is_certain(110.0)


def test_a_renewal_is_waited_for_as_long_as_there_is_time_for_another_one() -> None:
    kept = KeptLease(asked_s=100.0, ttl_s=6.0)
    assert kept.timeout_s(102.0) == 1.0
    assert kept.timeout_s(105.0) == pytest.approx(0.4)
