"""Who published a retained message, and whether it still might: it is delivered to new subscriptions only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embermq.access.authorization.rule_set import Permissions
from embermq.access.authorization.rules import Principal
from embermq.formats.log_record import LogRecord, publisher_field, publisher_in

if TYPE_CHECKING:
    from embermq.sessions.state import BrokerState


SOURCES_MAX = 1_000
"""Publishers whose rights are remembered."""

Fields = tuple[tuple[int, bytes], ...]


def publisher_of(permissions: Permissions | None) -> Fields:
    """What a record tells of its publisher where somebody later asks for its rights: with a retained message, and on
    another node. Nothing without rules."""
    if permissions is None:
        return ()
    who = permissions.principal
    return (publisher_field(who.user, who.certificate),)


class RetainSources:
    """Asks the rules of now about publishers of messages that are in the log."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._known: dict[Principal, Permissions] = {}

    def may_still_publish(self, record: LogRecord) -> bool:
        """Whether the publisher may publish the message today; True when the record does not tell who that was."""
        permissions = self.permissions(record)
        return permissions is None or permissions.may_publish(record.message.topic)

    def permissions(self, record: LogRecord) -> Permissions | None:
        """What the publisher may do; None for everything, and when the record does not tell who that was."""
        state = self._state
        who = publisher_in(record) if state.rules is not None else None
        if who is None:
            return None
        principal = Principal(who[0], record.message.publisher, who[1])
        permissions = self._known.get(principal)
        if permissions is None or permissions.rules is not state.rules:
            permissions = state.permissions(principal)
            assert permissions is not None
            if len(self._known) >= SOURCES_MAX:
                self._known.clear()
            self._known[principal] = permissions
        return permissions
