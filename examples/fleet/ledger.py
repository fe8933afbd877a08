"""Counting to the last message: every stream (one vehicle's telemetry, one vehicle's commands) numbers its messages."""

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Totals:
    """One line of the table. Lost: acknowledged and not delivered, so under way while the story goes on.
    Reordered: after a younger one."""

    sent: int
    acknowledged: int
    delivered: int
    lost: int
    duplicated: int
    reordered: int

    @property
    def is_perfect(self) -> bool:
        """Everything that was sent arrived, once and in order."""
        return self.sent == self.acknowledged == self.delivered > 0 and not (
            self.lost or self.duplicated or self.reordered
        )

    def as_json(self) -> dict[str, int]:
        """The line for machines."""
        return asdict(self)


class Ledger:
    """What was sent, acknowledged and delivered, by stream and sequence number."""

    def __init__(self) -> None:
        self._sent: Counter[str] = Counter()
        self._acknowledged: defaultdict[str, set[int]] = defaultdict(set)
        self._delivered: defaultdict[str, set[int]] = defaultdict(set)
        self._highest: Counter[str] = Counter()
        self._duplicated = 0
        self._reordered = 0

    def send(self, stream: str) -> int:
        """A message is about to leave: its sequence number, from 1 on."""
        self._sent[stream] += 1
        return self._sent[stream]

    def acknowledge(self, stream: str, sequence: int) -> None:
        """The broker has taken responsibility for it."""
        self._acknowledged[stream].add(sequence)

    def deliver(self, stream: str, sequence: int) -> None:
        """It has arrived at its receiver."""
        if sequence in self._delivered[stream]:
            self._duplicated += 1
        elif sequence < self._highest[stream]:
            self._reordered += 1
        self._delivered[stream].add(sequence)
        self._highest[stream] = max(self._highest[stream], sequence)

    @property
    def on_the_way(self) -> int:
        """Acknowledged and not delivered yet: in the broker's care."""
        return sum(len(done - self._delivered[stream]) for stream, done in self._acknowledged.items())

    def totals(self) -> Totals:
        """Everything so far."""
        return Totals(
            sent=self._sent.total(),
            acknowledged=sum(map(len, self._acknowledged.values())),
            delivered=sum(map(len, self._delivered.values())),
            lost=self.on_the_way,
            duplicated=self._duplicated,
            reordered=self._reordered,
        )
