"""Wills: kept with the session, published on every end but a normal DISCONNECT, after their delay.

A will is in store from before CONNACK on, so that it goes out even when the broker dies with its client.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from embermq.access.authorization.rules import Principal
from embermq.formats.log_record import WILL_ID, Origin, encode_record
from embermq.model.message import Message
from embermq.model.session import WillRow
from embermq.mqtt.wire.packets import Will
from embermq.mqtt.wire.properties import of_message
from embermq.sessions.link import Link
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Own
from embermq.sessions.timers import Timer

if TYPE_CHECKING:
    from embermq.intake.publishing import Publishing


class _Pending(Struct):
    """The will of one session: held for `link`, or waiting until `due_ms` when that is None. `principal` left it."""

    message: Message
    principal: Principal
    delay_s: int
    link: Link | None
    since_offset: int
    due_ms: int = 0
    timer: Timer | None = None


class Wills:
    """All wills, by session generation."""

    def __init__(self, state: BrokerState, publishing: Publishing) -> None:
        self._state = state
        self._publishing = publishing
        self._wills: dict[int, _Pending] = {}

    def __len__(self) -> int:
        return len(self._wills)

    def remember(self, session: Session, link: Link, will: Will) -> None:
        """Keep the will of a CONNECT [MQTT-3.1.2-7]."""
        properties = will.properties
        delay_s = (properties.will_delay_interval if properties is not None else None) or 0
        message = Message(
            will.topic,
            will.payload,
            will.qos,
            will.retain,
            session.client_id,
            session.version,
            self._state.tick.date_ms,
            0,
            of_message(properties) if properties is not None else None,
        )
        self._wills[session.generation] = _Pending(
            message, session.principal, delay_s, link, self._state.offset_next
        )
        self._store(session.generation)

    def forget(self, session: Session, link: Link) -> None:
        """A normal DISCONNECT deletes the will [MQTT-3.14.4-3]."""
        pending = self._wills.get(session.generation)
        if pending is not None and pending.link is link:
            self._drop(session.generation)

    def cancel_delayed(self, session: Session) -> None:
        """The client is back before the delay was over [MQTT-3.1.3-9]."""
        pending = self._wills.get(session.generation)
        if pending is not None and pending.link is None:
            self._drop(session.generation)

    def connection_ended(self, session: Session, link: Link, *, session_goes_on: bool) -> None:
        """Publish now, or start the delay."""
        pending = self._wills.get(session.generation)
        if pending is None or pending.link is not link:
            return
        pending.link = None
        if not pending.delay_s or not session_goes_on:
            self._publish(session.generation)
            return
        pending.due_ms = self._state.tick.now_ms + pending.delay_s * 1000
        self._store(session.generation)
        self._watch(session.generation, pending)

    def session_ended(self, session: Session) -> None:
        """The end of the session does not wait for the delay."""
        if session.generation in self._wills:
            self._publish(session.generation)

    def restore(self, generation: int, row: WillRow, *, has_session: bool) -> None:
        """A will read at start. One whose client was connected when the broker ended counts as left now."""
        record = self._state.damaged.decode(row.record, f"the will of {row.client_id!r}")
        if record is None:
            self._state.tick.session_writes.wills.append((generation, None))
            return
        message = record.message
        due_ms = row.due_ms or self._state.tick.now_ms + row.delay_s * 1000
        principal = Principal(row.username, row.client_id, row.certificate)
        pending = _Pending(message, principal, row.delay_s, None, row.since_offset, due_ms)
        self._wills[generation] = pending
        if due_ms <= self._state.tick.now_ms or not has_session:
            self._publish(generation)
        else:
            self._store(generation)
            self._watch(generation, pending)

    def store_anew(self, is_lost: Callable[[str], bool]) -> None:
        """Of clients of which the store has lost what it had."""
        for generation, pending in self._wills.items():
            if is_lost(pending.principal.client_id):
                self._store(generation)

    def _watch(self, generation: int, pending: _Pending) -> None:
        pending.timer = self._state.timers.at(pending.due_ms, partial(self._due, generation, pending))

    def _due(self, generation: int, pending: _Pending) -> None:
        if self._wills.get(generation) is pending and pending.link is None:
            self._publish(generation)

    def _publish(self, generation: int) -> None:
        pending = self._wills[generation]
        self._drop(generation)
        message = _published_at(pending.message, self._state.tick.now_ms, self._state.tick.date_ms)
        if self._publishing.accept_own(message, Own(Origin(generation, WILL_ID), pending.principal)):
            self._state.counters.wills_published += 1

    def _drop(self, generation: int) -> None:
        self._state.timers.cancel(self._wills.pop(generation).timer)
        self._state.tick.session_writes.wills.append((generation, None))

    def _store(self, generation: int) -> None:
        pending = self._wills[generation]
        who = pending.principal
        record = encode_record(pending.message)
        # After a failed commit positions that counted on its records are given once more.
        since_offset = min(pending.since_offset, self._state.offset_next)
        row = WillRow(
            who.client_id, pending.delay_s, record, pending.due_ms, who.user, who.certificate, since_offset
        )
        self._state.tick.session_writes.wills.append((generation, row))


def _published_at(message: Message, now_ms: int, date_ms: int) -> Message:
    """The will as it goes out: its expiry interval counts from now."""
    properties = message.properties
    interval_s = properties.message_expiry_interval if properties is not None else None
    expires_ms = now_ms + interval_s * 1000 if interval_s is not None else 0
    return Message(
        message.topic,
        message.payload,
        message.qos,
        message.retain,
        message.publisher,
        message.version,
        date_ms,
        expires_ms,
        properties,
    )
