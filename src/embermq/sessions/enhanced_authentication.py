"""Enhanced authentication: AUTH before CONNACK, and again on an open connection [MQTT 5.0, 4.12].

A connection whose CONNECT names a method is at one of five stages. AUTH is taken where the first table has it and is a
protocol error everywhere else; what a method makes of it comes back as a `MethodStep`, whose question goes by the
second table. Every other packet but DISCONNECT is a protocol error until CONNACK [MQTT-3.1.2-30] and goes its way
afterwards.
"""

from __future__ import annotations

from enum import Enum, auto
from functools import partial

from msgspec import Struct

from embermq.access.authentication.identity import MethodStep, Proof, Question
from embermq.mqtt.wire.packets import Auth, Connect, Disconnect, Packet
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import DISCONNECT_CODES_OF_SERVER, ReasonCode
from embermq.sessions.client_events import EventKind, words
from embermq.sessions.connecting import Connecting
from embermq.sessions.link import Link
from embermq.sessions.state import BrokerState
from embermq.sessions.timers import Timer


class Stage(Enum):
    """Which side sends the next packet, before CONNACK and after it."""

    WEIGHING = auto()
    """The method works on what the client sent, in CONNECT or AUTH."""
    ASKED = auto()
    """The client is to answer."""
    ENTERED = auto()
    """It has proved who it is."""
    WEIGHING_AGAIN = auto()
    ASKED_AGAIN = auto()


CLIENT_SAYS: dict[tuple[Stage, int], Stage] = {
    (Stage.ASKED, ReasonCode.CONTINUE_AUTHENTICATION): Stage.WEIGHING,
    (Stage.ENTERED, ReasonCode.RE_AUTHENTICATE): Stage.WEIGHING_AGAIN,
    (Stage.ASKED_AGAIN, ReasonCode.CONTINUE_AUTHENTICATION): Stage.WEIGHING_AGAIN,
}
BROKER_ASKS: dict[Stage, Stage] = {
    Stage.WEIGHING: Stage.ASKED,
    Stage.WEIGHING_AGAIN: Stage.ASKED_AGAIN,
}


class EnhancedAuthentication(Struct):
    """How far a connection has come with the method that its CONNECT names.

    `packet` is that CONNECT, until it is answered; `data` is for CONNACK; `limit_ms` is the time for authenticating
    again.
    """

    method: str
    packet: Connect | None
    limit_ms: int
    stage: Stage = Stage.WEIGHING
    data: bytes | None = None
    timer: Timer | None = None

    @property
    def under_way(self) -> bool:
        """Whether something is still to be proved."""
        return self.stage is not Stage.ENTERED


