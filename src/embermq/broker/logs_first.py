"""A SUBSCRIBE of an application waits until the logs of its shared filters are there: a record that is stamped for a
log that is not would stop the pipeline. What changes subscriptions on the same connection waits behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from msgspec import Struct

from embermq.broker.link import Link
from embermq.broker.shared_logs import SharedLogs
from embermq.broker.state import BrokerState
from embermq.broker.timers import Timer
from embermq.ports.errors import StoreError
from embermq.protocol.reason_codes import ReasonCode

WAIT_MS = 10_000
"""How long, unless CONNECT has a limit of its own."""
WAITING_MAX = 100
"""Packets of one connection that wait."""


class Refusal(Struct, frozen=True):
    """Why a filter cannot be subscribed to."""

    code: ReasonCode
    text: str


Refusals = dict[str, Refusal]
"""By the filter without `$share/<share>/`."""
Then = Callable[[Refusals], None]
NO_REFUSALS: Refusals = {}


class _Waiting(Struct, eq=False):
    """Of one connection. `missing` are the filters whose logs the first packet waits for."""

    link: Link
    then: Then
    missing: set[str]
    refusals: Refusals
    behind: deque[Callable[[], None]]
    timer: Timer | None = None


class LogsFirst:
    """Asks for logs and keeps the order of a connection's packets."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._waiting: dict[Link, _Waiting] = {}

    def is_behind(self, link: Link, call: Callable[[], None]) -> bool:
        """True when `call` waits for what was asked before it, or is too much."""
        waiting = self._waiting.get(link) if self._waiting else None
        if waiting is None:
            return False
        if len(waiting.behind) >= WAITING_MAX:
            link.disconnect(ReasonCode.QUOTA_EXCEEDED, "too many changes of subscriptions at a time")
        else:
            waiting.behind.append(call)
        return True

    def ask(self, link: Link, shared_logs: SharedLogs, filters: Iterable[str], then: Then) -> None:
        """`then` is called once, possibly before this returns, also when the connection is over by then. Until it
        returns nobody takes the logs away."""
        refusals: Refusals = {}
        missing: set[str] = set()
        claimed: list[str] = []
        for topic_filter in filters:
            text = shared_logs.objection(topic_filter)
            if text:
                refusals[topic_filter] = Refusal(ReasonCode.TOPIC_FILTER_INVALID, text)
                continue
            claimed.append(topic_filter)
            if not shared_logs.claim(topic_filter):
                missing.add(topic_filter)
        then = partial(self._let_go_after, shared_logs, claimed, then)
        if not missing:
            then(refusals)
            return
        waiting = _Waiting(link, then, missing, refusals, deque())
        self._waiting[link] = waiting
        due_ms = self._state.tick.now_ms + (self._state.connect_wait_ms or WAIT_MS)
        waiting.timer = self._state.timers.at(due_ms, partial(self._give_up, waiting))
        for topic_filter in sorted(missing):
            shared_logs.find(topic_filter, partial(self._found, waiting, topic_filter))

    def _let_go_after(
        self, shared_logs: SharedLogs, claimed: list[str], then: Then, refusals: Refusals
    ) -> None:
        then(refusals)
        for topic_filter in claimed:
            shared_logs.let_go(topic_filter)

    def _found(self, waiting: _Waiting, topic_filter: str, error: StoreError | None) -> None:
        if topic_filter not in waiting.missing:
            return  # it has been given up
        waiting.missing.remove(topic_filter)
        if error is not None:
            waiting.refusals[topic_filter] = _away(topic_filter, str(error))
        if not waiting.missing:
            self._go_on(waiting)

    def _give_up(self, waiting: _Waiting) -> None:
        for topic_filter in waiting.missing:
            waiting.refusals[topic_filter] = _away(topic_filter, "Kafka does not answer")
        waiting.missing.clear()
        self._go_on(waiting)

    def _go_on(self, waiting: _Waiting) -> None:
        self._state.timers.cancel(waiting.timer)
        link = waiting.link
        del self._waiting[link]
        if link.closing or link.session is None:
            waiting.then({})
            return
        waiting.then(waiting.refusals)
        while waiting.behind:
            call = waiting.behind.popleft()
            call()
            newer = self._waiting.get(link)
            if newer is not None:  # it waits itself, and so does what came after it
                newer.behind.extend(waiting.behind)
                return


def _away(topic_filter: str, reason: str) -> Refusal:
    shown = topic_filter if len(topic_filter) <= 80 else topic_filter[:80] + "…"
    return Refusal(
        ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, f"the log of shared filter {shown!r} is not there: {reason}"
    )
