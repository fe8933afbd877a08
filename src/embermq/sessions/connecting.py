"""CONNECT, takeover, the end of a connection, the end of a session."""

from collections.abc import Callable
from functools import partial

from msgspec import Struct

from embermq.access.authentication.identity import Identity
from embermq.access.authorization.rule_set import Permissions
from embermq.access.authorization.rules import Principal
from embermq.formats.application_logs import ApplicationLogNames, NoApplicationLog
from embermq.model.client_type import ClientType
from embermq.model.session import SessionRow
from embermq.mqtt.wire.packets import Connack, Connect, Disconnect, Packet, Will
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode, to_connect_return_code
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.errors import StoreFull
from embermq.sessions.awaiting_pubrel import Holding
from embermq.sessions.client_events import EventKind, words
from embermq.sessions.connack import connack_properties
from embermq.sessions.group_queues import is_queue_name
from embermq.sessions.handover import Handover
from embermq.sessions.keep_alive import KeepAlive
from embermq.sessions.link import UNLIMITED_PACKET_BYTES, Link
from embermq.sessions.listener_terms import VERSION_NAMES
from embermq.sessions.member_ids import client_of, is_member_id
from embermq.sessions.ownership import (
    ANOTHER_USERS,
    Credentials,
    may_keep,
    objection_to_user,
    take_possession,
)
from embermq.sessions.session import PACKET_IDS, Delivery, Session
from embermq.sessions.session_end import SessionEnd
from embermq.sessions.session_expiry import SessionExpiry
from embermq.sessions.state import BrokerState
from embermq.sessions.takeover import Takeover, is_kept, leave_queues
from embermq.sessions.tick import PublishRefusal
from embermq.sessions.wills import Wills

UNSPEAKABLE_IN_3 = frozenset(
    {
        ReasonCode.QOS_NOT_SUPPORTED,
        ReasonCode.RETAIN_NOT_SUPPORTED,
        ReasonCode.TOPIC_NAME_INVALID,
        ReasonCode.PAYLOAD_FORMAT_INVALID,
    }
)
"""Refusals for which MQTT 3.x has no return code."""


V31_CLIENT_ID_CHARACTERS = 23
STORE_AWAY = "sessions cannot be stored or read now"
NO_ROOM = "the disk is full: neither a new session nor a will can be stored"
MEMBER_NAME = "client ids that begin with $member/ are kept for members of shared subscriptions"
QUEUE_NAME = "client ids that begin with $share/ are kept for the queues of shared subscriptions"
ELSEWHERE = "what the client proves to be has another node than the client id that it sends"
UNKNOWN_METHOD = "this authentication method is not offered"
Opened = Callable[[Link], None]
RefusesWill = Callable[[Link, Will, Permissions | None], PublishRefusal | None]


class _Entrant(Struct, frozen=True):
    """A client that waits for its CONNACK. `present`: the session was there before."""

    link: Link
    session: Session
    present: bool
    packet: Connect
    client_id: str

    @property
    def is_welcome(self) -> bool:
        """False when it has left meanwhile, or another one has come for the session."""
        return self.session.claimant is self.link and not self.session.dead and not self.link.closing


