"""Single records of a message log, by their positions.

All calls are made, and all answers come, on the broker's thread.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping

from embermq.formats.log_record import LogRecord
from embermq.ports.errors import StoreError

FoundRecords = Mapping[int, LogRecord]


class SourceRecords(ABC):
    """Records of the message log as it is now."""

    @abstractmethod
    def fetch(self, positions: Collection[int], then: Callable[[FoundRecords | StoreError], None]) -> None:
        """`then` gets those that are there: what was trimmed, or lost, is left out. It is called once, some time after
        this call."""
