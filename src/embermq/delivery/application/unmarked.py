"""Messages that are sent, or about to be, while their packet ids are not in store.

One of QoS 1 does not wait for that: what a crash forgets of it comes again as a new message. Its packet id may be with
the client, who may speak of it late. So there are never more of them than a limit, and a session that is known from the
store alone goes on so many ids behind the last one that it knows.
"""

from embermq.sessions.session import PACKET_IDS, Session

UNMARKED_MAX = 1_000
"""Of one session. A store that stands still holds up the client after these."""


class Unmarked:
    """Of all sessions of a broker."""

    def __init__(self) -> None:
        self._counts: dict[Session, int] = {}

    def room(self, session: Session) -> int:
        """So many more may be sent."""
        return UNMARKED_MAX - self._counts.get(session, 0)

    def add(self, session: Session, count: int) -> None:
        """Their ids are given, and wanted stored."""
        self._counts[session] = self._counts.get(session, 0) + count

    def stored(self, session: Session, count: int) -> bool:
        """Their ids are in store. Whether there was no room."""
        had = self._counts.pop(session)
        if had > count:
            self._counts[session] = had - count
        return had >= UNMARKED_MAX

    def __len__(self) -> int:
        return len(self._counts)


def behind_unmarked(packet_id: int) -> int:
    """The packet id to go on from after a crash, when this is the last that is known."""
    return (packet_id + UNMARKED_MAX - 1) % PACKET_IDS + 1
