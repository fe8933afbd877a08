"""A client's link to another slot: what is under way on it, in both directions."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from msgspec import Struct, field

from embermq.mqtt.wire.packets import Packet, Publish, Pubrel, Subscribe, Unsubscribe
from embermq.sessions.link import Link
from embermq.sessions.node_share import Answered
from embermq.sessions.session import Session

WAITING_BYTES_MAX = 256 * 1024
"""Of messages of another slot that a client has no room for: past it nothing more is read from there, and below half of
it again."""


class FarSide(Protocol):
    """A connection to the node of another slot."""

    @property
    def unsent_bytes(self) -> int:
        """What waits here for that node to read it."""
        ...

    def send(self, packet: Packet) -> None:
        """With all others of this turn of the event loop."""
        ...

    def pause(self) -> None:
        """Read nothing from it any more."""
        ...

    def resume(self) -> None:
        """Read from it again."""
        ...

    def close(self) -> None:
        """Behind what has been sent."""
        ...


class Change(Struct):
    """A SUBSCRIBE or UNSUBSCRIBE that waits for its answer."""

    packet: Subscribe | Unsubscribe
    names: tuple[str, ...]
    answered: Answered


class FarMember(Struct, eq=False):
    """One client's link to one slot. `far` is there from its CONNACK on; `sent` are the packet ids of what the client
    has and has not answered, `waiting` is what it has no room for. `asked` is by packet id.

    `taken` are packet ids of what the client has published there, or releases there, and that is not answered, with
    whether it is a word by which a consumer settles; `unsent` is what waits for `far`. `in_memory`: that slot keeps
    something for the client in memory alone, a queue of responses."""

    client: FarClient
    slot: int
    far: FarSide | None = None
    is_over: bool = False
    sent: set[int] = field(default_factory=set)
    waiting: deque[Publish] = field(default_factory=deque)
    waiting_bytes: int = 0
    is_paused: bool = False
    asked: dict[int, Change] = field(default_factory=dict)
    last_packet_id: int = 0
    tries: int = 1
    taken: dict[int, bool] = field(default_factory=dict)
    unsent: list[Publish | Pubrel] = field(default_factory=list)
    unsent_bytes: int = 0
    in_memory: bool = False

    def wait(self, packet: Publish) -> None:
        """The client may have no room for it."""
        self.waiting.append(packet)
        self.waiting_bytes += _bytes(packet)
        if self.waiting_bytes > WAITING_BYTES_MAX and not self.is_paused and self.far is not None:
            self.is_paused = True
            self.far.pause()

    def take(self) -> Publish:
        """The next one that waits."""
        packet = self.waiting.popleft()
        self.waiting_bytes -= _bytes(packet)
        if self.is_paused and 2 * self.waiting_bytes <= WAITING_BYTES_MAX and self.far is not None:
            self.is_paused = False
            self.far.resume()
        return packet


class FarClient(Struct, eq=False):
    """A client that is connected, with its links by slot. `room`: so many messages it may have unanswered. `waits_ms`:
    by slot how long the last one that was lost was waited for. `releasing`: by packet id the slots that have not
    answered a PUBREL which any of them may be meant by."""

    link: Link
    session: Session
    room: int
    members: dict[int, FarMember] = field(default_factory=dict)
    waits_ms: dict[int, int] = field(default_factory=dict)
    releasing: dict[int, set[int]] = field(default_factory=dict)

    @property
    def is_there(self) -> bool:
        return self.session.link is self.link and not self.link.closing


def _bytes(packet: Publish) -> int:
    return len(packet.topic) + len(packet.payload)
