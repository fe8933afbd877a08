"""Shared subscriptions of applications whose messages come from logs of their own: one log a filter, one group a share
name and filter.

A record that matches a filter is stamped for its log once, whoever the members are. The log is there before the first
stamp; it has ended when no group of the filter is left. A group is there from its first member on until its last one
has left, however long all of them are away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from embermq.formats.application_logs import stamp_of_shared_log
from embermq.formats.log_record import Stamp
from embermq.model.shared_logs import SharedGroupRow
from embermq.mqtt.value import replace
from embermq.ports.application_logs import ApplicationLogs, FoundLog
from embermq.ports.errors import StoreError
from embermq.ports.tick_store import EVERYBODY

if TYPE_CHECKING:
    from embermq.routing.router import Subscriber
    from embermq.sessions.session import Session
    from embermq.sessions.state import BrokerState

GRANTED_QOS = 2
"""What is stamped: each member takes the lesser of it and its own."""
LOOK_AGAIN_MS = 5_000
"""A log of an earlier run that could not be looked at is asked for again. One that is found gone again and again is
looked for no more often."""

Answer = Callable[[StoreError | None], None]


class SharedGroup:
    """One shared subscription while it has members."""

    __slots__ = ("log", "members", "name", "row")

    def __init__(self, row: SharedGroupRow, name: str, log: SharedLog) -> None:
        self.row = row
        self.name = name
        """Of the consumer group."""
        self.log = log
        self.members: set[int] = set()
        """Generations of its sessions."""


class SharedLog:
    """The log of a filter. `found` is None until it has been looked at in this run. `claims` counts those who are
    about to subscribe."""

    __slots__ = (
        "asked",
        "claims",
        "found",
        "generation",
        "gone_ms",
        "groups",
        "name",
        "reached",
        "topic_filter",
        "waiting",
    )

    def __init__(self, topic_filter: str, name: str) -> None:
        self.topic_filter = topic_filter
        self.name = name
        self.generation = 0
        """0 while nothing is stamped for it."""
        self.found: FoundLog | None = None
        self.asked = False
        self.reached: Mapping[int, Mapping[int, int]] = {}
        """As `SharedLogReaders.reached` said."""
        self.gone_ms = 0
        """When somebody last found it gone."""
        self.claims = 0
        self.waiting: list[Answer] = []
        self.groups: dict[str, SharedGroup] = {}


class SharedLogReaders:
    """Those who read shared logs for their members, and are told what becomes of both; here nobody does."""

    def joined(self, session: Session, subscriber: Subscriber, shared: SharedGroup) -> None:
        """A session is a member from now on, or has other options now."""

    def left(self, session: Session, shared: SharedGroup) -> None:
        """It is not a member any more; `shared.members` is empty when it was the last one."""

    def begin_anew(self, shared: SharedGroup, before: SharedGroupRow) -> None:
        """The log of a group is another one than in this row, which was the group's until now; or, with the same
        identity, ends before what the group has had. Then `found`."""

    def reached(self, log: SharedLog) -> Mapping[int, Mapping[int, int]]:
        """A log is looked for: below which offset of each partition something is known, by the group's generation."""
        return {}

    def found(self, log: SharedLog) -> None:
        """Begin to read a log, which is there now."""

    def not_found(self, log: SharedLog, error: StoreError) -> None:
        """It cannot now, although there are members; it is looked for again."""


