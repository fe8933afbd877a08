"""Retained messages in memory, as they are in store; what expires goes by itself."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING

from embermq.access.authorization.rule_set import Permissions
from embermq.access.authorization.rules import Principal
from embermq.formats.log_record import (
    LogRecord,
    check_record,
    decode_record,
    encode_record,
    publisher_field,
    publisher_in,
    record_expires_ms,
)
from embermq.model.counters import Counters
from embermq.model.message import Message
from embermq.model.session import RetainedRow
from embermq.mqtt.topics.topic_tree import TopicTree
from embermq.mqtt.value import replace

if TYPE_CHECKING:
    from embermq.sessions.state import BrokerState
    from embermq.sessions.tick import Tick
    from embermq.sessions.timers import Timer, Timers


KEPT = 100_000
"""Topics that are remembered beside what is retained: those whose message is on its way to the log, or was refused."""
Stamp = tuple[int, int]
"""Accept time in Unix milliseconds, and the slot that accepted it."""


class RetainOrder:
    """The later accept time wins, then the higher slot, then the later place in that slot's log: every node decides
    alike, in whatever order it hears of them. `held` has the stamp of the message that a topic has now, or of the end
    of the one that it had."""

    def __init__(self, slot: int, held: Callable[[str], Stamp | None]) -> None:
        self._slot = slot
        self._held = held
        self._newest: OrderedDict[str, Stamp] = OrderedDict()

    def own(self, message: Message) -> Message:
        """A message that this node takes is newer than all that it knows of, whatever the clocks of others say."""
        known = self._known(message.topic)
        if known is not None and (message.accepted_ms, self._slot) < known:
            message = replace(message, accepted_ms=known[0] + 1)
        self._note(message.topic, (message.accepted_ms, self._slot))
        return message

    def is_newer(self, message: Message, slot: int) -> bool:
        """Whether one that another slot has taken replaces what this node knows of; then it is known."""
        known = self._known(message.topic)
        stamp = message.accepted_ms, slot
        if known is not None and stamp < known:
            return False
        self._note(message.topic, stamp)
        return True

    def _known(self, topic: str) -> Stamp | None:
        found = self._newest.get(topic)
        return self._held(topic) if found is None else found

    def _note(self, topic: str, stamp: Stamp) -> None:
        newest = self._newest
        newest[topic] = stamp
        newest.move_to_end(topic)
        if len(newest) > KEPT:
            newest.popitem(last=False)


SOURCES_MAX = 1_000
"""Publishers whose rights are remembered."""

Fields = tuple[tuple[int, bytes], ...]


def publisher_of(permissions: Permissions | None) -> Fields:
    """What a record tells of its publisher where somebody later asks for its rights: with a retained message, and on
    another node. Nothing without rules."""
    if permissions is None:
        return ()
    who = permissions.principal
    return (publisher_field(who.user, who.certificate),)


class RetainSources:
    """Asks the rules of now about publishers of messages that are in the log."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._known: dict[Principal, Permissions] = {}

    def may_still_publish(self, record: LogRecord) -> bool:
        """Whether the publisher may publish the message today; True when the record does not tell who that was."""
        permissions = self.permissions(record)
        return permissions is None or permissions.may_publish(record.message.topic)

    def permissions(self, record: LogRecord) -> Permissions | None:
        """What the publisher may do; None for everything, and when the record does not tell who that was."""
        state = self._state
        who = publisher_in(record) if state.rules is not None else None
        if who is None:
            return None
        principal = Principal(who[0], record.message.publisher, who[1])
        permissions = self._known.get(principal)
        if permissions is None or permissions.rules is not state.rules:
            permissions = state.permissions(principal)
            assert permissions is not None
            if len(self._known) >= SOURCES_MAX:
                self._known.clear()
            self._known[principal] = permissions
        return permissions


EXPIRED_MAX = 1_000
"""Expired messages removed in one tick."""
LEVEL_BYTES = 512
"""What a level of a retained topic counts besides the record; about what it takes in memory."""
STALE_MAX = 1_000
"""Deadlines of messages that were replaced, kept beside as many as there are messages."""
ENDS_MAX = 100_000
"""Topics of which it is remembered that their message was deleted, or has expired."""
ENDS_FORGOTTEN_MAX = 2_000
"""How many of them are forgotten at a time."""


