"""The one table of operations: HTTP with its OpenAPI, gRPC, the control socket and the commands are made from it.

Commands read it too, so it loads no desk and no protocol. `access_operations` has the rows about who may enter and do
what.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from embermq.admin import access_operations, values
from embermq.admin import queue_values as queue
from embermq.admin import session_values as session
from embermq.admin.access import Scope
from embermq.admin.operation import AdminOperation, RowsOf
from embermq.queues.explaining import Reason
from embermq.queues.inspection import ConsumerView, DeadLetterView, GroupView, MessageView, QueueStats
from embermq.queues.settings import QueueSettings

if TYPE_CHECKING:
    from embermq.admin.cluster_desk import ClusterDesk
    from embermq.admin.event_stream import BrokerDesk
    from embermq.admin.message_desk import MessageDesk
    from embermq.admin.parked_desk import ParkedDesk
    from embermq.admin.queue_desk import QueueDesk
    from embermq.admin.replay_desk import ReplayDesk, RuleFeedDesk
    from embermq.admin.session_desk import SessionDesk
    from embermq.admin.values import ArchiveDesk

READ, OPERATE, ADMIN = Scope.READ, Scope.OPERATE, Scope.ADMIN
STAYS = (
    "What comes from a queue that is not there any more stays, and is counted as orphaned; so does what is for a group"
    " that was removed where there is no room for another one, and is counted as crowded."
)


QUEUES, SESSIONS, MESSAGES = "queues", "sessions", "messages"
ARCHIVE, PARKED, REPLAYS, RULE_FEEDS = "archive", "parked", "replays", "rule-feeds"
CLUSTER, BROKER = "cluster", "broker"
"""Desks."""
_queues: RowsOf[QueueDesk] = RowsOf(QUEUES)
_sessions: RowsOf[SessionDesk] = RowsOf(SESSIONS)
_messages: RowsOf[MessageDesk] = RowsOf(MESSAGES)
_archive: RowsOf[ArchiveDesk] = RowsOf(ARCHIVE)
_parked: RowsOf[ParkedDesk] = RowsOf(PARKED)
_replays: RowsOf[ReplayDesk] = RowsOf(REPLAYS)
_rule_feeds: RowsOf[RuleFeedDesk] = RowsOf(RULE_FEEDS)
_cluster: RowsOf[ClusterDesk] = RowsOf(CLUSTER)
_broker: RowsOf[BrokerDesk] = RowsOf(BROKER)

LIST_QUEUES = _queues("ListQueues", "GET /queues", READ, "Queues by name")(
    queue.ListQueuesRequest,
    list[QueueStats],
    lambda desk, asked: desk.queues(asked.after, asked.limit, asked.match),
    pages={"after": "name"},
    is_list_of_all=True,
)
GET_QUEUE = _queues("GetQueue", "GET /queues/{name}", READ, "A queue with its settings")(
    queue.QueueRequest,
    queue.QueueDetail,
    lambda desk, asked: desk.queue(asked.queue),
    about="Of an alert_webhook only who may change settings sees more than its host.",
    without_secrets=queue.without_webhook,
)
GET_QUEUE_STATS = _queues("GetQueueStats", "GET /queues/{name}/stats", READ, "Its figures")(
    queue.QueueRequest, QueueStats, lambda desk, asked: desk.stats(asked.queue)
)
LIST_GROUPS = _queues("ListGroups", "GET /queues/{name}/groups", READ, "Its consumer groups")(
    queue.ListGroupsRequest,
    list[GroupView],
    lambda desk, asked: desk.groups(asked.queue, asked.after, asked.limit),
    pages={"after": "name"},
)
LIST_CONSUMERS = _queues("ListConsumers", "GET /queues/{name}/consumers", READ, "Its consumers")(
    queue.ListConsumersRequest,
    list[ConsumerView],
    lambda desk, asked: desk.consumers(asked.queue, (asked.after_group, asked.after), asked.limit),
    pages={"after_group": "group", "after": "client_id"},
)
PEEK_MESSAGES = _queues(
    "PeekMessages", "GET /queues/{name}/messages", READ, "Messages with their bodies, without consuming them"
)(
    queue.PeekRequest,
    list[queue.PeekedMessage],
    lambda desk, asked: desk.peek(asked.queue, asked.after, asked.limit),
)
LIST_DELAYED = _queues(
    "ListDelayed", "GET /queues/{name}/delayed", READ, "Messages whose time has not come, with their bodies"
)(
    queue.PeekRequest,
    list[queue.PeekedMessage],
    lambda desk, asked: desk.delayed(asked.queue, asked.after, asked.limit),
)
GET_MESSAGE = _queues(
    "GetMessage",
    "GET /queues/{name}/messages/{message_id}",
    READ,
    "A message: its state in each group, holder, next retry",
)(queue.MessageRequest, MessageView, lambda desk, asked: desk.message(asked.queue, asked.message_id))
DELETE_MESSAGE = _queues(
    "DeleteMessage",
    "DELETE /queues/{name}/messages/{message_id}",
    OPERATE,
    "Delete one message, held and delayed ones too",
)(queue.MessageRequest, None, lambda desk, asked: desk.delete_message(asked.queue, asked.message_id))
EXPLAIN_QUEUE = _queues("ExplainQueue", "GET /queues/{name}/explain", READ, "Why nothing is delivered")(
    queue.QueueRequest, list[Reason], lambda desk, asked: desk.explain(asked.queue)
)
LIST_DEAD_LETTERS = _queues(
    "ListDeadLetters", "GET /queues/{name}/dlq", READ, "Its dead letters, without consuming them"
)(
    queue.ListDeadLettersRequest,
    list[DeadLetterView],
    lambda desk, asked: desk.dead_letters(asked.queue, asked.filter.filter, asked.after, asked.limit),
    pages={"after": "id"},
)
RETRY_DEAD_LETTER = _queues(
    "RetryDeadLetter", "POST /queues/{name}/dlq/{id}/retry", OPERATE, "Put a dead letter back"
)(queue.RetryDeadLetterRequest, queue.Done, lambda desk, asked: desk.retry(asked.queue, asked.id))
REDRIVE_DEAD_LETTERS = _queues(
    "RedriveDeadLetters",
    "POST /queues/{name}/dlq/redrive",
    OPERATE,
    "Put dead letters back by their ids, all in one transaction",
)(
    queue.RedriveDeadLettersRequest,
    queue.PutBack,
    lambda desk, asked: desk.put_back(asked.queue, asked.ids),
    about="What is no dead letter any more counts as gone: a request without an answer may be repeated. "
    + STAYS,
    body=queue.LettersAsked,
    names=("ids",),
)
RETRY_DEAD_LETTERS = _queues(
    "RetryDeadLetters",
    "POST /queues/{name}/dlq/retry",
    OPERATE,
    "Put dead letters back: all, or those of a filter; with a rate, in the background",
)(
    queue.RetryDeadLettersRequest,
    {200: queue.Retried, 202: queue.RetryJob},
    lambda desk, asked: (
        desk.retry_all(asked.queue, asked.filter.filter, asked.limit or queue.RETRY_MAX)
        if asked.rate is None
        else desk.retry_slowly(asked.queue, asked.filter.filter, asked.rate)
    ),
    about=STAYS,
    status=lambda done: 202 if isinstance(done, queue.RetryJob) else 200,
    names=("filter", "rate", "limit"),
)
GET_RETRY = _queues("GetRetry", "GET /queues/{name}/dlq/retry", READ, "The retry that runs, or ran last")(
    queue.QueueRequest, queue.RetryJob, lambda desk, asked: desk.retry_job(asked.queue)
)
STOP_RETRY = _queues("StopRetry", "DELETE /queues/{name}/dlq/retry", OPERATE, "End the retry that runs")(
    queue.QueueRequest, {204: queue.RetryJob}, lambda desk, asked: desk.stop_retry(asked.queue)
)
PUT_QUEUE = _queues("PutQueue", "PUT /queues/{name}", ADMIN, "Make a queue, or give it other settings")(
    queue.PutQueueRequest,
    {200: queue.Configured, 201: queue.Configured},
    lambda desk, asked: desk.configure(asked.queue, asked.settings, only_new=asked.only_new),
    about="What is not named has its default; the name may be left out. With `If-None-Match: *` a queue that is there"
    " stays as it is: 412.",
    body=QueueSettings,
    body_as="settings",
    status=lambda done: 201 if done.created else 200,
)
DELETE_QUEUE = _queues("DeleteQueue", "DELETE /queues/{name}", ADMIN, "Empty a queue and delete it")(
    queue.QueueRequest, queue.Done, lambda desk, asked: desk.delete(asked.queue)
)
PURGE_QUEUE = _queues(
    "PurgeQueue", "POST /queues/{name}/purge", OPERATE, "Delete every message that is there"
)(queue.QueueRequest, queue.Done, lambda desk, asked: desk.purge(asked.queue))
PAUSE_QUEUE = _queues(
    "PauseQueue",
    "POST /queues/{name}/pause /queues/{name}/groups/{group}/pause",
    OPERATE,
    "Hand out nothing, until resumed; of a queue, or to one group",
)(queue.GroupRequest, None, lambda desk, asked: desk.pause(asked.queue, asked.group, is_paused=True))
RESUME_QUEUE = _queues(
    "ResumeQueue",
    "POST /queues/{name}/resume /queues/{name}/groups/{group}/resume",
    OPERATE,
    "Hand out messages again",
)(queue.GroupRequest, None, lambda desk, asked: desk.pause(asked.queue, asked.group, is_paused=False))
REMOVE_GROUP = _queues(
    "RemoveGroup", "DELETE /queues/{name}/groups/{group}", OPERATE, "Remove a group without consumers"
)(queue.GroupRequest, None, lambda desk, asked: desk.remove_group(asked.queue, asked.group))

LIST_CLIENTS = _sessions(
    "ListClients", "GET /clients", READ, "Clients that are connected or have a session, by client id"
)(
    session.ListClientsRequest,
    list[session.SessionView],
    lambda desk, asked: desk.sessions(asked),
    pages={"after": "client_id"},
    is_list_of_all=True,
)
GET_CLIENT = _sessions(
    "GetClient",
    "GET /clients/{client_id}",
    READ,
    "A client: its session, connection and subscriptions, what it owes and is owed",
)(session.ClientRequest, session.SessionDetail, lambda desk, asked: desk.session(asked.client_id))
LIST_SUBSCRIPTIONS = _sessions(
    "ListSubscriptions", "GET /clients/{client_id}/subscriptions", READ, "Its subscriptions by filter"
)(
    session.ListSubscriptionsRequest,
    list[session.SubscriptionView],
    lambda desk, asked: desk.subscriptions(asked.client_id, asked.after, asked.limit),
    pages={"after": "topic_filter"},
)
DELETE_SESSION = _sessions(
    "DeleteSession",
    "DELETE /clients/{client_id}",
    ADMIN,
    "End a session and its connection; its queue and subscriptions go",
)(session.ClientRequest, None, lambda desk, asked: desk.delete(asked.client_id))
DISCONNECT_CLIENT = _sessions(
    "DisconnectClient",
    "DELETE /clients/{client_id}/connection",
    OPERATE,
    "End a client's connection; a kept session stays",
)(session.ClientRequest, None, lambda desk, asked: desk.disconnect(asked.client_id))
GIVE_SESSION = _sessions(
    "GiveSession", "POST /clients/{client_id}/give", ADMIN, "Give a kept session to a user"
)(
    session.GiveRequest,
    None,
    lambda desk, asked: desk.give(asked.client_id, asked.user),
    needs_token=True,
    names=("user",),
)
LIST_PINS = _sessions("ListPins", "GET /pins", READ, "Who reads the message log, furthest behind first")(
    session.NoRequest, list[session.PinView], lambda desk, _: desk.pins()
)
LIST_APPLICATION_LOGS = _sessions(
    "ListApplicationLogs",
    "GET /application-logs",
    READ,
    "Application logs that are kept in a store of their own",
)(session.NoRequest, list[session.ApplicationLogView], lambda desk, _: desk.application_logs())
CLEAN_APPLICATION_LOGS = _sessions(
    "CleanApplicationLogs", "DELETE /application-logs", ADMIN, "Delete those of these logs that nobody reads"
)(
    session.LogsRequest,
    list[str],
    lambda desk, asked: desk.clean_application_logs(asked.name),
    names=("name",),
)
RESTORE_APPLICATION_LOG = _sessions(
    "RestoreApplicationLog",
    "POST /application-logs/restore",
    ADMIN,
    "For the pipeline: make a log again that a session wants, and all others that are missing",
)(
    session.RestoreRequest,
    session.RestoredLog,
    lambda desk, asked: desk.restore_application_log(asked.topic),
    body=session.RestoreRequest,
    is_inner=True,
)
LIST_RETAINED = _messages(
    "ListRetained", "GET /retained", READ, "Retained messages by topic, without their payloads"
)(
    values.ListRetainedRequest,
    list[values.RetainedView],
    lambda desk, asked: desk.retained(asked.filter, asked.after, asked.limit),
    about="A filter that begins with $SYS finds what the broker says of itself.",
    pages={"after": "topic"},
)
GET_RETAINED = _messages(
    "GetRetained", "GET /retained/{topic}", OPERATE, "The retained message of a topic with its payload"
)(values.TopicRequest, values.RetainedDetail, lambda desk, asked: desk.message(asked.topic))
DELETE_RETAINED = _messages(
    "DeleteRetained",
    "DELETE /retained/{topic}",
    OPERATE,
    "Delete the retained message of a topic; subscribers get the empty message that does it",
)(values.TopicRequest, None, lambda desk, asked: desk.delete(asked.topic))
PUBLISH = _messages(
    "Publish",
    "POST /publish",
    OPERATE,
    "Publish a message, to a topic or a durable queue; answered when it is stored",
)(
    values.PublishRequest,
    values.PublishOutcome,
    lambda desk, asked: desk.publish(asked),
    about="No rules are asked. A request without an answer may have been done.",
    body=values.PublishRequest,
    body_bytes_max=values.PUBLISH_BYTES_MAX,
    names=("topic", "qos", "retain"),
)

LIST_ARCHIVED = _archive(
    "ListArchived", "GET /archive", OPERATE, "Archived messages of a topic, QoS 1 and 2, in log order"
)(
    values.ListArchivedRequest,
    list[values.ArchivedMessage],
    lambda desk, asked: desk.page(asked),
    about="From the archive that the pipeline fills. A page ends early when it comes to 4 MiB: only an empty"
    " one is the end.",
    pages={"after": "offset"},
)
COUNT_ARCHIVED = _archive(
    "CountArchived",
    "GET /archive/count",
    READ,
    "How many archived messages are older; reads the whole archive",
)(values.OlderRequest, values.ArchivedCount, lambda desk, asked: desk.count(asked))
PRUNE_ARCHIVE = _archive(
    "PruneArchive", "DELETE /archive", ADMIN, "Delete archived messages that are older, up to 5,000 at a time"
)(
    values.OlderRequest,
    values.ArchivedCount,
    lambda desk, asked: desk.prune(asked),
    about="Ask again until it answers fewer than 5,000.",
    names=("before", "slot"),
)

LIST_PARKED_CLIENTS = _parked(
    "ListParkedClients", "GET /parked/clients", READ, "Clients that have parked messages"
)(session.NoRequest, list[values.ParkedClientView], lambda desk, _: desk.clients(), is_list_of_all=True)
LIST_PARKED = _parked("ListParked", "GET /parked", READ, "Parked messages of a client")(
    values.ParkedPageRequest,
    list[values.ParkedView],
    lambda desk, asked: desk.page(asked.client_id, asked.after, asked.limit),
    pages={"after": "number"},
)
GET_PARKED = _parked("GetParked", "GET /parked/message", OPERATE, "A parked message with its payload")(
    values.ParkedRequest, values.ParkedDetail, lambda desk, asked: desk.message(asked.client_id, asked.number)
)
REDRIVE_PARKED = _parked("RedriveParked", "POST /parked/redrive", OPERATE, "Have parked messages sent again")(
    values.ParkedNumbersRequest,
    values.ParkedCount,
    lambda desk, asked: desk.redrive(asked.client_id, asked.number or None),
    names=("client_id", "number"),
)
DELETE_PARKED = _parked("DeleteParked", "DELETE /parked", OPERATE, "Delete parked messages for good")(
    values.ParkedNumbersRequest,
    values.ParkedCount,
    lambda desk, asked: desk.delete(asked.client_id, asked.number or None),
    names=("client_id", "number"),
)

REPLAY_MESSAGES = _replays(
    "ReplayMessages", "POST /replays/{replay}", ADMIN, "Take messages of the log or the lake once more"
)(
    values.ReplayRequest,
    values.ReplayTaken,
    lambda desk, asked: desk.take(asked),
    about="A piece that has been taken is left out: a request without an answer may be repeated.",
    body=values.PieceAsked,
    body_bytes_max=values.PIECE_BYTES_MAX,
    is_inner=True,
)
TAKE_OF_RULE = _rule_feeds(
    "TakeOfRule", "POST /rule-feeds/{rule}", ADMIN, "Take messages that a rule has made"
)(
    values.RuleFeedRequest,
    values.RuleFeedTaken,
    lambda desk, asked: desk.take(asked),
    about="What has been taken is left out: a request without an answer may be repeated.",
    body=values.RuleFeedAsked,
    body_bytes_max=values.PIECE_BYTES_MAX,
    is_inner=True,
)
GET_CLUSTER = _cluster(
    "GetCluster", "GET /cluster", READ, "Nodes of the broker's cluster, with their leases, slots and figures"
)(session.NoRequest, values.ClusterStatus, lambda desk, _: desk.view())
LIST_NODE_FIGURES = _cluster("ListNodeFigures", "GET /cluster/figures", READ, "Of nodes that serve")(
    session.NoRequest,
    list[values.NodeFigures],
    lambda desk, _: desk.figures(),
    is_inner=True,
    is_list_of_all=True,
)
GET_BROKER = _broker(
    "GetBroker",
    "GET /broker",
    READ,
    "The broker: version, listeners, state of each part, its figures now and since the start",
)(session.NoRequest, values.BrokerView, lambda desk, _: desk.overview())
GET_FIGURES = _broker(
    "GetFigures",
    "GET /broker/figures",
    READ,
    "Its figures of the last five minutes, second by second, oldest first",
)(session.NoRequest, list[values.BrokerFigures], lambda desk, _: desk.history())
FOLLOW_EVENTS = _broker(
    "FollowEvents",
    "GET /events/stream",
    READ,
    "Live, as server-sent events: `figures` every second, and `client` events",
)(
    values.StreamRequest,
    str,
    lambda desk, asked: desk.stream.subscribe(figures=asked.figures, clients=asked.clients),
    about="`figures` has the fields of BrokerFigures. `client` has `event` (connected, disconnected, login failed,"
    " denied, refused) with `time`, `client_id`, `user`, `peer`, `listener`, `reason`, `code`, `topic`, as far as they"
    " are known. `left_out` says how many events this connection was too slow for. 16 may follow at a time. The stream"
    " ends when the token does.",
    is_stream=True,
)

OPERATIONS: tuple[AdminOperation, ...] = tuple(
    each
    for part in (dict(vars()), vars(access_operations))
    for each in part.values()
    if isinstance(each, AdminOperation)
)
QUEUE_OPERATIONS = tuple(each for each in OPERATIONS if each.desk == QUEUES)
"""Those that gRPC offers to other machines."""
HTTP_OPERATIONS = tuple(each for each in OPERATIONS if not each.is_inner)
"""Those that HTTP offers; the control socket offers all."""
