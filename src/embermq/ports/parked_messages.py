"""Messages that are kept aside for applications; ticks write them (`TickWrites.parked`)."""

from abc import ABC, abstractmethod

from embermq.model.parked_message import ParkedMessage, ParkedState


class ParkedMessages(ABC):
    """Reads what ticks have stored; what raises is a StoreError.

    Guarantees: the messages of a generation are gone with its application's log (`TickWrites.ended_applications`).
    """

    @abstractmethod
    def load(self) -> list[ParkedState]:
        """Of all messages, by generation and number, deleted ones included."""

    @abstractmethod
    def read(self, generation: int, number: int) -> ParkedMessage | None:
        """One of them; None when it is not there, or deleted."""

    @abstractmethod
    def page(self, generation: int, after: int, limit: int) -> list[ParkedMessage]:
        """Up to `limit` with greater numbers, by number, each with b"" for its record; none that is deleted."""
