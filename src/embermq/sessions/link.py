"""The broker's side of one network connection: what was decided to be sent on it, and what it may carry."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from embermq.mqtt.value import replace
from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import Disconnect, Packet, Publish
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.sessions.client_events import ClientEvent, EventKind, words
from embermq.sessions.timers import Timer
from embermq.sessions.token_bucket import TokenBucket

if TYPE_CHECKING:
    from embermq.access.authentication.identity import Identity
    from embermq.sessions.awaiting_pubrel import Held
    from embermq.sessions.enhanced_authentication import EnhancedAuthentication
    from embermq.sessions.listener_terms import Terms
    from embermq.sessions.session import Session

UNLIMITED_PACKET_BYTES = 268_435_460
LARGE_PACKET_BYTES = 16 * 1024
"""From here on a packet is handed to the network in its parts: to join them costs more than a longer list does."""


class Link:
    """State of one connection after its first bytes.

    `out` gathers encoded packets until the server flushes them, once a tick; the first one puts the link on the
    list `dirty`, which the tick owns. `paused` is True while the socket does not take more: only what the client
    waits for (acknowledgements) is added then. `closing` asks the server to close after the flush.
    """

    __slots__ = (
        "aliases",
        "aliases_out",
        "aliases_out_max",
        "authentication",
        "bulk_bytes",
        "claimed",
        "client_id",
        "closing",
        "dirty",
        "end_code",
        "end_reason",
        "flushed",
        "has_large",
        "held",
        "identity",
        "inbox",
        "keep_alive_ms",
        "last_ms",
        "listener",
        "member_version",
        "opened_ms",
        "out",
        "packet_bytes_max",
        "paused",
        "peer",
        "problem_information",
        "proof_timer",
        "rate",
        "session",
        "terms",
        "throttle_ms",
        "timer",
        "unanswered",
        "user",
        "version",
    )

    def __init__(self, dirty: list[Link], peer: str, now_ms: int) -> None:
        self.dirty = dirty
        self.peer = peer
        self.listener = ""
        """The name of the listener that it came by."""
        self.client_id = self.user = ""
        """As CONNECT has them; from CONNACK on those of the session."""
        self.end_reason = ""
        """Why the connection ends, as far as it is known; the first reason counts."""
        self.end_code: int | None = None
        self.out: list[bytes] = []
        self.session: Session | None = None
        self.claimed: Session | None = None
        self.version = ProtocolVersion.V311
        self.member_version: ProtocolVersion | None = None
        """What a client of another slot speaks, whose node speaks here for it; None for all others."""
        self.has_large = False
        """Whether a large packet is in `out`."""
        self.paused = False
        self.closing = False
        self.last_ms = now_ms
        self.opened_ms = now_ms
        """When it began; from CONNACK on when that was sent."""
        self.keep_alive_ms = 0
        self.packet_bytes_max = UNLIMITED_PACKET_BYTES
        self.problem_information = True
        self.aliases: dict[int, str] | None = None
        """Topics that the client has given an alias."""
        self.aliases_out: dict[str, int] | None = None
        """Aliases that we have given; None when the client allows none."""
        self.aliases_out_max = 0
        self.held: Held | None = None
        """QoS 2 messages of the client that wait for their PUBREL."""
        self.unanswered = 0
        """QoS 1 and 2 PUBLISHes of the client without PUBACK, PUBCOMP or an error [MQTT-3.3.4-7]."""
        self.bulk_bytes = 0
        """Bytes of packets put on it since the last flush from what had gathered for it."""
        self.flushed: Callable[[int], None] | None = None
        """Told how many bytes a flush hands to the network."""
        self.terms: Terms | None = None
        """What its listener allows, where that is not what the settings say for all."""
        self.rate: TokenBucket | None = None
        """How fast it may publish, once it has and while there is a limit."""
        self.throttle_ms = 0
        """Asks the server not to read the client for so long."""
        self.inbox: list[Packet] | None = None
        self.authentication: EnhancedAuthentication | None = None
        """Of a client whose CONNECT names a method of enhanced authentication."""
        self.identity: Identity | None = None
        """Who the client proved to be, once it may enter."""
        self.proof_timer: Timer | None = None
        """What ends the connection when the client's proof ends."""
        self.timer: Timer | None = None
        """What watches this connection: its keep-alive; once it is closing, that it ends."""

    @property
    def client_version(self) -> ProtocolVersion:
        """What the client itself speaks."""
        return self.member_version or self.version

    def send(self, data: bytes) -> None:
        """Queue encoded bytes for the next flush; nothing follows what ended the connection [MQTT-3.14.4-1]."""
        if self.closing:
            return
        if not self.out:
            self.dirty.append(self)
        self.out.append(data)

    def send_packet(self, packet: Packet) -> None:
        """Encode for the version of this connection and queue. What is too large for the client goes without its
        explanation [MQTT-3.4.2-2]; when that does not help, the connection ends [MQTT-3.1.2-24]."""
        data = encode(packet, self.version)
        if len(data) > self.packet_bytes_max:
            data = encode(_unexplained(packet), self.version)
            if len(data) > self.packet_bytes_max:
                self.close("a packet is larger than the client accepts")
                return
        self.send(data)

    def close(self, why: str = "") -> None:
        """Ask the server to close after what is queued has been written. `why` is for the log."""
        if not self.closing:
            self.note_end(why)
            self.closing = True
            if not self.out:
                self.dirty.append(self)

    def flush_now(self) -> None:
        """Hand what is queued to the network before the tick is over: it may say that it takes no more."""
        self.flush()
        if self.dirty and self.dirty[-1] is self and not self.out:
            self.dirty.pop()

    def set_water_marks(self, high_bytes: int, low_bytes: int) -> None:
        """Of what waits for the socket: above the high one the link is `paused`, until it is below the low one. The
        server's connections know how."""

    def unsent_bytes(self) -> int | None:
        """Of what was handed to the network, what the socket has not taken yet; None when the connection is over. The
        server's connections know."""
        return 0

    def flush(self) -> None:
        """Write `out` and, when `closing`, end the connection. The server's connections know how."""
        raise NotImplementedError

    def authenticate(self, data: bytes | None, *, anew: bool) -> None:
        """Have the authentication method look at what the client sent, from its beginning when `anew`; the answer
        goes to `Authenticating.answered`, after this has returned. The server's connections know how."""
        raise NotImplementedError

    def note_end(self, why: str, code: int | None = None) -> None:
        """The connection ends for this reason, unless it has one already."""
        if not self.end_reason:
            self.end_reason, self.end_code = why, code

    def event(
        self,
        kind: EventKind,
        reason: str = "",
        code: int | None = None,
        *,
        topic: str = "",
        protocol: str = "",
        session_present: bool | None = None,
    ) -> ClientEvent:
        """What happens on this connection."""
        return ClientEvent(
            kind=kind,
            peer=self.peer,
            listener=self.listener,
            client_id=self.client_id,
            user=self.user,
            reason=reason,
            code=code,
            topic=topic,
            protocol=protocol,
            session_present=session_present,
        )

    def note_refusal(self, text: str) -> None:
        """Why the client did not get what it asked for, where its version of MQTT has no word for that. The server's
        connections know who wants to hear of it."""

    def opened(self) -> None:
        """CONNACK is queued: what waited for it gets its turn now."""

    def disconnect(
        self, reason: ReasonCode, text: str | None = None, *, elsewhere: str | None = None
    ) -> None:
        """End the connection; MQTT 5 clients are told why [MQTT-4.13.1-1], but not before CONNACK [MQTT-3.2.0-1].

        `elsewhere` is the Server Reference: where the client may go.
        """
        if self.closing:
            return
        self.note_end(f"{words(reason)}: {text}" if text else words(reason), reason)
        if self.version is ProtocolVersion.V5 and self.session is not None:
            said = text if self.problem_information else None
            properties = (
                Properties(reason_string=said, server_reference=elsewhere) if said or elsewhere else None
            )
            self.send_packet(Disconnect(reason, properties))
        self.close()


def _unexplained(packet: Packet) -> Packet:
    """The packet without Reason String and User Properties."""
    properties: Properties | None = getattr(packet, "properties", None)
    if properties is None or isinstance(packet, Publish):
        return packet
    kept: Properties | None = replace(properties, reason_string=None, user_properties=())
    if kept == Properties():
        kept = None
    return replace(packet, properties=kept)
