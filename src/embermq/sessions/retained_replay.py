"""Retained messages for new subscriptions, a few at a time.

A filter may look through very many topics, and very many clients may ask at once: together they get a share of each
tick, in turn, and none runs ahead of what its client takes. A message that was accepted after the SUBSCRIBE is left
out, because the subscription has it already; and where such a one is still on its way to the store, what it replaces
waits for it, so that nobody is told last what does not hold any more.
"""

from collections import deque
from collections.abc import Iterator
from functools import partial

from msgspec import Struct, field

from embermq.model.session import RetainedRow
from embermq.mqtt.topics.names import is_system_topic
from embermq.routing.retained import RetainSources
from embermq.routing.router import Receiver, Subscriber
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState
from embermq.sessions.timers import Timer

TICK_STEPS = 4_096
"""Steps of one tick for all subscriptions: a topic that is looked at is one, a message that is sent or stored
`MESSAGE_STEPS`."""
TURN_STEPS = 1_024
"""Of these, the steps after which it is another subscription's turn."""
MESSAGE_STEPS = 16
STEP_BYTES = 256
"""Each that a message has is one step more."""
STORED_MAX = 512
STORED_BYTES_MAX = 8 * 1024 * 1024
"""While a client is connected, no more are stored than this ahead of what it has acknowledged."""
STEP_MS = 1
BLOCKED_MS = 50
"""From one tick's steps to the next; when the client takes nothing."""
FILTERS_SPARED = 64
"""Filters without a subscription that may wait for such a client before they are looked for."""


class _Replay(Struct):
    session: Session
    subscriber: Subscriber
    receiver: Receiver
    horizon: int
    rows: Iterator[tuple[str, RetainedRow] | None]
    postponed: list[str] = field(default_factory=list)


class RetainedReplay:
    """Sends [MQTT-3.3.1-9] what a subscription finds retained."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._sources = RetainSources(state)
        self._ready: deque[_Replay] = deque()
        self._left = TICK_STEPS
        """Steps that are left of this tick's."""
        self._timer: Timer | None = None
        self._blocked: dict[Session, dict[str, _Replay]] = {}
        """What waits, by filter, for clients that take nothing."""

    def start(self, session: Session, subscriber: Subscriber, horizon: int) -> None:
        """Begin at once, if the tick has room. Retained messages at `horizon` and later are left out."""
        identifiers = (subscriber.identifier,) if subscriber.identifier else ()
        receiver = Receiver(session, subscriber.qos, subscriber.retain_as_published, identifiers)
        is_system = is_system_topic(subscriber.topic_filter)
        tree = self._state.system if is_system else self._state.retained
        rows = tree.walk(subscriber.topic_filter)
        self._go_on(_Replay(session, subscriber, receiver, horizon, rows))

    def _go_on(self, replay: _Replay) -> None:
        self._ready.append(replay)
        self._run()

    def _next_tick(self) -> None:
        self._left = TICK_STEPS
        self._run()

    def _run(self) -> None:
        """Give turns while there are steps left; new ones come with the next tick."""
        ready = self._ready
        while ready and self._left > 0:
            replay = ready.popleft()
            if self._take_turn(replay, self._left - TURN_STEPS):
                ready.append(replay)
        if (ready or self._left < TICK_STEPS // 2) and (self._timer is None or self._timer.call is None):
            self._timer = self._state.timers.at(self._state.tick.now_ms + STEP_MS, self._next_tick)

    def _take_turn(self, replay: _Replay, until: int) -> bool:
        """Steps of one subscription, down to `until` that are left for others; True when it wants more."""
        session, subscriber, state = replay.session, replay.subscriber, self._state
        if session.subscriptions.get(subscriber.topic_filter) is not subscriber:
            return False
        path = state.path(session)
        now_ms = state.tick.now_ms
        while self._left > 0 and self._left > until:
            if self._is_blocked(session):
                self._block(replay)
                return False
            self._left -= 1
            try:
                found = next(replay.rows)
            except StopIteration:
                return self._look_again(replay)
            if found is None or found[1].offset >= replay.horizon:
                continue
            topic, row = found
            if not state.retained.is_settled(topic):
                replay.postponed.append(topic)
                continue
            if session.permissions is not None and not session.permissions.may_receive(row.topic):
                state.counters.deliveries_denied += 1
                continue
            record = state.damaged.decode(row.record, "a retained message")
            if record is None:
                continue
            message = record.message
            if not self._sources.may_still_publish(record):
                state.counters.deliveries_denied += 1
                continue
            if message.is_expired(now_ms) or (subscriber.no_local and message.publisher == session.client_id):
                continue
            self._left -= MESSAGE_STEPS + len(row.record) // STEP_BYTES
            path.deliver_retained(session, replay.receiver, message, row.record)
        return True

    def _block(self, replay: _Replay) -> None:
        """One look now and then for all that a client subscribes to while it takes nothing."""
        session = replay.session
        waiting = self._blocked.get(session)
        if waiting is None:
            waiting = self._blocked[session] = {}
            self._unblock_later(session)
        waiting[replay.subscriber.topic_filter] = replay
        if len(waiting) > 2 * len(session.subscriptions) + FILTERS_SPARED:
            held = session.subscriptions
            for topic_filter in [text for text in waiting if text not in held]:
                del waiting[topic_filter]

    def _unblock_later(self, session: Session) -> None:
        self._state.timers.at(self._state.tick.now_ms + BLOCKED_MS, partial(self._unblock, session))

    def _unblock(self, session: Session) -> None:
        if self._is_blocked(session):
            self._unblock_later(session)
            return
        self._ready.extend(self._blocked.pop(session).values())
        self._run()

    def _look_again(self, replay: _Replay) -> bool:
        """When all has been looked at: after a while, once more at what was postponed."""
        topics, replay.postponed = replay.postponed, []
        if topics:
            replay.rows = self._held(topics)
            self._state.timers.at(self._state.tick.now_ms + BLOCKED_MS, partial(self._go_on, replay))
        return False

    def _held(self, topics: list[str]) -> Iterator[tuple[str, RetainedRow] | None]:
        for topic in topics:
            row = self._state.retained.get(topic)
            yield None if row is None else (topic, row)

    def _is_blocked(self, session: Session) -> bool:
        """A kept session without its client gets everything into its queue, whose limit holds. That is looked at when
        rows are stored: while they cannot be, clients that come again and again would fill the memory."""
        if session.persistent and self._state.store_failure is not None:
            return True
        link = session.link
        if link is None:
            return False
        return (
            link.paused
            or bool(session.waiting)
            or session.queued >= STORED_MAX
            or session.queued_bytes >= STORED_BYTES_MAX
        )
