"""The façade of durable queues: what operators see of them and may do to them, whatever the protocol they ask in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from embermq.queues.explaining import Reason
from embermq.queues.inspection import (
    ConsumerView,
    DeadLetterView,
    GroupView,
    LetterFilter,
    MessageView,
    QueueStats,
)
from embermq.queues.settings import QueueSettings

LETTERS_MAX = 1_000
"""Dead letters that one request puts back by their ids, in one transaction."""
QUEUES_NAMED_MAX = 100
"""Queues that are named as missing: a queue of dead letters may be that of very many."""
LetterId = Annotated[str, Meta(max_length=80)]


class QueueDetail(Struct, frozen=True, kw_only=True):
    """A queue with its settings, and its first 100 groups by name."""

    settings: QueueSettings
    stats: QueueStats
    groups: Sequence[GroupView]


class PeekedMessage(Struct, frozen=True, kw_only=True):
    """A message with its body, which nobody consumes by looking at it. `payload` is text, or `payload_base64` where it
    is not UTF-8, of large ones the first 64 KiB; neither when the body cannot be read any more."""

    about: MessageView
    publisher: str
    payload_bytes: int
    properties: Mapping[str, object]
    payload: str | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET


class Configured(Struct, frozen=True):
    """Whether the queue was made by it, and its settings now."""

    created: bool
    settings: QueueSettings


class Done(Struct, frozen=True):
    """How many messages it was done to."""

    messages: int


class LettersAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """Dead letters by their own ids, as a list of them tells: 1 to 1,000."""

    ids: Annotated[tuple[LetterId, ...], Meta(min_length=1, max_length=LETTERS_MAX)]


class PutBack(Struct, frozen=True, kw_only=True):
    """What became of dead letters that were asked for by id: `put_back` into their queues; `held` by a consumer of the
    dead-letter queue, where they stay; `gone`, no dead letters any more, also when they had been put back before;
    `orphaned`, which stay as well, since the queues that they come from, `missing_queues`, are not there any more: the
    first 100 by name; and `crowded`, which stay since their consumer group was removed and the queues, `full_queues`,
    have as many others as may be."""

    put_back: int
    held: int
    gone: int
    orphaned: int
    missing_queues: Sequence[str]
    crowded: int
    full_queues: Sequence[str]


class Retried(Struct, frozen=True, kw_only=True):
    """What became of all dead letters of a filter: `messages` are back in their queues, the others see `PutBack`."""

    messages: int
    held: int
    orphaned: int
    missing_queues: Sequence[str]
    crowded: int
    full_queues: Sequence[str]


class RetryJob(Struct, frozen=True, kw_only=True):
    """Dead letters that go back one after another, `rate` a second, of which `retried` have; the others see
    `PutBack`."""

    queue: str
    rate: float
    matched: int
    retried: int = 0
    running: bool = False
    held: int = 0
    orphaned: int = 0
    missing_queues: Sequence[str] = ()
    crowded: int = 0
    full_queues: Sequence[str] = ()


class QueueRefused(Exception):
    """It cannot be done now: why."""


class RequestRefused(Exception):
    """What was asked cannot be meant: which field, why."""


class NoSuchQueue(QueueRefused):
    """There is no queue of that name, or no message, group or dead letter of that name in it."""


class QueueService(ABC):
    """Implemented in app; called on the event loop. Reading answers from memory; what changes something returns when
    that is durable, or raises StoreError when the store takes too long: it may be done all the same. All but `queues`
    and `configure` raise NoSuchQueue."""

    @abstractmethod
    def queues(self, after: str, limit: int, match: str) -> Sequence[QueueStats]:
        """Up to `limit` queues whose name sorts behind `after` and fits the shell pattern `match`, in that order."""

    @abstractmethod
    def queue(self, name: str) -> QueueDetail:
        """One of them."""

    @abstractmethod
    def stats(self, name: str) -> QueueStats:
        """Its figures alone."""

    @abstractmethod
    def groups(self, name: str, after: str, limit: int) -> Sequence[GroupView]:
        """Up to `limit` of its groups whose names sort behind `after`, in that order."""

    @abstractmethod
    def consumers(self, name: str, after: tuple[str, str], limit: int) -> Sequence[ConsumerView]:
        """Up to `limit` of its consumers that sort behind `after`, a group and a client id, in that order."""

    @abstractmethod
    def message(self, name: str, message_id: str) -> MessageView:
        """A message with its state in every group."""

    @abstractmethod
    async def peek(self, name: str, after: int, limit: int) -> Sequence[PeekedMessage]:
        """Up to `limit` messages behind the sequence `after`, with their bodies. Raises StoreError."""

    @abstractmethod
    async def delayed(self, name: str, after: int, limit: int) -> Sequence[PeekedMessage]:
        """Up to `limit` messages whose time has not come, behind the sequence `after`, with their bodies. Raises
        StoreError."""

    @abstractmethod
    def explain(self, name: str) -> Sequence[Reason]:
        """Why nothing is delivered."""

    @abstractmethod
    async def dead_letters(
        self, name: str, wanted: LetterFilter, after: str, limit: int
    ) -> Sequence[DeadLetterView]:
        """Dead letters of the queue, or in it when it is a queue of dead letters, behind the one with the id `after`;
        nobody consumes them by looking at them."""

    @abstractmethod
    async def configure(self, name: str, given: Mapping[str, object]) -> Configured:
        """Make the queue, or give it these settings instead of those it has. Raises SettingsRefused and, when there are
        too many queues, QueueRefused."""

    @abstractmethod
    async def delete(self, name: str) -> int:
        """Empty it and let go of it; returns how many messages it had. Raises QueueRefused while it has consumers."""

    @abstractmethod
    async def purge(self, name: str) -> int:
        """Let go of every message that is there now, held and delayed ones too; returns how many."""

    @abstractmethod
    async def delete_message(self, name: str, message_id: str) -> None:
        """Let go of one message, for all groups; a held or delayed one too."""

    @abstractmethod
    async def pause(self, name: str, group: str, *, is_paused: bool) -> None:
        """Have a group wait, or go on; with "" the whole queue. Nothing is handed out meanwhile."""

    @abstractmethod
    async def remove_group(self, name: str, group: str) -> None:
        """Let go of a group without consumers, and of what it alone owed. Raises QueueRefused while it has some."""

    @abstractmethod
    async def retry(self, name: str, letter_id: str) -> int:
        """Put one dead letter back, or all that the message of this id has, one a group. Those that a consumer of the
        dead-letter queue holds stay; raises QueueRefused when all do, when their queue is not there any more, and when
        one of them is for a group that would be one too many: none of them moves then."""

    @abstractmethod
    async def retry_all(self, name: str, wanted: LetterFilter, limit: int) -> Retried:
        """Put dead letters back, the oldest first: of `limit` at most those that can go."""

    @abstractmethod
    async def put_back(self, name: str, letter_ids: Sequence[str]) -> PutBack:
        """Put back those of these ids that are dead letters still, in their order and in one transaction: asking again
        for what had no answer moves nothing twice. Raises StoreError."""

    @abstractmethod
    async def retry_slowly(self, name: str, wanted: LetterFilter, rate: float) -> RetryJob:
        """Begin to put dead letters back, at most `rate` a second; what is left when the broker ends is a dead letter
        still. What is orphaned or crowded at the beginning is told at once, and has no turn. Raises QueueRefused while
        another one runs for this queue."""

    @abstractmethod
    def retry_job(self, name: str) -> RetryJob | None:
        """The one that runs, or ended last."""

    @abstractmethod
    def stop_retry(self, name: str) -> bool:
        """End the one that runs; False when none does."""
