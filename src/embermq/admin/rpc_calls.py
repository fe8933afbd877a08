"""The calls of queue_admin.proto: what the façade says, as its messages [queues-41]."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import msgspec
from google.protobuf.message import Message
from msgspec import UNSET, Struct

from embermq.admin import queue_admin_pb2 as pb
from embermq.admin.access import Scope
from embermq.admin.queue_service import (
    LETTERS_MAX,
    NoSuchQueue,
    PeekedMessage,
    QueueService,
    RequestRefused,
)
from embermq.admin.rpc_values import given, many, time_ms, written
from embermq.queues.inspection import REASONS, LetterFilter
from embermq.queues.names import queue_name

SERVICE = "embermq.v1.QueueAdmin"
PAGE_MAX, PAGE = 1_000, 100
PEEK_MAX, PEEK = 100, 10
RETRY_MAX = 100_000
RATE_MIN, RATE_MAX = 0.001, 1_000_000
ID_CHARACTERS_MAX = 80
PATTERN_CHARACTERS_MAX = 300
ANSWER_BYTES_MAX = 3 * 1024 * 1024
"""Of a page: clients take 4 MiB, unless they are told otherwise."""

M = TypeVar("M", bound=Message)
Answer = Callable[[QueueService, Any], Awaitable[Message]]


class Call(Struct, frozen=True):
    """One of them: what it takes, the scope that it needs, and how it is answered."""

    request: type[Message]
    scope: Scope
    answer: Answer


async def _list_queues(service: QueueService, asked: pb.ListQueuesRequest) -> Message:
    limit = _limit(asked.limit, PAGE, PAGE_MAX)
    found = service.queues(asked.after, limit, _text("match", asked.match, PATTERN_CHARACTERS_MAX) or "*")
    return pb.ListQueuesResponse(queues=_page(many(pb.QueueStats, found)))


async def _get_queue(service: QueueService, asked: pb.QueueRequest) -> Message:
    return written(pb.Queue, service.queue(_name(asked)))


async def _get_queue_stats(service: QueueService, asked: pb.GetQueueStatsRequest) -> Message:
    return written(pb.QueueStats, service.stats(_name(asked)))


async def _list_groups(service: QueueService, asked: pb.ListGroupsRequest) -> Message:
    found = service.groups(_name(asked), asked.after, _limit(asked.limit, PAGE, PAGE_MAX))
    return pb.ListGroupsResponse(groups=_page(many(pb.Group, found)))


async def _list_consumers(service: QueueService, asked: pb.ListConsumersRequest) -> Message:
    after = (asked.after_group, asked.after)
    found = service.consumers(_name(asked), after, _limit(asked.limit, PAGE, PAGE_MAX))
    return pb.ListConsumersResponse(consumers=_page(many(pb.Consumer, found)))


async def _peek_messages(service: QueueService, asked: pb.PeekMessagesRequest) -> Message:
    found = await service.peek(_name(asked), asked.after, _limit(asked.limit, PEEK, PEEK_MAX))
    return pb.PeekMessagesResponse(messages=_page(map(_peeked, found)))


async def _list_delayed(service: QueueService, asked: pb.ListDelayedRequest) -> Message:
    found = await service.delayed(_name(asked), asked.after, _limit(asked.limit, PEEK, PEEK_MAX))
    return pb.ListDelayedResponse(messages=_page(map(_peeked, found)))


def _peeked(message: PeekedMessage) -> pb.PeekedMessage:
    found = pb.PeekedMessage(
        about=written(pb.Message, message.about),
        publisher=message.publisher,
        payload_bytes=message.payload_bytes,
    )
    found.properties.update(msgspec.json.decode(msgspec.json.encode(message.properties)))
    if message.payload is not UNSET:
        found.payload = message.payload.encode()
    elif message.payload_base64 is not UNSET:
        found.payload = b64decode(message.payload_base64)
    return found


async def _get_message(service: QueueService, asked: pb.GetMessageRequest) -> Message:
    return written(pb.Message, service.message(_name(asked), asked.message_id))


async def _explain_queue(service: QueueService, asked: pb.QueueRequest) -> Message:
    return pb.ExplainQueueResponse(reasons=many(pb.Reason, service.explain(_name(asked))))


async def _list_dead_letters(service: QueueService, asked: pb.ListDeadLettersRequest) -> Message:
    limit = _limit(asked.limit, PAGE, PAGE_MAX)
    after = _text("after", asked.after, ID_CHARACTERS_MAX)
    found = await service.dead_letters(_name(asked), _filter(asked.filter), after, limit)
    return pb.ListDeadLettersResponse(letters=_page(many(pb.DeadLetter, found)))


async def _retry_dead_letter(service: QueueService, asked: pb.RetryDeadLetterRequest) -> Message:
    return pb.Done(messages=await service.retry(_name(asked), asked.id))


async def _retry_dead_letters(service: QueueService, asked: pb.RetryDeadLettersRequest) -> Message:
    name, wanted = _name(asked), _filter(asked.filter)
    if not asked.rate:
        limit = _limit(asked.limit, RETRY_MAX, RETRY_MAX)
        return written(pb.RetryDeadLettersResponse, await service.retry_all(name, wanted, limit))
    if not RATE_MIN <= asked.rate <= RATE_MAX:
        raise RequestRefused(f"rate: is {asked.rate:g}, it is {RATE_MIN} to {RATE_MAX}")
    if asked.limit:
        raise RequestRefused("limit: cannot be given together with a rate")
    job = written(pb.RetryJob, await service.retry_slowly(name, wanted, asked.rate))
    return pb.RetryDeadLettersResponse(messages=job.retried, job=job)


async def _redrive_dead_letters(service: QueueService, asked: pb.RedriveDeadLettersRequest) -> Message:
    ids = [_text("ids", each, ID_CHARACTERS_MAX) for each in asked.ids]
    if not 0 < len(ids) <= LETTERS_MAX:
        raise RequestRefused(f"ids: there are {len(ids)}, it is 1 to {LETTERS_MAX}")
    return written(pb.RedriveDeadLettersResponse, await service.put_back(_name(asked), ids))


async def _get_retry(service: QueueService, asked: pb.QueueRequest) -> Message:
    job = service.retry_job(_name(asked))
    if job is None:
        raise NoSuchQueue("no retry with a rate has been started")
    return written(pb.RetryJob, job)


async def _stop_retry(service: QueueService, asked: pb.QueueRequest) -> Message:
    name = _name(asked)
    service.stats(name)  # raises for one that is not there
    if not service.stop_retry(name):
        raise NoSuchQueue("no retry runs")
    return await _get_retry(service, asked)


async def _purge_queue(service: QueueService, asked: pb.PurgeQueueRequest) -> Message:
    return pb.PurgeQueueResponse(messages=await service.purge(_name(asked)))


async def _delete_message(service: QueueService, asked: pb.DeleteMessageRequest) -> Message:
    await service.delete_message(_name(asked), asked.message_id)
    return pb.DeleteMessageResponse()


async def _pause_queue(service: QueueService, asked: pb.PauseQueueRequest) -> Message:
    await service.pause(_name(asked), asked.group, is_paused=True)
    return pb.PauseQueueResponse()


async def _resume_queue(service: QueueService, asked: pb.ResumeQueueRequest) -> Message:
    await service.pause(_name(asked), asked.group, is_paused=False)
    return pb.ResumeQueueResponse()


async def _remove_group(service: QueueService, asked: pb.RemoveGroupRequest) -> Message:
    await service.remove_group(_name(asked), asked.group)
    return pb.RemoveGroupResponse()


async def _put_queue(service: QueueService, asked: pb.PutQueueRequest) -> Message:
    return written(pb.PutQueueResponse, await service.configure(_name(asked), given(asked.settings)))


async def _delete_queue(service: QueueService, asked: pb.QueueRequest) -> Message:
    return pb.Done(messages=await service.delete(_name(asked)))


CALLS = {
    "ListQueues": Call(pb.ListQueuesRequest, Scope.READ, _list_queues),
    "GetQueue": Call(pb.QueueRequest, Scope.READ, _get_queue),
    "GetQueueStats": Call(pb.GetQueueStatsRequest, Scope.READ, _get_queue_stats),
    "ListGroups": Call(pb.ListGroupsRequest, Scope.READ, _list_groups),
    "ListConsumers": Call(pb.ListConsumersRequest, Scope.READ, _list_consumers),
    "PeekMessages": Call(pb.PeekMessagesRequest, Scope.READ, _peek_messages),
    "ListDelayed": Call(pb.ListDelayedRequest, Scope.READ, _list_delayed),
    "GetMessage": Call(pb.GetMessageRequest, Scope.READ, _get_message),
    "ExplainQueue": Call(pb.QueueRequest, Scope.READ, _explain_queue),
    "ListDeadLetters": Call(pb.ListDeadLettersRequest, Scope.READ, _list_dead_letters),
    "RetryDeadLetter": Call(pb.RetryDeadLetterRequest, Scope.OPERATE, _retry_dead_letter),
    "RetryDeadLetters": Call(pb.RetryDeadLettersRequest, Scope.OPERATE, _retry_dead_letters),
    "RedriveDeadLetters": Call(pb.RedriveDeadLettersRequest, Scope.OPERATE, _redrive_dead_letters),
    "GetRetry": Call(pb.QueueRequest, Scope.READ, _get_retry),
    "StopRetry": Call(pb.QueueRequest, Scope.OPERATE, _stop_retry),
    "PurgeQueue": Call(pb.PurgeQueueRequest, Scope.OPERATE, _purge_queue),
    "DeleteMessage": Call(pb.DeleteMessageRequest, Scope.OPERATE, _delete_message),
    "PauseQueue": Call(pb.PauseQueueRequest, Scope.OPERATE, _pause_queue),
    "ResumeQueue": Call(pb.ResumeQueueRequest, Scope.OPERATE, _resume_queue),
    "RemoveGroup": Call(pb.RemoveGroupRequest, Scope.OPERATE, _remove_group),
    "PutQueue": Call(pb.PutQueueRequest, Scope.ADMIN, _put_queue),
    "DeleteQueue": Call(pb.QueueRequest, Scope.ADMIN, _delete_queue),
}


def _name(asked: Any) -> str:
    name = queue_name(asked.name)
    if not name:
        raise RequestRefused("name: is empty")
    return name


def _limit(given_limit: int, otherwise: int, most: int) -> int:
    if given_limit > most:
        raise RequestRefused(f"limit: {given_limit} is more than {most}")
    return given_limit or otherwise


def _page(messages: Iterable[M]) -> list[M]:
    """As many as an answer holds, one at least: who asks for the next page names the last of this one."""
    page: list[M] = []
    size = 0
    for message in messages:
        size += message.ByteSize()
        if page and size > ANSWER_BYTES_MAX:
            break
        page.append(message)
    return page


def _text(name: str, text: str, most: int) -> str:
    if len(text) > most:
        raise RequestRefused(f"{name}: has {len(text)} characters, the limit is {most}")
    return text


def _filter(asked: pb.LetterFilter) -> LetterFilter:
    if asked.reason not in ("", *REASONS):
        raise RequestRefused(f"filter.reason: is {asked.reason[:40]!r}, there are {', '.join(REASONS)}")
    return LetterFilter(
        group=asked.group,
        reason=asked.reason,
        error=_text("filter.error", asked.error, PATTERN_CHARACTERS_MAX),
        message_id=_text("filter.message_id", asked.message_id, ID_CHARACTERS_MAX),
        moved_after_ms=time_ms(asked, "moved_after"),
        moved_before_ms=time_ms(asked, "moved_before"),
    )
