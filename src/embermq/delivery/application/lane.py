"""One log that is read for one session, and what of it is under way.

Messages that are sent, or about to be, while their packet ids are not in store. One of QoS 1 does not wait for that:
what a crash forgets of it comes again as a new message. Its packet id may be with the client, who may speak of it
late. So there are never more of them than a limit, and a session that is known from the store alone goes on so many
ids behind the last one that it knows.

What becomes of messages that a client does not acknowledge in time: decided here, done by the reader. `retry-all`
sends them again. On a live connection only MQTT 3 allows that; an MQTT 5 client is sent away and gets them when it
returns [MQTT-4.4.0-1]. A message that was sent again `retries` times, in vain, is parked: kept aside for an operator,
so that it holds up nothing any more and is not lost. `skip-all` goes on without them.

Packs are timed, not messages: what was sent together is late together, and packs that follow one another quickly are
one. Attempts are counted for each message and
outlive the connection, or an MQTT 5 client would be sent away for ever.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable
from enum import Enum
from operator import attrgetter
from typing import Protocol

from msgspec import Struct

from embermq.model.message import Message
from embermq.sessions.link import Link
from embermq.sessions.session import PACKET_IDS, Delivery, Session
from embermq.sessions.timers import Timer

UNMARKED_MAX = 1_000
"""Of one session. A store that stands still holds up the client after these."""


class Unmarked:
    """Of all sessions of a broker."""

    def __init__(self) -> None:
        self._counts: dict[Session, int] = {}

    def room(self, session: Session) -> int:
        """So many more may be sent."""
        return UNMARKED_MAX - self._counts.get(session, 0)

    def add(self, session: Session, count: int) -> None:
        """Their ids are given, and wanted stored."""
        self._counts[session] = self._counts.get(session, 0) + count

    def stored(self, session: Session, count: int) -> bool:
        """Their ids are in store. Whether there was no room."""
        had = self._counts.pop(session)
        if had > count:
            self._counts[session] = had - count
        return had >= UNMARKED_MAX

    def __len__(self) -> int:
        return len(self._counts)


def behind_unmarked(packet_id: int) -> int:
    """The packet id to go on from after a crash, when this is the last that is known."""
    return (packet_id + UNMARKED_MAX - 1) % PACKET_IDS + 1


JOINED_SHARE = 20
"""Packs that begin within this share of the timeout are timed together, by the last of them."""


class AckStrategy(Enum):
    """What to do with messages that are not acknowledged in time, as in the settings."""

    RETRY_ALL = "retry-all"
    SKIP_ALL = "skip-all"


class OverdueStep(Enum):
    """What is to be done about the messages of a `OverdueVerdict`."""

    RESEND = "resend"
    """Now, with DUP; a PUBREL where the client has sent PUBREC."""
    DISCONNECT = "disconnect"
    """They are resent when the client returns."""
    SKIP = "skip"
    """They are settled. Their packet ids stay taken until the client answers or goes [MQTT-2.2.1-4]."""


class OverdueVerdict(Struct, frozen=True):
    """About offsets of a log: what to do with `overdue`, and which to park instead."""

    step: OverdueStep
    overdue: tuple[int, ...]
    parked: tuple[int, ...] = ()


class _Pack(Struct):
    """Up to `last`; `begun_ms` and `sent_ms` are when its first and its last message were sent."""

    last: int
    begun_ms: int
    sent_ms: int


class ResendCounts:
    """How often each unacknowledged message of a session was sent in vain. Outlives connections."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def count(self, offset: int) -> int:
        """One more; returns how many there have been."""
        self._counts[offset] = count = self._counts.get(offset, 0) + 1
        return count

    def forget(self, offset: int) -> None:
        """Begin again with this one."""
        self._counts.pop(offset, None)

    def forget_below(self, floor: int) -> None:
        """What is settled needs no count; nothing happens while there is none."""
        if self._counts:
            self._counts = {offset: count for offset, count in self._counts.items() if offset >= floor}


