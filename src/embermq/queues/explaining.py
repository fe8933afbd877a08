"""Why a queue delivers nothing, in words [queues-42a]."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from embermq.model.moments import iso_s
from embermq.model.queue_rows import MessageState
from embermq.queues.entries import FILLED
from embermq.queues.names import QueueKind, kind_of
from embermq.queues.settings import Ordering

if TYPE_CHECKING:  # commands read the values, and need not wait for all of queues
    from embermq.queues.consumer import Consumer
    from embermq.queues.group import Group
    from embermq.queues.queue import Queue

NAMED_MAX = 3
"""Blocked keys, consumers and the like that are named; the rest is counted."""


class Reason(Struct, frozen=True):
    """`group` is "" for what holds for the whole queue. `code` is for machines: full, letters_full, paused,
    not_settled, empty, delayed, no_group, no_consumer, consumer_gone, consumer_stalled, no_partition, window_full,
    suspect, key_blocked, backoff, filling, under_way."""

    group: str
    code: str
    text: str


def explain(queue: Queue, now_ms: int) -> list[Reason]:
    """Each thing that keeps messages from a consumer now; for a queue that delivers, that it does."""
    reasons: list[Reason] = []
    depth, limit = queue.depth(), queue.settings.limits.max_queue_depth
    if depth >= limit and kind_of(queue.settings.name) is not QueueKind.DEAD_LETTERS:
        reasons.append(Reason("", "full", _about_depth(queue, depth, limit)))
    if queue.room.is_full and queue.settings.dead_letter_queue:
        reasons.append(Reason("", "letters_full", _about_room(queue)))
    if queue.is_paused:
        told = "the queue is paused: nothing is delivered until an operator resumes it"
        reasons.append(Reason("", "paused", told))
    untaken_ms = queue.clock.untaken_since_ms(now_ms)
    if untaken_ms:
        told = (
            f"what consumers settle has not been stored since {iso_s(untaken_ms)}: the message log or the store"
            " does not answer, and until it does leases and the time of consumers that are gone stand still"
        )
        reasons.append(Reason("", "not_settled", told))
    delayed, first_ms = len(queue.delayed), queue.delayed.first_ms()
    if delayed:
        reasons.append(
            Reason(
                "",
                "delayed",
                f"{_count(delayed, 'message')} delayed by their publishers, the first until {iso_s(first_ms)}",
            )
        )
    if not queue.entries:
        return [*reasons, Reason("", "empty", "the queue holds no message that could be delivered")]
    if not queue.groups:
        held = _count(len(queue.entries), "message")
        return [
            *reasons,
            Reason("", "no_group", f"no consumer group: nobody has subscribed yet; {held} until then"),
        ]
    for name in sorted(queue.groups):
        reasons += _of_group(queue, queue.groups[name], now_ms)
    return reasons


def _about_room(queue: Queue) -> str:
    room, kept = queue.room, sum(len(group.kept) for group in queue.groups.values())
    return (
        f"dead letters of all queues take {room.used_bytes} of {room.limit_bytes} bytes: this queue keeps what would"
        f" become one, {_count(kept, 'message')} now, and does not deliver it; put dead letters back, purge them, or"
        " raise log.disk_budget_bytes, a tenth of which they may take"
    )


def _about_depth(queue: Queue, depth: int, limit: int) -> str:
    told = f"the queue is full: {_count(depth, 'message')}, the limit is {limit}"
    slowest = max(queue.groups.values(), key=lambda group: group.owed, default=None)
    if slowest is None or not slowest.owed:
        return told
    who = f"group {slowest.name!r} has settled least of them"
    if slowest.idle_since_ms:
        who += f", has had no consumer since {iso_s(slowest.idle_since_ms)}"
        who += f" and is removed at {iso_s(slowest.removed_at_ms())}"
    return f"{told}; {who}"


def _of_group(queue: Queue, group: Group, now_ms: int) -> list[Reason]:
    name = group.name
    if not group.owed:
        return [Reason(name, "empty", "the group has settled everything")]
    if not group.members:
        idle = ""
        if group.idle_since_ms:
            idle = (
                f" since {iso_s(group.idle_since_ms)}, the group is removed at {iso_s(group.removed_at_ms())}"
            )
        told = f"no consumer{idle}; {_count(group.owed, 'message')} wait"
        return [*_about_pause(group), Reason(name, "no_consumer", told)]
    members = list(group.members.values())
    away = [each for each in members if each.away_until_ms]
    reasons = _about_pause(group) + _about_consumers(group, members, away)
    stalled = {each.client_id for each in members if each.is_stalled}
    reasons += _about_partitions(queue, group, stalled.union(each.client_id for each in away))
    in_backoff, next_ms = group.in_backoff()
    if in_backoff:
        whole = "all messages wait" if in_backoff >= group.owed else f"{_count(in_backoff, 'message')} wait"
        reasons.append(
            Reason(name, "backoff", f"{whole} for a retry after a failure, the first until {iso_s(next_ms)}")
        )
    reasons += _about_keys(queue, group)
    if group.unfilled_from != FILLED:
        left = _count(queue.entries.count_from(group.unfilled_from), "message")
        reasons.append(Reason(name, "filling", f"the group is new: it has yet to come to {left}"))
    if not reasons and not queue.is_paused:
        in_flight = group.in_flight()
        reasons.append(
            Reason(
                name,
                "under_way",
                f"it delivers: {_count(in_flight, 'message')} with consumers,"
                f" {group.owed - in_flight} more to be delivered",
            )
        )
    return reasons


def _about_pause(group: Group) -> list[Reason]:
    told = "the group is paused: nothing is delivered until an operator resumes it"
    return [Reason(group.name, "paused", told)] if group.is_paused else []


def _about_consumers(group: Group, members: list[Consumer], away: list[Consumer]) -> list[Reason]:
    found: list[Reason] = []
    if away:
        until_ms = max(map(group.away_until_ms, away))
        found.append(
            Reason(
                group.name,
                "consumer_gone",
                f"the connection of {_names(away)} is gone; what they hold is kept for them until {iso_s(until_ms)}",
            )
        )
    stalled = [each for each in members if each.is_stalled and not each.away_until_ms]
    if stalled:
        found.append(
            Reason(
                group.name,
                "consumer_stalled",
                f"{_names(stalled)} took nothing of what was sent for longer than a lease, and gets nothing until"
                " PUBACKs make room in the window, or the network does in the socket",
            )
        )
    full = [each for each in members if not each.away_until_ms and len(each.held) >= each.prefetch]
    if full:
        held = sum(len(each.held) for each in full)
        found.append(
            Reason(
                group.name,
                "window_full",
                f"{_names(full)} may have no more: {held} unsettled, the prefetch is"
                f" {', '.join(sorted({str(each.prefetch) for each in full}))}",
            )
        )
    return found + _about_suspects(group, members)


def _about_suspects(group: Group, members: list[Consumer]) -> list[Reason]:
    trying = [each for each in members if each.client.trial is each]
    waiting = group.lanes.suspects()
    draining = [each for each in members if each in each.client.draining]
    if not (trying or waiting):
        return []
    told = "suspects are delivered one at a time, to a consumer that has nothing else"
    if trying:
        told += f"; {_names(trying)} has one and gets no other message until it has settled it"
    if waiting:
        told += f"; {_count(waiting, 'message')} wait for that"
    if draining:
        told += f"; {_names(draining)} gets one after settling what it has"
    return [Reason(group.name, "suspect", told)]


def _about_partitions(queue: Queue, group: Group, away: set[str]) -> list[Reason]:
    owners = group.lanes.owners()
    found: list[Reason] = []
    free = [number for number, owner in enumerate(owners) if not owner]
    if free:
        found.append(
            Reason(group.name, "no_partition", f"{_count(len(free), 'partition')} without a consumer")
        )
    if group.rebalance_at_ms():
        found.append(
            Reason(
                group.name,
                "no_partition",
                f"new consumers get partitions at {iso_s(group.rebalance_at_ms())}, with others that join until then",
            )
        )
    busy = away.union(owners)
    idle = [name for name in group.members if owners and name not in busy]
    if idle and not group.rebalance_at_ms():
        found.append(
            Reason(
                group.name,
                "no_partition",
                f"no partition is left for {_told(idle)}: {len(group.members)} consumers,"
                f" {_count(queue.settings.partitions, 'partition')}",
            )
        )
    return found


def _about_keys(queue: Queue, group: Group) -> list[Reason]:
    blocked = group.lanes.blocked_keys()
    if not blocked:
        return []
    told: list[str] = []
    for key, sequence in group.lanes.blocking(NAMED_MAX):
        status = group.status(sequence)
        state = ""
        if status is not None and status.state is MessageState.DELIVERED:
            until_ms = group.lease_until_ms(sequence)
            state = f", held by {status.holder!r}" + (f" until {iso_s(until_ms)} at most" if until_ms else "")
        elif status is not None and status.state is MessageState.RETRY:
            state = f", which is tried again at {iso_s(status.due_ms)}"
        is_strict = queue.settings.ordering is Ordering.STRICT
        what = "the whole queue (ordering strict)" if is_strict else f"key {key!r}"
        told.append(f"{what} by message {queue.message_id(sequence)}{state}")
    more = f"; and {blocked - len(told)} more" if blocked > len(told) else ""
    return [Reason(group.name, "key_blocked", f"blocked: {'; '.join(told)}{more}")]


def _names(consumers: list[Consumer]) -> str:
    return _told([each.client_id for each in consumers])


def _told(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in sorted(names)[:NAMED_MAX])
    return shown + (f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
