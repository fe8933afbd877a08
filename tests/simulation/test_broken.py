"""The simulation finds what it is for: the product, broken on purpose in one place, does not get through its seeds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from tests.simulation.world import World

from embermq.adapters.redis.settling import Settling
from embermq.adapters.redis.state_writer import RedisStateWriter
from embermq.durability.completion import _Tail
from embermq.durability.log_first import LogFirstStore
from embermq.durability.recovery import Recovery
from embermq.formats.log_record import decode_record
from embermq.ports.tick_store import Receipt

SEEDS_MAX = 60
Broken = AbstractContextManager[Any]


def acknowledged_before_the_receipt() -> Broken:
    """PUBACK goes out while the record is on its way."""

    def append(self: LogFirstStore, tick: Any) -> None:
        tick.appends_since_ms = self._tick.now_ms
        count = len(tick.writes.records)
        self._post(partial(self._appended, tick, Receipt(self._log_end, count)))
        self._log._under_way = False  # type: ignore[attr-defined]
        self._log.append(tick.writes.records, lambda _: None)

    return patch.object(LogFirstStore, "_append", append)


def recovery_reads_nothing() -> Broken:
    return patch.object(Recovery, "run", lambda *_: 0)


def recovery_does_not_know_what_is_stored() -> Broken:
    return patch.multiple(Recovery, _known_offsets=lambda *_, **__: set(), _known_by_shares=lambda *_: {})


def packet_ids_are_not_completed() -> Broken:
    return patch.object(_Tail, "receive", lambda *_: None)


def wills_that_went_out_are_not_known() -> Broken:
    return patch.object(_Tail, "has_published", lambda *_: False)


def wills_are_compared_by_date() -> Broken:
    def has_published(self: _Tail, generation: int, row: Any) -> bool:
        published = self._wills.get(generation)
        return published is not None and decode_record(row.record).message.accepted_ms < published[1]

    return patch.object(_Tail, "has_published", has_published)


def nobody_waits_for_the_store() -> Broken:
    """CONNACK and SUBACK leave before session and subscription are in Redis."""
    return patch.object(RedisStateWriter, "when_stored", lambda _self, _owner, call: call())


def nothing_is_sent_again_after_a_failover() -> Broken:
    return patch.object(Settling, "take", lambda *_: {})


BROKEN: dict[Callable[[], Broken], tuple[str, ...]] = {
    acknowledged_before_the_receipt: ("kill",),
    recovery_reads_nothing: ("kill",),
    recovery_does_not_know_what_is_stored: ("kill",),
    packet_ids_are_not_completed: ("kill", "slow"),
    wills_that_went_out_are_not_known: ("kill", "redis_away"),
    wills_are_compared_by_date: ("kill", "clock_steps"),
    nobody_waits_for_the_store: ("kill", "redis_away"),
    nothing_is_sent_again_after_a_failover: ("redis_fails_over",),
}


SELDOM = (wills_that_went_out_are_not_known, wills_are_compared_by_date)
"""Found after tens of seeds."""


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(one, marks=[pytest.mark.in_faults] if one in SELDOM else [], id=one.__name__)
        for one in BROKEN
    ],
)
def test_it_is_found(broken: Callable[[], Broken]) -> None:
    kinds = BROKEN[broken]
    with broken():
        for seed in range(1, SEEDS_MAX + 1):
            if World(seed, kinds=kinds).run().broken:
                return
    pytest.fail(f"{broken.__name__} came through {SEEDS_MAX} seeds")
