"""How many connections there may be: in all, from one address, and how many begin in a second.

Who is refused is told so by CONNACK, which costs as much as to let it in; so only `TOLD_A_SECOND` are, `TOLD_MAX` at a
time, and the others are closed at once.
"""

import time
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit, setrlimit

from embermq.access.authentication.slowing import network_of
from embermq.edge.settings import ClientSettings
from embermq.model.counters import Counters
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.sessions.token_bucket import TokenBucket

TOLD_A_SECOND = 100
TOLD_MAX = 64
FILES_KEPT = 128
"""File descriptors that are kept for stores, HTTP and whatever else the broker opens."""
FILES_MAX = 1_048_576

_TEXTS = {
    ReasonCode.SERVER_BUSY: "there are too many connections",
    ReasonCode.QUOTA_EXCEEDED: "there are too many connections from this address",
    ReasonCode.CONNECTION_RATE_EXCEEDED: "there are too many new connections",
}


class Room:
    """The connections of one listener that may stay, and how many there may be; 0 = no limit of its own."""

    __slots__ = ("connections", "connections_max")

    def __init__(self, connections_max: int = 0) -> None:
        self.connections_max = connections_max
        self.connections = 0

    @property
    def is_full(self) -> bool:
        """Whether there are as many as there may be."""
        return 0 < self.connections_max <= self.connections


class ConnectionSlot:
    """One connection in the counts. `refusal` is why its CONNECT has to be refused, None when it may enter."""

    __slots__ = ("_left", "address", "refusal", "room")

    def __init__(self, room: Room | None = None) -> None:
        self.room = room or Room()
        self.address = ""
        self.refusal: ReasonCode | None = None
        self._left = False

    @property
    def refusal_text(self) -> str:
        """Why there is no slot, in words; "" when there is one."""
        return _TEXTS[self.refusal] if self.refusal is not None else ""

    def leave(self) -> bool:
        """Give the slot back. Returns False when it was given back before."""
        left, self._left = self._left, True
        return not left


class Admission:
    """The counts of all listeners."""

    def __init__(self, settings: ClientSettings, counters: Counters, *, files_each: int = 1) -> None:
        """`files_each`: file descriptors that a client may take."""
        self._counters = counters
        self.connections_max = settings.connections_max or (descriptors(FILES_MAX) - FILES_KEPT) // files_each
        self._per_address_max = settings.connections_per_address_max
        now_ms = _now_ms()
        rate = settings.connect_rate_max
        self._rate = TokenBucket(rate, now_ms) if rate else None
        self._told = TokenBucket(TOLD_A_SECOND, now_ms)
        self._addresses: dict[str, int] = {}
        self.connections = 0
        """Those that may stay; who is refused is not counted."""
        self._telling = 0

    def is_full(self, room: Room) -> bool:
        """Whether there are as many connections as there may be, in all or on this listener."""
        return self.connections >= self.connections_max or room.is_full

    def is_full_for(self, host: str) -> bool:
        """Whether this address has as many as it may have."""
        if not self._per_address_max or not host:
            return False
        return self._addresses.get(network_of(host), 0) >= self._per_address_max

    def arrive(self, room: Room | None = None) -> ConnectionSlot | None:
        """A connection was accepted, by the listener with this room. None when it has to be closed at once."""
        counters = self._counters
        place = ConnectionSlot(room)
        now_ms = _now_ms()
        if self.is_full(place.room):
            counters.refused_connections_max += 1
            return self._refuse(place, ReasonCode.SERVER_BUSY, now_ms)
        if self._rate is not None and not self._rate.take(now_ms):
            counters.refused_connect_rate += 1
            return self._refuse(place, ReasonCode.CONNECTION_RATE_EXCEEDED, now_ms)
        self.connections += 1
        place.room.connections += 1
        return place

    def locate(self, place: ConnectionSlot, host: str) -> bool:
        """The connection's address is known; "" is none. False when it has to be closed at once."""
        if not self._per_address_max or not host or place.refusal is not None:
            return True
        address = network_of(host)
        count = self._addresses.get(address, 0)
        if count >= self._per_address_max:
            self._counters.refused_address_max += 1
            self._uncount(place)
            return self._refuse(place, ReasonCode.QUOTA_EXCEEDED, _now_ms()) is not None
        self._addresses[address] = count + 1
        place.address = address
        return True

    def _uncount(self, place: ConnectionSlot) -> None:
        self.connections -= 1
        place.room.connections -= 1

    def _refuse(self, place: ConnectionSlot, reason: ReasonCode, now_ms: int) -> ConnectionSlot | None:
        place.refusal = reason
        if self._telling < TOLD_MAX and self._told.take(now_ms):
            self._telling += 1
            return place
        self._counters.refused_untold += 1
        place.leave()
        return None

    def leave(self, place: ConnectionSlot) -> None:
        """The connection is over. May be called again."""
        if not place.leave():
            return
        if place.refusal is not None:
            self._telling -= 1
            return
        self._uncount(place)
        if place.address:
            left = self._addresses[place.address] - 1
            if left:
                self._addresses[place.address] = left
            else:
                del self._addresses[place.address]


def descriptors(wanted: int) -> int:
    """How many files the process may open after it has asked the system for `wanted`."""
    soft, hard = getrlimit(RLIMIT_NOFILE)
    if soft == RLIM_INFINITY:
        return wanted
    possible = wanted if hard == RLIM_INFINITY else min(wanted, hard)
    if possible > soft:
        setrlimit(RLIMIT_NOFILE, (possible, hard))
        return possible
    return soft


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