class Connecting:
    """Births, takeovers and ends. `refuses_will` says why a will cannot be left, `opened` is called when CONNACK has
    been queued on a link."""

    def __init__(
        self, state: BrokerState, wills: Wills, holding: Holding, refuses_will: RefusesWill, opened: Opened
    ) -> None:
        self._state = state
        self._wills = wills
        self._refuses_will = refuses_will
        self._holding = holding
        self._handover = Handover(state)
        self._keep_alive = KeepAlive(state)
        self.session_end = SessionEnd(state, wills, self._handover)
        self.expiry = SessionExpiry(state, self.session_end)
        self._takeover = Takeover(state, wills, holding, self.session_end, self.expiry)
        self.credentials = Credentials(state)
        self._opened = opened
        self._waiting: dict[Link, _Entrant] = {}
        """Those whose CONNACK waits for a commit."""

    def refuse(
        self,
        link: Link,
        reason: ReasonCode,
        text: str | None = None,
        *,
        kind: EventKind = EventKind.REFUSED,
        why: str = "",
        elsewhere: str | None = None,
    ) -> None:
        """CONNACK with an error, then the end [MQTT-3.2.2-7]; 3.x gets the return code that says the same. `why` is for
        the log, and what the client is told when it is empty; `elsewhere` is another server for it."""
        self._state.counters.connections_refused += 1
        if kind is EventKind.REFUSED and reason is ReasonCode.NOT_AUTHORIZED:
            kind = EventKind.DENIED
        link.note_end(why or (f"{words(reason)}: {text}" if text else words(reason)), reason)
        self._state.tell(link.event(kind, link.end_reason, reason))
        if link.version is ProtocolVersion.V5:
            said = Properties(reason_string=text, server_reference=elsewhere) if text or elsewhere else None
            link.send_packet(Connack(False, reason, said))
        elif reason not in UNSPEAKABLE_IN_3:  # [MQTT 3.1.1, MQTT-3.2.2-6]
            link.send_packet(Connack(False, to_connect_return_code(reason)))
        link.close()

    def is_banned(self, link: Link) -> bool:
        """Refuse a client, as it says or has proved who it is, while there is a ban of it."""
        state = self._state
        ban = state.bans.find(link.client_id, link.user, link.peer, state.tick.date_ms)
        if ban is None:
            return False
        state.counters.connects_banned += 1
        why = f"banned: the {ban.kind} {ban.value}"
        self.refuse(link, ReasonCode.BANNED, kind=EventKind.DENIED, why=why)
        return True

    def introduce(self, link: Link, packet: Connect) -> None:
        """Take from a CONNECT what holds for every answer to it."""
        link.version = packet.version
        link.client_id, link.user = packet.client_id, packet.username or ""
        if packet.version == ProtocolVersion.V5 and packet.properties is not None:
            properties = packet.properties
            link.packet_bytes_max = properties.maximum_packet_size or UNLIMITED_PACKET_BYTES
            link.problem_information = properties.request_problem_information is not False
            alias_max = min(properties.topic_alias_maximum or 0, self._state.settings.topic_alias_maximum)
            link.aliases_out_max = alias_max
            link.aliases_out = {} if alias_max else None

    def connect(self, link: Link, packet: Connect, identity: Identity) -> None:
        """Decide about a CONNECT of an authenticated client. CONNACK follows when what it says is durable."""
        self.introduce(link, packet)
        client_id = identity.client_id or packet.client_id or self._state.share.own_id(identity.new_client_id)
        principal = Principal(identity.username, client_of(client_id), identity.certificate)
        link.client_id, link.user = client_id, identity.username
        if self.is_banned(link):
            return
        permissions = self._state.permissions(principal)
        if permissions is not None and not identity.is_member and self._sends_elsewhere(link, permissions):
            return
        objection = self._objection(link, packet, identity, permissions)
        old = self._state.sessions.get(client_id)
        if objection is None:
            # A member's session is its client's own, whosever that is by now.
            owned = old if old is not None and not (identity.is_member or self.expiry.is_over(old)) else None
            objection = objection_to_user(owned, principal, permissions)
            self._state.counters.connects_denied += objection is not None
        expiry_s = self.expiry.interval_s(packet, limits=not identity.is_member)
        if objection is None and self._state.strict_names is not None:
            kept = old if old is not None and not packet.clean_start else None
            client_type = identity.client_type if kept is None else kept.client_type
            if client_type is ClientType.APPLICATION and (expiry_s > 0 or kept is not None):
                objection = _objection_to_name(self._state.strict_names, client_id)
        if objection is not None:
            self.refuse(link, *objection)
            return
        goes_on = old is not None and not packet.clean_start and is_kept(old) and not self.expiry.is_over(old)
        if expiry_s > 0 and not goes_on:
            text = self._state.quotas.objection_to_session(identity.username, old)
            if text:
                self.refuse(link, ReasonCode.QUOTA_EXCEEDED, text)
                return
        must_wait = expiry_s > 0 or packet.will is not None or (old is not None and old.persistent)
        if must_wait and self._cannot_be_stored(client_id, old, packet, goes_on):
            self.refuse(link, *self._not_stored())
            return
        self._keep_alive.watch(link, packet, limits=not identity.is_member)
        self.credentials.hold(link, identity)
        if old is not None:
            self._takeover.take_over(old, packet.clean_start)
        session = self._state.sessions.get(client_id)
        present = session is not None
        if session is None:
            session = self._new_session(client_id, packet, identity, expiry_s)
        else:
            session.epoch += 1
            session.version = packet.version
            session.expiry_interval_s = expiry_s if session.persistent else 0
        take_possession(session, principal)
        self._state.quotas.moves(session, session.username)
        self._set_window(session, packet)
        session.expires_ms = 0
        self._state.timers.cancel(session.timer)
        session.claimant = link
        link.claimed = session
        self._judge(session, permissions)
        if session.persistent:
            self._state.tick.session_writes.sessions.append(session.row())
        if packet.will is not None:
            self._wills.remember(session, link, packet.will)
        if link.inbox is None:
            link.inbox = []
        entrant = _Entrant(link, session, present, packet, client_id)
        if must_wait and self._state.store_failure is None:
            self._wait(entrant, old or session)
        else:
            self._attach(entrant)

    def _wait(self, entrant: _Entrant, before: Session) -> None:
        """For the store: CONNACK also says that a session `before` this one is no more."""
        link, session, state = entrant.link, entrant.session, self._state
        self._waiting[link] = entrant
        attach = partial(self._attach, entrant)
        state.tick.batch.when_all_stored({before.generation, session.generation}, attach)
        if state.connect_wait_ms:
            due_ms = state.tick.now_ms + state.connect_wait_ms
            state.timers.at(due_ms, partial(self._give_up, link, session))

    def _sends_elsewhere(self, link: Link, permissions: Permissions) -> bool:
        """Whether a rule sends the client to another server, of which it has been told [MQTT 5.0, 4.11]."""
        elsewhere = permissions.elsewhere()
        if elsewhere is None:
            return False
        self._state.counters.connects_sent_elsewhere += 1
        code = ReasonCode.SERVER_MOVED if elsewhere.moved else ReasonCode.USE_ANOTHER_SERVER
        self.refuse(link, code, elsewhere=elsewhere.server, why=f"{words(code)}: {elsewhere.server}")
        return True

    def _cannot_be_stored(self, client_id: str, old: Session | None, packet: Connect, goes_on: bool) -> bool:
        state = self._state
        if state.must_wait(client_id) or state.log_late:
            return True
        return state.store_failure is not None and not self._may_drain(old, packet, goes_on)

    def _may_drain(self, session: Session | None, packet: Connect, goes_on: bool) -> bool:
        """While nothing can be stored, a client may come back to read and acknowledge what is."""
        return (
            goes_on
            and session is not None
            and packet.will is None
            and self._state.drains
            and self._state.path(session).may_return(session)
        )

    def _not_stored(self) -> tuple[ReasonCode, str]:
        """The refusal of a CONNECT that would have to be stored."""
        self._state.counters.refused_session_wait += 1
        if isinstance(self._state.store_failure, StoreFull):
            return ReasonCode.QUOTA_EXCEEDED, NO_ROOM
        return ReasonCode.SERVER_UNAVAILABLE, STORE_AWAY

    def store_failed(self) -> None:
        """What was decided is not stored: whoever waits for that hears so, or is let in to read what is."""
        waiting, self._waiting = self._waiting, {}
        for link, entrant in waiting.items():
            session, packet = entrant.session, entrant.packet
            if not entrant.is_welcome:
                continue
            if self._may_drain(session, packet, entrant.present and is_kept(session)):
                self._attach(entrant)
                continue
            self._wills.forget(session, link)
            self.refuse(link, *self._not_stored())
            self.link_lost(link)
            if not entrant.present:
                self.session_end.end(session)

    def _give_up(self, link: Link, session: Session) -> None:
        """The session store, or the log, has not answered in time."""
        if session.claimant is link and not link.closing:
            self._state.counters.refused_session_wait += 1
            self._wills.forget(session, link)
            self.refuse(link, ReasonCode.SERVER_UNAVAILABLE, STORE_AWAY)
            self.link_lost(link)

    def _judge(self, session: Session, permissions: Permissions | None) -> None:
        """The session is judged by these permissions from now on; who may receive what has been remembered for the
        client before, who may be another user."""
        before = session.permissions
        if before is not None and permissions is not None and permissions.principal != before.principal:
            self._state.router.forget()
        session.permissions = permissions

    def _objection(
        self, link: Link, packet: Connect, identity: Identity, permissions: Permissions | None
    ) -> tuple[ReasonCode, str] | None:
        """Why the client may not enter with this CONNECT, if it may not."""
        client_id = identity.client_id or packet.client_id  # "" for one that we make
        if is_member_id(client_id) and not identity.is_member:
            return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, MEMBER_NAME
        if not (identity.is_member or self._state.share.is_own(link.client_id)):
            return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, ELSEWHERE
        if not client_id:
            empty_allowed = packet.version == ProtocolVersion.V5 or (
                packet.version == ProtocolVersion.V311 and packet.clean_start  # [MQTT 3.1.1, MQTT-3.1.3-8]
            )
            if not empty_allowed or not self._state.terms_of(link).allow_empty_client_id:
                return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "the client id is empty"
        elif self._is_too_long(packet) and not identity.is_member:
            text = f"{len(packet.client_id)} characters, MQTT 3.1 allows {V31_CLIENT_ID_CHARACTERS}"
            return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, text
        if is_queue_name(client_id):
            return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, QUEUE_NAME
        method = packet.properties.authentication_method if packet.properties is not None else None
        if method is not None and link.authentication is None:  # [MQTT-4.12.0-1]
            return ReasonCode.BAD_AUTHENTICATION_METHOD, UNKNOWN_METHOD
        if packet.will is None:
            return None
        found = self._refuses_will(link, packet.will, permissions)
        return (found.code, found.text) if found is not None else None

    def _is_too_long(self, packet: Connect) -> bool:
        """Whether the client id is one that MQTT 3.1 does not allow, and neither do the settings."""
        return (
            packet.version == ProtocolVersion.V31
            and len(packet.client_id) > V31_CLIENT_ID_CHARACTERS
            and "long-ids-3.1" in self._state.settings.unavailable
        )

    def _set_window(self, session: Session, packet: Connect) -> None:
        asked = packet.properties.receive_maximum if packet.properties is not None else None
        session.receive_maximum = asked or PACKET_IDS
        session.id_step, session.id_rest = self._state.share.packet_ids
        session.client_window_max = session.window_max = min(
            self._state.settings.inflight_max, session.receive_maximum, PACKET_IDS // session.id_step
        )

    def _new_session(self, client_id: str, packet: Connect, identity: Identity, expiry_s: int) -> Session:
        state = self._state
        row = SessionRow(
            client_id,
            state.new_generation(),
            1,
            identity.client_type,
            identity.username,
            packet.version,
            expiry_s,
            True,
            0,
            state.tick.date_ms,
            identity.certificate,
        )
        session = Session(row, persistent=expiry_s > 0)
        state.sessions.add(session)
        state.quotas.begins(session)
        return session

    def remove(self, session: Session, durable: Callable[[], None]) -> None:
        """An operator ends the session, and its connection with it; `durable` is called when nothing of it is stored
        any more."""
        self._takeover.cut_off(session, ReasonCode.ADMINISTRATIVE_ACTION, goes_on=False)
        self.session_end.end(session, durable)

    def give(self, session: Session, username: str, durable: Callable[[], None]) -> bool:
        """An operator gives a kept session to a user; `durable` is called when that is stored. Its client is sent away
        if it may not come for a session of that user. False when the session is not kept."""
        if not is_kept(session):
            return False
        if session.username != username:
            session.username, session.certificate = username, ""
        self._state.quotas.moves(session, username)
        for link in (session.link, session.claimant):
            if link is None:
                continue
            if not may_keep(session, link):
                link.disconnect(*ANOTHER_USERS)
                self.link_lost(link)  # from now on it is the new owner's rights that count
            elif link.identity is not None and link.identity.username == username:
                session.certificate = link.identity.certificate
        if not session.dead:  # it ends with a client that had not been let in and has asked for that
            self._judge(session, self._state.permissions(session.principal))
            self._state.tick.session_writes.sessions.append(session.row())
        self._state.tick.batch.when_stored(session.generation, durable)
        return True

    def _attach(self, entrant: _Entrant) -> None:
        """What CONNACK says is durable: read what the session owes its client, then let it in."""
        if entrant.is_welcome:
            session = entrant.session
            self._state.path(session).recall(session, partial(self._open, entrant))

    def _open(self, entrant: _Entrant, owed: list[Delivery]) -> None:
        if not entrant.is_welcome:
            return
        link, session, packet = entrant.link, entrant.session, entrant.packet
        session.claimant = None
        link.claimed = None
        self._waiting.pop(link, None)
        session.link = link
        link.session = session
        link.opened_ms = self._state.tick.now_ms
        self._state.counters.connections_accepted += 1
        protocol = VERSION_NAMES[packet.version]
        self._state.tell(link.event(EventKind.CONNECTED, protocol=protocol, session_present=entrant.present))
        properties = connack_properties(self._state, link, session, packet, entrant.client_id)
        known = entrant.present and packet.version != ProtocolVersion.V31  # 3.1 has no Session Present
        link.send_packet(Connack(known, ReasonCode.SUCCESS, properties))
        self._state.path(session).resume(session, owed)
        if session.queue_filters and self._state.queues is not None:
            self._state.queues.connected(session)
        if self._state.share.members is not None:
            self._state.share.members.connected(link, session)
        self._opened(link)

    def disconnect(self, link: Link, packet: Disconnect) -> None:
        """The client says good-bye: no will unless it asks for it [MQTT-3.1.2-10], [MQTT-3.14.4-3]."""
        session = link.session
        if session is None:
            link.close()
            return
        link.note_end(_farewell(packet), packet.reason_code)
        if not self._take_leave(session, link, packet):
            link.disconnect(ReasonCode.PROTOCOL_ERROR, "Session Expiry Interval was 0 in CONNECT")
            return
        link.close()
        self.link_lost(link)

    def _take_leave(self, session: Session, link: Link, packet: Disconnect) -> bool:
        asked_s = packet.properties.session_expiry_interval if packet.properties is not None else None
        if asked_s and not session.expiry_interval_s:  # [MQTT-3.14.2-2]
            return False
        if asked_s is not None:
            session.expiry_interval_s = min(asked_s, self._state.settings.session_expiry_max_s)
        if packet.reason_code == ReasonCode.NORMAL_DISCONNECTION:
            self._wills.forget(session, link)
        return True

    def link_lost(self, link: Link) -> None:
        """The connection is over, however it ended. May be called again for the same link."""
        link.closing = True
        self._waiting.pop(link, None)
        self._holding.release_all(link)
        if self._state.share.members is not None:
            self._state.share.members.left(link)
        self._state.timers.cancel(link.timer)
        if link.authentication is not None:
            self._state.timers.cancel(link.authentication.timer)
            link.authentication = None
        self.credentials.let_go(link)
        waiting, link.inbox = link.inbox, None
        session = link.session
        if session is None:
            self._claimant_lost(link, waiting or [])
            return
        link.session = None
        self._state.tell(link.event(EventKind.DISCONNECTED, link.end_reason, link.end_code))
        if session.link is not link:
            return
        session.link = None
        self._gone(session, link)

    def _claimant_lost(self, link: Link, waiting: list[Packet]) -> None:
        """The client left before its CONNACK was due: its session, if any is kept, goes offline. A DISCONNECT that came
        right behind CONNECT counts."""
        session, link.claimed = link.claimed, None
        if session is not None and session.claimant is link:
            session.claimant = None
            for packet in waiting:
                if isinstance(packet, Disconnect):
                    self._take_leave(session, link, packet)
            self._gone(session, link)

    def _gone(self, session: Session, link: Link) -> None:
        state = self._state
        keeps = is_kept(session)
        self._wills.connection_ended(session, link, session_goes_on=keeps)
        if not keeps:
            self.session_end.end(session)
            return
        leave_queues(self._state, session)
        self._handover.leave(session, ended=False)
        state.path(session).suspend(session)
        if session.permissions is not None and session.permissions.principal != session.principal:
            self._judge(session, state.permissions(session.principal))
        self.expiry.begin(session)
        state.tick.session_writes.sessions.append(session.row())
        state.sessions.rest(session)


def _farewell(packet: Disconnect) -> str:
    if packet.reason_code == ReasonCode.NORMAL_DISCONNECTION:
        return "the client disconnected"
    return f"the client disconnected: {words(packet.reason_code)}"


def _objection_to_name(names: ApplicationLogNames, client_id: str) -> tuple[ReasonCode, str] | None:
    try:
        names.client_log(client_id)
    except NoApplicationLog as error:
        return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, str(error)
    return None
