"""The broker as a whole, and what happens in it now."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from embermq.admin.broker_values import BrokerFigures, BrokerView
from embermq.admin.event_stream import EventStream


class BrokerSource(Protocol):
    """Implemented in app; answers from memory."""

    def overview(self) -> BrokerView:
        """What it is and how it does."""
        ...

    def history(self) -> Sequence[BrokerFigures]:
        """The last minutes, oldest first."""
        ...


class BrokerDesk:
    """Called on the event loop."""

    def __init__(self, source: BrokerSource, stream: EventStream) -> None:
        self._source = source
        self._stream = stream

    def overview(self) -> BrokerView:
        """What it is and how it does."""
        return self._source.overview()

    def history(self) -> Sequence[BrokerFigures]:
        """Its figures of the last minutes, oldest first."""
        return self._source.history()

    def follow(self, *, figures: bool, clients: bool) -> AsyncIterator[bytes]:
        """Its events from now on."""
        return self._stream.subscribe(figures=figures, clients=clients)
