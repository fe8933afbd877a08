"""The archive of QoS 1 and 2 messages in SQL: filled by the pipeline, queried by people and by repair."""

from abc import ABC, abstractmethod

from msgspec import Struct

from embermq.model.message import Message

RANGE_BYTES = 4 * 1024 * 1024
"""Of payloads and properties: a range ends behind the message that reaches it. One may be as large as a packet."""


class StoredMessage(Struct, frozen=True):
    """A message at its offset, a position in the log."""

    offset: int
    message: Message


class MessageStore(ABC):
    """Reads the message store, and lets go of what is old. Only the pipeline adds to it: its sinks put a batch and
    their position into the store in one transaction, each position once.

    Guarantees: one row an offset; ranges come in offset order; a topic is found by its exact characters. Every method
    raises StoreUnavailable when the store does not answer, and may be called again then.
    """

    @abstractmethod
    def get(self, topic: str, offset: int) -> StoredMessage | None:
        """The message of that topic at that offset, None when it is not there (yet)."""

    @abstractmethod
    def range(self, topic: str, after_offset: int, limit: int) -> list[StoredMessage]:
        """The first messages of the topic with offset > `after_offset`: at most `limit`, and `RANGE_BYTES`. Only an
        empty list says that there is no other one."""

    @abstractmethod
    def count_older(self, than_ms: int) -> int:
        """How many messages were accepted before that time, Unix milliseconds. Reads the whole store."""

    @abstractmethod
    def prune(self, older_than_ms: int, rows_max: int) -> int:
        """Delete at most `rows_max` of them, the lowest offsets first, and say how many; fewer than `rows_max` when no
        other one is left."""

    @abstractmethod
    def close(self) -> None:
        """Release files and connections."""
