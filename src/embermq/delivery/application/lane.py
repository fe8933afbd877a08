"""One log that is read for one session, and what of it is under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from operator import attrgetter
from typing import Protocol

from embermq.delivery.application.overdue import Overdue
from embermq.model.message import Message
from embermq.sessions.link import Link
from embermq.sessions.session import Delivery, Session
from embermq.sessions.timers import Timer

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
