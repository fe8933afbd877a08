"""Which `dedup-id`s a queue has seen within the window [queues-11]."""

from collections import OrderedDict
from collections.abc import Iterator


class DedupWindow:
    """Bounded: past `ids_max` the oldest are forgotten."""

    def __init__(self, window_ms: int, ids_max: int) -> None:
        self._window_ms = window_ms
        self._ids_max = ids_max
        self._until: OrderedDict[str, int] = OrderedDict()

    def knows(self, dedup_id: str, now_ms: int) -> bool:
        """Whether a message with this id is a repeat."""
        return self._until.get(dedup_id, 0) > now_ms

    def add(self, dedup_id: str, now_ms: int) -> int:
        """Remember it; returns until when."""
        until_ms = now_ms + self._window_ms
        self.restore(dedup_id, until_ms)
        while self._until and (
            len(self._until) > self._ids_max or next(iter(self._until.values())) <= now_ms
        ):
            self._until.popitem(last=False)
        return until_ms

    def restore(self, dedup_id: str, until_ms: int) -> None:
        """As it was stored; to be called in the order of time."""
        self._until[dedup_id] = until_ms
        self._until.move_to_end(dedup_id)

    def known(self) -> Iterator[tuple[str, int]]:
        """Each with the time until which it means a repeat."""
        return iter(self._until.items())

    def forget(self, dedup_id: str) -> None:
        """Its message was never stored."""
        self._until.pop(dedup_id, None)
