"""The end of a session: what goes with it, and what is handed on."""

from collections.abc import Callable
from functools import partial

from embermq.routing.router import GroupTurn
from embermq.sessions.handover import Handover
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState
from embermq.sessions.wills import Wills


class SessionEnd:
    """Ends sessions, whatever the reason."""

    def __init__(self, state: BrokerState, wills: Wills, handover: Handover) -> None:
        self._state = state
        self._wills = wills
        self._handover = handover
        state.router.on_group_end = self._group_ends

    def end(self, session: Session, durable: Callable[[], None] | None = None) -> None:
        """Everything that belongs to the session goes [MQTT-4.1.0-2]; a will that waits goes out now
        [MQTT-3.1.2-8]."""
        if session.dead:
            return
        session.dead = True
        self._wills.session_ended(session)
        self._handover.leave(session, ended=True, then=partial(self._delete, session, durable))
        for subscriber in session.subscriptions.values():
            self._state.router.discard(subscriber)
        session.subscriptions.clear()
        if session.queue_filters and self._state.queues is not None:
            self._state.queues.ended(session)
        if session.is_application and self._state.application_logs is not None:
            self._state.application_logs.ended(session)
        self._state.path(session).forget(session)
        if session.group is not None:
            self._state.groups.ended(session)
        self._state.quotas.ends(session)
        session.window.clear()
        self._state.sessions.remove(session)

    def _group_ends(self, turn: GroupTurn) -> None:
        """What waits for a shared subscription goes with its last member."""
        if turn.queue is not None:
            self.end(turn.queue)

    def _delete(self, session: Session, durable: Callable[[], None] | None) -> None:
        tick = self._state.tick
        if session.persistent:
            tick.session_writes.deleted_sessions.append(session.generation)
            if self._state.share.members is not None:
                ended = partial(self._state.share.members.ended, session.client_id, session.generation)
                tick.batch.when_stored(session.generation, ended)
            if session.is_application:
                tick.writes.ended_applications.append(session.generation)
                if self._state.application_logs is not None:
                    deleted = partial(self._state.application_logs.deleted, session)
                    tick.batch.when_stored(session.generation, deleted)
        if durable is not None:
            tick.batch.when_stored(session.generation, durable)
