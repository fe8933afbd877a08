"""Records that are not what was written: counted, told, and set aside, so that the others go on."""

from collections import deque

from embermq.formats.log_record import LogRecord, RecordError, decode_record, readable_topic
from embermq.model.counters import Counters

TOLD_MAX = 100
"""Descriptions that wait for the log of the broker; past that they are counted alone."""


class DamagedRecords:
    """See the module."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._untold: deque[str] = deque(maxlen=TOLD_MAX)

    def decode(self, record: bytes, place: str) -> LogRecord | None:
        """The record, or None for a damaged one. `place` says in words where it stands."""
        try:
            return decode_record(record)
        except RecordError as error:
            self.refuse(record, place, error)
            return None

    def refuse(self, record: bytes, place: str, error: RecordError) -> None:
        """One that could not be decoded; `place` as for `decode`."""
        self.note(f"{place}, topic {readable_topic(record) or 'unreadable'}: {error}")

    def note(self, what: str) -> None:
        """One more, found by somebody else."""
        self._counters.damaged_records += 1
        self._untold.append(what)

    def take(self) -> list[str]:
        """What has been found since the last call."""
        found = list(self._untold)
        self._untold.clear()
        return found
