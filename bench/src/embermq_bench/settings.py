"""What a load run is made of: the broker it speaks to, the load, the limits."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from embermq.mqtt.wire.version import ProtocolVersion
from embermq_bench.errors import LoadError

STAMP_BYTES = 16
"""Sequence number and intended send time, 8 bytes each, at the start of every payload."""

QUEUE_STAMP_BYTES = 24
"""The same in messages to a queue, with publisher and run behind it, 4 bytes each."""

CLIENTS_MAX = 10_000
KEYS_MAX = 1_000_000

PACKET_IDS = 65_535
"""Packet identifiers of one connection [MQTT-2.2.1-3]."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The broker and how to enter. `token` is for its HTTP API, where a run asks that for anything.

    With `ca`, a file of certificates, connections are TLS; with `web_socket` they are WebSocket, with both wss.
    """

    host: str = "127.0.0.1"
    port: int = 1883
    version: ProtocolVersion = ProtocolVersion.V5
    username: str | None = None
    password: bytes | None = None
    token: str | None = None
    ca: str | None = None
    web_socket: bool = False

    def __repr__(self) -> str:
        """Without secrets."""
        return f"Target({self.host}:{self.port}, {self.version!r}, username={self.username!r})"


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


class Ack(StrEnum):
    """How a consumer settles."""

    BATCH = "batch"
    """A message to `$ack` with the ids of all that came in one read, `ack_batch` at most."""
    PUBACK = "puback"


class QueueLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What a load on a queue has besides `Load`.

    keys: over all publishers, each key used by one of them; 0: messages without keys. partitions, ordering: what the
    queue is made with; 0 and "" leave it to the broker. http_port: where the broker is asked for that, and to delete a
    queue of this run at its end; 0 to publish it to `$admin/queue/<name>/config` instead. prefetch: of each consumer.
    """

    queue: str = ""
    """Empty: one of this run."""
    publishers: int = 1
    consumers: int = 1
    partitions: int = 0
    ordering: str = ""
    http_port: int = 0
    keys: int = 0
    ack: Ack = Ack.BATCH
    ack_batch: int = 50
    prefetch: int = 500

    def check(self, load: Load, version: ProtocolVersion) -> None:
        """Raise LoadError, naming the option, its value and its limit."""
        if load.qos not in (1, 2):
            raise LoadError(
                f"qos is {load.qos}; to a queue it is 1 or 2: nothing tells of messages lost at 0"
            )
        if load.payload_bytes < QUEUE_STAMP_BYTES:
            raise LoadError(f"payload is {load.payload_bytes} bytes; it is {QUEUE_STAMP_BYTES} or more")
        for name, value, top in (
            ("publishers", self.publishers, CLIENTS_MAX),
            ("consumers", self.consumers, CLIENTS_MAX),
            ("ack batch", self.ack_batch, 1_000),
            ("prefetch", self.prefetch, PACKET_IDS),
        ):
            if not 1 <= value <= top:
                raise LoadError(f"{name} is {value}; it is 1 to {top}")
        if self.keys and not self.publishers <= self.keys <= KEYS_MAX:
            raise LoadError(
                f"keys is {self.keys}; it is 0, or {self.publishers} (one a publisher) to {KEYS_MAX}"
            )
        if version is not ProtocolVersion.V5 and (self.keys or self.ack is not Ack.PUBACK):
            raise LoadError("keys and acks in batches are user properties: they need MQTT 5")


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
