"""The logs of APPLICATION clients that are kept beside the message log: made, looked at, deleted.

All calls are made, and all answers come, on the broker's thread; no call waits, and each is answered once. One broker
has a prefix to itself. Nothing about the logs is stored but themselves: what a crash leaves is put right at the start.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping

from msgspec import Struct

from embermq.ports.errors import StoreError

Place = tuple[str, int]
"""A log and one of its partitions."""


# same name: that of the Kafka adapter is what a start finds of the message log
class FoundLog(Struct, frozen=True):
    """A log that is there. `ends` are the offsets behind its last records, by partition: where a new reader begins.

    `identity` differs for a log that was deleted and made again under the same name: offsets in the one say nothing
    about the other. `is_new`: it was made just now, and is empty.
    """

    ends: Mapping[int, int]
    identity: str
    is_new: bool = False


class LogSize(Struct, frozen=True):
    """One log as it is now. `starts` and `ends` are offsets by partition; both are empty where `problem` says why they
    are not known."""

    name: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    problem: str = ""

    @property
    def records(self) -> int:
        """How many records the log has, of all partitions."""
        return sum(end - self.starts[partition] for partition, end in self.ends.items())

    def lag(self, committed: Mapping[int, int]) -> int:
        """How many are not settled by a reader that has come so far."""
        return sum(
            max(0, end - max(self.starts[partition], committed.get(partition, 0)))
            for partition, end in self.ends.items()
        )


class ApplicationLogs(ABC):
    """All logs of one broker.

    Guarantees: `ensure` is answered only when the log can be written and read. A log that `ended` named is deleted
    only when no record that is stamped for it can come any more, and not when it was ensured again meanwhile.
    """

    @abstractmethod
    def name(self, client_id: str) -> str:
        """The log of an APPLICATION client. Raises NoApplicationLog (`formats.application_logs`)."""

    @abstractmethod
    def shared_name(self, topic_filter: str) -> str:
        """The log of a shared filter, given without `$share/<share>/`, whether a new one would be refused or not."""

    @abstractmethod
    def objection_to_shared(self, topic_filter: str) -> str:
        """Why nobody may subscribe to a shared filter anew, "" when that is possible."""

    @abstractmethod
    def shared_group(self, share: str, topic_filter: str) -> str:
        """The consumer group of one shared subscription."""

    @abstractmethod
    def ensure(self, log: str, partitions: int, then: Callable[[FoundLog | StoreError], None]) -> None:
        """Make the log, or find it; it is not deleted from now on, until it has `ended` again. While the store is away
        it is tried again for some seconds; then, or when it cannot be made, `then` gets the reason, and the log may be
        there or not."""

    @abstractmethod
    def listed(self, then: Callable[[Collection[str] | StoreError], None]) -> None:
        """The names of all logs of the prefix."""

    @abstractmethod
    def ended(self, log: str) -> None:
        """Nothing that is accepted from now on is stamped for the log, and what was accepted is durable. It is deleted
        when the pipeline has carried all of that, and the positions of its consumer groups with it."""

    @abstractmethod
    def ends(self, logs: Mapping[str, int], then: Callable[[Mapping[Place, int] | StoreError], None]) -> None:
        """The ends of logs with so many partitions, as they are at some moment after this call; those that are not
        there, or cannot be read now, are left out."""

    @abstractmethod
    def trim(self, bases: Mapping[Place, int]) -> None:
        """Delete what lies before these offsets; when that does not work it is only logged."""

    @abstractmethod
    def sizes(self, then: Callable[[list[LogSize] | StoreError], None]) -> None:
        """Every log of the prefix, also those that cannot be read now."""

    @abstractmethod
    def delete(self, logs: Collection[str], then: Callable[[StoreError | None], None]) -> None:
        """At once, whatever is still to come for them; those that are being ensured stay."""

    @property
    @abstractmethod
    def failing(self) -> str:
        """Why logs cannot be made, looked at or deleted now; "" when they can. It is tried again without end."""
