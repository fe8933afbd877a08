"""Clients that are members of other slots' groups: packets go on in both directions, and nothing else is kept."""

from __future__ import annotations

from typing import cast

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink, dispatch

from embermq.access.authentication.gate import Gate
from embermq.access.authentication.identity import Identity
from embermq.cluster.far_member import FarMember
from embermq.cluster.members import (
    BULK_BYTES_MAX,
    RETRY_MAX_MS,
    RETRY_MS,
    TRIES,
    Members,
    sessions_of,
)
from embermq.cluster.slots import slot_of
from embermq.delivery.application.settings import ApplicationSettings
from embermq.edge.connection_limits import Admission
from embermq.edge.listener_settings import Listener
from embermq.edge.node_door import NodeListenerContext
from embermq.edge.node_link import MemberOf
from embermq.edge.settings import Address, OwnSettings
from embermq.edge.tick_loop import TickLoop
from embermq.model.client_type import ClientType
from embermq.model.session import NEVER_EXPIRES, SessionRow
from embermq.mqtt.wire.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.sessions.member_ids import client_of, member_id, member_of
from embermq.sessions.node_share import NodeShare
from embermq.sessions.session import PACKET_IDS, Session
from embermq.sessions.settings import MqttSettings

HERE, THERE, SLOTS = 0, 1, 2
FAILED = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR


def group_of(slot: int, topic_filter: str = "t") -> str:
    names = (f"$share/g{number}/{topic_filter}" for number in range(1_000))
    return next(name for name in names if slot_of(name, SLOTS) == slot)


OWN, OTHER = group_of(HERE), group_of(THERE)


class Far:
    """What goes to the other slot."""

    def __init__(self) -> None:
        self.packets: list[Packet] = []
        self.closed = self.paused = False
        self.unsent_bytes = 0

    def send(self, packet: Packet) -> None:
        assert not self.closed
        self.packets.append(packet)

    def close(self) -> None:
        self.closed = True

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False


class Node:
    """Of slot 0 of two; slot 1 is the test's."""

    def __init__(self, application: ApplicationSettings | None = None) -> None:
        self.hand = HandDrivenBroker(application=application)
        self.calls: list[FarMember] = []
        self.members = Members(self.hand.state, HERE, SLOTS, self.calls.append)
        self.hand.state.share = NodeShare(members=self.members, packet_ids=(SLOTS, HERE))

    def opens(self, *, present: bool = False) -> tuple[FarMember, Far]:
        """The other slot answers the last call."""
        member, far = self.calls[-1], Far()
        self.members.opened(member, far, Connack(present, 0))
        self.hand.settle()
        return member, far

    def takes(self, member: FarMember, *packets: Packet) -> None:
        for packet in packets:
            self.members.took(member, packet)
        self.hand.settle()

    def joins(self, link: HandLink, *, qos: int = 2) -> tuple[FarMember, Far]:
        """The client becomes a member at the other slot."""
        link.does(Subscribe(9, (Subscription(OTHER, qos),)))
        self.hand.settle()
        member, far = self.opens()
        self.takes(member, Suback(far.packets[-1].packet_id, (qos,)))  # type: ignore[union-attr]
        assert link.last(Suback) == Suback(9, (qos,))
        far.packets.clear()
        return member, far

    def ends(self, member: FarMember) -> None:
        self.members.over(member, "it closed the connection")
        self.hand.settle()


def from_there(payload: bytes, packet_id: int, *, qos: int = 1, dup: bool = False) -> Publish:
    return Publish("t", payload, qos, packet_id, dup=dup)


