"""Clients of this node that are members of shared subscriptions, or use durable queues, of other slots.

A group belongs to a slot by its name, and so does a queue: who consumes from one, or publishes to it, is a client of
its slot in the same way. A client of another slot has a session there too, by an id that names it and its
own session (`sessions.member_ids`), and in that session are its deliveries, until it has acknowledged them. While the
client is connected, its node keeps a connection to that session (a member link) and hands packets on, in both
directions; it stores nothing of it. So the group's slot alone keeps the promises of shared subscriptions, as one broker
does.

What a slot sends has packet ids of its own (`Session.id_rest`), so two slots never use one for the same client. What is
sent to the client counts against its one window. What it answers goes to the link that sent it and to no later one,
where the same id may be another message: a link that ends while the client has unanswered messages of it takes the
client's connection along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from embermq.cluster.far_member import Change, FarClient, FarMember, FarPublishes, FarSide
from embermq.cluster.slots import slot_of, slot_of_filter
from embermq.model.session import NEVER_EXPIRES
from embermq.mqtt.value import replace
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
from embermq.mqtt.wire.reason_codes import FIRST_ERROR, ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.routing.queue_target import QUEUE_PREFIX, QueueTarget
from embermq.sessions.link import UNLIMITED_PACKET_BYTES, Link
from embermq.sessions.member_ids import client_of, is_member_id, member_id, member_of
from embermq.sessions.node_share import Answered, Answers, GroupMembers
from embermq.sessions.session import PACKET_IDS, Session
from embermq.sessions.state import BrokerState

RETRY_MS = 500
"""A member link that has ended, or could not be made, is made anew after that."""
RETRY_MAX_MS = 4_000
"""The same where it could not be made several times: the clients of a node that refuses them are many."""
TRIES = 4
"""So often a SUBSCRIBE or UNSUBSCRIBE tries to reach a node: it may just be starting."""
WINDOW_MAX = 100
"""Messages that another slot sends ahead of the client's answers."""
BULK_BYTES_MAX = 256 * 1024
"""Of payloads that have waited, put on a connection before it is flushed: it may take no more then."""
RESPONSES = f"{QUEUE_PREFIX}responses/"
NO_SESSION = (
    "the slot of a shared subscription or a queue has lost its session for this client: subscribe again"
)
LINK_LOST = "the node of a shared subscription or a queue has gone, and messages were not acknowledged"


def _at_once(then: Callable[[], None]) -> None:
    then()


