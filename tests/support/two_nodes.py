"""Two brokers as the nodes of two slots, with the links between them in memory."""

from __future__ import annotations

from tests.support.hand_driven import HandDrivenBroker, HandLink
from tests.support.stand_in_store import StandInQueueStore

from embermq.access.authentication.identity import Identity
from embermq.access.authorization.rule_set import RuleSet
from embermq.cluster.far_member import FarMember
from embermq.cluster.inflow import Inflow
from embermq.cluster.members import Members
from embermq.cluster.slots import slot_of_queue
from embermq.formats.log_record import LogRecord, decode_record, iter_frames
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.packets import Connack, Packet
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.peer_logs import PeerRecords
from embermq.queues.mqtt.mqtt_queues import MqttQueues
from embermq.queues.queue import Queue
from embermq.queues.settings import BrokerQueueSettings
from embermq.sessions.node_share import NodeShare

HERE, THERE, SLOTS = 0, 1, 2
ROUNDS_MAX = 50


def queue_of(slot: int, name: str = "work") -> str:
    """The name of a queue of this slot."""
    names = (f"{name}-{number}" for number in range(1_000))
    return next(each for each in names if slot_of_queue(each, SLOTS) == slot)


class Hand(HandDrivenBroker):
    """The node of one slot."""

    def __init__(self, slot: int, rules: RuleSet | None) -> None:
        super().__init__(rules=rules)
        self.calls: list[FarMember] = []
        self.members = Members(self.state, slot, SLOTS, self.calls.append)
        self.state.share = NodeShare(
            members=self.members,
            packet_ids=(SLOTS, slot),
            owns_queue=lambda name: slot_of_queue(name, SLOTS) == slot,
        )
        self.bodies_read = StandInQueueStore(self.store)
        self.queues = MqttQueues(self.state, BrokerQueueSettings(), self.bodies_read, lambda _, then: then(0))
        self.state.queues = self.queues
        self.inflow = Inflow(self.state, self.broker.publishing, slot, {}, lambda *_: None)

    def run(self) -> None:
        self.queues.run()
        super().run()

    def durable_queue(self, name: str) -> Queue:
        found = self.queues.core.find(name)
        assert found is not None, name
        return found

    def frames(self) -> list[bytes]:
        """Of all records of its log."""
        return [frame for _, records, _ in self.store.batches for frame in iter_frames(b"".join(records))]

    def recorded(self) -> list[LogRecord]:
        return [decode_record(frame) for frame in self.frames()]

    def goes_on(self) -> bool:
        """Whether a body was read, or a queue has something to hand out."""
        due_ms = self.queues.next_due_ms()
        return self.bodies_read.answer() or (due_ms is not None and due_ms <= self.now_ms)


class FarLink(HandLink):
    """A member link, as the slot sees it that it leads to."""

    __slots__ = ("coming", "member", "moving")

    def __init__(self, there: Hand, member: FarMember) -> None:
        super().__init__(there, ProtocolVersion.V5, None)
        self.member = member
        self.member_version = member.client.link.version
        self.moving: list[Packet] = []
        """What the client's own node has sent."""
        self.coming: list[Packet] = []
        """What this node has sent."""

    def _take(self, packet: Packet) -> None:
        self.coming.append(packet)


class Side:
    """The same link, as the client's own node has it."""

    unsent_bytes = 0

    def __init__(self, link: FarLink) -> None:
        self.link = link
        self.is_closed = self.is_paused = False

    def send(self, packet: Packet) -> None:
        self.link.moving.append(packet)

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def close(self) -> None:
        self.is_closed = True


class TwoNodes:
    """`has_node` tells whether slot 1 has one."""

    def __init__(self, rules: RuleSet | None = None) -> None:
        self.hands = [Hand(slot, rules) for slot in range(SLOTS)]
        self.here, self.there = self.hands
        self.links: list[tuple[FarLink, Side, Hand]] = []
        self.has_node = True
        self.copied = [0, 0]

    def settle(self) -> None:
        """Until nobody has anything to say."""
        for _ in range(ROUNDS_MAX):
            for hand in self.hands:
                hand.settle()
                while hand.goes_on():
                    hand.settle()
            if not (self._calls() or self._moves()):
                return
        raise AssertionError("the nodes do not come to rest")

    def _calls(self) -> bool:
        calls = [(hand, member) for hand in self.hands for member in hand.calls]
        for hand, member in calls:
            hand.calls.remove(member)
            if not hand.members.wants(member):
                continue
            if not self.has_node:
                hand.members.over(member, f"slot {member.slot} of the cluster has no node now")
                continue
            there = self.hands[member.slot]
            link = FarLink(there, member)
            link.inbox = []
            there.links.append(link)
            name, user, certificate = hand.members.introduced(member)
            identity = Identity(
                user, ClientType.DEVICE, "", certificate=certificate, client_id=name, is_member=True
            )
            there.broker.connect(link, hand.members.connect(member), identity)
            self.links.append((link, Side(link), hand))
        return bool(calls)

    def _moves(self) -> bool:
        moved = False
        for entry in list(self.links):
            link, side, home = entry
            moving, link.moving = link.moving, []
            coming, link.coming = link.coming, []
            moved |= bool(moving or coming)
            link.does(*moving)
            for packet in () if side.is_closed else coming:
                if isinstance(packet, Connack):
                    assert packet.reason_code == 0, packet
                    home.members.opened(link.member, side, packet)
                else:
                    home.members.took(link.member, packet)
            if side.is_closed or link.ended:
                moved = True
                self.cut(entry)
        return moved

    def cut(self, entry: tuple[FarLink, Side, Hand]) -> None:
        """The connection between the nodes is over, with what was on its way."""
        link, _, home = entry
        self.links.remove(entry)
        if not link.dropped:
            link.drops()
        home.members.over(link.member, "it closed the connection")

    def passes(self, *, ms: int) -> None:
        for hand in self.hands:
            hand.passes(ms=ms)
        self.settle()

    def read_logs(self) -> None:
        """Each takes in what the other's log has."""
        for reader, hand in enumerate(self.hands):
            other = self.hands[1 - reader]
            frames = other.frames()
            at = self.copied[reader]
            self.copied[reader] = len(frames)
            found = PeerRecords(list(enumerate(frames))[at:], len(frames))
            hand.inflow.take(1 - reader, found, lambda: None)
        self.settle()
