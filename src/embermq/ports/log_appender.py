"""The message log in a store of its own, as a tick's records get there."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from embermq.ports.errors import StoreError
from embermq.ports.tick_store import Receipt

Appended = Callable[[Receipt | StoreError], None]


class LogAppender(ABC):
    """Guarantees: a record that was taken is never given up while the process lives; with the Receipt all records of
    the call survive what the store's durability says. Records of one topic stay in their order. A StoreError means
    that none was taken. An appender that can no longer keep this tells its owner, who ends the process, and answers
    no more: what the log has got by then is found at the next start.
    """

    @abstractmethod
    def append(self, records: list[bytes], done: Appended) -> None:
        """Start to store, with positions that follow one another and are above all before. `done` is called later, on
        the broker's own thread, once. One call is under way at a time."""

    @property
    def goes_on_at(self) -> int:
        """Where the next run has to go on because the log has lost its end in this one, and with what was appended
        since would not seem to; 0 while it has not."""
        return 0

    @property
    @abstractmethod
    def failing(self) -> str:
        """Why records that have been waiting are not stored, as far as it is known. Without credentials."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections, after a short wait for what is under way."""
