"""Where a time is in the message log, found on a thread of its own: a log may take long to answer."""

from __future__ import annotations

import logging
import time
from functools import partial

from embermq.app.log_side import LogSide, Post
from embermq.app.log_thread import LogThread
from embermq.model.counters import Counters
from embermq.ports.errors import StoreError
from embermq.ports.message_log import MessageLog
from embermq.sessions.durable_queues import OffsetFound
from embermq.sessions.waiting_subscriptions import WAIT_MS

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
