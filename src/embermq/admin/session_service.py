"""The façade of sessions: what the broker tells of them, and what an operator may do to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace


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
        """With what its log holds."""
        return self if found is None else replace(self, behind=found.lag, log_records=found.records)


class SubscriptionView(Struct, frozen=True, kw_only=True):
    """One subscription; `topic_filter` is as the client sent it, `identifier` 0 for none."""

    topic_filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    identifier: int


class SessionDetail(Struct, frozen=True, kw_only=True):
    """A session with its subscriptions."""

    session: SessionView
    subscriptions: Sequence[SubscriptionView]


class PinView(Struct, frozen=True, kw_only=True):
    """A reader of the message log: nothing from `next_offset` on leaves the log before it has it."""

    reader: str
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


class LateLogView(Struct, frozen=True, kw_only=True):
    """`logs` were made or found behind the number that was asked for; `number` is for the next question."""

    number: int
    logs: Sequence[str]


class LogsRefused(Exception):
    """Application logs cannot be told of: why."""


class SessionService(Protocol):
    """Implemented in app; called on the event loop. Reading answers from memory."""

    def sessions(self, after: str, limit: int) -> Sequence[SessionView]:
        """Up to `limit` sessions whose client id sorts behind `after`, in that order."""
        ...

    def session(self, client_id: str) -> SessionDetail | None:
        """One of them; None when there is none of that id."""
        ...

    def pins(self) -> Sequence[PinView]:
        """Who reads the message log, furthest behind first."""
        ...

    def disconnect(self, client_id: str) -> bool | None:
        """End the client's connection with 0x98; a kept session stays. False when it has none, None when there is no
        such session."""
        ...

    async def delete(self, client_id: str) -> bool:
        """End session and connection, queue and subscriptions included; returns when that is durable. False when there
        is no such session."""
        ...

    async def give(self, client_id: str, username: str) -> bool | None:
        """From now on the session belongs to this user; returns when that is durable. False when it is not kept, None
        when there is no such session."""
        ...

    async def application_logs(self) -> Sequence[ApplicationLogView]:
        """Every application log that is kept in a store of its own, by name. Raises LogsRefused."""
        ...

    async def clean_application_logs(self, names: Sequence[str]) -> Sequence[str]:
        """Delete those that nobody reads; returns which they were. Raises LogsRefused."""
        ...

    async def restore_application_log(self, name: str) -> int | None:
        """The pipeline has a record for a log that is not there: make it again and return None; or, when nobody wants
        it, the newest session generation there has been. Raises LogsRefused."""
        ...

    async def restore_missing_application_logs(self) -> Sequence[str]:
        """For the pipeline: make every log again that is wanted and not there; returns which they were. Raises
        LogsRefused."""
        ...

    def late_application_logs(self, since: int) -> LateLogView:
        """For the pipeline: the logs that were made or found lately, and not deleted by the broker. Raises
        LogsRefused."""
        ...
