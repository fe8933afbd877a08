"""The archive for operators, see `admin.values`; `embermq messages` asks it in its own process."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from embermq.admin.errors import RequestRefused
from embermq.admin.values import (
    PAGE_BYTES_MAX,
    PAGE_MAX,
    PRUNED_AT_ONCE,
    ArchivedCount,
    ArchivedMessage,
    ListArchivedRequest,
    OlderRequest,
)
from embermq.app.access_desks import refusing
from embermq.app.config import Settings
from embermq.app.message_archive import message_store_of
from embermq.app.own_thread import on_own_thread
from embermq.app.places_noted import check_archive
from embermq.app.slots import named_slot
from embermq.model.moments import iso_ms
from embermq.mqtt.topics.errors import TopicError
from embermq.mqtt.topics.names import validate_topic
from embermq.ports.message_store import MessageStore, StoredMessage

Answer = TypeVar("Answer")

ANSWER_S = 60.0


@contextmanager
def archive_of(settings: Settings, slot: int | None, answer_s: float) -> Iterator[MessageStore]:
    """Where the broker archives, if the settings lead there. Raises OptionError, UserError, StartError."""
    check_archive(settings)
    with message_store_of(named_slot(settings, slot), answer_s) as store:
        yield store


def archived_messages(store: MessageStore, topic: str, after: int, limit: int) -> Iterator[ArchivedMessage]:
    """Up to `limit` of a topic behind an offset, a page at a time, so that the pipeline's writer is not held up."""
    while limit:
        found = store.range(topic, after, min(limit, PAGE_MAX))
        if not found:
            return
        yield from map(_view, found)
        after = found[-1].offset
        limit -= len(found)


class ArchiveAsked:
    """Asked on threads, one after another: the archive may be large, or far away."""

    def __init__(self, settings: Settings, *, answer_s: float = ANSWER_S) -> None:
        """`answer_s`: how long a server may take for an answer."""
        self._settings = settings
        self._answer_s = answer_s
        self._turn = asyncio.Lock()

    async def page(self, asked: ListArchivedRequest) -> Sequence[ArchivedMessage]:
        try:
            validate_topic(asked.topic)
        except TopicError as error:
            raise RequestRefused(f"topic: {error}") from None

        def look(store: MessageStore) -> Sequence[ArchivedMessage]:
            page, room = [], PAGE_BYTES_MAX
            for one in archived_messages(store, asked.topic, asked.after, asked.limit):
                page.append(one)
                room -= len(msgspec.json.encode(one))
                if room <= 0:
                    break
            return page

        return await self._ask(look, asked.slot)

    async def count(self, asked: OlderRequest) -> ArchivedCount:
        before_ms = round(asked.before.timestamp() * 1000)
        return ArchivedCount(await self._ask(lambda store: store.count_older(before_ms), asked.slot))

    async def prune(self, asked: OlderRequest) -> ArchivedCount:
        before_ms = round(asked.before.timestamp() * 1000)
        return ArchivedCount(
            await self._ask(lambda store: store.prune(before_ms, PRUNED_AT_ONCE), asked.slot)
        )

    async def _ask(self, what: Callable[[MessageStore], Answer], slot: int | None) -> Answer:
        def ask() -> Answer:
            with refusing(), archive_of(self._settings, slot, self._answer_s) as store:
                return what(store)

        async with self._turn:
            return await on_own_thread(ask, "archive")


def _view(found: StoredMessage) -> ArchivedMessage:
    message = found.message
    more: dict[str, object] = {}
    try:
        more["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        more["payload_base64"] = b64encode(message.payload).decode()
    if message.properties is not None:
        kept = msgspec.to_builtins(message.properties)
        more["properties"] = {name: value for name, value in kept.items() if value not in (None, (), [])}
    return ArchivedMessage(
        offset=found.offset,
        topic=message.topic,
        accepted=iso_ms(message.accepted_ms),
        expires=iso_ms(message.expires_ms) if message.expires_ms else None,
        qos=message.qos,
        retain=message.retain,
        publisher=message.publisher,
        **more,  # type: ignore[arg-type]
    )
