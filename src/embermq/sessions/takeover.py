"""Takeover: a client comes for a session that has a connection already; the older one ends [MQTT-3.1.4-3]."""

from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.sessions.awaiting_pubrel import Holding
from embermq.sessions.session import Session
from embermq.sessions.session_end import SessionEnd
from embermq.sessions.session_expiry import SessionExpiry
from embermq.sessions.state import BrokerState
from embermq.sessions.wills import Wills


class Takeover:
    """Ends the connections of a session for the sake of another one."""

    def __init__(
        self,
        state: BrokerState,
        wills: Wills,
        holding: Holding,
        session_end: SessionEnd,
        expiry: SessionExpiry,
    ) -> None:
        self._state = state
        self._wills = wills
        self._holding = holding
        self._session_end = session_end
        self._expiry = expiry

    def take_over(self, old: Session, clean_start: bool) -> None:
        """The older connection ends first [MQTT-3.1.4-3]; its will goes out unless the session goes on and the will
        waits [MQTT-3.1.3-9]."""
        was_connected = old.link is not None
        ended = self.cut_off(old, ReasonCode.SESSION_TAKEN_OVER, goes_on=not clean_start and is_kept(old))
        self._state.counters.takeovers += ended
        if clean_start or not is_kept(old) or self._expiry.is_over(old):
            self._session_end.end(old)
            return
        if was_connected:
            leave_queues(self._state, old)
            self._state.path(old).suspend(old)
        self._wills.cancel_delayed(old)

    def cut_off(self, session: Session, reason: ReasonCode, *, goes_on: bool) -> int:
        """End the connection that the session has, and the one that is to follow it; returns how many were open."""
        ended = 0
        for link in (session.link, session.claimant):
            if link is None:
                continue
            if not link.closing:
                ended += 1
                link.disconnect(reason)
            link.inbox = None
            self._holding.release_all(link)
            self._wills.connection_ended(session, link, session_goes_on=goes_on)
        session.link = session.claimant = None
        return ended


def is_kept(session: Session) -> bool:
    """Whether the session outlives its connection. It may have been resumed to end with this one."""
    return session.persistent and session.expiry_interval_s > 0


def leave_queues(state: BrokerState, session: Session) -> None:
    """Before its window is cleared: what is in there was sent and not acknowledged."""
    if session.queue_filters and state.queues is not None:
        state.queues.gone(session)
