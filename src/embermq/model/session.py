"""What is stored of a session, and of what it holds."""

from msgspec import Struct

from embermq.model.client_type import ClientType

NEVER_EXPIRES = 0xFFFFFFFF
"""Session Expiry Interval that means: keep for ever [MQTT-3.1.2-23]."""


class SessionRow(Struct, frozen=True):
    """One persistent session.

    `generation` is new at each birth and never used again; `epoch` rises at each takeover.
    `expires_ms` is the absolute deadline while offline, 0 while connected or when it never expires. `username` is the
    user to whom it belongs, `certificate` the subject of that user's last one; "" for none.
    """

    client_id: str
    generation: int
    epoch: int
    client_type: ClientType
    username: str
    version: int
    expiry_interval_s: int
    connected: bool
    expires_ms: int
    created_ms: int
    certificate: str = ""


class SubscriptionRow(Struct, frozen=True):
    """One subscription. It matches records at offsets >= `since_offset` only.

    `topic_filter` is as the client sent it, `$share/<group>/...` included. `options` is the options byte of
    MQTT 5 (QoS, No Local, Retain As Published, Retain Handling); `identifier` is 0 when absent. `queue` is what else
    belongs to a subscription to a durable queue, in the queues' own words; "" for all others.
    """

    topic_filter: str
    options: int
    identifier: int
    since_offset: int
    queue: str = ""


class WillRow(Struct, frozen=True):
    """A will in store: `record` is an encoded log record of the message to publish, `due_ms` 0 while the client is
    connected, else the absolute time at which it is published. `username` and `certificate` are those of the client
    that left it. `since_offset`: when it is published, it is in the log from there on, and what the session's wills
    before it have become is not; -1 where that is not kept."""

    client_id: str
    delay_s: int
    record: bytes
    due_ms: int = 0
    username: str = ""
    certificate: str = ""
    since_offset: int = -1


class RetainedRow(Struct, frozen=True, gc=False):
    """The retained message of a topic: the encoded log record and its offset."""

    topic: str
    offset: int
    record: bytes
