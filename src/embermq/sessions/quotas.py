"""How much sessions and subscriptions may take: of one session, of one user, of the whole broker.

Filters count as they are kept: their text as often as it is held, and what holds it. Levels need nothing more, since
the trie keeps those that do not branch as text. Clients without a user name count together, as one user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from embermq.mqtt.topics.names import SHARE_PREFIX

if TYPE_CHECKING:
    from embermq.model.counters import Counters
    from embermq.sessions.session import Session
    from embermq.sessions.settings import MqttSettings

SUBSCRIPTION_BYTES: Final = 1_000
"""Memory of a subscription besides the text of its filter, rather too much: entries of the session and of the trie, and
two nodes of that."""
SESSION_BYTES: Final = 2_048
"""Memory of a kept session without subscriptions, rather too much."""
NO_LIMIT: Final = (1 << 63) - 1


class Account(Struct):
    """What the sessions of one user take. `members` are all of them, `kept` those that outlive their connection."""

    user: str
    members: int = 0
    kept: int = 0
    filter_bytes: int = 0


SESSION_FILTER_BYTES_MAX = 32 * 1024 * 1024
"""Memory of the filters of one session: 20,000 long ones, and no way for one client to fill the machine."""


class Quotas:
    """Counts what is held, and says what would be too much. A limit of 0 is none."""

    def __init__(self, settings: MqttSettings, counters: Counters) -> None:
        self._counters = counters
        self._subscriptions_max = settings.subscriptions_max
        self._user_bytes_max = settings.subscriptions_bytes_total_max // 2 or NO_LIMIT
        self._user_sessions_max = settings.sessions_user_max or NO_LIMIT
        self.filter_bytes_max = settings.subscriptions_bytes_total_max or NO_LIMIT
        self.sessions_max = settings.sessions_total_max or NO_LIMIT
        self.kept = 0
        """Sessions that are kept."""
        self.filter_bytes = 0
        """Memory of the filters of all sessions."""
        self._accounts: dict[str, Account] = {}

    def objection_to_session(self, user: str, replaced: Session | None) -> str:
        """Why a user may not have one more kept session, "" when it may; `replaced` is the one that ends for it."""
        account = self._accounts.get(user)
        of_user = account.kept if account is not None else 0
        in_all = self.kept
        if replaced is not None and replaced.persistent:
            in_all -= 1
            of_user -= replaced.account is account
        if of_user >= self._user_sessions_max:
            self._counters.refused_sessions_user += 1
            return f"the user has {self._user_sessions_max} kept sessions, which is the limit"
        if in_all >= self.sessions_max:
            self._counters.refused_sessions_broker += 1
            return f"the broker keeps {self.sessions_max} sessions, which is the limit"
        return ""

    def objection_to_filter(self, session: Session, topic_filter: str) -> str:
        """Why a session may not have one more subscription, "" when it may."""
        size = kept_bytes(topic_filter)
        account = session.account
        if (
            len(session.subscriptions) + len(session.queue_filters) >= self._subscriptions_max
            or session.subscription_bytes + size > SESSION_FILTER_BYTES_MAX
        ):
            self._counters.refused_subscriptions += 1
            return "no room for more subscriptions of this session"
        if account is not None and account.filter_bytes + size > self._user_bytes_max:
            self._counters.refused_subscriptions_user += 1
            return "no room for more subscriptions of this user"
        if self.filter_bytes + size > self.filter_bytes_max:
            self._counters.refused_subscriptions_broker += 1
            return "the broker has no room for more subscriptions"
        return ""

    def begins(self, session: Session) -> None:
        """Count a session that is new, or has been read at start."""
        self._join(session, session.username)
        self.kept += session.persistent

    def moves(self, session: Session, user: str) -> None:
        """Count a session for another user from now on."""
        if session.account is not None and session.account.user != user:
            self._leave(session)
            self._join(session, user)

    def ends(self, session: Session) -> None:
        """Count a session no more, and nothing of it."""
        if session.account is not None:
            self._leave(session)
            self.kept -= session.persistent
            self.filter_bytes -= session.subscription_bytes

    def adds(self, session: Session, topic_filter: str) -> None:
        """Count a filter that the session has not had."""
        self._change(session, kept_bytes(topic_filter))

    def removes(self, session: Session, topic_filter: str) -> None:
        """Count a filter no more; of a session that has ended nothing counts any more."""
        self._change(session, -kept_bytes(topic_filter))

    def _change(self, session: Session, size: int) -> None:
        session.subscription_bytes += size
        if session.account is not None:
            session.account.filter_bytes += size
            self.filter_bytes += size

    def _join(self, session: Session, user: str) -> None:
        account = self._accounts.get(user)
        if account is None:
            account = self._accounts[user] = Account(user)
        account.members += 1
        account.kept += session.persistent
        account.filter_bytes += session.subscription_bytes
        session.account = account

    def _leave(self, session: Session) -> None:
        account = session.account
        assert account is not None
        account.members -= 1
        account.kept -= session.persistent
        account.filter_bytes -= session.subscription_bytes
        session.account = None
        if not account.members:
            del self._accounts[account.user]


def kept_bytes(topic_filter: str) -> int:
    """Memory that a subscription to this filter takes, as the client spells it: the text is held by the session and by
    the trie, of a shared one with and without its prefix too."""
    if topic_filter.isascii():
        text_bytes = len(topic_filter)
    else:  # Python keeps all characters of a text as wide as the widest
        widest = ord(max(topic_filter))
        text_bytes = len(topic_filter) * (1 if widest < 0x100 else 2 if widest < 0x10000 else 4)
    copies = 3 if topic_filter.startswith(SHARE_PREFIX) else 2
    return SUBSCRIPTION_BYTES + copies * text_bytes
