"""The broker as a whole, and what happens in it now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from embermq.admin.event_stream import EventStream
from embermq.admin.values import BrokerFigures, BrokerView


class BrokerDesk(Protocol):
    """Shows the broker as a whole. Called on the event loop; answers from memory."""

    @property
    def stream(self) -> EventStream:
        """Its events from now on, for who follows."""
        ...

    def overview(self) -> BrokerView:
        """What it is and how it does."""
        ...

    def history(self) -> Sequence[BrokerFigures]:
        """The last minutes, oldest first."""
        ...
