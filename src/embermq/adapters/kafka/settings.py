"""Settings of the message log in Kafka; composed by app into the broker's one schema (section `kafka`)."""

from typing import Annotated

from msgspec import Meta, Struct


class KafkaSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How Kafka is spoken to when `stores.log` names one; see [stores](stores.md)."""

    prefix: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]{1,160}$")] = "embermq"
    """What the names of all topics and groups begin with."""
    adopt_log: bool = False
    """Go on with a message log that this data directory does not know: that of a data directory that was lost, or a
    topic that was restored from a copy. No other broker may be using it."""
    replication_factor: Annotated[int, Meta(ge=0, le=32)] = 0
    """Copies of each partition when the topic is made; 0 is what the cluster has for new topics."""
    min_insync_replicas: Annotated[int, Meta(ge=0, le=32)] = 0
    """So many of them must have a message before it is acknowledged, set when the topic is made; 0 is the
    cluster's."""
    request_timeout_s: Annotated[float, Meta(ge=1, le=600)] = 10.0
    """How long one question to Kafka may take; a start waits three times as long. A message that is to be stored waits
    without limit."""

    @property
    def start_timeout_s(self) -> float:
        """How long a start waits for Kafka, which may be starting too."""
        return 3 * self.request_timeout_s


def check_settings(settings: KafkaSettings) -> None:
    """Raise ValueError, naming the setting, for limits that contradict one another."""
    replicas = settings.replication_factor
    if replicas and settings.min_insync_replicas > replicas:
        raise ValueError(
            f"kafka.min_insync_replicas: {settings.min_insync_replicas} is more than kafka.replication_factor, "
            f"{replicas}: nothing could ever be acknowledged"
        )
    if settings.prefix in (".", ".."):
        raise ValueError(f"kafka.prefix: {settings.prefix!r} is no name")
