"""Application logs that are there as a test says, and what was asked of them."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tests.support.stand_in_shared import HandLogs

from embermq.ports.application_logs import FoundLog, LogSize
from embermq.ports.errors import StoreError


class LogsInMemory(HandLogs):
    """`there` are ends by the name of the log, each of one partition."""

    def __init__(self) -> None:
        super().__init__()
        self.there: dict[str, int] = {}
        self.trouble: StoreError | None = None
        self.problems: dict[str, str] = {}
        """Logs that cannot be looked at, and why."""
        self._made = 0

    def ensure(self, log: str, partitions: int, then: Callable[[FoundLog | StoreError], None]) -> None:
        self.ensured.append(log)
        if self.trouble is not None:
            then(self.trouble)
            return
        is_new = log not in self.there
        self._made += is_new
        then(FoundLog({0: self.there.setdefault(log, 0)}, f"{log} {self._made}", is_new))

    def listed(self, then: Callable[[Collection[str] | StoreError], None]) -> None:
        then(self.trouble or list(self.there))

    def sizes(self, then: Callable[[list[LogSize] | StoreError], None]) -> None:
        sizes = [
            LogSize(log, {}, {}, self.problems[log])
            if log in self.problems
            else LogSize(log, {0: 0}, {0: end})
            for log, end in sorted(self.there.items())
        ]
        then(self.trouble or sizes)

    def delete(self, logs: Collection[str], then: Callable[[StoreError | None], None]) -> None:
        for log in logs:
            self.there.pop(log)
        then(None)
