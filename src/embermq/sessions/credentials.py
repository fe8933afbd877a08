"""What clients entered with, while it holds."""

from collections.abc import Callable
from functools import partial

from embermq.access.authentication.identity import Identity
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.sessions.link import Link
from embermq.sessions.state import BrokerState


class Credentials:
    """Ends connections whose proof has come to its end."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def hold(self, link: Link, identity: Identity) -> None:
        """From now on the connection is this identity's, as long as that lasts; may be called again for a newer one."""
        self.let_go(link)
        link.identity = identity
        if identity.expires_ms:
            due_ms = self._state.tick.from_date(identity.expires_ms)
            link.proof_timer = self._state.timers.at(due_ms, partial(self._expired, link))

    def let_go(self, link: Link) -> None:
        """Forget a connection that is over."""
        if link.proof_timer is not None:
            self._state.timers.cancel(link.proof_timer)
            link.proof_timer = None

    def _expired(self, link: Link) -> None:
        if not link.closing:
            self._state.counters.credentials_expired += 1
            link.disconnect(ReasonCode.NOT_AUTHORIZED, "its credentials have expired")

    def expel(self, unwelcome: Callable[[Identity], bool]) -> int:
        """End the connections of those who may not be here any more; returns how many."""
        count = 0
        for session in self._state.sessions.loaded:
            for link in (session.link, session.claimant):
                if link is None or link.closing or link.identity is None or not unwelcome(link.identity):
                    continue
                count += 1
                link.disconnect(ReasonCode.NOT_AUTHORIZED, "its account was changed or removed")
        self._state.counters.credentials_withdrawn += count
        return count
