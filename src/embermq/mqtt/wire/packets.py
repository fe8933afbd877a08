"""The control packets as values. Field order is the order of positional arguments and part of the interface.

What they hold has been checked by the decoder; the encoder checks again what it is given. Reason codes are
plain integers (an `IntEnum` member is one), packet ids 1..65535, QoS 0..2, intervals in seconds.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion


class Will(msgspec.Struct, frozen=True, gc=False):
    """The message that the server publishes when the connection ends without a DISCONNECT."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties | None = None


class Connect(msgspec.Struct, frozen=True, gc=False):
    """``clean_start`` is the Clean Session flag in 3.x; ``keep_alive_s`` 0 means no keep-alive."""

    client_id: str
    version: ProtocolVersion
    clean_start: bool = True
    keep_alive_s: int = 0
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties | None = None


class Connack(msgspec.Struct, frozen=True, gc=False):
    """``reason_code`` is a `ReasonCode` in 5.0, a `ConnectReturnCode` as read from a 3.x server."""

    session_present: bool
    reason_code: int
    properties: Properties | None = None


class Publish(msgspec.Struct, frozen=True, gc=False):
    """``topic`` is empty when a topic alias stands for it (5.0); ``packet_id`` is 0 for QoS 0."""

    topic: str
    payload: bytes
    qos: int = 0
    packet_id: int = 0
    retain: bool = False
    dup: bool = False
    properties: Properties | None = None


class Puback(msgspec.Struct, frozen=True, gc=False):
    """The answer to a PUBLISH of QoS 1."""

    packet_id: int
    reason_code: int = 0
    properties: Properties | None = None


class Pubrec(msgspec.Struct, frozen=True, gc=False):
    """The first answer to a PUBLISH of QoS 2."""

    packet_id: int
    reason_code: int = 0
    properties: Properties | None = None


class Pubrel(msgspec.Struct, frozen=True, gc=False):
    """The sender's second step of QoS 2."""

    packet_id: int
    reason_code: int = 0
    properties: Properties | None = None


class Pubcomp(msgspec.Struct, frozen=True, gc=False):
    """The receiver's last step of QoS 2."""

    packet_id: int
    reason_code: int = 0
    properties: Properties | None = None


class Subscription(msgspec.Struct, frozen=True, gc=False):
    """One entry of a SUBSCRIBE; all after ``qos`` exists in 5.0 only. ``retain_handling`` is 0..2."""

    topic_filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class Subscribe(msgspec.Struct, frozen=True, gc=False):
    """At least one subscription."""

    packet_id: int
    subscriptions: tuple[Subscription, ...]
    properties: Properties | None = None


class Suback(msgspec.Struct, frozen=True, gc=False):
    """One reason code a subscription, in the order of the SUBSCRIBE."""

    packet_id: int
    reason_codes: tuple[int, ...]
    properties: Properties | None = None


class Unsubscribe(msgspec.Struct, frozen=True, gc=False):
    """At least one filter."""

    packet_id: int
    topic_filters: tuple[str, ...]
    properties: Properties | None = None


class Unsuback(msgspec.Struct, frozen=True, gc=False):
    """One reason code a filter, in the order of the UNSUBSCRIBE; none at all in 3.x."""

    packet_id: int
    reason_codes: tuple[int, ...] = ()
    properties: Properties | None = None


class Pingreq(msgspec.Struct, frozen=True, gc=False):
    """The client is alive and asks whether the server is."""


class Pingresp(msgspec.Struct, frozen=True, gc=False):
    """The server is alive: the answer to PINGREQ."""


class Disconnect(msgspec.Struct, frozen=True, gc=False):
    """The last packet; a server sends it in 5.0 only."""

    reason_code: int = 0
    properties: Properties | None = None


class Auth(msgspec.Struct, frozen=True, gc=False):
    """A step of enhanced authentication, 5.0 only."""

    reason_code: int = 0
    properties: Properties | None = None


Packet: TypeAlias = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
