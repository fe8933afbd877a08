"""What an audit is asked for, and what it has found. No Spark in here."""

from msgspec import Struct


class Difference(Struct, frozen=True, kw_only=True):
    """Something that is not as it should be: at `offset` of the log, up to `until` where it is a range. `messages` says
    how many are concerned."""

    kind: str
    who: str = ""
    """The client or the queue."""
    offset: int | None = None
    until: int | None = None
    topic: str | None = None
    messages: int = 1
    note: str = ""
    slot: int | None = None
    """Of a cluster with several: in whose log."""


class ApplicationAccount(Struct, frozen=True, kw_only=True):
    """An application session that is there. All below `floor` is settled: `settled` messages were sent, says the
    broker; it was owed `owed`, of which `passed` needed no sending. `is_checked`: whether the range has its whole
    life, so that the numbers have to agree."""

    client: str
    generation: int
    floor: int
    owed: int
    passed: int
    settled: int
    deliveries: int
    is_checked: bool
    unchecked: str = ""
    """Why it is not."""


class StoredAccount(Struct, frozen=True, kw_only=True):
    """What is stored for a session besides its log: not sent, and sent without an answer."""

    client: str
    waits: int
    under_way: int


class QueueAccount(Struct, frozen=True, kw_only=True):
    """A durable queue: `accepted` in the range; what is in it now."""

    queue: str
    accepted: int
    entries: int
    delayed: int


class AcceptedByRoot(Struct, frozen=True, kw_only=True):
    """Accepted messages of one day and topic root."""

    date: str
    root: str
    messages: int
    payload_bytes: int


class OutcomeByDay(Struct, frozen=True, kw_only=True):
    """What became of the deliveries of one day to one application."""

    date: str
    client: str
    outcome: str
    messages: int


class AuditedLog(Struct, frozen=True, kw_only=True):
    """The range is [start, end) of the log `log_id`, in positions. All that is owed to sessions without a log of their
    own, and came before `dispatcher_floor`, has been delivered or is stored."""

    slot: int | None
    """Of a cluster with several: whose log it is."""
    log_id: int
    start: int
    end: int
    log_first: int
    dispatched: int
    dispatcher_floor: int


class AuditReport(Struct, frozen=True, kw_only=True):
    """Of all `logs` together. Only `floor` of an application is of its own log. `deliveries` by outcome; the first of
    `differences_count`."""

    logs: tuple[AuditedLog, ...]
    oldest: str | None
    newest: str | None
    records: int
    payload_bytes: int
    from_lake: int
    lake_compared: int
    deliveries: dict[str, int]
    applications: tuple[ApplicationAccount, ...]
    stored: tuple[StoredAccount, ...]
    queues: tuple[QueueAccount, ...]
    differences_count: int
    differences: tuple[Difference, ...]
    not_checked: tuple[str, ...] = ()
    """What it says nothing about, and why."""
    seconds: float = 0.0