def test_suback_comes_when_the_groups_slot_has_the_subscription() -> None:
    node = Node()
    client = node.hand.keeps("c")
    asked = (Subscription("plain", 1), Subscription(OTHER, 2), Subscription(OWN, 1))
    client.does(Subscribe(3, asked, Properties(subscription_identifiers=(7,))), Unsubscribe(4, ("plain",)))
    node.hand.settle()
    assert not client.all(Suback)
    (member,) = node.calls
    connect = node.members.connect(member)
    assert connect.client_id == member_id("c", client.session.generation)  # type: ignore[union-attr]
    assert not connect.clean_start
    _, far = node.opens()
    (sent,) = far.packets
    assert isinstance(sent, Subscribe)
    assert sent.subscriptions == (asked[1],)
    assert sent.properties == Properties(subscription_identifiers=(7,))
    assert not client.all(Unsuback), "it changes subscriptions behind the other"
    node.takes(member, Suback(sent.packet_id, (1,)))
    assert client.last(Suback) == Suback(3, (1, 1, 1))
    assert client.last(Unsuback) == Unsuback(4, (0,))
    assert set(client.session.subscriptions) == {OWN}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("version", "code"), [(ProtocolVersion.V5, int(FAILED)), (ProtocolVersion.V311, 0x80)]
)
def test_a_slot_that_has_no_node_is_said_to_have_none(version: ProtocolVersion, code: int) -> None:
    node = Node()
    client = node.hand.connects("c", version=version)
    client.does(Subscribe(3, (Subscription(OTHER, 1), Subscription("plain", 1))))
    for number in range(TRIES):
        node.hand.settle()
        assert not client.all(Suback)
        assert len(node.calls) == number + 1
        node.members.over(node.calls[-1], "slot 1 of the cluster has no node now")
        node.hand.passes(ms=RETRY_MS)
    node.hand.settle()
    assert client.last(Suback).reason_codes == (code, 1)
    assert not client.ended


@pytest.mark.parametrize(
    ("version", "code"), [(ProtocolVersion.V5, int(FAILED)), (ProtocolVersion.V311, 0x80)]
)
def test_a_slot_whose_node_cannot_be_reached_is_said_not_to_answer(
    version: ProtocolVersion, code: int
) -> None:
    """A call takes longer than a client waits for. What it has not been asked by then it is never asked."""
    node = Node()
    client = node.hand.connects("c", version=version)
    client.does(
        Subscribe(3, (Subscription(OTHER, 1), Subscription("plain", 1))),
        Subscribe(4, (Subscription(OWN, 1),)),
    )
    node.hand.settle()
    assert not client.all(Suback)
    node.hand.passes(s=11)
    assert [packet.reason_codes for packet in client.all(Suback)] == [(code, 1), (1,)]
    assert not client.ended
    _, far = node.opens()
    assert not far.packets


@pytest.mark.parametrize("ends", [True, False])
def test_what_nobody_knows_the_outcome_of_is_not_answered(ends: bool) -> None:
    node = Node()
    client = node.hand.keeps("c")
    client.does(Subscribe(3, (Subscription(OTHER, 1),)))
    node.hand.settle()
    member, _ = node.opens()
    if ends:
        node.ends(member)
    else:
        node.hand.passes(s=11)
    assert not client.all(Suback)
    assert client.last(Disconnect).reason_code == FAILED


def test_messages_and_answers_go_on_under_ids_that_say_whose_they_are() -> None:
    node = Node()
    client = node.hand.keeps("c", acknowledges=False)
    client.subscribes("own")
    member, far = node.joins(client)
    node.hand.connects("p").publishes("own", b"1", b"2")
    node.hand.settle()
    assert [message.packet_id % SLOTS for message in client.messages] == [HERE, HERE]
    node.takes(member, from_there(b"a", 1), from_there(b"b", 3, qos=2))
    assert client.payloads == [b"1", b"2", b"a", b"b"]
    client.does(Puback(1), Pubrec(3))
    node.hand.settle()
    assert far.packets == [Puback(1), Pubrec(3)]
    node.takes(member, Pubrel(3))
    client.does(Pubcomp(3), Puback(1), Pubcomp(3))
    node.hand.settle()
    assert far.packets[2:] == [Pubcomp(3)], "what is answered twice is answered once"
    assert not member.sent


