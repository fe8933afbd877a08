"""Retained messages for new subscriptions, a few at a time.

A filter may match very many topics: they neither stop the tick nor run ahead of what the client takes. A message
that was accepted after the SUBSCRIBE is left out, because the subscription has it already.
"""

from collections.abc import Iterator
from functools import partial

from msgspec import Struct

from embermq.broker.router import Receiver, Subscriber
from embermq.broker.session import Session
from embermq.broker.state import BrokerState
from embermq.model.log_record import decode_record
from embermq.model.session import RetainedRow

STEP_MESSAGES = 256
"""Retained messages sent or stored in one tick for one subscription."""
STORED_MAX = 512
"""While a client is connected, no more are stored than this ahead of what it has acknowledged."""
STEP_MS = 1
BLOCKED_MS = 50
"""From one step to the next; when the client takes nothing."""


class _Replay(Struct):
    session: Session
    subscriber: Subscriber
    receiver: Receiver
    horizon: int
    rows: Iterator[tuple[str, RetainedRow]]


class RetainedReplay:
    """Sends [MQTT-3.3.1-9] what a subscription finds retained."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def start(self, session: Session, subscriber: Subscriber, horizon: int) -> None:
        """Begin at once. Retained messages at `horizon` and later are left out."""
        identifiers = (subscriber.identifier,) if subscriber.identifier else ()
        receiver = Receiver(session, subscriber.qos, subscriber.retain_as_published, identifiers)
        rows = self._state.retained.match(subscriber.topic_filter)
        self._go_on(_Replay(session, subscriber, receiver, horizon, rows))

    def _go_on(self, replay: _Replay) -> None:
        session, subscriber, state = replay.session, replay.subscriber, self._state
        if session.subscriptions.get(subscriber.topic_filter) is not subscriber:
            return
        path = state.path(session)
        now_ms = state.tick.now_ms
        for _ in range(STEP_MESSAGES):
            if _is_blocked(session):
                state.timers.at(now_ms + BLOCKED_MS, partial(self._go_on, replay))
                return
            found = next(replay.rows, None)
            if found is None:
                return
            row = found[1]
            if row.offset >= replay.horizon:
                continue
            message = decode_record(row.record).message
            if message.is_expired(now_ms) or (subscriber.no_local and message.publisher == session.client_id):
                continue
            path.deliver_retained(session, replay.receiver, message, row.record)
        state.timers.at(now_ms + STEP_MS, partial(self._go_on, replay))


def _is_blocked(session: Session) -> bool:
    """A kept session without its client gets everything into its queue, whose limit holds."""
    link = session.link
    if link is None:
        return False
    return link.paused or bool(session.waiting) or session.queued >= STORED_MAX
