"""The message log for the broker's own thread, which may not wait for it: asked on a thread of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

from msgspec import Struct

from embermq.app.log_side import LogSide, Post
from embermq.delivery.device.behind import STEP_RECORDS, Found
from embermq.model.counters import Counters
from embermq.ports.errors import StoreError
from embermq.ports.message_log import LogBatch, MessageLog
from embermq.sessions.durable_queues import OffsetFound
from embermq.sessions.waiting_subscriptions import WAIT_MS

CLOSE_S = 1.0
"""How long the end of the broker waits for an answer that nobody needs any more."""

Answer = TypeVar("Answer")


class _Question(Struct, frozen=True):
    ask: Callable[[MessageLog], object]
    then: Callable[..., None]
    is_wanted: Callable[[], bool]


def _always() -> bool:
    return True


class LogThread:
    """Questions are answered one after another. The thread begins with the first one."""

    def __init__(self, name: str, log_side: LogSide, post: Post) -> None:
        self._name = name
        self._log_side = log_side
        self._post = post
        self._asked: SimpleQueue[_Question | None] = SimpleQueue()
        self._thread: Thread | None = None

    def ask(
        self,
        question: Callable[[MessageLog], Answer],
        then: Callable[[Answer | Exception], None],
        is_wanted: Callable[[], bool] = _always,
    ) -> None:
        """`then` gets, on the broker's own thread, what the question returns or raises; nothing when it is not wanted
        any more as its turn comes."""
        if self._thread is None:
            self._thread = Thread(target=self._answer_forever, name=self._name, daemon=True)
            self._thread.start()
        self._asked.put(_Question(question, then, is_wanted))

    def close(self) -> None:
        """A log that does not answer is not waited for."""
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join(CLOSE_S)
            self._thread = None

    def _answer_forever(self) -> None:
        log: MessageLog | None = None
        close = None
        while (question := self._asked.get()) is not None:
            if not question.is_wanted():
                continue
            answer: object
            try:
                if log is None:
                    log, close = self._log_side.open_reader()
                answer = question.ask(log)
            except Exception as error:  # whatever it was, who asks later is to be answered
                answer = error
            self._post(partial(question.then, answer))
        if close is not None:
            close()


LOG = logging.getLogger("embermq")
NEVER_MS = 253_370_764_800_000
"""The year 9999."""


class LogTimes:
    """Questions are answered one after another; one that has waited too long, so that who asked has given up, is not
    asked at all."""

    def __init__(self, log_side: LogSide, post: Post, counters: Counters) -> None:
        self._log_side = log_side
        self._counters = counters
        self._thread = LogThread("log times", log_side, post)
        self.close = self._thread.close

    def find(self, time_ms: int, then: OffsetFound) -> None:
        """See `DurableQueues.find_offset`."""
        if not self._log_side.is_shared_by_threads:
            then(_offset(self._log_side.log, time_ms))
            return
        is_wanted = partial(_is_waited_for, time.monotonic())
        self._thread.ask(partial(_offset, time_ms=time_ms), partial(self._answered, then), is_wanted)

    def _answered(self, then: OffsetFound, answer: int | Exception) -> None:
        if isinstance(answer, Exception) and not isinstance(answer, StoreError):
            LOG.error("a time in the message log cannot be found", exc_info=answer)
            self._counters.unexpected_errors += 1
            answer = StoreError(f"a time in the message log cannot be found: {answer!r}")
        then(answer)


def _is_waited_for(asked_s: float) -> bool:
    return time.monotonic() - asked_s <= WAIT_MS / 1_000


def _offset(log: MessageLog, time_ms: int) -> int:
    """Of what the log has let go of nobody knows when it came, and queues may have it still: when the time is before
    all that is left, it is 0. Raises StoreError."""
    found = log.offset_at(time_ms)
    is_before_all = found == log.offset_at(0) and found < log.offset_at(NEVER_MS)
    return 0 if is_before_all else found


READ_BYTES = 1024 * 1024


class LogReads:
    """One after another, on a thread of their own."""

    def __init__(self, log_side: LogSide, post: Post) -> None:
        self._thread = LogThread("log reads", log_side, post)
        self.close = self._thread.close

    def read(self, position: int, then: Found) -> None:
        """See `delivery.device.behind.ReadLog`."""
        self._thread.ask(partial(_read, position), partial(_answered, then))


def _read(position: int, log: MessageLog) -> list[LogBatch]:
    return log.read(position, records_max=STEP_RECORDS, bytes_max=READ_BYTES)


def _answered(then: Found, answer: list[LogBatch] | Exception) -> None:
    """Whatever it was, it is tried again."""
    if isinstance(answer, StoreError):
        LOG.warning("reading on in the message log: %s", answer)
    elif isinstance(answer, Exception):
        LOG.error("the message log cannot be read on", exc_info=answer)
    then(answer if isinstance(answer, list) else None)