@pytest.mark.parametrize("kind", ClientType)
def test_the_window_of_the_client_is_one(kind: ClientType) -> None:
    node = Node()
    client = node.hand.keeps("c", receive_maximum=4, acknowledges=False, client_type=kind)
    client.subscribes("own")
    member, _ = node.joins(client)
    assert node.members.connect(member).properties.receive_maximum == 4  # type: ignore[union-attr]
    publisher = node.hand.connects("p")
    publisher.publishes("own", *(b"own%d" % number for number in range(6)))
    node.hand.settle()
    dispatch(node.hand)
    node.takes(member, *(from_there(b"far%d" % number, 1 + 2 * number) for number in range(4)))
    assert client.payloads == [b"own0", b"own1", b"own2", b"own3"]
    while len(client.payloads) < 10:
        first = min(client.in_flight, key=lambda each: each)
        client.does(Puback(first))
        node.hand.settle()
    of_far = [at for at, payload in enumerate(client.payloads) if payload.startswith(b"far")]
    of_own = [at for at, payload in enumerate(client.payloads) if payload.startswith(b"own")]
    assert max(of_own) > min(of_far), "both have their share"
    assert [payload for payload in client.payloads if payload.startswith(b"far")] == [
        b"far%d" % number for number in range(4)
    ]


@pytest.mark.parametrize("kind", ClientType)
def test_the_clients_own_session_goes_on_whatever_comes_from_other_slots(kind: ClientType) -> None:
    node = Node()
    client = node.hand.keeps("c", receive_maximum=4, acknowledges=False, client_type=kind)
    client.subscribes("own")
    member, _ = node.joins(client)
    node.takes(member, *(from_there(b"far", 1 + 2 * number) for number in range(20)))
    assert client.payloads == 3 * [b"far"]
    node.hand.connects("p").publishes("own", b"own1", b"own2")
    node.hand.settle()
    dispatch(node.hand)
    assert client.payloads == [*(3 * [b"far"]), b"own1"]
    client.does(Puback(client.messages[-1].packet_id))
    node.hand.settle()
    assert client.payloads[4:] == [b"own2"]


def test_what_an_application_was_given_up_counts_against_all_that_it_may_have() -> None:
    """And not against its own session's share: what others have sent it may still be acknowledged."""
    settings = ApplicationSettings(ack_strategy="skip-all")
    node = Node(settings)
    client = node.hand.keeps("c", receive_maximum=4, acknowledges=False, client_type=ClientType.APPLICATION)
    client.subscribes("own")
    member, _ = node.joins(client)
    node.takes(member, *(from_there(b"far", 1 + 2 * number) for number in range(5)))
    node.hand.connects("p").publishes("own", b"own1", b"own2")
    node.hand.settle()
    dispatch(node.hand)
    node.hand.passes(s=settings.pack_timeout_s + 1)
    assert node.hand.state.counters.application_skipped == 1 and not client.closing
    client.does(Puback(1), Puback(3))
    node.hand.settle()
    assert client.payloads == [*(3 * [b"far"]), b"own1", b"own2", b"far"]
    client.does(Puback(5), Puback(7), Puback(9))
    node.hand.settle()
    assert client.payloads[6:] == [b"far"] and not client.closing


def test_what_an_application_was_given_up_is_room_of_nobody() -> None:
    """Its own session goes on in what is left."""
    settings = ApplicationSettings(ack_strategy="skip-all")
    node = Node(settings)
    client = node.hand.keeps("c", receive_maximum=4, acknowledges=False, client_type=ClientType.APPLICATION)
    client.subscribes("own")
    member, _ = node.joins(client)
    node.hand.connects("p").publishes("own", b"own1", b"own2")
    node.hand.settle()
    dispatch(node.hand)
    node.hand.passes(s=settings.pack_timeout_s + 1)
    assert node.hand.state.counters.application_skipped == 2 and not client.closing
    node.takes(member, *(from_there(b"far", 1 + 2 * number) for number in range(20)))
    node.hand.connects("q").publishes("own", b"own3")
    node.hand.settle()
    dispatch(node.hand)
    assert client.payloads == [b"own1", b"own2", b"far", b"own3"]


