"""Application logs with a partition that has no leader: they take nothing, and hold up a query that writes to them."""

from collections.abc import Mapping

from embermq.pipeline.jobs.standstill import Standstill

LEADER_S = 10.0
"""So long a partition has no leader, and nothing gets done for a batch and as long, before a log is left out: the
servers that are there need some seconds to find a new leader."""
SHOWN = 3


class Leaders:
    """Since when each log lacks one, and whether that holds up the query, over all its runs: what cannot be sent fills
    the memory for it, and the run may die of that sooner than it is given up."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        self._standstill = Standstill()

    def begin(self) -> None:
        """It is not known what is behind."""
        self._standstill.begin()

    def went_on(self) -> None:
        self._standstill.went_on()

    def to_leave_out(
        self, now_s: float, without: Mapping[str, int], behind: Mapping[int, int], batch_s: float
    ) -> list[str]:
        """Logs that hold up what is `behind`. `without` names those that have no leader, with the partition."""
        self._since_s = {log: self._since_s.get(log, now_s) for log in without}
        lasting = [log for log, since_s in self._since_s.items() if now_s - since_s >= LEADER_S]
        if not lasting or not self._standstill.too_long_s(now_s, behind, batch_s, LEADER_S):
            return []
        return lasting


def told_of(logs: Mapping[str, int]) -> str:
    """Logs and the partition of each in words for log lines, the first few of them by name."""
    shown = [f"{log} (partition {partition})" for log, partition in sorted(logs.items())[:SHOWN]]
    more = len(logs) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
