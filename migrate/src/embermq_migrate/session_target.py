"""What a migration writes sessions to: the broker's session store, while no broker uses it."""

from abc import ABC, abstractmethod

from msgspec import Struct

from embermq.model.message import Message
from embermq.model.session import SessionRow
from embermq.model.session_writes import QueueRow

UNTOUCHED_EPOCH = 0
"""The epoch of a migrated session: a broker counts from 1, and one up at each CONNECT."""


class Known(Struct, frozen=True):
    """What the target has of a client: its session, if any, and place -> packet id of its stored messages."""

    generation: int
    epoch: int
    places: dict[int, int]


class ClientWrites(Struct, frozen=True):
    """What is to be added for one client. `session` is None when it is there; `last_packet_id` is 0 while it is not
    known. Of a row the message is what its record holds."""

    client_id: str
    session: SessionRow | None
    rows: list[tuple[QueueRow, Message]]
    last_packet_id: int


class SessionTarget(ABC):
    """Guarantees: the same writes again change nothing; what `write` returned from is kept as the store keeps things; a
    message that `known` names is there with its payload, and so is its session. Raises MigrationError; it never shows a
    password."""

    @abstractmethod
    def known(self, client_ids: list[str]) -> dict[str, Known]:
        """What is there of clients; those without anything are left out."""

    @abstractmethod
    def write(self, clients: list[ClientWrites]) -> None:
        """Add sessions and messages; the packet ids of one client differ from one another and from those known."""

    @abstractmethod
    def close(self) -> None:
        """Leave the store."""