@pytest.mark.parametrize("answer", [Puback(1), None])
def test_a_link_that_ends_takes_a_client_along_that_has_something_unanswered(answer: Puback | None) -> None:
    node = Node()
    client = node.hand.keeps("c", acknowledges=False)
    member, _ = node.joins(client)
    node.takes(member, from_there(b"a", 1))
    if answer is not None:
        client.does(answer)
    node.ends(member)
    node.hand.passes(ms=RETRY_MS)
    assert bool(client.all(Disconnect)) is (answer is None)
    assert len(node.calls) == (2 if answer is not None else 1)
    if answer is not None:
        again, far = node.opens(present=True)
        client.does(Puback(1))  # of the link before
        assert not far.packets
        node.takes(again, from_there(b"b", 1, dup=True))
        client.does(Puback(1))
        assert far.packets == [Puback(1)]


def test_a_node_that_lets_nobody_in_is_asked_less_often() -> None:
    node = Node()
    client = node.hand.keeps("c")
    member, _ = node.joins(client)
    node.ends(member)
    for wait_ms in (RETRY_MS, 2 * RETRY_MS, 4 * RETRY_MS, *(3 * [RETRY_MAX_MS])):
        before = len(node.calls)
        node.hand.passes(ms=wait_ms - 1)
        assert len(node.calls) == before
        node.hand.passes(ms=1)
        assert len(node.calls) == before + 1
        node.ends(node.calls[-1])
    node.hand.passes(ms=RETRY_MAX_MS)
    member, _ = node.opens(present=True)
    node.ends(member)
    before = len(node.calls)
    node.hand.passes(ms=RETRY_MS)
    assert len(node.calls) == before + 1, "it was there meanwhile"


def test_a_session_that_ends_with_its_connection_is_lost_with_the_link() -> None:
    node = Node()
    client = node.hand.connects("c")
    member, _ = node.joins(client)
    assert node.members.connect(member).clean_start
    node.ends(member)
    assert client.last(Disconnect).reason_code == FAILED


def test_a_client_that_comes_back_is_a_member_again_and_qos_2_goes_on() -> None:
    node = Node()
    client = node.hand.keeps("c")
    member, far = node.joins(client)
    client.leaves()
    assert far.closed
    assert member.is_over
    back = node.hand.keeps("c", acknowledges=False)
    again, far = node.opens(present=True)
    assert again is not member
    node.takes(again, Pubrel(5), from_there(b"x", 7, qos=2, dup=True))
    back.does(Pubcomp(5), Pubrec(7))
    assert far.packets == [Pubcomp(5), Pubrec(7)]


def test_a_session_that_has_ended_ends_at_the_other_slot_too() -> None:
    node = Node()
    client = node.hand.keeps("c")
    node.joins(client)
    generation = client.session.generation  # type: ignore[union-attr]
    client.leaves()
    assert not node.members.over_at[THERE]
    node.hand.connects("c")
    assert list(node.members.over_at[THERE]) == [member_id("c", generation)]
    assert len(node.calls) == 1, "the new one is no member"


def test_a_session_that_was_asked_for_goes_on_and_ends_whatever_was_answered() -> None:
    node = Node()
    client = node.hand.keeps("c")
    generation = client.session.generation  # type: ignore[union-attr]
    client.does(Subscribe(3, (Subscription(OTHER, 1),)))
    node.hand.settle()
    (member,) = node.calls
    assert node.members.wants(member)
    node.members.connect(member)
    client.leaves()
    assert not node.members.wants(member)
    assert not node.members.over_at[THERE]
    back = node.hand.keeps("c", acknowledges=False)
    again, far = node.opens(present=True)
    node.takes(again, from_there(b"a", 1))
    back.does(Puback(1))
    assert far.packets == [Puback(1)], "the subscription may be there, and is then"
    node.hand.connects("c")
    assert list(node.members.over_at[THERE]) == [member_id("c", generation)]


