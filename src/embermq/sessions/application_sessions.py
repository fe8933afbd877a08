"""Who is told when an APPLICATION session ends, where its log is kept beside the message log."""

from abc import ABC, abstractmethod

from embermq.sessions.session import Session


class ApplicationSessions(ABC):
    """Told on the broker's thread, inside a tick."""

    @abstractmethod
    def ended(self, session: Session) -> None:
        """The session is over: its subscriptions are gone, nothing is stamped for it from now on."""

    @abstractmethod
    def deleted(self, session: Session) -> None:
        """Nothing of it is stored any more, and what was accepted before is durable."""
