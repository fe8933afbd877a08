"""A SUBSCRIBE of an application waits until the logs of its shared filters are there: a record that is stamped for a
log that is not would stop the pipeline. One that founds a group of a durable queue at a time waits until the log has
told where that is; one for groups of another slot, and an UNSUBSCRIBE, until that has answered. What changes
subscriptions on the same connection waits behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from msgspec import Struct

from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.ports.errors import StoreError, StoreUnavailable
from embermq.routing.shared_logs import SharedLogs
from embermq.sessions.durable_queues import OffsetFound
from embermq.sessions.link import Link
from embermq.sessions.node_share import Answered, Answers
from embermq.sessions.state import BrokerState
from embermq.sessions.timers import Timer

WAIT_MS = 10_000
"""How long, unless CONNECT has a limit of its own."""
WAITING_MAX = 100
"""Packets of one connection that wait."""


UNKNOWN = "whether the shared subscription has changed is not known: its node does not answer"


class FilterRefusal(Struct, frozen=True):
    """Why a filter cannot be subscribed to."""

    code: ReasonCode
    text: str


Refusals = dict[str, FilterRefusal]
"""By the filter without `$share/<share>/`."""
Then = Callable[[Refusals], None]
NO_REFUSALS: Refusals = {}


class _WaitingLink(Struct, eq=False):
    """Of one connection: `then` goes on with its first packet, `behind` are those after it."""

    link: Link
    then: Callable[[], None]
    behind: deque[Callable[[], None]]
    timer: Timer | None = None
    is_over: bool = False


class _TimePlace(Struct, eq=False):
    """Where a time is in the log, as far as that is known."""

    found: int | StoreError


class WaitingSubscriptions:
    """Asks logs and keeps the order of a connection's packets."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._waiting: dict[Link, _WaitingLink] = {}

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
                refusals[topic_filter] = FilterRefusal(ReasonCode.TOPIC_FILTER_INVALID, text)
                continue
            claimed.append(topic_filter)
            if not shared_logs.claim(topic_filter):
                missing.add(topic_filter)
        then = partial(self._let_go_after, shared_logs, claimed, then)
        if not missing:
            then(refusals)
            return
        waiting = self._wait(link, partial(then, refusals), partial(_refuse_all, missing, refusals))
        for topic_filter in sorted(missing):
            shared_logs.find(topic_filter, partial(self._found, waiting, missing, refusals, topic_filter))

    def find(self, link: Link, ask: Callable[[OffsetFound], None], then: OffsetFound) -> None:
        """Have the log asked where a time is; `then` is called once with that, possibly before this returns, also when
        the connection is over by then."""
        place = _TimePlace(StoreUnavailable("the message log does not answer"))
        waiting = self._wait(link, lambda: then(place.found), lambda: None)
        ask(partial(self._found_place, waiting, place))

    def ask_members(
        self, link: Link, ask: Callable[[Answered], None], then: Callable[[Answers], None]
    ) -> None:
        """Have other slots change what a client is a member of; `then` is called once with what they say, possibly
        before this returns. When the time is over, who has not been asked is no more, and refuses; when nobody knows
        what they have done the connection ends."""
        told: list[Answers] = []

        def give_up() -> None:
            members = self._state.share.members
            if members is not None:
                members.give_up(link)
            if not waiting.is_over:
                _end(link)

        waiting = self._wait(link, lambda: then(told[0]) if told else None, give_up)

        def answered(answers: Answers | None) -> None:
            if waiting.is_over:
                return
            if answers is None:
                _end(link)
            else:
                told.append(answers)
            self._go_on(waiting)

        ask(answered)

    def _found_place(self, waiting: _WaitingLink, place: _TimePlace, found: int | StoreError) -> None:
        if not waiting.is_over:
            place.found = found
            self._go_on(waiting)

    def _wait(self, link: Link, then: Callable[[], None], give_up: Callable[[], None]) -> _WaitingLink:
        waiting = self._waiting[link] = _WaitingLink(link, then, deque())
        due_ms = self._state.tick.now_ms + (self._state.connect_wait_ms or WAIT_MS)

        def end() -> None:
            give_up()
            if not waiting.is_over:
                self._go_on(waiting)

        waiting.timer = self._state.timers.at(due_ms, end)
        return waiting

    def _let_go_after(
        self, shared_logs: SharedLogs, claimed: list[str], then: Then, refusals: Refusals
    ) -> None:
        then(refusals)
        for topic_filter in claimed:
            shared_logs.let_go(topic_filter)

    def _found(
        self,
        waiting: _WaitingLink,
        missing: set[str],
        refusals: Refusals,
        topic_filter: str,
        error: StoreError | None,
    ) -> None:
        if topic_filter not in missing:
            return  # it has been given up
        missing.remove(topic_filter)
        if error is not None:
            refusals[topic_filter] = _away(topic_filter, str(error))
        if not missing:
            self._go_on(waiting)

    def _go_on(self, waiting: _WaitingLink) -> None:
        waiting.is_over = True
        self._state.timers.cancel(waiting.timer)
        link = waiting.link
        del self._waiting[link]
        waiting.then()
        if link.closing or link.session is None:
            return
        while waiting.behind:
            call = waiting.behind.popleft()
            call()
            newer = self._waiting.get(link)
            if newer is not None:  # it waits itself, and so does what came after it
                newer.behind.extend(waiting.behind)
                return


def _end(link: Link) -> None:
    link.disconnect(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, UNKNOWN)


def _refuse_all(missing: set[str], refusals: Refusals) -> None:
    for topic_filter in missing:
        refusals[topic_filter] = _away(topic_filter, "Kafka does not answer")
    missing.clear()


def _away(topic_filter: str, reason: str) -> FilterRefusal:
    shown = topic_filter if len(topic_filter) <= 80 else topic_filter[:80] + "…"
    return FilterRefusal(
        ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, f"the log of shared filter {shown!r} is not there: {reason}"
    )
