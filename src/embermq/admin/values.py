"""What operations take and answer on the broker and its cluster, messages, what is parked, replays, rules and bans.

What operations on parked messages take and answer: messages that applications did not acknowledge, however often
they were sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Protocol

from msgspec import UNSET, Meta, Struct, UnsetType

from embermq.admin.queue_values import Moment
from embermq.admin.session_values import ClientRequest
from embermq.ports.membership import NodeView

HISTORY_S = 300
"""How far the figures go back."""


class BrokerFigures(Struct, frozen=True, kw_only=True):
    """The broker at one moment, `time` (ISO 8601, UTC). What ends in `_per_s` is the mean since the moment before,
    about a second; the quantiles are of what was done in that time, from a histogram, None when nothing was.

    `acknowledged` is how long messages of QoS 1 and 2 waited for their answer, `commit` how long the store took for a
    tick. `dropped` were for subscribers, `refused` from publishers. `queue_depth` is of all durable queues, in
    messages; `pipeline_lag` of the query that is furthest behind, 0 without one. `log_bytes` are bodies in the message
    log."""

    time: str
    connections: int
    sessions: int
    subscriptions: int
    retained: int
    messages_in_per_s: float
    messages_out_per_s: float
    bytes_in_per_s: float
    bytes_out_per_s: float
    connects_per_s: float
    dropped_per_s: float
    refused_per_s: float
    acknowledged_p50_ms: float | None
    acknowledged_p99_ms: float | None
    commit_p50_ms: float | None
    commit_p99_ms: float | None
    queues: int
    queue_depth: int
    parked: int
    pipeline_lag_messages: int
    pipeline_lag_s: float
    log_records: int
    log_bytes: int
    memory_bytes: int
    cpu_percent: float


class BrokerView(Struct, frozen=True, kw_only=True):
    """The broker as a whole. `parts` are what `/ready` tells, `places` where log, sessions and accounts are, without
    credentials; `listeners` are addresses by kind; `totals` count since the start."""

    version: str
    python: str
    node: str
    started: str
    uptime_s: float
    ready: bool
    parts: Mapping[str, str]
    listeners: Mapping[str, Sequence[str]]
    places: Mapping[str, str]
    durability: str
    has_queues: bool
    connections_max: int
    now: BrokerFigures
    totals: Mapping[str, int]


class StreamRequest(Struct, frozen=True, kw_only=True):
    """Which of the live events are wanted."""

    figures: bool = True
    clients: bool = True


class NodeFigures(Struct, frozen=True, kw_only=True):
    """A node that serves, as it is now. `connections` are those of its slot's clients, by whichever node they came,
    and of members from other slots; `sessions` and `queues` are its slot's. `lag_messages`: records of its slot's log
    that `lagging` has not taken, the slowest of the pipeline's queries and the nodes of other slots, "" when nobody
    reads. `stores` are the servers that it needs, as `/ready` names them: "ok", or why one cannot be reached."""

    node: str
    connections: int
    sessions: int
    queues: int
    lag_messages: int
    lagging: str
    ready: bool
    stores: Mapping[str, str]


class NodeStatus(NodeView, frozen=True, kw_only=True):
    """`figures` are None of a node that stands by, and of one that does not answer."""

    figures: NodeFigures | None = None


class ClusterStatus(Struct, frozen=True, kw_only=True):
    """See `ClusterView`."""

    name: str
    place: str
    nodes: Sequence[NodeStatus]


RETAINED_MAX = 1_000
"""Of a page."""
PUBLISH_BYTES_MAX = 1024 * 1024
"""Of a request."""

Topic = Annotated[str, Meta(min_length=1, max_length=65_535)]


class RetainedView(Struct, frozen=True, kw_only=True):
    """A retained message without its payload. Times are ISO 8601 in UTC; `publisher` is a client id, "" where the
    broker or an operator has published it."""

    topic: str
    qos: int
    payload_bytes: int
    publisher: str
    published: str | None
    expires: str | None


class RetainedDetail(Struct, frozen=True, kw_only=True):
    """With the message itself; `payload` is text, or `payload_base64` where it is not UTF-8."""

    about: RetainedView
    properties: dict[str, object]
    payload: str | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET


class ListRetainedRequest(Struct, frozen=True, kw_only=True):
    """A page of retained messages."""

    filter: Annotated[str, Meta(description="A topic filter of MQTT")] = "#"
    after: Annotated[str, Meta(description="Topics behind this one")] = ""
    limit: Annotated[int, Meta(ge=1, le=RETAINED_MAX)] = RETAINED_MAX


class TopicRequest(Struct, frozen=True, kw_only=True):
    """The retained message of one topic."""

    topic: Topic


class PublishProperties(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Those of MQTT 5 that travel with a message."""

    payload_format_indicator: Annotated[int, Meta(ge=0, le=1)] | None = None
    message_expiry_interval: Annotated[int, Meta(ge=0, le=0xFFFF_FFFF, description="Seconds")] | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data_base64: str | None = None
    user_properties: tuple[tuple[str, str], ...] = ()


class PublishRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message: `payload` is text, or `payload_base64` is given in its place."""

    topic: Topic
    payload: str = ""
    payload_base64: str = ""
    qos: Annotated[int, Meta(ge=0, le=2)] = 1
    retain: bool = False
    properties: PublishProperties = PublishProperties()

    def __post_init__(self) -> None:
        if self.payload and self.payload_base64:
            raise ValueError("payload and payload_base64: only one of them may be given")


class PublishOutcome(Struct, frozen=True, kw_only=True):
    """What became of a message: `stored` is False for QoS 0 that is not retained, and where `told` says why a queue
    has taken it and not enqueued it."""

    stored: bool
    told: str = ""


BEFORE_ALL = -1
PAGE_MAX = 500
PAGE_BYTES_MAX = 4 * 1024 * 1024
"""Of messages as they are answered: a page ends behind the one that reaches it."""
PRUNED_AT_ONCE = 5_000
"""Deleted in one transaction: the pipeline waits for so long to go on writing."""

Slot = Annotated[int, Meta(ge=0, description="Of a cluster with several slots: whose messages")] | None


class ArchivedMessage(Struct, frozen=True, kw_only=True):
    """A message at its offset in the log. Times are ISO 8601 in UTC; `payload` is text, or `payload_base64` where it is
    not UTF-8."""

    offset: int
    topic: str
    accepted: str
    expires: str | None
    qos: int
    retain: bool
    publisher: str
    payload: str | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET
    properties: dict[str, object] | UnsetType = UNSET


class ListArchivedRequest(Struct, frozen=True, kw_only=True):
    """A page of the messages of one topic."""

    topic: Topic
    after: Annotated[int, Meta(ge=BEFORE_ALL, le=2**63 - 1, description="Offsets behind this one")] = (
        BEFORE_ALL
    )
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 100
    slot: Slot = None


class OlderRequest(Struct, frozen=True, kw_only=True):
    """Messages that the broker accepted before a time."""

    before: Moment
    slot: Slot = None


class ArchivedCount(Struct, frozen=True):
    """How many it is true of, or was done to."""

    messages: int


class ArchiveDesk(Protocol):
    """The archive; implemented in app, by what commands use too. Raises OperationRefused where there is none (yet),
    RequestRefused, and StoreError when it does not answer."""

    async def page(self, asked: ListArchivedRequest) -> Sequence[ArchivedMessage]:
        """In log order. Fewer than `limit` where there are no more, or when they have reached
        PAGE_BYTES_MAX."""
        ...

    async def count(self, asked: OlderRequest) -> ArchivedCount:
        """Reads the whole archive."""
        ...

    async def prune(self, asked: OlderRequest) -> ArchivedCount:
        """Delete up to PRUNED_AT_ONCE of them; fewer when no other one is left."""
        ...


Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""As wide as stores have them."""


class ParkedClientView(Struct, frozen=True, kw_only=True):
    """A client that has `messages` here, `parked` of which nobody has had sent again."""

    client_id: str
    messages: int
    parked: int


class ParkedView(Struct, frozen=True, kw_only=True):
    """One message. Times are ISO 8601 in UTC. `state` is "parked", "due" when it is to be sent again, or "under way";
    `received`: the client has it (PUBREC) and has not completed the exchange."""

    number: int
    topic: str
    qos: int
    retain: bool
    payload_bytes: int
    parked: str
    attempts: int
    state: str
    received: bool


class ParkedDetail(Struct, frozen=True, kw_only=True):
    """With the message itself; `payload` is text, or `payload_base64` where it is not UTF-8; neither when the body was
    lost before it was parked."""

    about: ParkedView
    publisher: str
    accepted: str | None
    expires: str | None
    properties: dict[str, object]
    payload: str | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET


class ParkedCount(Struct, frozen=True):
    """How many it was done to."""

    messages: int


class ParkedPageRequest(ClientRequest, frozen=True, kw_only=True):
    """A page of a client's messages."""

    after: Annotated[Number, Meta(description="Numbers behind this one")] = 0
    limit: Annotated[int, Meta(ge=1, le=500)] = 500


class ParkedRequest(ClientRequest, frozen=True, kw_only=True):
    """One of a client's messages."""

    number: Number


class ParkedNumbersRequest(ClientRequest, frozen=True, kw_only=True):
    """A client's messages by their numbers; all of them when none is given."""

    number: tuple[Number, ...] = ()


MESSAGES_MAX = 1_000
PIECE_BYTES_MAX = 400 * 1024 * 1024
"""Of a request: the largest MQTT packet in Base64."""


