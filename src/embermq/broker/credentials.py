"""What clients entered with, while it holds."""

from collections.abc import Callable
from functools import partial

from msgspec import Struct

from embermq.broker.link import Link
from embermq.broker.state import BrokerState
from embermq.model.client_type import ClientType
from embermq.protocol.reason_codes import ReasonCode


class Identity(Struct, frozen=True):
    """Who the client proved to be. `new_client_id` is used when it brought none; `client_id`, when it is not empty,
    whatever it brought.

    `expires_ms` (Unix time) is when its proof ends, and its connection with it, 0 never. `account_version` is that of
    the account whose password it showed, 0 when it entered by something else. `certificate` is the
    subject of its verified certificate (RFC 4514), "" without one.
    """

    username: str
    client_type: ClientType
    new_client_id: str
    expires_ms: int = 0
    account_version: int = 0
    certificate: str = ""
    client_id: str = ""


class Refusal(Struct, frozen=True):
    """The client may not enter, or stay. It is told `code` alone; `why` is for the log, and never holds what it
    showed."""

    code: ReasonCode
    why: str = ""


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
        """The connection is over."""
        if link.proof_timer is not None:
            self._state.timers.cancel(link.proof_timer)
            link.proof_timer = None

    def _expired(self, link: Link) -> None:
        if not link.closing:
            self._state.counters.credentials_expired += 1
            link.disconnect(ReasonCode.NOT_AUTHORIZED, "what it entered with has expired")

    def expel(self, unwelcome: Callable[[Identity], bool]) -> int:
        """End the connections of those who may not be here any more; returns how many."""
        count = 0
        for session in self._state.sessions.values():
            for link in (session.link, session.claimant):
                if link is None or link.closing or link.identity is None or not unwelcome(link.identity):
                    continue
                count += 1
                link.disconnect(ReasonCode.NOT_AUTHORIZED, "its account was changed or removed")
        self._state.counters.credentials_withdrawn += count
        return count
