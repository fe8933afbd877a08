"""What operations on sessions and application logs take and answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

USER_BYTES_MAX = 65_535
"""What MQTT takes as a user name."""
SESSIONS_MAX = 1_000
"""Of a page."""
SUBSCRIPTIONS_MAX = 1_000
"""Of a page."""


class SessionView(Struct, frozen=True, kw_only=True):
    """One session as it is now. Times are ISO 8601 in UTC. It belongs to `username`; `connected_as` is the user who is
    connected, whom a rule may have let in. "" is no user.

    `queued` messages are stored for it, `waiting` ones are in memory behind its window, `in_flight` ones are sent and
    not acknowledged, `receiving` are its own QoS 2 messages that it has not released. `behind` is how many records an
    APPLICATION session has not confirmed, and so may hold back; None for the others. Where application logs are in a
    store of their own, `log` is the name of the session's, and that store knows `behind` and `log_records`
    (`with_log`).
    """

    client_id: str
    type: str
    username: str
    connected_as: str
    version: str
    connected: bool
    peer: str
    kept: bool
    expiry_interval_s: int
    expires: str | None
    created: str
    subscriptions: int
    queued: int
    waiting: int
    in_flight: int
    receiving: int
    behind: int | None
    log: str = ""
    log_records: int | None = None

    def with_log(self, found: ApplicationLogView | None) -> SessionView:
        """The same session, with what its application log holds; unchanged for None."""
        return self if found is None else replace(self, behind=found.lag, log_records=found.records)


class SubscriptionView(Struct, frozen=True, kw_only=True):
    """One subscription; `topic_filter` is as the client sent it, `identifier` 0 for none."""

    topic_filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    identifier: int


class ConnectionView(Struct, frozen=True, kw_only=True):
    """The connection of a client. `connected` is an ISO 8601 time in UTC, `silent_s` how long nothing has come from the
    client, `keep_alive_s` 0 for none. `window_max` is how many messages it may have without its acknowledgement,
    `unanswered` how many of its own have none of ours, `unsent_bytes` what its socket has not taken."""

    peer: str
    listener: str
    version: str
    username: str
    connected: str
    silent_s: float
    keep_alive_s: float
    window_max: int
    packet_bytes_max: int
    unanswered: int
    unsent_bytes: int


class UnacknowledgedView(Struct, frozen=True, kw_only=True):
    """Messages of one topic that are sent or wait in memory; `offset` of the log's `partition` is the oldest one's."""

    topic: str
    partition: int
    offset: int
    messages: int


class SessionDetail(Struct, frozen=True, kw_only=True):
    """A session with its connection, None while its client is away, and its first 1,000 subscriptions by filter;
    `queues` are the durable queues of which it is a consumer, 1,000 at most. `unacknowledged` is of a kept DEVICE
    session: at most 100 topics."""

    session: SessionView
    connection: ConnectionView | None
    subscriptions: Sequence[SubscriptionView]
    queues: Sequence[str]
    unacknowledged: Sequence[UnacknowledgedView]


class PinView(Struct, frozen=True, kw_only=True):
    """A reader of the message log: nothing from `next_offset` of the partition on leaves the log before it has it."""

    reader: str
    partition: int
    next_offset: int
    behind: int


class ApplicationLogView(Struct, frozen=True, kw_only=True):
    """The log of an APPLICATION client, or of a shared filter, in a store of its own. `client_id` is "" for the latter,
    `groups` the consumer groups that read it. `lag` is how many of its records are not acknowledged, by the
    slowest of its readers; None when nobody reads it and nobody ever will. Where `problem` says why the log cannot be
    looked at, `records` and `lag` are None."""

    name: str
    client_id: str
    groups: Sequence[str]
    records: int | None
    lag: int | None
    problem: str = ""


class RestoredLog(Struct, frozen=True):
    """`generation`: nobody up to it reads the log; None: it is there again."""

    generation: int | None


class NoRequest(Struct, frozen=True):
    """Nothing need be said."""


class ListClientsRequest(Struct, frozen=True, kw_only=True):
    """A page of clients, those that all filters fit."""

    after: Annotated[str, Meta(description="Client ids behind this one")] = ""
    limit: Annotated[int, Meta(ge=1, le=SESSIONS_MAX)] = SESSIONS_MAX
    match: Annotated[str, Meta(max_length=300, description="Shell wildcards over client ids")] = "*"
    user: Annotated[
        str, Meta(max_length=USER_BYTES_MAX, description="To whom the session belongs, or who is connected")
    ] = ""
    connected: bool | None = None
    type: Literal["device", "application"] | None = None


class ClientRequest(Struct, frozen=True, kw_only=True):
    """Asks for one client by its id."""

    client_id: str = ""


class ListSubscriptionsRequest(ClientRequest, frozen=True, kw_only=True):
    """A page of a client's subscriptions."""

    after: Annotated[str, Meta(description="Filters behind this one")] = ""
    limit: Annotated[int, Meta(ge=1, le=SUBSCRIPTIONS_MAX)] = SUBSCRIPTIONS_MAX


class GiveRequest(ClientRequest, frozen=True, kw_only=True):
    """To whom the client's session belongs from now on."""

    user: str = ""

    def __post_init__(self) -> None:
        if not self.user or "\0" in self.user or len(self.user.encode()) > USER_BYTES_MAX:
            raise ValueError(f"a user name has 1 to {USER_BYTES_MAX} bytes in UTF-8, and no U+0000")


class LogsRequest(Struct, frozen=True, kw_only=True):
    """Application logs by name."""

    name: tuple[str, ...] = ()


class RestoreRequest(Struct, frozen=True, kw_only=True):
    """Asks for one application log by the topic that holds it."""

    topic: str
