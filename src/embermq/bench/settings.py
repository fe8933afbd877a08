"""What a load run is made of: the broker it speaks to, the load, the limits."""

from __future__ import annotations

import msgspec

from embermq.bench.errors import LoadError
from embermq.protocol.version import ProtocolVersion

STAMP_BYTES = 16
"""Sequence number and intended send time, 8 bytes each, at the start of every payload."""

PACKET_IDS = 65_535
"""Packet identifiers of one connection [MQTT-2.2.1-3]."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The broker and how to enter."""

    host: str = "127.0.0.1"
    port: int = 1883
    version: ProtocolVersion = ProtocolVersion.V5
    username: str | None = None
    password: bytes | None = None


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent, how fast and for how long.

    rate: messages a second over all publishers; 0 keeps `window` unacknowledged messages a publisher.
    count: messages of the measured part, over all publishers; 0 means that `duration_s` decides.
    offline_share: part of the subscribers that is away at any time, each for `away_s`, in turn.
    """

    qos: int = 1
    payload_bytes: int = 64
    rate: float = 0.0
    window: int = 20
    duration_s: float = 10.0
    count: int = 0
    warmup_s: float = 2.0
    drain_s: float = 30.0
    persistent: bool = False
    offline_share: float = 0.0
    away_s: float = 2.0

    def check(self) -> None:
        """Raise LoadError, naming the option, its value and its limit."""
        if self.qos not in (0, 1, 2):
            raise LoadError(f"qos is {self.qos}; it is 0, 1 or 2")
        if not STAMP_BYTES <= self.payload_bytes <= 64 * 1024 * 1024:
            raise LoadError(f"payload is {self.payload_bytes} bytes; it is {STAMP_BYTES} to 67108864 bytes")
        if not 1 <= self.window <= PACKET_IDS:
            raise LoadError(f"window is {self.window}; it is 1 to {PACKET_IDS}")
        if self.rate < 0 or self.count < 0 or self.warmup_s < 0 or self.drain_s < 0:
            raise LoadError("rate, count, warm-up and drain are not negative")
        if not self.count and self.duration_s <= 0:
            raise LoadError("duration is above 0 s, unless a count is given")
        if self.offline_share:
            self._check_absence()

    def away(self, subscribers: int) -> int:
        """How many of them are away at a time. Raises LoadError when the share is none, or all, of them."""
        away = round(self.offline_share * subscribers)
        if self.offline_share and not 1 <= away < subscribers:
            raise LoadError(
                f"an offline share of {self.offline_share:g} of {subscribers} subscribers is {away} of them; "
                "at least 1 is away and at least 1 stays"
            )
        return away

    def _check_absence(self) -> None:
        if not 0 < self.offline_share < 1:
            raise LoadError(f"offline share is {self.offline_share:g}; it is above 0 and below 1")
        if not self.persistent:
            raise LoadError("an offline share needs persistent sessions: others end with their connection")
        if not self.qos:
            raise LoadError("an offline share needs QoS 1 or 2: at QoS 0 nothing is kept for who is away")
        if self.away_s <= 0:
            raise LoadError(f"away is {self.away_s:g} s; it is above 0")
        if not self.count and self.away_s >= self.warmup_s + self.duration_s:
            raise LoadError(
                f"away is {self.away_s:g} s, warm-up and duration together are "
                f"{self.warmup_s + self.duration_s:g} s: nobody would return before the end"
            )


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of the load generator itself."""

    connects_at_once: int = 100
    connect_timeout_s: float = 20.0
    keep_alive_s: int = 300
    session_expiry_s: int = 3_600
    packet_bytes_max: int = 268_435_460
    paced_inflight_max: int = 1_000
    """Unacknowledged messages a publisher in a paced run; more wait, and their wait counts as latency."""
    backlog_messages_max: int = 1_000_000
    """Messages waiting over all publishers of a paced run; above it the run ends: the broker is too slow."""
    settle_s: float = 0.2
    """Time given to late doubles after everything has arrived."""
    pss_interval_s: float = 1.0
