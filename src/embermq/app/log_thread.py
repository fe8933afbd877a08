"""The message log for the broker's own thread, which may not wait for it: asked on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

from msgspec import Struct

from embermq.app.log_side import LogSide, Post
from embermq.ports.message_log import MessageLog

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