class Authenticating:
    """Takes AUTH packets, and the steps of methods. A link's `authenticate` begins the next step; it comes back by
    `answered`."""

    def __init__(self, state: BrokerState, connecting: Connecting) -> None:
        self._state = state
        self._connecting = connecting

    def begin(self, link: Link, packet: Connect, *, limit_ms: int) -> None:
        """A CONNECT with a method that is known. `limit_ms` is the time for authenticating again; the first time is
        for the server to watch, by `overdue`."""
        properties = packet.properties
        assert properties is not None and properties.authentication_method is not None
        link.authentication = EnhancedAuthentication(properties.authentication_method, packet, limit_ms)
        if link.inbox is None:
            link.inbox = []
        link.authenticate(properties.authentication_data, anew=True)

    def before_connack(self, link: Link, packets: list[Packet]) -> None:
        """Packets of a client that has no CONNACK yet."""
        authentication = link.authentication
        assert authentication is not None and link.inbox is not None
        for packet in packets:
            if link.closing or link.inbox:  # it has said good-bye
                return
            if isinstance(packet, Disconnect):
                if authentication.under_way:
                    link.close("it disconnected before it was authenticated")
                else:
                    link.inbox.append(packet)
            elif isinstance(packet, Auth) and authentication.under_way:
                self.auth(link, packet)
            else:
                self._end(link, ReasonCode.PROTOCOL_ERROR, f"{type(packet).__name__.upper()} before CONNACK")

    def auth(self, link: Link, packet: Auth) -> None:
        """An AUTH of the client, at any time."""
        authentication = link.authentication
        if authentication is None:
            # [MQTT-4.12.0-7]
            self._end(link, ReasonCode.PROTOCOL_ERROR, "AUTH without an authentication method in CONNECT")
            return
        properties = packet.properties or Properties()
        if properties.authentication_method != authentication.method:  # [MQTT-4.12.0-5] [MQTT-4.12.1-1]
            self._end(link, ReasonCode.PROTOCOL_ERROR, "AUTH with another authentication method than CONNECT")
            return
        stage = CLIENT_SAYS.get((authentication.stage, packet.reason_code))
        if stage is None:
            self._end(link, ReasonCode.PROTOCOL_ERROR, f"AUTH with 0x{packet.reason_code:02X} out of turn")
            return
        anew = authentication.stage is Stage.ENTERED
        authentication.stage = stage
        if anew:
            due_ms = self._state.tick.now_ms + authentication.limit_ms
            authentication.timer = self._state.timers.at(due_ms, partial(self.overdue, link))
        link.authenticate(properties.authentication_data, anew=anew)

    def answered(self, link: Link, step: MethodStep) -> None:
        """What the method says to the client's last words; the client may be gone."""
        authentication = link.authentication
        if link.closing or authentication is None:
            return
        if isinstance(step, Question):
            authentication.stage = BROKER_ASKS[authentication.stage]
            self._say(link, authentication, ReasonCode.CONTINUE_AUTHENTICATION, step.data)  # [MQTT-4.12.0-2]
        elif isinstance(step, Proof):
            self._proved(link, authentication, step)
        else:
            self._end(link, step.code, why=step.why or words(step.code))

    def overdue(self, link: Link) -> None:
        """The time for proving it is over."""
        authentication = link.authentication
        if link.closing or authentication is None or not authentication.under_way:
            return
        if authentication.stage in (Stage.ASKED, Stage.ASKED_AGAIN):
            self._end(link, ReasonCode.NOT_AUTHORIZED, "authentication timed out")
        else:
            self._end(link, ReasonCode.SERVER_BUSY, why="authentication timed out")

    def _proved(self, link: Link, authentication: EnhancedAuthentication, proof: Proof) -> None:
        packet, authentication.packet = authentication.packet, None
        again = authentication.stage is Stage.WEIGHING_AGAIN
        authentication.stage = Stage.ENTERED
        if not again:
            assert packet is not None
            authentication.data = proof.data
            self._connecting.connect(link, packet, proof.identity)
            return
        self._state.timers.cancel(authentication.timer)
        if link.identity is None or proof.identity.username != link.identity.username:
            self._end(link, ReasonCode.NOT_AUTHORIZED, "re-authentication has to keep the user")
            return
        self._connecting.credentials.hold(link, proof.identity)
        self._state.counters.reauthentications += 1
        self._say(link, authentication, ReasonCode.SUCCESS, proof.data)

    def _say(
        self, link: Link, authentication: EnhancedAuthentication, code: ReasonCode, data: bytes | None
    ) -> None:
        link.send_packet(
            Auth(
                code, Properties(authentication_method=authentication.method, authentication_data=data)
            )  # [MQTT-4.12.0-5]
        )

    def _end(self, link: Link, reason: ReasonCode, text: str | None = None, *, why: str = "") -> None:
        """CONNACK [MQTT-4.12.0-4] or DISCONNECT [MQTT-4.12.1-2], and the end. `why` is for the log, else `text`."""
        counters = self._state.counters
        if reason is ReasonCode.PROTOCOL_ERROR:
            counters.protocol_errors += 1
        if link.session is None:
            self._connecting.refuse(link, reason, text, kind=EventKind.LOGIN_FAILED, why=why)
            return
        if reason not in DISCONNECT_CODES_OF_SERVER:  # it can only be told before CONNACK
            reason = ReasonCode.NOT_AUTHORIZED
        if reason is not ReasonCode.PROTOCOL_ERROR:
            counters.reauthentications_refused += 1
            self._state.tell(link.event(EventKind.LOGIN_FAILED, why or text or words(reason), reason))
        link.disconnect(reason, text)