class Members(GroupMembers):
    """`call` makes a member link: later it calls `opened`, `took` and, once for each call, `over`. `confirm` calls back
    when it is sure that this node has its slot still."""

    def __init__(
        self,
        state: BrokerState,
        slot: int,
        slots: int,
        call: Callable[[FarMember], None],
        confirm: Callable[[Callable[[], None]], None] = _at_once,
    ) -> None:
        self._state = state
        self._slot = slot
        self._slots = slots
        self._call = call
        self._confirm = confirm
        self._doubts = 0
        """Questions under way whether this node has its slot still."""
        self._clients: dict[Link, FarClient] = {}
        self._known: dict[int, dict[str, int]] = {other: {} for other in range(slots) if other != slot}
        """By slot the clients that have a session there, with the generation of their own."""
        self._asked_for: dict[int, dict[str, int]] = {other: {} for other in self._known}
        """Likewise, of sessions there that this node has asked for: they may be there, whatever was answered."""
        self._listed: set[int] = set()
        """Slots that have told of all such sessions since this start."""
        self.over_at: dict[int, dict[str, None]] = {other: {} for other in self._known}
        """By slot the sessions there that have to end, since the client's own has."""
        self._publishes = FarPublishes(state, slots, self._member, self._may_hold)

    def is_here(self, name: str) -> bool:
        return slot_of_filter(name, self._slots) == self._slot

    @property
    def links(self) -> int:
        """FarMember links that are there or being made."""
        return sum(len(client.members) for client in self._clients.values())

    # What clients ask for

    def subscribe(
        self, link: Link, asked: Sequence[Subscription], properties: Properties | None, answered: Answered
    ) -> None:
        by_slot: dict[int, list[Subscription]] = {}
        for one in asked:
            by_slot.setdefault(slot_of_filter(one.topic_filter, self._slots), []).append(one)
        gather = _AnswersOfSlots(len(by_slot), answered)
        for slot, of_slot in by_slot.items():
            names = tuple(one.topic_filter for one in of_slot)
            packet = Subscribe(1, tuple(of_slot), properties)
            self._ask(link, slot, Change(packet, names, gather.answered))

    def unsubscribe(self, link: Link, names: Sequence[str], answered: Answered) -> None:
        by_slot: dict[int, list[str]] = {}
        for name in names:
            by_slot.setdefault(slot_of_filter(name, self._slots), []).append(name)
        gather = _AnswersOfSlots(len(by_slot), answered)
        session = link.session
        for slot, of_slot in by_slot.items():
            may_be_member = session is not None and self._may_be_there(slot, session)
            if slot in self._listed and not may_be_member:
                gather.answered(dict.fromkeys(of_slot, (ReasonCode.NO_SUBSCRIPTION_EXISTED, "")))
            else:
                self._ask(link, slot, Change(Unsubscribe(1, tuple(of_slot)), tuple(of_slot), gather.answered))

    def give_up(self, link: Link) -> None:
        client = self._clients.get(link)
        for member in list(client.members.values()) if client is not None else ():
            if member.far is None:  # nothing has been sent
                was_asked, member.asked = list(member.asked.values()), {}
                why = f"the node of slot {member.slot} does not answer"
                for asked in was_asked:
                    asked.answered(_refused(asked, why))

    def _ask(self, link: Link, slot: int, asked: Change) -> None:
        member = self._member(link, slot)
        if member is None:
            asked.answered(None)
            return
        packet_id = member.last_packet_id = member.last_packet_id % PACKET_IDS + 1
        asked.packet = replace(asked.packet, packet_id=packet_id)
        member.asked[packet_id] = asked
        if member.far is not None:
            member.far.send(asked.packet)

    def _member(self, link: Link, slot: int) -> FarMember | None:
        """The client's link to a slot, which may be in the making; None for a client that is gone."""
        session = link.session
        client = self._clients.get(link)
        if client is None and session is not None and session.link is link and not link.closing:
            client = self._clients[link] = FarClient(link, session)
            session.beside = partial(self._has_room, client)
        if client is None:
            return None
        member = client.members.get(slot)
        if member is None:
            member = client.members[slot] = FarMember(client, slot)
            self._call(member)
        return member

    def publish(self, link: Link, packet: Publish, target: QueueTarget) -> None:
        self._publishes.publish(link, packet, target)

    def released(self, link: Link, packet: Pubrel) -> bool:
        return self._publishes.released(link, self._clients.get(link), packet)

    def _may_hold(self, session: Session) -> list[int]:
        """Slots that may have a session for this one, in which it may have published to a queue; of one that has not
        been asked yet that is not known."""
        if self._state.queues is None or not self._state.queues.is_enabled:
            return []
        return [slot for slot in self._known if slot not in self._listed or self._may_be_there(slot, session)]

    # Clients come and go

    def connected(self, link: Link, session: Session) -> None:
        for slot in self._known:
            if self._may_be_there(slot, session):
                self._member(link, slot)

    def _may_be_there(self, slot: int, session: Session) -> bool:
        """Whether a slot may have a session for this one."""
        places = self._known[slot], self._asked_for[slot]
        return session.generation in [place.get(session.client_id) for place in places]

    def left(self, link: Link) -> None:
        client = self._clients.pop(link, None)
        if client is None:
            return
        session = client.session
        if session.link is None or session.link is link:  # else another connection has it by now
            session.beside = None
        for member in client.members.values():
            member.is_over = True
            if member.far is not None:
                member.far.close()
            known = self._known[member.slot]
            if not session.persistent and known.get(session.client_id) == session.generation:
                del known[session.client_id]

    def ended(self, client_id: str, generation: int) -> None:
        for slot, over in self.over_at.items():
            for there in (self._known[slot], self._asked_for[slot]):
                if there.get(client_id) == generation:
                    del there[client_id]
                    over[member_id(client_id, generation)] = None

    def listed(self, slot: int, ids: Iterable[str]) -> list[str]:
        """These sessions of this node's clients another slot has. Returns those whose client's own session is no more;
        they may be told by `over_at` when it is sure that this node has its slot still."""
        sessions = self._state.sessions
        over: list[str] = []
        for session_id in ids:
            client_id, generation = member_of(session_id)
            loaded, absent = sessions.get_loaded(client_id), sessions.get_absent(client_id)
            found = loaded or absent
            if found is None or found.generation != generation:
                over.append(session_id)
                continue
            self._known[slot][client_id] = generation
            if loaded is not None and loaded.link is not None:
                self._member(loaded.link, slot)
        self._listed.add(slot)
        return over

    # What the link says

    def wants(self, member: FarMember) -> bool:
        """Whether a link that can be made now is wanted still. Not by a client that another connection has taken over
        from: what its session there is asked for then, nobody would end."""
        return not member.is_over and member.client.is_there

    def introduced(self, member: FarMember) -> tuple[str, str, str]:
        """Who the client is: the id of its session there, its user and the subject of its certificate."""
        session = member.client.session
        principal = session.principal
        return member_id(session.client_id, session.generation), principal.user, principal.certificate

    def connect(self, member: FarMember) -> Connect:
        """How a member link begins. The session is there from now on, as far as it is known here."""
        client = member.client
        session, link = client.session, client.link
        is_unlimited = link.packet_bytes_max >= UNLIMITED_PACKET_BYTES
        properties = Properties(
            session_expiry_interval=NEVER_EXPIRES if session.persistent else 0,
            receive_maximum=max(1, min(client.session.client_window_max, WINDOW_MAX)),
            maximum_packet_size=None if is_unlimited else link.packet_bytes_max,
        )
        name = member_id(session.client_id, session.generation)
        if session.persistent:
            self._asked_for[member.slot][session.client_id] = session.generation
        return Connect(name, ProtocolVersion.V5, not session.persistent, properties=properties)

    def opened(self, member: FarMember, far: FarSide, packet: Connack) -> None:
        """The other slot has let the client in."""
        self._state.tick.wake()
        if member.is_over:
            far.close()
            return
        member.far = far
        session = member.client.session
        is_known = self._known[member.slot].get(session.client_id) == session.generation
        if is_known and not packet.session_present:
            del self._known[member.slot][session.client_id]
            member.client.link.disconnect(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, NO_SESSION)
            return
        for asked in member.asked.values():
            far.send(asked.packet)
        self._publishes.opened(member, far)

    def took(self, member: FarMember, packet: Packet) -> None:
        """The other slot sends this to the client."""
        self._state.tick.wake()
        client = member.client
        if member.is_over or not client.is_there:
            return
        match packet:
            case Publish(qos=0) if not packet.topic.startswith(QUEUE_PREFIX):
                if client.link.paused:
                    self._state.counters.dropped_slow += 1
                else:
                    self._send(client, packet)
            case Publish():
                member.wait(packet)
                self._fill(client)
            case Puback() | Pubrec() | Pubcomp():
                self._publishes.answered(member, packet)
            case Pubrel():
                member.sent.add(packet.packet_id)
                client.link.send_packet(packet)
                self._fit(client)
            case Suback() | Unsuback():
                self._has_answered(member, packet)
            case Disconnect():
                self.over(member, f"slot {member.slot} ended it with {packet.reason_code:#04x}")

    def _has_answered(self, member: FarMember, packet: Suback | Unsuback) -> None:
        asked = member.asked.pop(packet.packet_id, None)
        if asked is None:
            return
        text = (packet.properties.reason_string if packet.properties is not None else None) or ""
        codes = zip(asked.names, packet.reason_codes, strict=True)
        answers = {name: (code, text) for name, code in codes}
        member.in_memory |= isinstance(packet, Suback) and any(map(_is_of_responses, asked.names))
        if isinstance(packet, Suback) and any(code < FIRST_ERROR for code in packet.reason_codes):
            session = member.client.session
            self._known[member.slot][session.client_id] = session.generation
        asked.answered(answers)

    def over(self, member: FarMember, why: str) -> None:
        """The link has ended, or could not be made; may be called again."""
        self._state.tick.wake()
        if member.is_over:
            return
        if member.far is None and (member.asked or member.unsent) and member.tries < TRIES:
            member.tries += 1
            self._state.timers.at(self._state.tick.now_ms + RETRY_MS, partial(self._call_again, member))
            return
        member.is_over = True
        client, far = member.client, member.far
        if client.members.get(member.slot) is member:
            del client.members[member.slot]
        if far is not None:
            far.close()
        was_asked, member.asked = list(member.asked.values()), {}
        for asked in was_asked:
            asked.answered(None if far is not None else _refused(asked, why))
        if far is None:
            self._publishes.unreachable(member, why)
        if not client.is_there:
            return
        is_known = self._known[member.slot].get(client.session.client_id) == client.session.generation
        is_lost = far is not None and ((is_known and not client.session.persistent) or member.in_memory)
        if member.sent or member.taken or is_lost:
            client.link.disconnect(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, LINK_LOST)
            return
        self._fit(client)
        if is_known:
            before_ms = client.waits_ms.get(member.slot, RETRY_MS)
            wait_ms = RETRY_MS if far is not None else min(2 * before_ms, RETRY_MAX_MS)
            client.waits_ms[member.slot] = wait_ms
            again = partial(self._again, client, member.slot)
            self._state.timers.at(self._state.tick.now_ms + wait_ms, again)

    def _call_again(self, member: FarMember) -> None:
        if not member.is_over:
            self._call(member)

    def _again(self, client: FarClient, slot: int) -> None:
        if client.is_there:
            self._member(client.link, slot)

    # What the client says

    def answered(self, link: Link, packet: Puback | Pubrec | Pubcomp) -> bool:
        client = self._clients.get(link)
        member = client.members.get(packet.packet_id % self._slots) if client is not None else None
        if client is None or member is None or member.far is None or packet.packet_id not in member.sent:
            return False
        if not isinstance(packet, Pubrec) or packet.reason_code >= FIRST_ERROR:
            member.sent.discard(packet.packet_id)
        member.far.send(packet)
        self._fill(client)
        # Room that nobody waits for here is the client's own session's.
        self._state.path(client.session).writable(client.session)
        return True

    def writable(self, link: Link) -> None:
        client = self._clients.get(link)
        if client is not None:
            self._fill(client)

    def stood_still(self) -> None:
        self._doubts += 1
        self._confirm(self._believe)

    def _believe(self) -> None:
        self._state.tick.wake()
        self._doubts -= 1
        for client in list(self._clients.values()):
            self._has_room(client)

    def _has_room(self, client: FarClient) -> None:
        if client.is_there:
            self._fill(client)

    # The window

    def _fill(self, client: FarClient) -> None:
        """Send what waits for room, as far as there is. One message is left to the client's own session: it goes on,
        whatever comes from other slots. With a Receive Maximum of 1 they come first."""
        link, window, whole = client.link, client.session.window, client.session.client_window_max
        in_flight = sum(len(member.sent) for member in client.members.values())
        for member in _in_turn(client):
            if self._doubts or link.paused or link.closing or len(window) + in_flight >= whole:
                break
            if in_flight >= max(1, _left_of(client.session) - 1):
                break
            if in_flight and link.bulk_bytes >= BULK_BYTES_MAX:
                break  # what is in flight will be acknowledged
            packet_id = member.waiting[0].packet_id
            if not packet_id:
                packet = member.take()
                self._send(client, packet)
                link.bulk_bytes += len(packet.payload)
                continue
            if packet_id in window:  # given before this node had others beside it
                continue
            in_flight += packet_id not in member.sent
            member.sent.add(packet_id)
            packet = member.take()
            self._send(client, packet)
            link.bulk_bytes += len(packet.payload)
        self._fit(client)

    def _fit(self, client: FarClient) -> None:
        """The client's own session leaves room for what it has from other slots, and for what waits up to half."""
        session = client.session
        in_flight = sum(len(member.sent) for member in client.members.values())
        waiting = sum(len(member.waiting) for member in client.members.values())
        left = max(in_flight, min(in_flight + waiting, max(1, _left_of(session) // 2)))
        session.window_max = max(0, session.client_window_max - left)

    def _send(self, client: FarClient, packet: Publish) -> None:
        link, counters = client.link, self._state.counters
        if link.version is not ProtocolVersion.V5:
            packet = replace(packet, properties=None)
        link.send_packet(packet)
        counters.messages_sent += 1
        counters.messages_sent_qos_0 += not packet.qos
        counters.payload_bytes_sent += len(packet.payload)
        self._state.parts_sent += 2 if packet.qos else 1  # it goes in one


def _left_of(session: Session) -> int:
    """What the client may have unacknowledged, less what it was given up with, which stays in its window."""
    return session.client_window_max - len(session.given_up or ())


def _refused(asked: Change, why: str) -> Answers:
    return dict.fromkeys(asked.names, (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, why))


class _AnswersOfSlots:
    """The answers of several slots to one packet."""

    def __init__(self, left: int, then: Answered) -> None:
        self._left = left
        self._then = then
        self._answers: Answers | None = {}

    def answered(self, answers: Answers | None) -> None:
        """Of one of them."""
        if self._answers is not None:
            self._answers = None if answers is None else self._answers | answers
        self._left -= 1
        if not self._left:
            self._then(self._answers)


def _in_turn(client: FarClient) -> Iterator[FarMember]:
    """The links with something that waits, one message of each after the other."""
    stuck: set[int] = set()
    while True:
        found = [one for one in client.members.values() if one.waiting and one.slot not in stuck]
        if not found:
            return
        for member in found:
            before = len(member.waiting)
            yield member
            if len(member.waiting) == before:
                stuck.add(member.slot)


def _is_of_responses(topic_filter: str) -> bool:
    return topic_filter.startswith(RESPONSES)


def sessions_of(state: BrokerState, slot: int, slots: int) -> list[str]:
    """Sessions here of another slot's clients."""
    named = ((each, client_of(each)) for each in state.sessions if is_member_id(each))
    return [each for each, client_id in named if client_id != each and slot_of(client_id, slots) == slot]
