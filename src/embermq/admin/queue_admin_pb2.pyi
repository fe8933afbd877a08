import datetime

from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class QueueRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetQueueStatsRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class PurgeQueueRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class PurgeQueueResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    def __init__(self, messages: _Optional[int] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    def __init__(self, messages: _Optional[int] = ...) -> None: ...

class ListQueuesRequest(_message.Message):
    __slots__ = ("after", "limit", "match")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    MATCH_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    match: str
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ..., match: _Optional[str] = ...) -> None: ...

class ListQueuesResponse(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueStats]
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueStats, _Mapping]]] = ...) -> None: ...

class QueueStats(_message.Message):
    __slots__ = ("name", "kind", "ordering", "partitions", "depth", "messages", "delayed", "in_flight", "in_backoff", "blocked_keys", "groups", "consumers", "oldest", "oldest_age_s", "dead_letter_queue", "enqueued", "delivered", "acked", "nacked", "rejected", "purged", "retried", "dead_lettered", "dropped", "delivery_latency_s", "idle_groups", "idle_lag", "paused")
    class DeadLetteredEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class DroppedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class DeliveryLatencySEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ORDERING_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    IN_BACKOFF_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_KEYS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    OLDEST_AGE_S_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_QUEUE_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    ACKED_FIELD_NUMBER: _ClassVar[int]
    NACKED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    PURGED_FIELD_NUMBER: _ClassVar[int]
    RETRIED_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    IDLE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    IDLE_LAG_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    ordering: str
    partitions: int
    depth: int
    messages: int
    delayed: int
    in_flight: int
    in_backoff: int
    blocked_keys: int
    groups: int
    consumers: int
    oldest: _timestamp_pb2.Timestamp
    oldest_age_s: float
    dead_letter_queue: str
    enqueued: int
    delivered: int
    acked: int
    nacked: int
    rejected: int
    purged: int
    retried: int
    dead_lettered: _containers.ScalarMap[str, int]
    dropped: _containers.ScalarMap[str, int]
    delivery_latency_s: _containers.ScalarMap[str, float]
    idle_groups: int
    idle_lag: int
    paused: bool
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., ordering: _Optional[str] = ..., partitions: _Optional[int] = ..., depth: _Optional[int] = ..., messages: _Optional[int] = ..., delayed: _Optional[int] = ..., in_flight: _Optional[int] = ..., in_backoff: _Optional[int] = ..., blocked_keys: _Optional[int] = ..., groups: _Optional[int] = ..., consumers: _Optional[int] = ..., oldest: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., oldest_age_s: _Optional[float] = ..., dead_letter_queue: _Optional[str] = ..., enqueued: _Optional[int] = ..., delivered: _Optional[int] = ..., acked: _Optional[int] = ..., nacked: _Optional[int] = ..., rejected: _Optional[int] = ..., purged: _Optional[int] = ..., retried: _Optional[int] = ..., dead_lettered: _Optional[_Mapping[str, int]] = ..., dropped: _Optional[_Mapping[str, int]] = ..., delivery_latency_s: _Optional[_Mapping[str, float]] = ..., idle_groups: _Optional[int] = ..., idle_lag: _Optional[int] = ..., paused: _Optional[bool] = ...) -> None: ...

