"""Settings of the MQTT behaviour; composed by app into the broker's one schema (section `mqtt`)."""

from typing import Annotated

from msgspec import Meta, Struct


class MqttSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client may ask for, and how much the broker keeps in memory for it."""

    packet_bytes_max: Annotated[int, Meta(ge=256, le=268_435_460)] = 1024 * 1024
    """The largest packet taken, header included; told to v5 clients as Maximum Packet Size [MQTT-3.2.2-15]."""
    receive_maximum: Annotated[int, Meta(ge=1, le=65_535)] = 1_024
    """QoS 1 and 2 messages that a client may have unacknowledged towards us [MQTT-3.3.4-9]."""
    inflight_max: Annotated[int, Meta(ge=1, le=65_535)] = 1_024
    """QoS 1 and 2 messages unacknowledged towards one client, also when it allows more [MQTT-3.3.4-9]."""
    keep_alive_max_s: Annotated[int, Meta(ge=1, le=65_535)] = 65_535
    """A v5 client that asks for more, or for none, is told this one [MQTT-3.1.2-21]; 65535 changes nothing."""
    session_expiry_max_s: Annotated[int, Meta(ge=0, le=4_294_967_295)] = 4_294_967_295
    """Sessions are kept at most this long after the connection; 4294967295 = for ever [MQTT-3.1.2.11.2]."""
    topic_levels_max: Annotated[int, Meta(ge=1, le=65_535)] = 128
    """Levels of a topic or filter, counted by their slashes."""
    topic_bytes_max: Annotated[int, Meta(ge=1, le=65_535)] = 4_096
    """Bytes of a topic or filter in UTF-8."""
    topic_alias_maximum: Annotated[int, Meta(ge=0, le=65_535)] = 0
    """Topic aliases that a v5 client may set up towards us; 0 = none [MQTT-3.2.2-17]."""
    max_qos: Annotated[int, Meta(ge=0, le=2)] = 2
    """The highest QoS for publishing and subscribing; told to v5 clients [MQTT-3.2.2-9]."""
    write_buffer_bytes_max: Annotated[int, Meta(ge=64 * 1024, le=1024 * 1024 * 1024)] = 1024 * 1024
    """Bytes waiting for one socket, above which no more is handed to it."""
    queued_messages_max: Annotated[int, Meta(ge=0, le=1_000_000)] = 1_000
    """Messages that wait in memory for one client's window."""
