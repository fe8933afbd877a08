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
from embermq.app import kafka_log, peers, servers
from embermq.app.redis_state import RedisState
from embermq.cluster.far_member import FarMember
from embermq.cluster.inflow import Inflow
from embermq.cluster.members import Members
from embermq.durability.log_first import LogFirstStore
from embermq.durability.recovery import Recovery, _Tail
from embermq.edge.clock import BrokerClock
from embermq.edge.mqtt_server import MqttServer
from embermq.formats.log_record import decode_record
from embermq.ports.tick_store import Receipt
from embermq.queues.mqtt.control import Control
from embermq.queues.mqtt.tail import enqueue_tail
from embermq.routing.retained import RetainOrder
from embermq.sessions.link import Link
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Verdict

Broken = AbstractContextManager[Any]
TAKE, SUBSCRIBE, OVER = Inflow._take, Members.subscribe, Members.over
SETTLE, BEGIN = Control.settle, RedisState.begin


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


def the_epoch_is_raised_when_all_has_been_read() -> Broken:
    """What the one before has asked for meanwhile takes effect, and its successor does not know of it."""

    def take_over(self: RedisState, *, is_guarded: bool) -> Any:
        return self.notes.known()

    def begin(self: RedisState, on_taken_over: Any) -> None:
        self._epoch = self.notes.take_over()
        BEGIN(self, on_taken_over)

    return patch.multiple(RedisState, take_over=take_over, begin=begin)


def what_the_log_has_for_queues_is_not_read() -> Broken:
    """A slot that is taken over is not drained."""
    return patch.object(servers, "enqueue_tail", lambda *_: 0)


def what_was_settled_is_enqueued_once_more() -> Broken:
    return patch.object(servers, "enqueue_tail", lambda core, tick, log, *_: enqueue_tail(core, tick, log, 0))


def settlements_are_answered_before_they_are_stored() -> Broken:
    def settle(self: Control, *given: Any) -> Verdict:
        verdict = SETTLE(self, *given)
        return Verdict(verdict.code, verdict.text)

    return patch.object(Control, "settle", settle)


def who_stood_still_hands_out_at_once() -> Broken:
    """What is due by its clock, or has room now, may have been settled at its successor."""
    return patch.object(BrokerState, "stood_still", lambda _: None)


def a_node_goes_by_its_own_clock_alone() -> Broken:
    """What is due by the clock of the node before is due by another one."""
    return patch.object(BrokerClock, "go_on_from", lambda *_: None)


def copies_are_forgotten_at_a_start() -> Broken:
    """What this node's own log has of others is not looked for: adoption without reading."""
    return patch.object(peers, "_copied", lambda *_: {})


def copies_are_done_before_they_are_stored() -> Broken:
    """The floor comes too early: what a start goes on behind is in nobody's log yet."""

    def take(self: Inflow, piece: Any, position: int, frame: bytes) -> bool:
        taken = TAKE(self, piece, position, frame)
        piece.is_recorded = False
        return taken

    return patch.object(Inflow, "_take", take)


def suback_does_not_wait_for_the_groups_slot() -> Broken:
    def subscribe(self: Members, link: Link, asked: Any, properties: Any, answered: Any) -> None:
        answered({one.topic_filter: (one.qos, "") for one in asked})
        SUBSCRIBE(self, link, asked, properties, lambda _: None)

    return patch.object(Members, "subscribe", subscribe)


def a_lost_link_leaves_its_client_connected() -> Broken:
    """What the client has of it is settled at the next link, where the same packet id is another message."""

    def over(self: Members, member: FarMember, why: str) -> None:
        member.sent.clear()
        member.taken.clear()
        OVER(self, member, why)

    return patch.object(Members, "over", over)


def handed_on_clients_stay_with_a_node_that_has_lost_their_slot() -> Broken:
    return patch.object(MqttServer, "leave_node", lambda *_: None)


def the_later_writer_wins_what_is_retained() -> Broken:
    """By arrival, which is another one on each node."""
    return patch.object(RetainOrder, "is_newer", lambda *_: True)


class Break(NamedTuple):
    """It is found in one of `SEEDS` seeds, from `first` on, with faults of these kinds."""

    broken: Callable[[], Broken]
    kinds: tuple[str, ...]
    nodes: int = 1
    slots: int = 1
    first: int = 1


SEEDS = 150
BROKEN = (
    Break(acknowledged_before_the_receipt, ("kill",), first=5),
    Break(recovery_reads_nothing, ("kill",)),
    Break(recovery_does_not_know_what_is_stored, ("kill",), first=5),
    Break(packet_ids_are_not_completed, ("kill", "slow")),
    Break(wills_that_went_out_are_not_known, ("kill", "redis_away"), first=10),
    Break(wills_are_compared_by_date, ("kill", "clock_steps"), first=95),
    Break(nobody_waits_for_the_store, ("kill", "redis_away")),
    Break(nothing_is_sent_again_after_a_failover, ("redis_fails_over",)),
    Break(the_log_lets_the_former_writer_go_on, ("cut_from_etcd", "sleeps"), 2),
    Break(redis_lets_the_former_broker_go_on, ("cut_from_etcd", "sleeps"), 2, first=20),
    Break(the_epoch_is_raised_when_all_has_been_read, ("cut_from_etcd", "sleeps"), 2, first=50),
    Break(what_the_log_has_for_queues_is_not_read, ("kill", "redis_away"), 2),
    Break(what_was_settled_is_enqueued_once_more, ("kill",)),
    Break(settlements_are_answered_before_they_are_stored, ("kill", "redis_away"), first=65),
    Break(who_stood_still_hands_out_at_once, ("sleeps",), 2, first=10),
    Break(a_node_goes_by_its_own_clock_alone, ("clock_steps", "loses_lease"), 2, first=145),
    Break(copies_are_forgotten_at_a_start, ("kill",), 3, 2),
    Break(copies_are_done_before_they_are_stored, ("kill", "log_away"), 3, 2, first=45),
    Break(suback_does_not_wait_for_the_groups_slot, ("kill", "cut"), 3, 2, first=10),
    Break(a_lost_link_leaves_its_client_connected, ("kill", "cut"), 3, 2),
    Break(
        handed_on_clients_stay_with_a_node_that_has_lost_their_slot, ("sleeps", "loses_power"), 3, 2, first=25
    ),
    Break(the_later_writer_wins_what_is_retained, ("cut", "slow"), 2, 2, first=30),
)


@pytest.mark.parametrize("one", [pytest.param(one, id=one.broken.__name__) for one in BROKEN])
def test_it_is_found(one: Break) -> None:
    with one.broken():
        for seed in range(one.first, one.first + SEEDS):
            if World(seed, kinds=one.kinds, nodes=one.nodes, slots=one.slots).run().broken:
                return
    pytest.fail(f"{one.broken.__name__} came through {SEEDS} seeds")
