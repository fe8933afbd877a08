"""Settings of the MQTT behaviour; composed by app into the broker's one schema (section `mqtt`)."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from embermq.routing.shared_choice import SharedStrategy
from embermq.sessions.listener_terms import VersionName

Feature = Literal["retain", "wildcards", "shared", "empty-client-ids", "long-ids-3.1"]


class MqttSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client may ask for, and how much the broker keeps in memory for it."""

    packet_bytes_max: Annotated[int, Meta(ge=20, le=268_435_460)] = 1024 * 1024 + 64 * 1024
    """The largest packet taken, header included; told to v5 clients as Maximum Packet Size [MQTT-3.2.2-15]. By default
    a payload of 1 MiB fits in, with 64 KiB for its topic and properties."""
    payload_bytes_max: Annotated[int, Meta(ge=0, le=268_435_455)] = 0
    """The largest payload that clients may publish; a larger one is refused with 0x97, a v3.x client is disconnected, a
    message of QoS 0 is dropped. 0 = no limit but the packet's."""
    protocol_versions: Annotated[tuple[VersionName, ...], Meta(min_length=1)] = ("3.1", "3.1.1", "5.0")
    """Versions of MQTT that are accepted: `3.1`, `3.1.1`, `5.0`. Clients of others are refused with 0x84,
    return code 1 before v5."""
    receive_maximum: Annotated[int, Meta(ge=1, le=65_535)] = 1_024
    """QoS 1 and 2 messages that a v5 client may send without an acknowledgement, else 0x93 [MQTT-3.3.4-7]."""
    inflight_max: Annotated[int, Meta(ge=1, le=65_535)] = 1_024
    """QoS 1 and 2 messages in flight to one client, even when it allows more [MQTT-3.3.4-9]."""
    keep_alive_max_s: Annotated[int, Meta(ge=1, le=65_535)] = 65_535
    """A v5 client that asks for more, or for none, is told this one [MQTT-3.1.2-21]; 65535 changes nothing."""
    session_expiry_max_s: Annotated[int, Meta(ge=0, le=4_294_967_295)] = 4_294_967_295
    """Sessions are kept at most this long after the connection; 4294967295 = for ever [MQTT-3.1.2.11.2]."""
    subscriptions_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 20_000
    """Subscriptions of one session, which may take 32 MiB of memory: 1,000 bytes each, and the text of the filter
    twice, three times of a shared one. One more is refused with 0x97 in SUBACK, 0x80 before v5."""
    subscriptions_bytes_total_max: Annotated[int, Meta(ge=0, le=1024**4)] = 0
    """Memory of the subscriptions of all sessions, counted in the same way, of which those of one user may take half;
    those without a user name count as one. 0 = a quarter of the memory of the machine, or of what the process may
    have."""
    sessions_user_max: Annotated[int, Meta(ge=0, le=100_000_000)] = 0
    """Kept sessions of one user; a CONNECT that needs one more is refused with 0x97, return code 3 before v5. Those
    without a user name count as one. 0 = half of what there may be in all."""
    sessions_total_max: Annotated[int, Meta(ge=0, le=100_000_000)] = 0
    """Kept sessions in all; refused in the same way. 0 = as many as take a quarter of that memory, 2 KiB each."""
    publish_rate_max: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """Messages a second that one client may publish, as many at once after a quiet second. A v5 client is answered
    0x97, its QoS 0 messages are dropped; of a 3.x client nothing is read until that has evened out. 0 = no limit."""
    publish_rate_total_max: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    """The same for all clients together."""
    sys_interval_s: Annotated[int, Meta(ge=0, le=86_400)] = 10
    """How often the topics below `$SYS/broker` are brought up to date; 0 = there are none."""
    topic_alias_maximum: Annotated[int, Meta(ge=0, le=65_535)] = 32
    """Topic aliases that a v5 client may set up towards us, and that we set up towards one that allows as many; 0 =
    none [MQTT-3.2.2-17] [MQTT-3.1.2-26]."""
    max_qos: Annotated[int, Meta(ge=0, le=2)] = 2
    """The highest QoS for publishing and subscribing; told to v5 clients [MQTT-3.2.2-9]."""
    unavailable: tuple[Feature, ...] = ()
    """Features that are off: `retain`, where the connection of who asks for it ends with 0x9A [MQTT-3.2.2-14];
    `wildcards`, filters with + and #, and `shared`, those that begin with $share/, which are refused with 0xA2 and
    0x9E; `empty-client-ids`, leaving the client id to us [MQTT-3.1.3-6]; `long-ids-3.1`, client ids of more than the 23
    characters that v3.1 allows, refused with return code 2."""
    retained_bytes_max: Annotated[int, Meta(ge=1024 * 1024, le=1024**4)] = 1024**3
    """Bytes of all retained messages, with their properties and 512 more a level of a topic; past it a message that
    would add to them is refused with 0x97."""
    shared_strategy: SharedStrategy = "round-robin"
    """Which member of a shared subscription gets a message: by turns; the same one for a topic as long as nobody comes
    or goes; or the one with the fewest messages unacknowledged."""
    validate_payload_format: bool = False
    """Refuse, with 0x99, payloads that are announced as UTF-8 and are not [MQTT-3.3.2-4]."""
    server_reference: Annotated[str, Meta(max_length=1024)] = ""
    """Another broker: v5 clients are sent there, with 0x9C, when this one stops; empty = none [MQTT 5.0, 4.11]."""
    response_information: Annotated[str, Meta(max_length=1024)] = ""
    """Told to v5 clients that ask for Response Information, %c being their client id; empty = none."""
    slow_reader_s: Annotated[float, Meta(ge=0, le=86_400)] = 60.0
    """A client that leaves 1 MiB unread for so long is sent away with 0x97; a kept session stays. 0 = never."""
    queued_bytes_max: Annotated[int, Meta(ge=0, le=1024 * 1024 * 1024)] = 16 * 1024 * 1024
    """Bytes of the messages that wait in memory for one client's window, 1,000 at most, with their topics and
    properties. Past either, what is for a kept session is stored, else dropped."""
