"""Write elision: deliveries that may still be acknowledged before they have to be written.

The dispatcher's floor, the offset from which the log is read again after a crash, stays behind them.
"""

from collections import deque

from msgspec import Struct

from embermq.sessions.session import Delivery, Session

Fresh = list[tuple[Session, Delivery]]


class _Lingering(Struct):
    due_ms: int
    end_offset: int
    fresh: Fresh


class Linger:
    """Deliveries by the tick that made them, oldest first."""

    def __init__(self, linger_ms: float) -> None:
        self._linger_ms = linger_ms
        self._lingering: deque[_Lingering] = deque()
        self.fresh: Fresh = []
        """Deliveries of the present tick."""

    def __len__(self) -> int:
        return len(self._lingering)

    @property
    def next_ms(self) -> int:
        """When `due` next has something; 0 for never."""
        return self._lingering[0].due_ms if self._lingering else 0

    def close_tick(self, end_offset: int, now_ms: int) -> None:
        """The present tick dispatched every record below `end_offset`."""
        last = self._lingering[-1] if self._lingering else None
        if last is not None and not self.fresh and not last.fresh:
            last.end_offset = end_offset
            return
        due_ms = now_ms + int(self._linger_ms)
        self._lingering.append(_Lingering(due_ms, end_offset, self.fresh))
        self.fresh = []

    def due(self, now_ms: int) -> tuple[Fresh, int]:
        """Deliveries whose time is over, and the offset below which everything is settled once they are written;
        -1 when nothing is due."""
        lingering = self._lingering
        unsettled: Fresh = []
        end_offset = -1
        while lingering and lingering[0].due_ms <= now_ms:
            first = lingering.popleft()
            end_offset = first.end_offset
            for entry in first.fresh:
                delivery = entry[1]
                if not delivery.settled and not delivery.seq:
                    unsettled.append(entry)
        return unsettled, end_offset