class SharedLogs:
    """All of one broker. `partitions` is what a new log is made with."""

    def __init__(
        self, state: BrokerState, logs: ApplicationLogs, partitions: int, readers: SharedLogReaders
    ) -> None:
        self._readers = readers
        self._state = state
        self._logs = logs
        self._partitions = partitions
        self._by_filter: dict[str, SharedLog] = {}
        self._is_begun = False
        """Whether all stored sessions are there."""
        self._leaving: Counter[str] = Counter()
        """Logs that nobody wants, as long as that is not durable: after a crash they would be wanted again."""

    def wanted(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        """The logs that are to be there: how many partitions, and the consumer groups that read them."""
        found: dict[str, tuple[int, tuple[str, ...]]] = dict.fromkeys(self._leaving, (self._partitions, ()))
        for log in self._by_filter.values():
            names = tuple(group.name for group in log.groups.values())
            found[log.name] = (self._partitions_of(log), names)
        return found

    def _partitions_of(self, log: SharedLog) -> int:
        """What it was made with, whatever is set now."""
        for group in log.groups.values():
            if group.row.starts:
                return len(group.row.starts)
        return self._partitions

    def groups(self) -> list[SharedGroup]:
        """All groups that have members."""
        return [group for log in self._by_filter.values() for group in log.groups.values()]

    def group(self, subscriber: Subscriber) -> SharedGroup | None:
        """The one that a subscription is a member of."""
        log = self._by_filter.get(subscriber.topic_filter)
        return log.groups.get(subscriber.group) if log is not None else None

    # At the start

    def restore(self, rows: list[SharedGroupRow]) -> None:
        """What is stored, whatever filters would be refused now: it may have messages that nobody has got. Called
        before the sessions come."""
        for row in rows:
            log = self._log(row.topic_filter)
            log.generation = row.log_generation
            name = self._logs.shared_group(row.share, row.topic_filter)
            log.groups[row.share] = SharedGroup(row, name, log)
            self._stamp(log)

    def begin(self) -> None:
        """All sessions are there: what has no member has ended, the others' logs are looked at."""
        self._is_begun = True
        for log in list(self._by_filter.values()):
            for group in list(log.groups.values()):
                if not group.members:
                    self._end_group(group)
            if log.groups:
                self._look(log)

    def _look(self, log: SharedLog) -> None:
        if log.groups and log.found is None:
            self.find(log.topic_filter, lambda error: self._looked(log, error))

    def _looked(self, log: SharedLog, error: StoreError | None) -> None:
        if error is not None:
            self._readers.not_found(log, error)
            self._state.timers.at(self._state.tick.now_ms + LOOK_AGAIN_MS, partial(self._look, log))

    # Logs

    def objection(self, topic_filter: str) -> str:
        """Why nobody may subscribe to a filter anew, "" when there can be a log for it."""
        return self._logs.objection_to_shared(topic_filter)

    def claim(self, topic_filter: str) -> bool:
        """Somebody is about to subscribe, and calls `let_go` in any case. True when the log is there, else `find`
        it."""
        log = self._log(topic_filter)
        log.claims += 1
        return log.found is not None

    def find(self, topic_filter: str, then: Answer) -> None:
        """Make the log that was claimed, or find it; `then` hears why not, possibly before this returns."""
        log = self._by_filter[topic_filter]
        log.waiting.append(then)
        if not log.asked:
            log.asked = True
            log.reached = self._readers.reached(log)
            self._logs.ensure(log.name, self._partitions_of(log), partial(self._answered, log))

    def let_go(self, topic_filter: str) -> None:
        """Of a claim: the subscription has been made, or never will be."""
        log = self._by_filter[topic_filter]
        log.claims -= 1
        if not log.groups and not log.claims:
            self._end_log(log)

    def gone(self, log: SharedLog) -> None:
        """Somebody has deleted it, or cannot read it."""
        if log.groups and not log.asked:
            log.found = None
            now_ms, before_ms = self._state.tick.now_ms, log.gone_ms
            log.gone_ms = now_ms
            if before_ms and now_ms - before_ms < LOOK_AGAIN_MS:
                self._state.timers.at(now_ms + LOOK_AGAIN_MS, partial(self._look, log))
            else:
                self._look(log)

    def restored(self, name: str, identity: str) -> None:
        """The log of this name was missing. When another one is there now, whoever made it, offsets of the one that is
        read mean nothing in it."""
        for log in self._by_filter.values():
            if log.name == name and log.found is not None and log.found.identity != identity:
                self.gone(log)

    def _answered(self, log: SharedLog, answer: FoundLog | StoreError) -> None:
        self._state.tick.wake()
        log.asked = False
        waiting, log.waiting = log.waiting, []
        if self._by_filter.get(log.topic_filter) is not log:
            return  # nobody wants it any more
        if isinstance(answer, StoreError):
            for then in waiting:
                then(answer)
        else:
            log.found = answer
            for group in log.groups.values():
                if group.row.identity != answer.identity or _is_cut(log, group, answer):
                    self._begin_anew(group, answer)
            self._readers.found(log)
            for then in waiting:
                then(None)

    def _begin_anew(self, group: SharedGroup, found: FoundLog) -> None:
        """It has read of another log, if any. What is under way from that one has offsets that stand for something
        else here: so it stays with the generation of before."""
        before = group.row
        is_lost = not (before.identity or before.since)
        starts = () if is_lost else tuple((partition, 0) for partition in found.ends)
        row = replace(before, identity=found.identity, starts=starts)
        if before.identity:
            row = replace(row, generation=self._state.new_generation())
            self._state.tick.writes.shared.ended_groups.append(before.generation)
        self._write(group, row)
        self._readers.begin_anew(group, before)

    def _log(self, topic_filter: str) -> SharedLog:
        log = self._by_filter.get(topic_filter)
        if log is None:
            name = self._logs.shared_name(topic_filter)
            log = self._by_filter[topic_filter] = SharedLog(topic_filter, name)
        return log

    def _end_log(self, log: SharedLog) -> None:
        """Nothing is stamped for it any more. What was is accepted; it goes when that is durable."""
        del self._by_filter[log.topic_filter]
        self._state.router.shared_stamps.pop(log.topic_filter, None)
        self._leaving[log.name] += 1
        self._state.tick.batch.when_stored(EVERYBODY, partial(self._ended, log))

    def _ended(self, log: SharedLog) -> None:
        self._leaving[log.name] -= 1
        if not self._leaving[log.name]:
            del self._leaving[log.name]
        if log.topic_filter not in self._by_filter:
            self._logs.ended(log.name)

    def _stamp(self, log: SharedLog) -> None:
        stamp = Stamp(stamp_of_shared_log(log.topic_filter), log.generation, GRANTED_QOS)
        self._state.router.shared_stamps[log.topic_filter] = stamp

    # Members

    def joined(self, subscriber: Subscriber) -> None:
        """A subscription has been made, or made again with other options."""
        log = self._log(subscriber.topic_filter)
        group = log.groups.get(subscriber.group)
        if group is None:
            group = self._new_group(log, subscriber.group)
        group.members.add(subscriber.session.generation)
        self._readers.joined(subscriber.session, subscriber, group)

    def left(self, subscriber: Subscriber) -> None:
        """Take a member out of its group: its subscription has gone."""
        group = self.group(subscriber)
        if group is None or subscriber.session.generation not in group.members:
            return
        group.members.remove(subscriber.session.generation)
        self._readers.left(subscriber.session, group)
        if not group.members:
            self._end_group(group)

    def _new_group(self, log: SharedLog, share: str) -> SharedGroup:
        """It gets what is accepted from now on. A subscription that was stored had a group, whose row is lost: that one
        goes on where the store of the logs says, or else at the log's beginning."""
        state = self._state
        generation = state.new_generation()
        if not log.generation:
            log.generation = generation
            self._stamp(log)
        found = log.found
        row = SharedGroupRow(
            share,
            log.topic_filter,
            generation,
            log.generation,
            state.offset_next if self._is_begun else 0,
            found.identity if found is not None else "",
            tuple(sorted(found.ends.items())) if found is not None else (),
        )
        group = SharedGroup(row, self._logs.shared_group(share, log.topic_filter), log)
        log.groups[share] = group
        self._write(group, row)
        return group

    def _write(self, group: SharedGroup, row: SharedGroupRow) -> None:
        group.row = row
        self._state.tick.writes.shared.groups.append(row)

    def _end_group(self, group: SharedGroup) -> None:
        log = group.log
        del log.groups[group.row.share]
        self._state.tick.writes.shared.ended_groups.append(group.row.generation)
        if not log.groups and not log.claims:  # else it ends with the last claim
            self._end_log(log)

    def cap_offsets(self) -> None:
        """Records that groups counted on could not be stored: their numbers are given again."""
        log_end = self._state.log_end
        for group in self.groups():
            if group.row.since > log_end:
                self._write(group, replace(group.row, since=log_end))


def _is_cut(log: SharedLog, group: SharedGroup, found: FoundLog) -> bool:
    """Whether the log has lost its end, which the group has had."""
    reached = log.reached.get(group.row.generation, {})
    return any(offset > found.ends.get(partition, 0) for partition, offset in reached.items())


def stamps_of(stamps: Mapping[str, Stamp], filters: set[str]) -> list[Stamp]:
    """Of the shared filters that have matched, in their order."""
    return [stamps[topic_filter] for topic_filter in sorted(filters)]
