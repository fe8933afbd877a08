"""How far sessions have consumed the log; written by ticks, read at start."""

from abc import ABC, abstractmethod

from embermq.model.session_cursor import SessionCursor


class SessionCursors(ABC):
    """Reads cursors. They are kept with the log, so that session data that has lost something can be checked against
    them [repositories 4].

    Guarantees: what the newest committed tick said of a session is returned; a session that is not here has consumed
    everything below the dispatcher's floor.
    """

    @abstractmethod
    def load(self) -> dict[int, SessionCursor]:
        """Generation -> cursor, of sessions that are behind the floor. Raises StoreError."""
