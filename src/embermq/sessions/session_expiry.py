"""Session expiry: how long a session outlives its connection, and its end when nobody came back [MQTT-3.1.2-23]."""

from functools import partial

from embermq.model.session import NEVER_EXPIRES
from embermq.mqtt.wire.packets import Connect
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.sessions.session import Session
from embermq.sessions.session_end import SessionEnd
from embermq.sessions.state import BrokerState


class SessionExpiry:
    """Times the sessions of clients that are away."""

    def __init__(self, state: BrokerState, session_end: SessionEnd) -> None:
        self._state = state
        self._session_end = session_end
        state.sessions.on_load = self.watch

    def interval_s(self, packet: Connect, *, limits: bool = True) -> int:
        """The expiry interval that a CONNECT gets."""
        limit_s = self._state.settings.session_expiry_max_s if limits else NEVER_EXPIRES
        if packet.version != ProtocolVersion.V5:
            return 0 if packet.clean_start else limit_s
        asked = packet.properties.session_expiry_interval if packet.properties is not None else None
        return min(asked or 0, limit_s)

    def is_over(self, session: Session) -> bool:
        """Whether the time of a session whose client is away has run out."""
        return session.expires_ms != 0 and self._state.tick.now_ms >= session.expires_ms

    def begin(self, session: Session) -> None:
        """The client of a session that is kept has left."""
        if session.expiry_interval_s != NEVER_EXPIRES:
            session.expires_ms = self._state.tick.now_ms + session.expiry_interval_s * 1000
            self.watch(session)

    def watch(self, session: Session) -> None:
        """Arm the timer of a session whose client is gone. It does not hold the session, which may be put away."""
        timers = self._state.timers
        timers.cancel(session.timer)
        if session.expires_ms:
            end = partial(self._expire, session.client_id, session.epoch)
            session.timer = timers.at(session.expires_ms, end)

    def _expire(self, client_id: str, epoch: int) -> None:
        session = self._state.sessions.get(client_id)
        if session is not None and session.epoch == epoch and self.is_over(session):
            self._state.counters.sessions_expired += 1
            self._session_end.end(session)
