"""The simulation finds what it is for: the product, broken on purpose in one place, does not get through its seeds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from tests.simulation.world import World

from embermq.adapters.redis.log_notes import RedisLogNotes
from embermq.adapters.redis.state_writer import RedisStateWriter
from embermq.adapters.redis.wire import Settling
from embermq.app import kafka_log, peers
from embermq.cluster.far_member import FarMember
from embermq.cluster.members import Members
from embermq.durability.log_first import LogFirstStore
from embermq.durability.recovery import Recovery, _Tail
from embermq.formats.log_record import decode_record
from embermq.ports.tick_store import Receipt

Broken = AbstractContextManager[Any]
OVER = Members.over


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


def the_log_lets_the_former_writer_go_on() -> Broken:
    """No fence: two nodes append to the log of one slot."""
    return patch.object(kafka_log, "log_fence", lambda _: "")


def redis_lets_the_former_broker_go_on() -> Broken:
    """No epoch: connections of the one before are not ended, and it is not told."""
    return patch.object(RedisLogNotes, "take_over", RedisLogNotes.epoch)


def copies_are_forgotten_at_a_start() -> Broken:
    """What this node's own log has of others is not looked for: adoption without reading."""
    return patch.object(peers, "_copied", lambda *_: {})


def a_lost_link_leaves_its_client_connected() -> Broken:
    """What the client has of it is settled at the next link, where the same packet id is another message."""

    def over(self: Members, member: FarMember, why: str) -> None:
        member.sent.clear()
        member.taken.clear()
        OVER(self, member, why)

    return patch.object(Members, "over", over)


class Break(NamedTuple):
    """`seeds_max`: it is found by then, with faults of these kinds. `is_dear`: in tens of CPU seconds."""

    broken: Callable[[], Broken]
    kinds: tuple[str, ...]
    nodes: int = 1
    slots: int = 1
    seeds_max: int = 60
    is_dear: bool = False


BROKEN = (
    Break(acknowledged_before_the_receipt, ("kill",)),
    Break(recovery_reads_nothing, ("kill",)),
    Break(recovery_does_not_know_what_is_stored, ("kill",)),
    Break(packet_ids_are_not_completed, ("kill", "slow")),
    Break(wills_that_went_out_are_not_known, ("kill", "redis_away"), is_dear=True),
    Break(wills_are_compared_by_date, ("kill", "clock_steps"), is_dear=True),
    Break(nobody_waits_for_the_store, ("kill", "redis_away")),
    Break(nothing_is_sent_again_after_a_failover, ("redis_fails_over",)),
    Break(the_log_lets_the_former_writer_go_on, ("cut_from_etcd", "sleeps"), 2),
    Break(redis_lets_the_former_broker_go_on, ("cut_from_etcd", "sleeps"), 2),
    Break(copies_are_forgotten_at_a_start, ("kill",), 3, 2),
    Break(a_lost_link_leaves_its_client_connected, ("kill", "cut"), 3, 2),
)


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(one, marks=[pytest.mark.in_faults] if one.is_dear else [], id=one.broken.__name__)
        for one in BROKEN
    ],
)
def test_it_is_found(one: Break) -> None:
    with one.broken():
        for seed in range(1, one.seeds_max + 1):
            if World(seed, kinds=one.kinds, nodes=one.nodes, slots=one.slots).run().broken:
                return
    pytest.fail(f"{one.broken.__name__} came through {one.seeds_max} seeds")
