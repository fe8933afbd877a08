"""Settings of APPLICATION delivery; composed by app into the broker's one schema (section `application`)."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

KIB = 1024
GIB = 1024**3


class ApplicationSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an application log is called, kept and read for its client, and what becomes of what the client does not
    acknowledge. What begins with `log_` is for logs in a Kafka, and holds for those that are made from then on."""

    client_id_validation: bool = True
    """On: the log of a client whose id has other characters than letters and digits is named by the SHA-256 of the id.
    Off: such an APPLICATION client is refused, with 0x85, in 3.x with return code 2."""
    shared_topic_validation: bool = True
    """The same for the filters of shared subscriptions, whose levels are letters and digits, `#` or `+`. Off: SUBSCRIBE
    of such a filter is refused; subscriptions that are there stay."""
    shared_partitions: Annotated[int, Meta(ge=1, le=1_000)] = 8
    """Partitions of the log of a shared filter when it is made; it keeps them. So many members of a group have
    something to do. The order of an MQTT topic holds in its partition."""
    log_replicas: Annotated[int, Meta(ge=0, le=32)] = 0
    """Copies of a log; 0 is as many as `kafka.replication_factor` says."""
    log_retention_hours: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.0
    """Kafka deletes messages of a log that are older, also those that the client has not read: they are lost to it. 0:
    what is not read stays."""
    log_retention_bytes: Annotated[int, Meta(ge=0, le=2**62)] = 0
    """Kafka deletes the oldest messages of a log that is larger, in each of its partitions, read or not. 0: without
    limit."""

    max_poll_records: Annotated[int, Meta(ge=1, le=65_535)] = 200
    """Messages of a pack: read at a time."""
    poll_interval_ms: Annotated[int, Meta(ge=1, le=60_000)] = 20
    """How often the log is looked at when it had nothing new."""
    overtaking_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 100_000
    """So many messages may be sent behind one that is not acknowledged; then the client's log is not read on until that
    one is. With a log in Kafka."""
    pack_timeout_s: Annotated[float, Meta(ge=0.1, le=86_400)] = 20.0
    """How long the messages of a pack may wait for their acknowledgements."""
    ack_strategy: Literal["retry-all", "skip-all"] = "retry-all"
    """After that time: `retry-all` sends them again, an MQTT 5 client when it has come again, which it is sent away
    for; `skip-all` goes on without them."""
    retries: Annotated[int, Meta(ge=0, le=1_000_000)] = 3
    """How often a message is sent again; after that it is parked (`embermq sessions parked`). 0 = without end."""
    parked_max: Annotated[int, Meta(ge=0, le=30_000)] = 10_000
    """Messages that are parked for one client; while there are as many, others are sent again without end."""
    write_and_flush: bool = False
    """Whether each message is handed to the network by itself."""
    buffered_msg_count: Annotated[int, Meta(ge=1, le=65_535)] = 10
    """Otherwise after so many, and at the end of a pack."""
    high_water_bytes: Annotated[int, Meta(ge=KIB, le=GIB)] = 1_280 * KIB
    """Bytes waiting for a client's socket above which its logs are not read; other clients have
    `mqtt.write_buffer_bytes_max`."""
    low_water_bytes: Annotated[int, Meta(ge=0, le=GIB)] = 640 * KIB
    """They are read again when so few are left; less than `high_water_bytes`."""
    replay_rate: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    """Messages a second from its logs to one client, as many at once after a quiet second; with less than come in, the
    client falls behind for ever. 0 = no limit."""


def check_settings(settings: ApplicationSettings) -> None:
    """Raises ValueError for what no single value shows."""
    if settings.low_water_bytes >= settings.high_water_bytes:
        raise ValueError(
            f"application.low_water_bytes: {settings.low_water_bytes} is not less than "
            f"application.high_water_bytes, {settings.high_water_bytes}"
        )
