"""Where a time is in the message log, asked on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

import pytest

from embermq.app import log_thread
from embermq.app.log_thread import LogTimes
from embermq.model.counters import Counters
from embermq.ports.errors import StoreError, StoreUnavailable

PATIENCE_S = 20.0


class SlowLog:
    """A log side and its log: answers when it is let go."""

    is_shared_by_threads = True

    def __init__(self) -> None:
        self.began, self.goes_on = threading.Event(), threading.Event()
        self.threads: list[str] = []
        """Where it was asked for a time that may have been."""
        self.start, self.end = 0, 1_000
        self.opened = self.closed = 0
        self.failures: list[Exception] = []

    @property
    def log(self) -> SlowLog:
        return self

    def open_reader(self) -> tuple[SlowLog, Callable[[], None]]:
        if self.failures:
            raise self.failures.pop()
        self.opened += 1
        return self, self._close

    def _close(self) -> None:
        self.closed += 1

    def offset_at(self, time_ms: int) -> int:
        if 0 < time_ms < log_thread.NEVER_MS:
            self.threads.append(threading.current_thread().name)
        self.began.set()
        assert self.goes_on.wait(PATIENCE_S)
        return min(max(self.start, time_ms // 10), self.end)


class Asker:
    """Stands for the event loop: what is posted waits here."""

    def __init__(self, log: SlowLog) -> None:
        self.posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.found: list[int | StoreError] = []
        self.counters = Counters()
        self.times = LogTimes(log, self.posted.put, self.counters)  # type: ignore[arg-type]

    def finds(self, time_ms: int) -> None:
        self.times.find(time_ms, self.found.append)

    def takes(self) -> None:
        self.posted.get(timeout=PATIENCE_S)()


def test_who_asks_does_not_wait() -> None:
    log = SlowLog()
    asker = Asker(log)
    asker.finds(1_000)
    asker.finds(2_000)
    assert asker.found == []
    log.goes_on.set()
    asker.takes()
    asker.takes()
    assert asker.found == [100, 200] and log.threads == ["log times"] * 2
    asker.times.close()
    assert (log.opened, log.closed) == (1, 1)


def test_a_log_that_fails_is_asked_again_by_the_next() -> None:
    log = SlowLog()
    log.goes_on.set()
    log.failures.append(StoreUnavailable("away"))
    asker = Asker(log)
    asker.finds(1)
    asker.takes()
    assert str(asker.found.pop()) == "away" and asker.counters.unexpected_errors == 0
    asker.finds(70)
    asker.takes()
    assert asker.found == [7]
    asker.times.close()


def test_what_nobody_waits_for_any_more_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    log = SlowLog()
    asker = Asker(log)
    asker.finds(10)
    assert log.began.wait(PATIENCE_S)
    asker.finds(20)
    monkeypatch.setattr(log_thread, "WAIT_MS", -1)
    log.goes_on.set()
    asker.takes()
    asker.times.close()
    assert asker.posted.empty() and asker.found == [1] and len(log.threads) == 1


def test_what_other_threads_do_not_see_is_looked_up_at_once() -> None:
    log = SlowLog()
    log.is_shared_by_threads = False
    log.goes_on.set()
    asker = Asker(log)
    asker.finds(30)
    assert asker.found == [3] and log.threads == [threading.current_thread().name]
    asker.times.close()


@pytest.mark.promise("queues-18")
def test_a_time_before_all_that_is_left_is_the_beginning() -> None:
    log = SlowLog()
    log.goes_on.set()
    log.start = 50
    asker = Asker(log)
    for time_ms in (400, 510):
        asker.finds(time_ms)
        asker.takes()
    log.start = log.end
    asker.finds(20_000)
    asker.takes()
    assert asker.found == [0, 51, 1_000], (
        "what queues have of before may be later; nothing is left: it is over"
    )
    asker.times.close()


def test_the_end_of_the_broker_waits_for_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_thread, "CLOSE_S", 0.01)
    log = SlowLog()
    asker = Asker(log)
    asker.finds(10)
    assert log.began.wait(PATIENCE_S)
    asker.times.close()
    assert log.closed == 0
    log.goes_on.set()
    asker.takes()


def test_whatever_happens_the_next_one_is_answered() -> None:
    log = SlowLog()
    log.failures, asker = [ValueError("no such thing")], Asker(log)
    log.goes_on.set()
    asker.finds(1_000)
    asker.takes()
    (problem,) = asker.found
    assert isinstance(problem, StoreError) and "no such thing" in str(problem)
    assert asker.counters.unexpected_errors == 1
    asker.finds(2_000)
    asker.takes()
    assert asker.found[1:] == [200] and asker.counters.unexpected_errors == 1
    asker.times.close()
