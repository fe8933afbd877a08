"""Requests to the device queue: the store answers at once, or later and then begins a tick."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from embermq.ports.device_queue import DeviceQueue, Rows, Sizes
from embermq.sessions.tick import Tick

Found = TypeVar("Found")


PAGE_MESSAGES = 200
"""Stored messages read at a time after a reconnect: some 10 ms of work, so that others are served between two."""


class Requests:
    """See the module."""

    def __init__(self, queue: DeviceQueue, tick: Tick) -> None:
        self._queue = queue
        self._asking = False
        self._tick = tick

    def in_flight(self, generation: int, then: Rows) -> None:
        self._asking = True
        self._queue.in_flight(generation, partial(self._answer, then))
        self._asking = False

    def page(
        self, generation: int, after_seq: int, limit: int, then: Rows, *, bytes_max: int | None = None
    ) -> None:
        """At most a page, else as the port says."""
        self._asking = True
        self._queue.page(
            generation, after_seq, min(limit, PAGE_MESSAGES), partial(self._answer, then), bytes_max=bytes_max
        )
        self._asking = False

    def oldest(self, generation: int, after_seq: int, limit: int, then: Sizes) -> None:
        self._asking = True
        self._queue.oldest(generation, after_seq, limit, partial(self._answer, then))
        self._asking = False

    def _answer(self, then: Callable[[list[Found]], None], found: list[Found]) -> None:
        if not self._asking:
            self._tick.wake()
        then(found)