class PieceAsked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages `first` and on of a replay, as records of the log; null is passed over. `client` is the APPLICATION
    client that they are for alone, "" for whoever their topics lead to."""

    first: Annotated[int, Meta(ge=0)]
    messages: Annotated[tuple[bytes | None, ...], Meta(max_length=MESSAGES_MAX)] = ()
    client: str = ""


class ReplayRequest(PieceAsked, frozen=True, kw_only=True):
    """The same of one replay."""

    replay: Annotated[str, Meta(min_length=1, max_length=64)]


class ReplayTaken(Struct, frozen=True, kw_only=True):
    """Messages below `next` are in the log. `refused` says why the next one is not, "" when all were taken; where it
    `passes` the same one may be taken later."""

    next: int
    refused: str = ""
    passes: bool = False


RowNumber = Annotated[int, Meta(ge=0, le=1 << 62)]
Partition = Annotated[int, Meta(ge=0, lt=1 << 16)]


class RuleMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message of a rule, as a record of the log."""

    number: RowNumber
    record: bytes


class RuleFeedAsked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages that come of a partition of the log, in the order of their numbers, and below which number all is done.
    `begin` is where partitions start of which nothing is known, by partition. Without any of it nothing is changed."""

    begin: dict[Partition, RowNumber] = {}
    partition: Partition = 0
    end: RowNumber = 0
    messages: Annotated[tuple[RuleMessage, ...], Meta(max_length=MESSAGES_MAX)] = ()


class RuleFeedRequest(RuleFeedAsked, frozen=True, kw_only=True):
    """The same of one rule."""

    rule: Annotated[str, Meta(min_length=1, max_length=32)]


class RuleFeedTaken(Struct, frozen=True, kw_only=True):
    """Messages below `next` are in the log, by the partition that they come of; none for a rule that has not begun.
    `refused` says why the next one is not, "" when all were taken; where it `passes` the same one may be taken later.
    `is_of_queue`: the queue that it is for takes none at all."""

    next: dict[int, int]
    refused: str = ""
    passes: bool = False
    is_of_queue: bool = False


NAME_MAX = 32
SQL_MAX = 16_384


class PipelineRuleAsked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule, as the configuration has it, but for what names files of the broker's machine or addresses of others."""

    sql: Annotated[str, Meta(min_length=1, max_length=SQL_MAX)]
    to: Literal["mqtt", "queue", "lake"] = "mqtt"
    queue: str = ""
    every: str = ""
    over: str = ""
    qos: Literal[1, 2] = 1
    sees_rules: bool = False


class PutPipelineRuleRequest(PipelineRuleAsked, frozen=True, kw_only=True):
    """The same under a name."""

    rule: Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]


class PipelineRuleRequest(Struct, frozen=True, kw_only=True):
    """Asks for one rule by its name."""

    rule: Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]


class PipelineRuleView(Struct, frozen=True, kw_only=True):
    """A rule. `target` is the queue, the address without its password or the table that its rows go to; else `to`.
    `is_of_api`: it was put over this API, and is changed over it; the others are in the configuration."""

    name: str
    sql: str
    to: str
    target: str
    queue: str
    every: str
    over: str
    qos: int
    sees_rules: bool
    is_of_api: bool


REASON_MAX = 200


class BanView(Struct, frozen=True, kw_only=True):
    """Who may not come in, and until when: None until that is lifted. Times are ISO 8601 in UTC."""

    kind: str
    value: str
    since: str
    until: str | None
    reason: str


class BanRequest(Struct, frozen=True, kw_only=True):
    """One ban. `value` is a client id, a user, or an address or network such as 10.0.0.0/8."""

    kind: Literal["client_id", "user", "address"]
    value: Annotated[str, Meta(min_length=1, max_length=65_535)]


class BanAsked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`lasts` is a duration such as 15m, 12h or 30d, "" until it is lifted. `even_own`: also what has the address that
    asks."""

    lasts: str = ""
    reason: Annotated[str, Meta(max_length=REASON_MAX)] = ""
    even_own: bool = False


class PutBanRequest(BanRequest, frozen=True, kw_only=True):
    """A ban, or another time for one. `caller` is the address that asks, "" for the broker's own socket."""

    lasts: str = ""
    reason: Annotated[str, Meta(max_length=REASON_MAX)] = ""
    even_own: bool = False
    caller: str = ""


class BanPut(Struct, frozen=True, kw_only=True):
    """The ban, and how many clients of the node that was asked were sent away."""

    ban: BanView
    disconnected: int


class ListBansRequest(Struct, frozen=True, kw_only=True):
    """A page of bans."""

    after_kind: str = ""
    after: Annotated[str, Meta(description="Values behind this one")] = ""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1_000
