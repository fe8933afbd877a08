"""The message log for the broker's own thread, which may not wait for it: read on a thread of its own."""

from __future__ import annotations

import logging
from functools import partial
from queue import SimpleQueue
from threading import Thread

from embermq.app.log_side import LogSide, Post
from embermq.delivery.device.behind import STEP_RECORDS, Found
from embermq.ports.errors import StoreError
from embermq.ports.message_log import LogBatch, MessageLog

LOG = logging.getLogger("embermq")
READ_BYTES = 1024 * 1024
CLOSE_S = 1.0
"""How long the end of the broker waits for an answer that nobody needs any more."""


class LogReads:
    """One after another. The thread begins with the first one."""

    def __init__(self, log_side: LogSide, post: Post) -> None:
        self._log_side = log_side
        self._post = post
        self._asked: SimpleQueue[tuple[int, Found] | None] = SimpleQueue()
        self._thread: Thread | None = None

    def read(self, position: int, then: Found) -> None:
        """See `delivery.device.behind.ReadLog`."""
        if self._thread is None:
            self._thread = Thread(target=self._answer_forever, name="log reads", daemon=True)
            self._thread.start()
        self._asked.put((position, then))

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
            position, then = question
            found: list[LogBatch] | None = None
            try:
                if log is None:
                    log, close = self._log_side.open_reader()
                found = log.read(position, records_max=STEP_RECORDS, bytes_max=READ_BYTES)
            except StoreError as error:
                LOG.warning("reading on in the message log: %s", error)
            except Exception:  # whatever it was, it is tried again
                LOG.exception("the message log cannot be read on")
            self._post(partial(then, found))
        if close is not None:
            close()
