"""Queues under /api/v1 [queues-40]: what the façade says, as HTTP."""

from collections.abc import Callable
from datetime import datetime
from functools import cache
from http import HTTPStatus
from inspect import signature
from typing import Annotated, Any
from urllib.parse import unquote

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import Response

from embermq.admin.access import Access, Scope
from embermq.admin.api_schema import answers, problems, takes
from embermq.admin.http import json_answer, problem
from embermq.admin.http_caller import HttpCaller
from embermq.admin.queue_service import (
    Configured,
    Done,
    LettersAsked,
    NoSuchQueue,
    PeekedMessage,
    PutBack,
    QueueDetail,
    QueueService,
    Retried,
    RetryJob,
)
from embermq.queues.explaining import Reason
from embermq.queues.inspection import (
    REASONS,
    ConsumerView,
    DeadLetterView,
    GroupView,
    LetterFilter,
    MessageView,
    QueueStats,
)
from embermq.queues.settings import QueueSettings, json_object

PAGE_MAX = 1_000
PEEK_MAX = 100
RETRY_MAX = 100_000
RATE_MIN, RATE_MAX = 0.001, 1_000_000
BODY_BYTES_MAX = 64 * 1024

Name = Annotated[
    str, Path(description="The queue: percent-encoded, or with $ for /", examples=["$queue$tasks$images"])
]
Limit = Annotated[int, Query(ge=1, le=PAGE_MAX, description="How many at most")]


async def _letter_filter(
    *,
    group: Annotated[str, Query(description="Of this group")] = "",
    reason: Annotated[
        str, Query(description="rejected, max_retries, timeout, overflow or expired", max_length=40)
    ] = "",
    error: Annotated[str, Query(description="The last error, with * and ?", max_length=300)] = "",
    message_id: Annotated[
        str, Query(description="The dead letter's id, or the one it had", max_length=80)
    ] = "",
    moved_after: Annotated[datetime | None, Query(description="Moved later, ISO 8601 with zone")] = None,
    moved_before: Annotated[datetime | None, Query(description="Moved earlier, with zone too")] = None,
) -> LetterFilter:
    if reason not in ("", *REASONS):
        raise _refused("reason", f"is {reason!r}, there are {', '.join(REASONS)}")
    return LetterFilter(
        group=group,
        reason=reason,
        error=error,
        message_id=message_id,
        moved_after_ms=_ms("moved_after", moved_after),
        moved_before_ms=_ms("moved_before", moved_before),
    )


def _ms(name: str, moment: datetime | None) -> int | None:
    if moment is None:
        return None
    if moment.tzinfo is None:  # that of the broker's machine would be a guess
        raise _refused(name, "is a time without a zone")
    return round(moment.timestamp() * 1_000)


def _refused(name: str, why: str) -> RequestValidationError:
    return RequestValidationError([{"loc": ("query", name), "msg": why}])


Wanted = Annotated[LetterFilter, Depends(_letter_filter)]


def queue_router(service: QueueService, access: Access) -> APIRouter:
    """All of it."""
    router = APIRouter()
    _add_reading(router, service, _needs(access, Scope.READ))
    _add_groups(router, service, _needs(access, Scope.READ))
    _add_dead_letters(router, service, access)
    _add_retries(router, service, access)
    _add_changes(router, service, access)
    _add_pauses(router, service, _needs(access, Scope.OPERATE))
    return router


def _needs(access: Access, scope: Scope) -> dict[str, Any]:
    def check(request: Request) -> None:
        access.check(HttpCaller(request), scope)
        _check_parameters(request)

    async def checked(request: Request) -> None:
        check(request)

    return {"dependencies": [Depends(checked)], "response_model": None}


def _check_parameters(request: Request) -> None:
    """What is misspelt would be left out, and a filter that is left out is one for everything."""
    known = _parameters(request.scope["endpoint"]) - request.path_params.keys()
    seen = set[str]()
    for name, _ in request.query_params.multi_items():
        if name not in known:
            there_are = f"there are {', '.join(sorted(known))}" if known else "there is none"
            raise _refused(name[:80], f"is no parameter here, {there_are}")
        if name in seen:
            raise _refused(name, "is given twice")
        seen.add(name)


