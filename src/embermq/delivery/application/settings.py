"""Settings of APPLICATION delivery; composed by app into the broker's one schema (section `application`)."""

from typing import Annotated

from msgspec import Meta, Struct


class ApplicationSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an application log is called, kept and read for its client. What begins with `log_` is for logs in a Kafka,
    and holds for those that are made from then on."""

    client_id_validation: bool = True
    """On: the log of a client whose id has other characters than letters and digits is named by the SHA-256 of the id.
    Off: such an APPLICATION client is refused, with 0x85, in 3.x with return code 2."""
    shared_topic_validation: bool = True
    """The same for the filters of shared subscriptions, whose levels are letters and digits, `#` or `+`. Off: SUBSCRIBE
    of such a filter is refused."""
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
