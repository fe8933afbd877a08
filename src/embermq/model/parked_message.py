"""A message that an application did not acknowledge, however often it was sent, and that is kept aside for it."""

from enum import IntEnum

from msgspec import Struct


class ParkedStage(IntEnum):
    """The stage of a parked message."""

    PARKED = 0
    DUE = 1
    """An operator wants it sent again."""
    UNDER_WAY = 2
    """It has its packet id, and may have been sent."""
    DELETED = 3
    """An operator has deleted it, and nobody is shown it. Of QoS 2: the client may have it, so its packet id stays."""


class ParkedState(Struct, frozen=True, gc=False):
    """All of it but the message. `number` is its own among those of the session, from 1 on; while the broker
    runs it is given once. `state` is SENT or RELEASED (`QueueState`): whether PUBREC has come."""

    generation: int
    number: int
    stage: int
    state: int
    packet_id: int
    qos: int


class ParkedMessage(Struct, frozen=True, gc=False, tag=True):
    """`record` is that of the message log without stamps (formats/log_record.py), b"" of a message whose body was lost
    before it was parked. `retain` and `identifiers` are those of the delivery; `attempts` is how often it was sent."""

    at: ParkedState
    parked_ms: int
    attempts: int
    retain: bool
    identifiers: tuple[int, ...]
    topic: str
    payload_bytes: int
    record: bytes


class ParkedChange(Struct, frozen=True, gc=False, tag=True):
    """It goes to another stage or state; nothing happens when it is gone. To `DELETED` it goes without its record."""

    at: ParkedState


class ParkedEnd(Struct, frozen=True, gc=False, tag=True):
    """It is settled, or deleted."""

    generation: int
    number: int


ParkedWrite = ParkedMessage | ParkedChange | ParkedEnd
