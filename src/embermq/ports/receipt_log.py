"""Where samples of delivery latency go when they do not stand in the broker's own file. They are statistics."""

from abc import ABC, abstractmethod

from msgspec import Struct


class ReceiptStatistics(Struct, frozen=True):
    """Since the start, in samples; `waiting_bytes` are not stored yet."""

    stored: int
    dropped: int
    waiting_bytes: int


class ReceiptLog(ABC):
    """Guarantees: nothing here waits or raises; what is held is bounded, past that samples are dropped and counted."""

    @abstractmethod
    def take(self, samples: list[bytes]) -> None:
        """On the broker's thread: samples as `model.receipts.SAMPLE` has them."""

    @abstractmethod
    def statistics(self) -> ReceiptStatistics:
        """What became of them, from any thread."""

    @abstractmethod
    def close(self) -> None:
        """Store what there is, if that takes less than a second."""
