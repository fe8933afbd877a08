"""How far dispatch has carried the message log, where not all application logs take what is for them.

A log that has a partition without a leader takes nothing, and one producer that waits for it would hold up everybody.
So a run may leave logs out. They lag then: what is for them is carried later, from where they were left, and the others
do not get it once more. What is published is what every log has got, so a driver that dies meanwhile repeats, and
loses nothing.
"""

from collections.abc import Collection, Mapping

from msgspec import Struct

from embermq.pipeline.sources.kafka_positions import Positions


class Carried(Struct, frozen=True):
    """What a run need not carry: nothing for logs that are `left_out`, nothing below the positions of a log in
    `lagging`, nothing below `most` for all others."""

    most: Mapping[int, int]
    lagging: Mapping[str, Mapping[int, int]]
    left_out: Collection[str]


class Carrying:
    """What one query leaves out and carries later. What is left out changes between two runs alone."""

    def __init__(self) -> None:
        self.most: Positions = {}
        """Below these every log has everything that is for it, but those that lag."""
        self._lagging: dict[str, Positions] = {}
        """Below which positions each of them has everything."""
        self._left_out: frozenset[str] = frozenset()
        self._log_id = ""

    @property
    def left_out(self) -> frozenset[str]:
        """Logs that get nothing now."""
        return self._left_out

    def leave_out(self, logs: Collection[str]) -> None:
        """From the next run on nothing is carried to these, the ones before are carried to again."""
        self._left_out = frozenset(logs)
        for log in logs:
            self._lagging.setdefault(log, dict(self.most))

    def begin(self, published: Positions, log_id: str = "") -> Positions:
        """A run begins, with so much published of the message log of this id; where it reads from."""
        is_other, self._log_id = log_id != self._log_id, log_id
        if is_other or any(published.get(partition, 0) < at for partition, at in self.complete().items()):
            # Another message log, or what was to be published has not been: what is known means nothing, and repeats
            # do no harm.
            self._lagging.clear()
            self._left_out = frozenset()
        if not self._lagging:
            self.most = dict(published)
            return published
        starts = [self.most, *(at for log, at in self._lagging.items() if log not in self._left_out)]
        return {
            partition: max(first, min(start.get(partition, first) for start in starts))
            for partition, first in published.items()
        }

    def carried(self) -> Carried | None:
        """For the run that begins; None when it carries everything that it reads."""
        return Carried(self.most, self._lagging, self._left_out) if self._lagging else None

    def reached(self, ends: Mapping[int, int]) -> None:
        """All that the run reads below these has arrived."""
        _raise(self.most, ends)
        for log, positions in self._lagging.items():
            if log not in self._left_out:
                _raise(positions, ends)
        self._lagging = {
            log: positions
            for log, positions in self._lagging.items()
            if log in self._left_out
            or any(positions.get(partition, 0) < at for partition, at in self.most.items())
        }

    def complete(self) -> Positions:
        """Below these every log has everything."""
        return {
            partition: min([at, *(one.get(partition, 0) for one in self._lagging.values())])
            for partition, at in self.most.items()
        }


def _raise(positions: Positions, ends: Mapping[int, int]) -> None:
    for partition, end in ends.items():
        positions[partition] = max(end, positions.get(partition, 0))