def test_nothing_is_asked_for_a_session_that_another_connection_has() -> None:
    node = Node()
    client = node.hand.keeps("c")
    client.does(Subscribe(3, (Subscription(OTHER, 1),)))
    node.hand.settle()
    (member,) = node.calls
    client.session.link = None  # type: ignore[union-attr]  # as a takeover does before the connection is over
    assert not member.is_over
    assert not node.members.wants(member)


def test_a_node_learns_at_its_start_who_is_a_member() -> None:
    node = Node()
    here, away = node.hand.keeps("here"), node.hand.keeps("away")
    ids = [member_id(each.session.client_id, each.session.generation) for each in (here, away)]  # type: ignore[union-attr]
    away.leaves()
    node.hand.passes(s=10)  # put away
    stale = [member_id("here", 77), member_id("gone", 1), member_id("a/b", 2)]
    assert node.members.listed(THERE, [*ids, *stale]) == stale
    assert [member.client.session.client_id for member in node.calls] == ["here"]
    node.hand.keeps("away")
    assert [member.client.session.client_id for member in node.calls] == ["here", "away"]


def test_unsubscribe_is_answered_by_the_groups_slot() -> None:
    node = Node()
    client = node.hand.keeps("c")
    member, far = node.joins(client)
    client.does(Unsubscribe(5, ("none", OTHER)))
    node.hand.settle()
    (sent,) = far.packets
    assert isinstance(sent, Unsubscribe)
    assert sent.topic_filters == (OTHER,)
    node.takes(member, Unsuback(sent.packet_id, (0,)))
    assert client.last(Unsuback) == Unsuback(5, (0x11, 0))
    node.members.listed(THERE, ())
    other = node.hand.keeps("d")
    other.does(Unsubscribe(6, (OTHER,)))
    node.hand.settle()
    assert other.last(Unsuback) == Unsuback(6, (0x11,))
    assert len(node.calls) == 1, "who is no member needs nobody"


def test_who_may_be_a_member_is_not_told_that_it_is_none() -> None:
    node = Node()
    node.members.listed(THERE, ())
    client = node.hand.keeps("c")
    client.does(Subscribe(3, (Subscription(OTHER, 1),)))
    node.hand.settle()
    node.members.connect(node.calls[-1])
    client.leaves()
    back = node.hand.keeps("c")
    back.does(Unsubscribe(4, (OTHER,)))
    node.hand.settle()
    assert not back.all(Unsuback)
    member, far = node.opens(present=True)
    node.takes(member, Unsuback(far.packets[-1].packet_id, (0,)))  # type: ignore[union-attr]
    assert back.last(Unsuback) == Unsuback(4, (0,))


def test_packet_ids_begin_again_for_who_changes_subscriptions_all_day() -> None:
    node = Node()
    client = node.hand.keeps("c")
    member, far = node.joins(client)
    member.last_packet_id = PACKET_IDS - 1
    for last in (PACKET_IDS, 1):
        client.does(Unsubscribe(5, (OTHER,)))
        node.hand.settle()
        sent = far.packets[-1]
        assert isinstance(sent, Unsubscribe)
        assert sent.packet_id == last
        node.takes(member, Unsuback(last, (0,)))
    assert len(client.all(Unsuback)) == 2


def test_qos_0_goes_on_while_the_client_takes_it() -> None:
    node = Node()
    client = node.hand.connects("c", version=ProtocolVersion.V311)
    member, _ = node.joins(client)
    node.takes(member, Publish("t", b"0", properties=Properties(subscription_identifiers=(1,))))
    client.paused = True
    node.takes(member, Publish("t", b"dropped"), from_there(b"waits", 1))
    assert client.payloads == [b"0"]
    client.paused = False
    node.members.writable(client)
    node.hand.settle()
    assert client.payloads == [b"0", b"waits"]