@cache
def _parameters(endpoint: Callable[..., object]) -> frozenset[str]:
    """Names of what a call takes from its address."""
    names = signature(endpoint).parameters.keys() - {"request"}
    return frozenset(
        names - {"wanted"} | signature(_letter_filter).parameters.keys() if "wanted" in names else names
    )


def _add_reading(router: APIRouter, service: QueueService, read: dict[str, Any]) -> None:
    @router.get("/queues", summary="Queues by name", responses=answers(QueueStats, many=True), **read)
    async def queues(
        limit: Limit = 100,
        after: Annotated[str, Query(description="Names behind this one: the last of the page before")] = "",
        match: Annotated[str, Query(description="Shell wildcards over names", max_length=300)] = "*",
    ) -> Response:
        return json_answer(service.queues(after, limit, match), HTTPStatus.OK)

    @router.get("/queues/{name}", summary="A queue with its settings", responses=answers(QueueDetail), **read)
    async def queue(name: Name) -> Response:
        return _settings_answer(service.queue(unquote(name)), HTTPStatus.OK)

    @router.get("/queues/{name}/stats", summary="Its figures", responses=answers(QueueStats), **read)
    async def stats(name: Name) -> Response:
        return json_answer(service.stats(unquote(name)), HTTPStatus.OK)

    @router.get(
        "/queues/{name}/messages",
        summary="Messages with their bodies, without consuming them",
        responses=answers(PeekedMessage, many=True),
        **read,
    )
    async def messages(
        name: Name,
        after: Annotated[int, Query(ge=0, description="Sequences behind this one")] = 0,
        limit: Annotated[int, Query(ge=1, le=PEEK_MAX, description="How many at most")] = 10,
    ) -> Response:
        return json_answer(await service.peek(unquote(name), after, limit), HTTPStatus.OK)

    @router.get(
        "/queues/{name}/delayed",
        summary="Messages whose time has not come, with their bodies",
        responses=answers(PeekedMessage, many=True),
        **read,
    )
    async def delayed(
        name: Name,
        after: Annotated[int, Query(ge=0, description="Sequences behind this one")] = 0,
        limit: Annotated[int, Query(ge=1, le=PEEK_MAX, description="How many at most")] = 10,
    ) -> Response:
        return json_answer(await service.delayed(unquote(name), after, limit), HTTPStatus.OK)

    @router.get(
        "/queues/{name}/messages/{message_id}",
        summary="A message: its state in each group, holder, next retry",
        responses=answers(MessageView),
        **read,
    )
    async def message(name: Name, message_id: str) -> Response:
        return json_answer(service.message(unquote(name), unquote(message_id)), HTTPStatus.OK)

    @router.get(
        "/queues/{name}/explain",
        summary="Why nothing is delivered",
        responses=answers(Reason, many=True),
        **read,
    )
    async def explain(name: Name) -> Response:
        return json_answer(service.explain(unquote(name)), HTTPStatus.OK)


def _add_groups(router: APIRouter, service: QueueService, read: dict[str, Any]) -> None:
    @router.get(
        "/queues/{name}/groups",
        summary="Its consumer groups",
        responses=answers(GroupView, many=True),
        **read,
    )
    async def groups(
        name: Name,
        limit: Limit = 100,
        after: Annotated[str, Query(description="Names behind this one: the last of the page before")] = "",
    ) -> Response:
        return json_answer(service.groups(unquote(name), after, limit), HTTPStatus.OK)

    @router.get(
        "/queues/{name}/consumers",
        summary="Its consumers",
        responses=answers(ConsumerView, many=True),
        **read,
    )
    async def consumers(
        name: Name,
        limit: Limit = 100,
        after_group: Annotated[
            str, Query(description="Behind this group, or in it behind after: of the last of the page before")
        ] = "",
        after: Annotated[str, Query(description="In that group, client ids behind this one")] = "",
    ) -> Response:
        return json_answer(service.consumers(unquote(name), (after_group, after), limit), HTTPStatus.OK)


