"""The archive of QoS 1 and 2 messages in SQL: filled by the pipeline, queried by people and by repair."""

from abc import ABC, abstractmethod

from msgspec import Struct

from embermq.model.message import Message


class StoredMessage(Struct, frozen=True):
    """A message at its offset."""

    offset: int
    message: Message


class MessageStore(ABC):
    """Reads the message store. Guarantees: one row an offset; ranges come in offset order."""

    @abstractmethod
    def get(self, topic: str, offset: int) -> StoredMessage | None:
        """The message of that topic at that offset, None when it is not there (yet)."""

    @abstractmethod
    def range(self, topic: str, after_offset: int, limit: int) -> list[StoredMessage]:
        """At most `limit` messages of the topic with offset > `after_offset`."""
