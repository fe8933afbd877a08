"""Application logs made, looked at and deleted on a thread of its own, so that the broker's never waits for Kafka."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from threading import Event, Lock, Thread
from typing import TypeVar

from confluent_kafka import KafkaException
from msgspec import Struct

from embermq.adapters.kafka.application_topics import ApplicationTopics
from embermq.adapters.kafka.client import LOG, Failures, Post, error_of, told
from embermq.formats.application_logs import ApplicationLogNames, NoApplicationLog
from embermq.ports.application_logs import ApplicationLogs, FoundLog, LogSize, Place
from embermq.ports.errors import StoreError, StoreFull, StoreUnavailable

RETRY_S = 0.25
LOOK_S = 1.0
"""How often it is looked whether the pipeline has passed the end of a log that is to go."""
DELETE_AGAIN_S = 30.0
"""After a log could not be deleted. A server may show it for long, and meanwhile nobody is let in by this thread."""
ENSURED_MAX = 10_000
"""Logs that may wait to be made or found."""
CALLS_MAX = 1_000
"""Other questions that may wait."""
CLOSE_S = 1.0
"""How long the end of the broker waits for a thread that Kafka holds up; it is left behind then."""

Answer = TypeVar("Answer")
Positions = Mapping[int, int]
"""Offsets of the message log by partition."""


Then = Callable[[FoundLog | StoreError], None]


class _Ensured(Struct):
    """A log that somebody waits for: until when, and what is to be called then."""

    partitions: int
    waiting: list[tuple[float, Then]]


class _Ended(Struct):
    """A log that goes when the pipeline has passed `ends` of the message log; not tried before `due_s`."""

    ends: Positions
    due_s: float = 0.0


class KafkaApplicationLogs(ApplicationLogs):
    """Of one prefix. `post` runs a call on the broker's thread; `log_ends` are the ends of the message log and
    `dispatched` how far the pipeline has carried it, both known without asking. `patience_s`: how long a log is
    waited for."""

    def __init__(
        self,
        topics: ApplicationTopics,
        names: ApplicationLogNames,
        post: Post,
        *,
        log_ends: Callable[[], Positions],
        dispatched: Callable[[], Positions],
        patience_s: float,
        failures: Failures | None = None,
    ) -> None:
        self._topics = topics
        self._failures = failures or Failures()
        self._names = names
        self._all_names = names.without_limits()
        self._post = post
        self._log_ends = log_ends
        self._dispatched = dispatched
        self._patience_s = patience_s
        self._lock = Lock()
        self._ensured: dict[str, _Ensured] = {}
        self._ended: dict[str, _Ended] = {}
        self._doomed: dict[str, list[str]] = {}
        """Logs that are to be deleted whoever reads them, by the question that says so."""
        self._calls: deque[Callable[[], None]] = deque()
        self._work = Event()
        self._closing = False
        self._failing = ""
        """Why those wait that wait to be made or found."""
        self._keeping = ""
        """Why those are not deleted that are to go."""
        self._thread = Thread(target=self._run, name="kafka logs of applications", daemon=True)
        self._thread.start()

    def name(self, client_id: str) -> str:
        return self._names.client_log(client_id)

    def shared_name(self, topic_filter: str) -> str:
        return self._all_names.shared_log(topic_filter)

    def objection_to_shared(self, topic_filter: str) -> str:
        try:
            self._names.shared_log(topic_filter)
        except NoApplicationLog as error:
            return str(error)
        return ""

    def shared_group(self, share: str, topic_filter: str) -> str:
        return self._all_names.shared_group(share, topic_filter)

    @property
    def failing(self) -> str:
        if not self._thread.is_alive() and not self._closing:
            return "the thread that makes and deletes application logs has ended"
        return self._failing or self._keeping

    def ensure(self, log: str, partitions: int, then: Callable[[FoundLog | StoreError], None]) -> None:
        with self._lock:
            self._ended.pop(log, None)
            self._doomed.pop(log, None)
            waiting = self._ensured.get(log)
            deadline_s = time.monotonic() + self._patience_s
            if waiting is not None:
                waiting.partitions = partitions
                waiting.waiting.append((deadline_s, then))
            elif len(self._ensured) >= ENSURED_MAX:
                full = StoreFull(f"{ENSURED_MAX} application logs wait to be made already")
                self._post(partial(then, full))
            else:
                self._ensured[log] = _Ensured(partitions, [(deadline_s, then)])
        self._work.set()

    def listed(self, then: Callable[[Collection[str] | StoreError], None]) -> None:
        self._ask(self._topics.names, then)

    def ended(self, log: str) -> None:
        with self._lock:
            self._ended[log] = _Ended(dict(self._log_ends()))
        self._work.set()

    def ends(self, logs: Mapping[str, int], then: Callable[[Mapping[Place, int] | StoreError], None]) -> None:
        self._ask(partial(self._topics.ends_of_those_there, dict(logs)), then)

    def trim(self, bases: Mapping[Place, int]) -> None:
        self._ask(partial(self._topics.trim, dict(bases)), _warn)

    def sizes(self, then: Callable[[list[LogSize] | StoreError], None]) -> None:
        self._ask(self._topics.sizes, then)

    def delete(self, logs: Collection[str], then: Callable[[StoreError | None], None]) -> None:
        names = list(logs)
        with self._lock:
            self._doomed.update(dict.fromkeys(names, names))
        self._ask(partial(self._delete_now, names), then)

    def _ask(self, question: Callable[[], Answer], then: Callable[[Answer | StoreError], None]) -> None:
        if len(self._calls) >= CALLS_MAX:
            full = StoreFull(f"{CALLS_MAX} questions about application logs wait already")
            self._post(partial(then, full))
            return
        self._calls.append(partial(self._answer, question, then))
        self._work.set()

    def close(self) -> None:
        """At once, whatever Kafka does: what waits is not answered any more."""
        self._closing = True
        self._topics.give_up()
        self._work.set()
        self._thread.join(CLOSE_S)

    # On the thread

    def _run(self) -> None:
        wait_s: float | None = None
        while not self._closing:
            self._work.wait(wait_s)
            self._work.clear()
            try:
                wait_s = self._round()
            except Exception as error:  # whatever it was, nobody would be let in any more
                self._unexpected("looking after application logs", error)
                wait_s = RETRY_S

    def _unexpected(self, doing: str, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(self._failures.note(doing, error))

    def _round(self) -> float | None:
        """Who waits for a log comes first. Returns in how many seconds to look again; None: when something comes."""
        self._ensure_all()
        while self._calls and not self._closing:
            self._calls.popleft()()
            self._ensure_all()
        self._delete_ended()
        with self._lock:
            if self._ensured:
                return RETRY_S
            return LOOK_S if self._ended else None

    def _ensure_all(self) -> None:
        with self._lock:
            wanted = {log: one.partitions for log, one in self._ensured.items()}
        if not wanted or self._closing:
            return
        found: Mapping[str, FoundLog | StoreError]
        try:
            found = self._topics.ensure(wanted)
        except StoreError as error:
            found = dict.fromkeys(wanted, error)
        except KafkaException as error:
            found = dict.fromkeys(wanted, StoreUnavailable(told(error_of(error))))
        except Exception as error:
            found = dict.fromkeys(wanted, self._unexpected("making and finding application logs", error))
        now_s = time.monotonic()
        with self._lock:
            for log, answer in found.items():
                one = self._ensured[log]
                if one.partitions != wanted[log]:
                    continue  # asked for anew, otherwise
                patient = [who for who in one.waiting if now_s < who[0]]
                if not isinstance(answer, StoreUnavailable):
                    patient = []
                answered = one.waiting[: len(one.waiting) - len(patient)]
                one.waiting = patient
                if not patient:
                    del self._ensured[log]
                if answered:
                    self._post(partial(_answer_all, [then for _, then in answered], answer))
            problems = [str(found[log]) for log in self._ensured if log in found]
        self._failing = problems[0] if problems else ""

    def _delete_ended(self) -> None:
        now_s, passed = time.monotonic(), self._dispatched()
        with self._lock:
            due = [
                log
                for log, one in self._ended.items()
                if log not in self._ensured
                and now_s >= one.due_s
                and all(passed.get(partition, 0) >= end for partition, end in one.ends.items())
            ]
            going = {log: self._ended.pop(log) for log in due}
            if not self._ended and not going:
                self._keeping = ""
        if not going or self._closing:
            return
        problem = self._delete(due)
        if problem:
            due_s = time.monotonic() + DELETE_AGAIN_S
            with self._lock:
                for log, one in going.items():
                    if log not in self._ensured:
                        self._ended.setdefault(log, _Ended(one.ends, due_s))
            if not self._keeping and not self._closing:
                LOG.warning("application logs cannot be deleted now, it is tried again: %s", problem)
        else:
            LOG.info("deleted %s: what it was for has ended", ", ".join(due))
        self._keeping = problem

    def _delete(self, logs: list[str]) -> str:
        """Why it did not work, or not for all; "" when they are gone."""
        try:
            self._topics.delete(logs)
        except StoreError as error:
            return str(error)
        except KafkaException as error:
            return told(error_of(error))
        except Exception as error:
            return str(self._unexpected("deleting application logs", error))
        return ""

    def _delete_now(self, logs: list[str]) -> None:
        """But those that were asked for since: somebody may have been let in."""
        with self._lock:
            wanted = [log for log in logs if self._doomed.get(log) is logs and log not in self._ensured]
            for log in wanted:
                del self._doomed[log]
                self._ended.pop(log, None)
        self._topics.delete(wanted)

    def _answer(self, question: Callable[[], Answer], then: Callable[[Answer | StoreError], None]) -> None:
        answer: Answer | StoreError
        try:
            answer = question()
        except StoreError as error:
            answer = error
        except KafkaException as error:
            answer = StoreUnavailable(told(error_of(error)))
        except Exception as error:
            answer = self._unexpected("a question about application logs", error)
        if not self._closing:
            self._post(partial(then, answer))


def _answer_all(waiting: list[Then], answer: FoundLog | StoreError) -> None:
    for then in waiting:
        then(answer)


def _warn(answer: StoreError | None) -> None:
    if answer is not None:
        LOG.warning("application logs could not be trimmed: %s", answer)