def _add_dead_letters(router: APIRouter, service: QueueService, access: Access) -> None:
    read, operate = _needs(access, Scope.READ), _needs(access, Scope.OPERATE)

    @router.get(
        "/queues/{name}/dlq",
        summary="Its dead letters, without consuming them",
        responses=answers(DeadLetterView, many=True),
        **read,
    )
    async def dead_letters(
        name: Name,
        wanted: Wanted,
        limit: Limit = 100,
        after: Annotated[str, Query(description="Behind the one with this id", max_length=80)] = "",
    ) -> Response:
        return json_answer(await service.dead_letters(unquote(name), wanted, after, limit), HTTPStatus.OK)

    @router.post(
        "/queues/{name}/dlq/{letter_id}/retry",
        summary="Put a dead letter back",
        responses=answers(Done),
        **operate,
    )
    async def retry(name: Name, letter_id: str) -> Response:
        return json_answer(Done(await service.retry(unquote(name), unquote(letter_id))), HTTPStatus.OK)

    @router.post(
        "/queues/{name}/dlq/redrive",
        summary="Put dead letters back by their ids, all in one transaction",
        description="What is no dead letter any more counts as gone: a request without an answer may be repeated. What"
        " comes from a queue that is not there any more stays, and is counted as orphaned; so does what is for a group"
        " that was removed where there is no room for another one, and is counted as crowded.",
        responses=answers(PutBack),
        openapi_extra=takes(LettersAsked),
        **operate,
    )
    async def put_back(name: Name, request: Request) -> Response:
        body = await _body(request)
        if body is None:
            return _too_large()
        try:
            asked = msgspec.json.decode(body, type=LettersAsked)
        except msgspec.MsgspecError as error:
            return problem(HTTPStatus.BAD_REQUEST, f"the body is not understood: {error}", {})
        return json_answer(await service.put_back(unquote(name), asked.ids), HTTPStatus.OK)


def _add_retries(router: APIRouter, service: QueueService, access: Access) -> None:
    read, operate = _needs(access, Scope.READ), _needs(access, Scope.OPERATE)

    @router.post(
        "/queues/{name}/dlq/retry",
        summary="Put dead letters back: all, or those of a filter; with a rate, in the background",
        description="What comes from a queue that is not there any more stays, and is counted as orphaned; so does what"
        " is for a group that was removed where there is no room for another one, and is counted as crowded.",
        responses=answers(Retried) | answers(RetryJob, status=202),
        **operate,
    )
    async def retry_all(
        name: Name,
        wanted: Wanted,
        rate: Annotated[
            float | None, Query(ge=RATE_MIN, le=RATE_MAX, description="Messages a second")
        ] = None,
        limit: Annotated[
            int | None, Query(ge=1, le=RETRY_MAX, description="How many at most, without a rate")
        ] = None,
    ) -> Response:
        if rate is not None:
            if limit is not None:
                raise _refused("limit", "cannot be given together with a rate")
            job = await service.retry_slowly(unquote(name), wanted, rate)
            return json_answer(job, HTTPStatus.ACCEPTED)
        done = await service.retry_all(unquote(name), wanted, limit or RETRY_MAX)
        return json_answer(done, HTTPStatus.OK)

    @router.get(
        "/queues/{name}/dlq/retry",
        summary="The retry that runs, or ran last",
        responses=answers(RetryJob),
        **read,
    )
    async def retry_job(name: Name) -> Response:
        job = service.retry_job(unquote(name))
        if job is None:
            return problem(HTTPStatus.NOT_FOUND, "no retry with a rate has been started", {})
        return json_answer(job, HTTPStatus.OK)

    @router.delete(
        "/queues/{name}/dlq/retry",
        summary="End the retry that runs",
        status_code=204,
        responses=problems(),
        **operate,
    )
    async def stop_retry(name: Name) -> Response:
        if not service.stop_retry(unquote(name)):
            return problem(HTTPStatus.NOT_FOUND, "no retry runs", {})
        return Response(status_code=HTTPStatus.NO_CONTENT)