class RetainedMessages:
    """One message a topic. `remembers_ends`, to be set before anything is put: of a topic whose message was deleted or
    has expired the row stays, in store and in `ends`, until `forget_ends`: another node may bring an older message.
    A row without payload says that the topic has none."""

    def __init__(self, tick: Tick, timers: Timers, counters: Counters) -> None:
        self._tick = tick
        self._timers = timers
        self._counters = counters
        self._tree: TopicTree[RetainedRow] = TopicTree()
        self._deadlines: list[tuple[int, int, str]] = []
        """(Unix milliseconds, offset, topic), a heap."""
        self._timer: Timer | None = None
        self._timer_due_ms = 0
        self._stored_bytes = 0
        self._levels = 0
        self._pending: dict[str, int] = {}
        self.remembers_ends = False
        self.ends: dict[str, RetainedRow] = {}
        """By topic, longest known first."""

    def __len__(self) -> int:
        return len(self._tree)

    def has_room(self, topic: str, size_bytes: int, limit_bytes: int) -> bool:
        """Whether a record of that size may be retained, in place of the one that the topic has."""
        old = self._tree.get(topic)
        if old is not None:
            size_bytes -= len(old.record)
            if size_bytes <= 0:
                return True
        else:
            size_bytes += LEVEL_BYTES * _levels(topic)
        return self.used_bytes + size_bytes <= limit_bytes

    @property
    def used_bytes(self) -> int:
        """What counts against `mqtt.retained_bytes_max`."""
        return self._stored_bytes + LEVEL_BYTES * self._levels

    def walk(self, topic_filter: str) -> Iterator[tuple[str, RetainedRow] | None]:
        """What a filter matches, in small steps: see `TopicTree.walk`."""
        return self._tree.walk(topic_filter)

    def get(self, topic: str) -> RetainedRow | None:
        """The retained message of a topic; None when there is none."""
        return self._tree.get(topic)

    def newest(self, topic: str) -> RetainedRow | None:
        """The message of a topic, or that it has none any more."""
        return self._tree.get(topic) or self.ends.get(topic)

    def rows(self) -> Iterator[RetainedRow]:
        """All rows that are in store, ends of former messages too."""
        yield from self.ends.values()
        for topic in self._tree:
            row = self._tree.get(topic)
            assert row is not None
            yield row

    def announce(self, topic: str) -> None:
        """A message for the topic, or its deletion, is on its way to the store; it may have been delivered already."""
        self._pending[topic] = self._pending.get(topic, 0) + 1

    def settle(self, topic: str) -> None:
        """One that was announced has been stored or refused."""
        left = self._pending[topic] - 1
        if left:
            self._pending[topic] = left
        else:
            del self._pending[topic]

    def is_settled(self, topic: str) -> bool:
        """False while what is held may be overtaken."""
        return topic not in self._pending

    def put(self, row: RetainedRow, expires_ms: int) -> None:
        """Set or replace the message of a topic; `expires_ms` is 0 when it stays for ever."""
        self.ends.pop(row.topic, None)
        old = self._tree.get(row.topic)
        if old is not None:
            self._stored_bytes -= len(old.record)
        if self._tree.put(row.topic, row):
            self._levels += _levels(row.topic)
        self._stored_bytes += len(row.record)
        if expires_ms:
            deadlines = self._deadlines
            if len(deadlines) > 2 * len(self._tree) + STALE_MAX:
                deadlines[:] = [entry for entry in deadlines if self._is_held(entry)]
                heapify(deadlines)
            heappush(deadlines, (expires_ms, row.offset, row.topic))
            self._arm()

    def restore(self, row: RetainedRow) -> None:
        """A message read at start. One that has expired meanwhile is removed from the store. Raises RecordError for a
        damaged one."""
        check_record(row.record)
        expires_ms = record_expires_ms(row.record)
        if expires_ms and expires_ms <= self._tick.now_ms:
            self._counters.retained_expired += 1
            self._expired(row)
        elif self.remembers_ends and not decode_record(row.record).message.payload:
            self.end(row)
        else:
            self.put(row, expires_ms)

    def end(self, row: RetainedRow) -> None:
        """The topic has no message any more, says the row."""
        self.discard(row.topic)
        if not self.remembers_ends:
            return
        self.ends.pop(row.topic, None)
        self.ends[row.topic] = replace(row, record=_without_payload(row.record))
        if len(self.ends) > ENDS_MAX:
            self._forget(next(iter(self.ends)))

    def forget_ends(self, before_ms: int) -> None:
        """Nobody brings a message any more that was accepted before this date."""
        for topic, row in list(islice(self.ends.items(), ENDS_FORGOTTEN_MAX)):
            if decode_record(row.record).message.accepted_ms >= before_ms:
                return
            self._forget(topic)

    def _forget(self, topic: str) -> None:
        self._tick.session_writes.retained_expired.append((topic, self.ends.pop(topic).offset))

    def _expired(self, row: RetainedRow) -> None:
        if self.remembers_ends:
            self.end(row)
        else:
            self._tick.session_writes.retained_expired.append((row.topic, row.offset))

    def discard(self, topic: str) -> None:
        """Have no message of a topic; nothing happens when there is none."""
        old = self._tree.get(topic)
        if old is not None:
            self._stored_bytes -= len(old.record)
            self._levels -= _levels(topic)
            self._tree.discard(topic)

    def _is_held(self, entry: tuple[int, int, str]) -> bool:
        row = self._tree.get(entry[2])
        return row is not None and row.offset == entry[1]

    def _arm(self) -> None:
        due_ms = self._deadlines[0][0]
        if self._timer is None or self._timer.call is None or due_ms < self._timer_due_ms:
            self._timers.cancel(self._timer)
            self._timer_due_ms = due_ms
            self._timer = self._timers.at(due_ms, self._expire)

    def _expire(self) -> None:
        """Remove what is due from memory and, with this tick, from the store [MQTT-3.3.2-5]."""
        deadlines, now_ms = self._deadlines, self._tick.now_ms
        for _ in range(EXPIRED_MAX):
            if not deadlines or deadlines[0][0] > now_ms:
                break
            entry = heappop(deadlines)
            row = self._tree.get(entry[2])
            if row is not None and row.offset == entry[1]:
                self._counters.retained_expired += 1
                self.discard(row.topic)
                self._expired(row)
        if deadlines:
            due_ms = self._timer_due_ms = max(deadlines[0][0], now_ms + 1)
            self._timer = self._timers.at(due_ms, self._expire)


def _without_payload(frame: bytes) -> bytes:
    """What says when it was accepted, and where. Raises RecordError."""
    record = decode_record(frame)
    message = replace(record.message, payload=b"", properties=None, expires_ms=0)
    return encode_record(message, b"", None, record.unknown_fields)


def _levels(topic: str) -> int:
    return topic.count("/") + 1
