"""Reading on in the message log for sessions that are behind."""

from __future__ import annotations

import logging
from functools import partial

from embermq.app.log_side import LogSide, Post
from embermq.app.log_thread import LogThread
from embermq.delivery.device.behind import STEP_RECORDS, Found
from embermq.ports.errors import StoreError
from embermq.ports.message_log import LogBatch, MessageLog

LOG = logging.getLogger("embermq")
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