def _add_changes(router: APIRouter, service: QueueService, access: Access) -> None:
    operate, admin = _needs(access, Scope.OPERATE), _needs(access, Scope.ADMIN)

    @router.put(
        "/queues/{name}",
        summary="Make a queue, or give it other settings",
        description="What is not named has its default; the name may be left out. With `If-None-Match: *` a queue that"
        " is there stays as it is: 412.",
        responses=answers(Configured) | answers(Configured, status=201),
        openapi_extra=takes(QueueSettings),
        **admin,
    )
    async def configure(name: Name, request: Request) -> Response:
        body = await _body(request)
        if body is None:
            return _too_large()
        if request.headers.get("if-none-match") == "*" and _exists(service, unquote(name)):
            told = f"there is a queue {unquote(name)!r} already"
            return problem(HTTPStatus.PRECONDITION_FAILED, told, {})
        done = await service.configure(unquote(name), json_object(unquote(name), body or b"{}"))
        return _settings_answer(done, HTTPStatus.CREATED if done.created else HTTPStatus.OK)

    @router.delete("/queues/{name}", summary="Empty a queue and delete it", responses=answers(Done), **admin)
    async def delete(name: Name) -> Response:
        return json_answer(Done(await service.delete(unquote(name))), HTTPStatus.OK)

    @router.post(
        "/queues/{name}/purge",
        summary="Delete every message that is there",
        responses=answers(Done),
        **operate,
    )
    async def purge(name: Name) -> Response:
        return json_answer(Done(await service.purge(unquote(name))), HTTPStatus.OK)

    @router.delete(
        "/queues/{name}/messages/{message_id}",
        summary="Delete one message, held and delayed ones too",
        status_code=204,
        responses=problems(),
        **operate,
    )
    async def delete_message(name: Name, message_id: str) -> Response:
        await service.delete_message(unquote(name), unquote(message_id))
        return Response(status_code=HTTPStatus.NO_CONTENT)

    @router.delete(
        "/queues/{name}/groups/{group}",
        summary="Remove a group without consumers",
        status_code=204,
        responses=problems(),
        **operate,
    )
    async def remove_group(name: Name, group: str) -> Response:
        await service.remove_group(unquote(name), unquote(group))
        return Response(status_code=HTTPStatus.NO_CONTENT)


def _add_pauses(router: APIRouter, service: QueueService, operate: dict[str, Any]) -> None:
    more: dict[str, Any] = {"status_code": 204, "responses": problems()} | operate

    async def paused(name: str, group: str, *, is_paused: bool) -> Response:
        await service.pause(unquote(name), unquote(group), is_paused=is_paused)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    @router.post("/queues/{name}/pause", summary="Hand out nothing, until resumed", **more)
    async def pause(name: Name) -> Response:
        return await paused(name, "", is_paused=True)

    @router.post("/queues/{name}/resume", summary="Hand out messages again", **more)
    async def resume(name: Name) -> Response:
        return await paused(name, "", is_paused=False)

    @router.post("/queues/{name}/groups/{group}/pause", summary="Hand out nothing to one group", **more)
    async def pause_group(name: Name, group: str) -> Response:
        return await paused(name, group, is_paused=True)

    @router.post("/queues/{name}/groups/{group}/resume", summary="Hand out to it again", **more)
    async def resume_group(name: Name, group: str) -> Response:
        return await paused(name, group, is_paused=False)


def _exists(service: QueueService, name: str) -> bool:
    try:
        service.stats(name)
    except NoSuchQueue:
        return False
    return True


async def _body(request: Request) -> bytes | None:
    """None when it is too large."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            return None
    return body


def _too_large() -> Response:
    told = f"the body has more than {BODY_BYTES_MAX} bytes"
    return problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, told, {"connection": "close"})


def _settings_answer(content: object, status: HTTPStatus) -> Response:
    """With durations as they are written."""
    return Response(msgspec.json.encode(content, enc_hook=str), status, media_type="application/json")