class Overdue:
    """Finds the messages of one log and connection that are not acknowledged in time. Times are milliseconds;
    `retries` 0 is no limit."""

    def __init__(
        self,
        attempts: ResendCounts,
        *,
        strategy: AckStrategy,
        timeout_ms: int,
        retries: int,
        may_resend: bool,
    ) -> None:
        self._attempts = attempts
        self._strategy = strategy
        self._timeout_ms = timeout_ms
        self._retries = retries
        self._may_resend = may_resend
        self._packs: list[_Pack] = []
        """By `last`."""

    def sent(self, last: int, now_ms: int) -> None:
        """A pack is on its way, up to this offset; what a connection begins with, to be resent, is one."""
        packs = self._packs
        if (
            packs
            and packs[-1].last <= last
            and now_ms - packs[-1].begun_ms < self._timeout_ms // JOINED_SHARE
        ):
            packs[-1].last = last
            packs[-1].sent_ms = now_ms
        else:
            insort(packs, _Pack(last, now_ms, now_ms), key=_last)

    def postpone(self, now_ms: int) -> None:
        """The client could not be reached: everything has its time from now on."""
        for pack in self._packs:
            pack.begun_ms = pack.sent_ms = now_ms

    def due_ms(self, floor: int) -> int:
        """When to look next; everything below the floor is settled. 0 when nothing is on its way."""
        self._attempts.forget_below(floor)
        self._packs = [pack for pack in self._packs if pack.last >= floor]
        return min((pack.sent_ms for pack in self._packs), default=-self._timeout_ms) + self._timeout_ms

    def look(self, now_ms: int, unsettled: Iterable[int]) -> list[OverdueVerdict]:
        """What is due now. `unsettled` are the offsets that were sent and are not acknowledged, in order."""
        waiting = sorted(unsettled)
        verdicts: list[OverdueVerdict] = []
        packs, self._packs = self._packs, []
        begin = -1
        for pack in packs:
            of_pack = tuple(waiting[bisect_right(waiting, begin) : bisect_right(waiting, pack.last)])
            begin = pack.last
            if now_ms - pack.sent_ms < self._timeout_ms:
                self._packs.append(pack)
            elif of_pack:
                verdict = self._judge(of_pack)
                verdicts.append(verdict)
                if verdict.step is OverdueStep.RESEND and verdict.overdue:
                    self._packs.append(_Pack(verdict.overdue[-1], now_ms, now_ms))
        return verdicts

    def _judge(self, overdue: tuple[int, ...]) -> OverdueVerdict:
        if self._strategy is AckStrategy.SKIP_ALL:
            return OverdueVerdict(OverdueStep.SKIP, overdue)
        counts = {offset: self._attempts.count(offset) for offset in overdue}
        parked = tuple(offset for offset, count in counts.items() if 0 < self._retries < count)
        again = tuple(offset for offset in overdue if offset not in parked)
        step = OverdueStep.RESEND if self._may_resend or not again else OverdueStep.DISCONNECT
        return OverdueVerdict(step, again, parked)


def _last(pack: _Pack) -> int:
    return pack.last


NOTHING = Message("", b"", 0, False, "", 4, 0)
"""Stands for a record that is not needed any more."""

SKIPPED = -(2**62)
"""`Delivery.seq` of what was given up and is nowhere any more. What is parked has its number there, negative; what is
under way in its log has 0."""


class LaneOwner(Protocol):
    """Decides about what a lane's client does not take."""

    def dropped(self, lane: LogLane, delivery: Delivery) -> None:
        """It is larger than the client takes; it counts as settled and its packet id is free."""

    def give_up(self, lane: LogLane, deliveries: list[Delivery], *, keep: bool) -> list[Delivery]:
        """They were not acknowledged in time: park them, or with `keep` False skip them. Returns those that cannot be
        parked."""


class LogLane:
    """Offsets are those of the log. `name` tells several lanes of one session apart: "" for the client's own log."""

    __slots__ = (
        "floor",
        "floor_written_ms",
        "link",
        "name",
        "next_offset",
        "outbox",
        "overdue",
        "owner",
        "pending",
        "sending",
        "session",
        "settled",
        "timer",
    )

    def __init__(self, session: Session, floor: int, name: str = "") -> None:
        self.session = session
        self.name = name
        self.floor = floor
        self.next_offset = floor
        self.settled = 0
        """How many of those below the floor were sent."""
        self.pending: deque[Delivery] = deque()
        """Sent or skipped entries at and above the floor, in offset order."""
        self.sending = False
        self.floor_written_ms = 0
        self.link: Link | None = None
        """The connection on which it is read."""
        self.outbox: deque[Delivery] = deque()
        """What may be sent as soon as the socket takes it."""
        self.owner: LaneOwner
        self.overdue: Overdue
        self.timer: Timer | None = None

    def add(self, delivery: Delivery) -> None:
        """The next entry is about to be sent, or is passed over and settled."""
        self.next_offset = delivery.offset + 1
        self.pending.append(delivery)

    def kept_id(self, source: int) -> int:
        """The packet id with which this record of the message log was sent before, 0 when it was not."""
        return 0

    def under_way(self) -> Iterable[Delivery]:
        """What was sent on this connection and is not settled, in offset order."""
        window = self.session.window
        return [
            delivery
            for delivery in self.pending
            if not delivery.settled and window.get(delivery.packet_id) is delivery
        ]

    def lowest(self) -> int:
        """Below it everything is settled."""
        return self.floor

    def last(self) -> int:
        """The offset of the last that is under way, sent or still to be sent; -1 when nothing is."""
        return self.pending[-1].offset if self.pending else -1


class SideLane(LogLane):
    """What a session has under way that is not read from a log on this connection. A message's offset is a number of
    its own, the same on all connections: attempts are counted by it."""

    __slots__ = ("in_flight",)

    def __init__(self, session: Session, name: str) -> None:
        super().__init__(session, 0, name)
        self.in_flight: dict[int, Delivery] = {}
        """By number."""

    def put(self, number: int, delivery: Delivery) -> None:
        """It is under way under this number."""
        delivery.offset = number
        self.in_flight[number] = delivery

    def under_way(self) -> Iterable[Delivery]:
        window = self.session.window
        found = [one for one in self._unsettled() if window.get(one.packet_id) is one]
        return sorted(found, key=attrgetter("offset"))

    def lowest(self) -> int:
        return min((one.offset for one in self._unsettled()), default=2**62)

    def last(self) -> int:
        return max((one.offset for one in self._unsettled()), default=-1)

    def _unsettled(self) -> Iterable[Delivery]:
        self.in_flight = {number: one for number, one in self.in_flight.items() if not one.settled}
        return self.in_flight.values()
