"""Whose session it is: a client id belongs to the user who made its session; and what clients entered with.

Whose session it is: a client id belongs to the user who made its session, as long as there is one.

A session belongs to `Session.username`, and stays his when a rule lets another user in (TAKEOVER). One that was made
without a user belongs to the first user who comes.
"""

import logging
from collections.abc import Callable
from functools import partial

from embermq.access.authentication.identity import Identity
from embermq.access.authorization.rule_set import Permissions
from embermq.access.authorization.rules import Principal
from embermq.mqtt.topics.names import shown
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.sessions.link import Link
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState

LOG = logging.getLogger("embermq")
Objection = tuple[ReasonCode, str]

NOT_ITS_CLIENT_ID = (ReasonCode.NOT_AUTHORIZED, "not allowed to use this client id")
ANOTHER_USERS = (ReasonCode.NOT_AUTHORIZED, "the client id belongs to another user")


def objection_to_user(
    session: Session | None, principal: Principal, permissions: Permissions | None
) -> Objection | None:
    """Why the client may not have its client id, or the session that this one has; None when it may."""
    if permissions is not None and not permissions.may_connect():
        return NOT_ITS_CLIENT_ID
    if session is None or session.username in ("", principal.user):
        return None
    if permissions is not None and permissions.may_take_over():
        return None
    return ANOTHER_USERS


def may_keep(session: Session, link: Link) -> bool:
    """Whether the client that is connected to the session may stay, whosever that is now."""
    permissions = session.permissions
    return (
        link.identity is None
        or link.identity.username == session.username
        or (permissions is not None and permissions.may_take_over())
    )


def take_possession(session: Session, principal: Principal) -> None:
    """The client has the session now. Who comes by a rule for another user's leaves it to that one."""
    if session.username not in ("", principal.user):
        return
    if principal.user and not session.username:
        LOG.info(
            "the session of client %s had no user and belongs to %s from now on",
            shown(session.client_id),
            shown(principal.user),
        )
    session.username = principal.user
    session.certificate = principal.certificate


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
