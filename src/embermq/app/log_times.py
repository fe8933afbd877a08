"""Where a time is in the message log, found on a thread of its own: a log may take long to answer."""

from __future__ import annotations

import logging
import time
from functools import partial
from queue import SimpleQueue
from threading import Thread

from msgspec import Struct

from embermq.app.log_side import LogSide, Post
from embermq.model.counters import Counters
from embermq.ports.errors import StoreError
from embermq.ports.message_log import MessageLog
from embermq.sessions.durable_queues import OffsetFound
from embermq.sessions.waiting_subscriptions import WAIT_MS

LOG = logging.getLogger("embermq")
NEVER_MS = 253_370_764_800_000
"""The year 9999."""
CLOSE_S = 1.0
"""How long the end of the broker waits for an answer that nobody needs any more."""


class _Question(Struct, frozen=True):
    time_ms: int
    then: OffsetFound
    asked_s: float


class LogTimes:
    """Questions are answered one after another; one that has waited too long, so that who asked has given up, is not
    asked at all."""

    def __init__(self, log_side: LogSide, post: Post, counters: Counters) -> None:
        self._log_side = log_side
        self._post = post
        self._counters = counters
        self._asked: SimpleQueue[_Question | None] = SimpleQueue()
        self._thread: Thread | None = None

    def find(self, time_ms: int, then: OffsetFound) -> None:
        """See `DurableQueues.find_offset`."""
        if not self._log_side.is_shared_by_threads:
            then(_offset(self._log_side.log, time_ms))
            return
        if self._thread is None:
            self._thread = Thread(target=self._answer_forever, name="log times", daemon=True)
            self._thread.start()
        self._asked.put(_Question(time_ms, then, time.monotonic()))

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
            if time.monotonic() - question.asked_s > WAIT_MS / 1_000:
                continue
            answer: int | StoreError
            then = question.then
            try:
                if log is None:
                    log, close = self._log_side.open_reader()
                answer = _offset(log, question.time_ms)
            except StoreError as error:
                answer = error
            except Exception as error:  # whatever it was, nobody who asks later would be answered
                LOG.exception("a time in the message log cannot be found")
                answer = StoreError(f"a time in the message log cannot be found: {error!r}")
                then = partial(self._counted, question.then)
            self._post(partial(then, answer))
        if close is not None:
            close()

    def _counted(self, then: OffsetFound, answer: int | StoreError) -> None:
        """On the event loop, which alone counts."""
        self._counters.unexpected_errors += 1
        then(answer)


def _offset(log: MessageLog, time_ms: int) -> int:
    """Of what the log has let go of nobody knows when it came, and queues may have it still: when the time is before
    all that is left, it is 0. Raises StoreError."""
    found = log.offset_at(time_ms)
    is_before_all = found == log.offset_at(0) and found < log.offset_at(NEVER_MS)
    return 0 if is_before_all else found
