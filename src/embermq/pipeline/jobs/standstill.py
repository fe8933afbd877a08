"""Whether a query gets anything done."""

from collections.abc import Mapping

DOUBLED_MAX = 4


class Standstill:
    """How long the same positions have been behind. `look_s` is when to look next.

    Patience doubles with each run that was held up: a batch may take long because there is too little CPU as well, and
    would never end if it were begun anew each time.
    """

    def __init__(self) -> None:
        self.look_s = 0.0
        self._behind: Mapping[int, int] = {}
        self._since_s = 0.0
        self._held_up = 0

    def begin(self) -> None:
        """A run begins, or it is not known what is behind."""
        self.look_s = 0.0
        self._behind = {}

    def went_on(self) -> None:
        self._held_up = 0

    def too_long_s(self, now_s: float, behind: Mapping[int, int], batch_s: float, patience_s: float) -> float:
        """Seconds for which none of `behind` has moved, when these are more than a batch and the patience; else 0.

        `behind` is the next offset of each partition that is not at its end.
        """
        if not behind or behind != self._behind:
            self._behind, self._since_s = behind, now_s
        lasts_s = now_s - self._since_s
        if lasts_s <= batch_s + patience_s * (1 << min(self._held_up, DOUBLED_MAX)):
            return 0.0
        self._held_up += 1
        return lasts_s
