"""A client's link to another slot: what is under way on it, in both directions.

What clients of this node publish to durable queues of other slots. A PUBLISH of QoS 1 or 2 goes on under the packet
id that the client has given it, by the client's link to that slot, and so does PUBREL; what that slot answers goes to
the client. The session there has what makes QoS 2 exact, as one broker has it. Here is only known, while the
connection lasts, which slot has which packet id. A client that comes again and repeats a PUBREL has it sent to all
slots that may hold the id, and its PUBCOMP when all have answered: that id may become another message's then.

Whether a message that was sent and is not answered has been stored is not known when the link ends: the client's
connection ends then too, and it repeats the message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct, field

from embermq.cluster.slots import slot_of_queue
from embermq.mqtt.value import replace
from embermq.mqtt.wire.packets import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel, Subscribe, Unsubscribe
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import FIRST_ERROR, ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.routing.queue_target import QueueAim, QueueTarget
from embermq.sessions.link import Link
from embermq.sessions.node_share import Answered
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState

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
    """A client that is connected, with its links by slot. `waits_ms`: by slot how long the last one that was lost was
    waited for. `releasing`: by packet id the slots that have not answered a PUBREL which any of them may be meant by.
    """

    link: Link
    session: Session
    members: dict[int, FarMember] = field(default_factory=dict)
    waits_ms: dict[int, int] = field(default_factory=dict)
    releasing: dict[int, set[int]] = field(default_factory=dict)

    @property
    def is_there(self) -> bool:
        return self.session.link is self.link and not self.link.closing


def _bytes(packet: Publish) -> int:
    return len(packet.topic) + len(packet.payload)


UNSENT_BYTES_MAX = 4 * 1024 * 1024
"""Of what one client publishes to one slot and that has not gone there; past it messages are refused."""
TOO_MUCH = "too much waits for the node of this queue"


class FarPublishes:
    """`member_of` gives a client's link to a slot, which may be in the making, or None when the client is gone;
    `may_hold` names the slots that may have a session of this client."""

    def __init__(
        self,
        state: BrokerState,
        slots: int,
        member_of: Callable[[Link, int], FarMember | None],
        may_hold: Callable[[Session], Sequence[int]],
    ) -> None:
        self._state = state
        self._slots = slots
        self._member_of = member_of
        self._may_hold = may_hold

    def publish(self, link: Link, packet: Publish, target: QueueTarget) -> None:
        """See `GroupMembers.publish`."""
        member = self._member_of(link, slot_of_queue(target.elsewhere, self._slots))
        if member is None:
            return
        packet_id = packet.packet_id
        if packet.qos:
            if packet_id in member.taken:  # it comes again on this connection, where it counts once
                link.unanswered -= 1
            member.taken[packet_id] = target.aim is QueueAim.SETTLE
        waiting = member.unsent_bytes if member.far is None else member.far.unsent_bytes
        if waiting > UNSENT_BYTES_MAX:
            self._refuse(member, packet, TOO_MUCH)
        else:
            self._send(member, packet)

    def released(self, link: Link, client: FarClient | None, packet: Pubrel) -> bool:
        """See `GroupMembers.released`."""
        packet_id, session = packet.packet_id, link.session
        for member in client.members.values() if client is not None else ():
            if packet_id in member.taken:
                self._send(member, packet)
                return True
        if session is None or not session.persistent:
            return False
        slots = self._may_hold(session)
        links = [self._member_of(link, slot) for slot in slots]
        found = [each for each in links if each is not None]
        if not found:
            return False
        found[0].client.releasing[packet_id] = {member.slot for member in found}
        for member in found:
            member.taken[packet_id] = False
            self._send(member, packet)
        return True

    def _send(self, member: FarMember, packet: Publish | Pubrel) -> None:
        if member.far is not None:
            member.far.send(packet)
            return
        member.unsent.append(packet)
        member.unsent_bytes += len(packet.payload) if isinstance(packet, Publish) else 0

    def opened(self, member: FarMember, far: FarSide) -> None:
        """Send what has waited for the link."""
        for packet in member.unsent:
            far.send(packet)
        member.unsent.clear()
        member.unsent_bytes = 0

    def unreachable(self, member: FarMember, why: str) -> None:
        """There is no link, and for now there will be none: nothing of what waits for it is stored there."""
        unsent, member.unsent = member.unsent, []
        for packet in unsent:
            if isinstance(packet, Publish):
                self._refuse(member, packet, why)

    def _refuse(self, member: FarMember, packet: Publish, why: str) -> None:
        """It has not been sent."""
        self._state.counters.publishes_refused += 1
        if not packet.qos:
            return
        properties = Properties(reason_string=why)
        kind = Puback if packet.qos == 1 else Pubrec
        self.answered(member, kind(packet.packet_id, ReasonCode.QUOTA_EXCEEDED, properties))

    def answered(self, member: FarMember, packet: Puback | Pubrec | Pubcomp) -> None:
        """The other slot answers what the client has published, or has released."""
        client, packet_id = member.client, packet.packet_id
        link, is_word = client.link, member.taken.get(packet.packet_id)
        if is_word is None:
            return
        is_v5 = link.version is ProtocolVersion.V5
        is_refused = packet.reason_code >= FIRST_ERROR and not isinstance(packet, Pubcomp)
        if is_refused and not is_v5 and not is_word and packet.reason_code != ReasonCode.NOT_AUTHORIZED:
            text = packet.properties.reason_string if packet.properties is not None else None
            link.note_refusal(f"PUBLISH: {text or hex(packet.reason_code)}")
            link.close(f"PUBLISH: {text or hex(packet.reason_code)}")  # MQTT 3 cannot refuse it
            return
        if not isinstance(packet, Pubrec) or (is_refused and is_v5):
            del member.taken[packet_id]
            left = client.releasing.get(packet_id)
            if left is not None:
                left.discard(member.slot)
                if left:
                    return
                del client.releasing[packet_id]
            elif link.unanswered:
                link.unanswered -= 1
        if not is_v5:
            packet = replace(packet, reason_code=0, properties=None)
        elif not link.problem_information:
            packet = replace(packet, properties=None)
        link.send_packet(packet)