def test_what_has_waited_is_not_put_on_the_connection_all_at_once() -> None:
    node = Node()
    client = node.hand.keeps("c", acknowledges=False)
    member, _ = node.joins(client)
    client.paused = True
    size = BULK_BYTES_MAX // 2
    node.takes(member, *(from_there(bytes(size), 1 + 2 * number) for number in range(7)))
    client.paused = False
    node.members.writable(client)
    assert sum(map(len, client.out)) < BULK_BYTES_MAX + size
    client.bulk_bytes = 0  # a flush
    node.hand.settle()
    while len(client.payloads) < 7:
        before = len(client.payloads)
        client.does(Puback(min(client.in_flight)))
        client.bulk_bytes = 0
        node.hand.settle()
        assert len(client.payloads) > before


# At the group's slot


def enters(hand: HandDrivenBroker, name: str, *, user: str = "user") -> HandLink:
    """A member, brought by its own node."""
    identity = Identity(user, ClientType.DEVICE, "", client_id=name, is_member=True)
    link = HandLink(hand, ProtocolVersion.V5, None)
    link.inbox = []
    hand.links.append(link)
    properties = Properties(session_expiry_interval=NEVER_EXPIRES)
    hand.broker.connect(link, Connect(name, ProtocolVersion.V5, False, properties=properties), identity)
    hand.settle()
    return link


def test_a_member_session_is_for_nodes_alone() -> None:
    node = Node()
    name = member_id("c", 5)
    client = node.hand.keeps(name)
    assert client.last(Connack).reason_code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    assert enters(node.hand, name).last(Connack).reason_code == 0
    session = node.hand.state.sessions[name]
    assert session.principal.client_id == "c"
    assert session.expiry_interval_s == NEVER_EXPIRES
    home = slot_of("c", SLOTS)
    assert sessions_of(node.hand.state, home, SLOTS) == [name]
    assert sessions_of(node.hand.state, 1 - home, SLOTS) == []


def test_a_member_session_goes_on_for_whom_its_clients_own_session_has_been_given_to() -> None:
    hand, name = HandDrivenBroker(), member_id("c", 5)
    enters(hand, name, user="before")
    link = enters(hand, name, user="after")
    assert link.last(Connack).session_present
    assert link.session is hand.state.sessions[name]
    assert link.session.principal.user == "after"


def test_limits_for_clients_are_not_for_the_links_of_members() -> None:
    hand = HandDrivenBroker(mqtt=MqttSettings(keep_alive_max_s=10, protocol_versions=("3.1.1",)))
    link = enters(hand, member_id("c", 5))
    hand.passes(s=60)
    assert not link.ended, "nothing is said on it while there is no message"
    door = NodeListenerContext(
        hand.broker,
        cast(TickLoop, None),
        cast(Gate, None),
        Listener("node", Address("127.0.0.1", 1), OwnSettings(), None, None, "cluster", frozenset()),
        cast(Admission, None),
        connect_timeout_s=1,
    )
    told = MemberOf(slot=0, of=1, node="n", session="s", user="", certificate="", host="h")
    link.terms = door.introduce_member(told).terms
    assert not hand.state.terms_of(link).objection_to_version(ProtocolVersion.V5)


def test_names_of_member_sessions() -> None:
    for client_id in ("c", "a/b", "", "$member/1/x"):
        assert member_of(member_id(client_id, 12)) == (client_id, 12)
        assert client_of(member_id(client_id, 12)) == client_id
    assert client_of("a/b/c") == "a/b/c"


MADE_UP = ("$member/", "$member/x", "$member/1", "$member/x/y")


@pytest.mark.parametrize("name", [*MADE_UP, "$member/1/y"])
def test_a_client_that_makes_up_such_a_name_is_refused(name: str) -> None:
    client = HandDrivenBroker().connects(name)
    assert client.last(Connack).reason_code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID


def test_sessions_that_have_such_a_name_by_chance_are_nobodys() -> None:
    """A client of a broker that did not keep these names for members may have had one."""
    hand = HandDrivenBroker()
    for name in MADE_UP:
        hand.state.sessions.add(
            Session(SessionRow(name, 1, 1, ClientType.DEVICE, "", 5, 60, False, 0, 0), persistent=True)
        )
        assert hand.state.sessions[name].principal.client_id == name
    assert [sessions_of(hand.state, slot, SLOTS) for slot in (HERE, THERE)] == [[], []]
