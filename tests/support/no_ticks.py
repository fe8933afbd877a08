"""In place of the event loop's ticks, for what needs none."""

from __future__ import annotations

from embermq.edge.tick_loop import TickLoop


class NoTicks(TickLoop):
    """Runs none."""

    def __init__(self) -> None:
        """Needs no event loop."""

    def wake(self) -> None:
        """Nothing comes of it."""