class Queue(_message.Message):
    __slots__ = ("settings", "stats", "groups")
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    settings: QueueSettings
    stats: QueueStats
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    def __init__(self, settings: _Optional[_Union[QueueSettings, _Mapping]] = ..., stats: _Optional[_Union[QueueStats, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("name", "after", "limit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    after: str
    limit: int
    def __init__(self, name: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    def __init__(self, groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("name", "lag", "in_flight", "in_backoff", "next_retry", "blocked_keys", "consumers", "idle_since", "first_sequence", "removed_at", "paused")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    IN_BACKOFF_FIELD_NUMBER: _ClassVar[int]
    NEXT_RETRY_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_KEYS_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    IDLE_SINCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REMOVED_AT_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    name: str
    lag: int
    in_flight: int
    in_backoff: int
    next_retry: _timestamp_pb2.Timestamp
    blocked_keys: int
    consumers: int
    idle_since: _timestamp_pb2.Timestamp
    first_sequence: int
    removed_at: _timestamp_pb2.Timestamp
    paused: bool
    def __init__(self, name: _Optional[str] = ..., lag: _Optional[int] = ..., in_flight: _Optional[int] = ..., in_backoff: _Optional[int] = ..., next_retry: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., blocked_keys: _Optional[int] = ..., consumers: _Optional[int] = ..., idle_since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., first_sequence: _Optional[int] = ..., removed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., paused: _Optional[bool] = ...) -> None: ...

class ListConsumersRequest(_message.Message):
    __slots__ = ("name", "after_group", "after", "limit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AFTER_GROUP_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    after_group: str
    after: str
    limit: int
    def __init__(self, name: _Optional[str] = ..., after_group: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListConsumersResponse(_message.Message):
    __slots__ = ("consumers",)
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    consumers: _containers.RepeatedCompositeFieldContainer[Consumer]
    def __init__(self, consumers: _Optional[_Iterable[_Union[Consumer, _Mapping]]] = ...) -> None: ...

class Consumer(_message.Message):
    __slots__ = ("group", "client_id", "joined", "away_until", "in_flight", "prefetch", "partitions", "concurrency")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    AWAY_UNTIL_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    group: str
    client_id: str
    joined: _timestamp_pb2.Timestamp
    away_until: _timestamp_pb2.Timestamp
    in_flight: int
    prefetch: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    concurrency: int
    def __init__(self, group: _Optional[str] = ..., client_id: _Optional[str] = ..., joined: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., away_until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., in_flight: _Optional[int] = ..., prefetch: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ..., concurrency: _Optional[int] = ...) -> None: ...

class PeekMessagesRequest(_message.Message):
    __slots__ = ("name", "after", "limit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    after: int
    limit: int
    def __init__(self, name: _Optional[str] = ..., after: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class PeekMessagesResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[PeekedMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[PeekedMessage, _Mapping]]] = ...) -> None: ...

class PeekedMessage(_message.Message):
    __slots__ = ("about", "publisher", "payload_bytes", "properties", "payload")
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    PUBLISHER_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    about: Message
    publisher: str
    payload_bytes: int
    properties: _struct_pb2.Struct
    payload: bytes
    def __init__(self, about: _Optional[_Union[Message, _Mapping]] = ..., publisher: _Optional[str] = ..., payload_bytes: _Optional[int] = ..., properties: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class ListDelayedRequest(_message.Message):
    __slots__ = ("name", "after", "limit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    after: int
    limit: int
    def __init__(self, name: _Optional[str] = ..., after: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ListDelayedResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[PeekedMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[PeekedMessage, _Mapping]]] = ...) -> None: ...

class DeleteMessageRequest(_message.Message):
    __slots__ = ("name", "message_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    message_id: str
    def __init__(self, name: _Optional[str] = ..., message_id: _Optional[str] = ...) -> None: ...

class DeleteMessageResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetMessageRequest(_message.Message):
    __slots__ = ("name", "message_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    message_id: str
    def __init__(self, name: _Optional[str] = ..., message_id: _Optional[str] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("id", "sequence", "partition", "key", "arrived", "expires", "states", "dead_letter", "visible")
    ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_FIELD_NUMBER: _ClassVar[int]
    id: str
    sequence: int
    partition: int
    key: str
    arrived: _timestamp_pb2.Timestamp
    expires: _timestamp_pb2.Timestamp
    states: _containers.RepeatedCompositeFieldContainer[Standing]
    dead_letter: DeadLetter
    visible: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., sequence: _Optional[int] = ..., partition: _Optional[int] = ..., key: _Optional[str] = ..., arrived: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expires: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., states: _Optional[_Iterable[_Union[Standing, _Mapping]]] = ..., dead_letter: _Optional[_Union[DeadLetter, _Mapping]] = ..., visible: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Standing(_message.Message):
    __slots__ = ("group", "state", "holder", "lease_until", "next_retry", "deliveries", "failures", "last_error", "first_delivered", "blocked_by", "suspect")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    LEASE_UNTIL_FIELD_NUMBER: _ClassVar[int]
    NEXT_RETRY_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    FIRST_DELIVERED_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_BY_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_FIELD_NUMBER: _ClassVar[int]
    group: str
    state: str
    holder: str
    lease_until: _timestamp_pb2.Timestamp
    next_retry: _timestamp_pb2.Timestamp
    deliveries: int
    failures: int
    last_error: str
    first_delivered: _timestamp_pb2.Timestamp
    blocked_by: str
    suspect: bool
    def __init__(self, group: _Optional[str] = ..., state: _Optional[str] = ..., holder: _Optional[str] = ..., lease_until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., next_retry: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., deliveries: _Optional[int] = ..., failures: _Optional[int] = ..., last_error: _Optional[str] = ..., first_delivered: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., blocked_by: _Optional[str] = ..., suspect: _Optional[bool] = ...) -> None: ...

class ExplainQueueResponse(_message.Message):
    __slots__ = ("reasons",)
    REASONS_FIELD_NUMBER: _ClassVar[int]
    reasons: _containers.RepeatedCompositeFieldContainer[Reason]
    def __init__(self, reasons: _Optional[_Iterable[_Union[Reason, _Mapping]]] = ...) -> None: ...

class Reason(_message.Message):
    __slots__ = ("group", "code", "text")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    group: str
    code: str
    text: str
    def __init__(self, group: _Optional[str] = ..., code: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class LetterFilter(_message.Message):
    __slots__ = ("group", "reason", "error", "message_id", "moved_after", "moved_before")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    MOVED_AFTER_FIELD_NUMBER: _ClassVar[int]
    MOVED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    group: str
    reason: str
    error: str
    message_id: str
    moved_after: _timestamp_pb2.Timestamp
    moved_before: _timestamp_pb2.Timestamp
    def __init__(self, group: _Optional[str] = ..., reason: _Optional[str] = ..., error: _Optional[str] = ..., message_id: _Optional[str] = ..., moved_after: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., moved_before: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListDeadLettersRequest(_message.Message):
    __slots__ = ("name", "filter", "after", "limit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    filter: LetterFilter
    after: str
    limit: int
    def __init__(self, name: _Optional[str] = ..., filter: _Optional[_Union[LetterFilter, _Mapping]] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListDeadLettersResponse(_message.Message):
    __slots__ = ("letters",)
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    letters: _containers.RepeatedCompositeFieldContainer[DeadLetter]
    def __init__(self, letters: _Optional[_Iterable[_Union[DeadLetter, _Mapping]]] = ...) -> None: ...

class DeadLetter(_message.Message):
    __slots__ = ("id", "message_id", "queue", "group", "reason", "deliveries", "failures", "last_error", "first_delivered", "moved")
    ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    FIRST_DELIVERED_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    id: str
    message_id: str
    queue: str
    group: str
    reason: str
    deliveries: int
    failures: int
    last_error: str
    first_delivered: _timestamp_pb2.Timestamp
    moved: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., message_id: _Optional[str] = ..., queue: _Optional[str] = ..., group: _Optional[str] = ..., reason: _Optional[str] = ..., deliveries: _Optional[int] = ..., failures: _Optional[int] = ..., last_error: _Optional[str] = ..., first_delivered: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., moved: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class RetryDeadLetterRequest(_message.Message):
    __slots__ = ("name", "id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: str
    def __init__(self, name: _Optional[str] = ..., id: _Optional[str] = ...) -> None: ...

class RetryDeadLettersRequest(_message.Message):
    __slots__ = ("name", "filter", "rate", "limit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    filter: LetterFilter
    rate: float
    limit: int
    def __init__(self, name: _Optional[str] = ..., filter: _Optional[_Union[LetterFilter, _Mapping]] = ..., rate: _Optional[float] = ..., limit: _Optional[int] = ...) -> None: ...

class RetryDeadLettersResponse(_message.Message):
    __slots__ = ("messages", "job", "held", "orphaned", "missing_queues", "crowded", "full_queues")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    ORPHANED_FIELD_NUMBER: _ClassVar[int]
    MISSING_QUEUES_FIELD_NUMBER: _ClassVar[int]
    CROWDED_FIELD_NUMBER: _ClassVar[int]
    FULL_QUEUES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    job: RetryJob
    held: int
    orphaned: int
    missing_queues: _containers.RepeatedScalarFieldContainer[str]
    crowded: int
    full_queues: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, messages: _Optional[int] = ..., job: _Optional[_Union[RetryJob, _Mapping]] = ..., held: _Optional[int] = ..., orphaned: _Optional[int] = ..., missing_queues: _Optional[_Iterable[str]] = ..., crowded: _Optional[int] = ..., full_queues: _Optional[_Iterable[str]] = ...) -> None: ...

class RedriveDeadLettersRequest(_message.Message):
    __slots__ = ("name", "ids")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., ids: _Optional[_Iterable[str]] = ...) -> None: ...

class RedriveDeadLettersResponse(_message.Message):
    __slots__ = ("put_back", "held", "gone", "orphaned", "missing_queues", "crowded", "full_queues")
    PUT_BACK_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    ORPHANED_FIELD_NUMBER: _ClassVar[int]
    MISSING_QUEUES_FIELD_NUMBER: _ClassVar[int]
    CROWDED_FIELD_NUMBER: _ClassVar[int]
    FULL_QUEUES_FIELD_NUMBER: _ClassVar[int]
    put_back: int
    held: int
    gone: int
    orphaned: int
    missing_queues: _containers.RepeatedScalarFieldContainer[str]
    crowded: int
    full_queues: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, put_back: _Optional[int] = ..., held: _Optional[int] = ..., gone: _Optional[int] = ..., orphaned: _Optional[int] = ..., missing_queues: _Optional[_Iterable[str]] = ..., crowded: _Optional[int] = ..., full_queues: _Optional[_Iterable[str]] = ...) -> None: ...

class RetryJob(_message.Message):
    __slots__ = ("queue", "rate", "matched", "retried", "running", "held", "orphaned", "missing_queues", "crowded", "full_queues")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    MATCHED_FIELD_NUMBER: _ClassVar[int]
    RETRIED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    ORPHANED_FIELD_NUMBER: _ClassVar[int]
    MISSING_QUEUES_FIELD_NUMBER: _ClassVar[int]
    CROWDED_FIELD_NUMBER: _ClassVar[int]
    FULL_QUEUES_FIELD_NUMBER: _ClassVar[int]
    queue: str
    rate: float
    matched: int
    retried: int
    running: bool
    held: int
    orphaned: int
    missing_queues: _containers.RepeatedScalarFieldContainer[str]
    crowded: int
    full_queues: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, queue: _Optional[str] = ..., rate: _Optional[float] = ..., matched: _Optional[int] = ..., retried: _Optional[int] = ..., running: _Optional[bool] = ..., held: _Optional[int] = ..., orphaned: _Optional[int] = ..., missing_queues: _Optional[_Iterable[str]] = ..., crowded: _Optional[int] = ..., full_queues: _Optional[_Iterable[str]] = ...) -> None: ...

class PauseQueueRequest(_message.Message):
    __slots__ = ("name", "group")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    name: str
    group: str
    def __init__(self, name: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class PauseQueueResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeQueueRequest(_message.Message):
    __slots__ = ("name", "group")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    name: str
    group: str
    def __init__(self, name: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class ResumeQueueResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RemoveGroupRequest(_message.Message):
    __slots__ = ("name", "group")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    name: str
    group: str
    def __init__(self, name: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class RemoveGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PutQueueRequest(_message.Message):
    __slots__ = ("name", "settings")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    settings: QueueSettings
    def __init__(self, name: _Optional[str] = ..., settings: _Optional[_Union[QueueSettings, _Mapping]] = ...) -> None: ...

class PutQueueResponse(_message.Message):
    __slots__ = ("created", "settings")
    CREATED_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    created: bool
    settings: QueueSettings
    def __init__(self, created: _Optional[bool] = ..., settings: _Optional[_Union[QueueSettings, _Mapping]] = ...) -> None: ...

class QueueSettings(_message.Message):
    __slots__ = ("name", "partitions", "ordering", "retry_policy", "dlq_config", "limits", "performance")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ORDERING_FIELD_NUMBER: _ClassVar[int]
    RETRY_POLICY_FIELD_NUMBER: _ClassVar[int]
    DLQ_CONFIG_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    PERFORMANCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    ordering: str
    retry_policy: RetryPolicy
    dlq_config: DeadLetterConfig
    limits: Limits
    performance: Performance
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., ordering: _Optional[str] = ..., retry_policy: _Optional[_Union[RetryPolicy, _Mapping]] = ..., dlq_config: _Optional[_Union[DeadLetterConfig, _Mapping]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., performance: _Optional[_Union[Performance, _Mapping]] = ...) -> None: ...

class RetryPolicy(_message.Message):
    __slots__ = ("max_retries", "initial_backoff", "max_backoff", "backoff_multiplier", "total_timeout", "nack_delay")
    MAX_RETRIES_FIELD_NUMBER: _ClassVar[int]
    INITIAL_BACKOFF_FIELD_NUMBER: _ClassVar[int]
    MAX_BACKOFF_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    NACK_DELAY_FIELD_NUMBER: _ClassVar[int]
    max_retries: int
    initial_backoff: str
    max_backoff: str
    backoff_multiplier: float
    total_timeout: str
    nack_delay: str
    def __init__(self, max_retries: _Optional[int] = ..., initial_backoff: _Optional[str] = ..., max_backoff: _Optional[str] = ..., backoff_multiplier: _Optional[float] = ..., total_timeout: _Optional[str] = ..., nack_delay: _Optional[str] = ...) -> None: ...

class DeadLetterConfig(_message.Message):
    __slots__ = ("enabled", "topic", "alert_webhook")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ALERT_WEBHOOK_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    topic: str
    alert_webhook: str
    def __init__(self, enabled: _Optional[bool] = ..., topic: _Optional[str] = ..., alert_webhook: _Optional[str] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_message_size", "max_queue_depth", "message_ttl", "overflow", "ttl_action")
    MAX_MESSAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_DEPTH_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TTL_FIELD_NUMBER: _ClassVar[int]
    OVERFLOW_FIELD_NUMBER: _ClassVar[int]
    TTL_ACTION_FIELD_NUMBER: _ClassVar[int]
    max_message_size: int
    max_queue_depth: int
    message_ttl: str
    overflow: str
    ttl_action: str
    def __init__(self, max_message_size: _Optional[int] = ..., max_queue_depth: _Optional[int] = ..., message_ttl: _Optional[str] = ..., overflow: _Optional[str] = ..., ttl_action: _Optional[str] = ...) -> None: ...

class Performance(_message.Message):
    __slots__ = ("delivery_timeout", "batch_size", "prefetch")
    DELIVERY_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_FIELD_NUMBER: _ClassVar[int]
    delivery_timeout: str
    batch_size: int
    prefetch: int
    def __init__(self, delivery_timeout: _Optional[str] = ..., batch_size: _Optional[int] = ..., prefetch: _Optional[int] = ...) -> None: ...
