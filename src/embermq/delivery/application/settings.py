"""Settings of APPLICATION delivery; composed by app into the broker's one schema (section `application`)."""

from typing import Annotated, Literal

from msgspec import Meta, Struct


class ApplicationSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an application log is called, kept and read for its client, and what becomes of what the client does not
    acknowledge."""

    client_id_validation: bool = True
    """On: the log of a client whose id has other characters than letters and digits is named by the SHA-256 of the id.
    Off: such an APPLICATION client is refused, with 0x85, in 3.x with return code 2."""
    shared_topic_validation: bool = True
    """The same for the filters of shared subscriptions, whose levels are letters and digits, `#` or `+`. Off: SUBSCRIBE
    of such a filter is refused; subscriptions that are there stay."""
    shared_partitions: Annotated[int, Meta(ge=1, le=1_000)] = 8
    """Partitions of the log of a shared filter when it is made; it keeps them. So many members of a group have
    something to do. The order of an MQTT topic holds in its partition."""

    max_poll_records: Annotated[int, Meta(ge=1, le=65_535)] = 200
    """Messages that are read at a time, a pack."""
    pack_timeout_s: Annotated[float, Meta(ge=0.1, le=86_400)] = 20.0
    """How long the messages of a pack may wait for their acknowledgements."""
    ack_strategy: Literal["retry-all", "skip-all"] = "retry-all"
    """After that time: `retry-all` sends them again (an MQTT 5 client is disconnected, and gets them when it
    returns); `skip-all` skips them."""
    retries: Annotated[int, Meta(ge=0, le=1_000_000)] = 3
    """How often a message is sent again; after that it is parked (`embermq sessions parked`), 10,000 of one client at
    most. 0 = without end."""
    write_and_flush: bool = False
    """Whether each message is handed to the network by itself."""
    buffered_msg_count: Annotated[int, Meta(ge=1, le=65_535)] = 10
    """Otherwise after so many, and at the end of a pack."""
    replay_rate: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    """Messages a second from its logs to one client, as many at once after a quiet second; below the incoming
    rate the client falls behind for ever. 0 = no limit."""
