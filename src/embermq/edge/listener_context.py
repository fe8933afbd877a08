"""What the connections of one listener share."""

import asyncio
from typing import TYPE_CHECKING, Protocol

from embermq.access.authentication.gate import Gate, Visitor
from embermq.edge.connect_check import ConnectCheck
from embermq.edge.connection_limits import Admission
from embermq.edge.listener_settings import Listener
from embermq.edge.settings import Address, OwnSettings
from embermq.edge.tick_loop import TickLoop
from embermq.edge.tls import identity_of
from embermq.intake.broker import Broker
from embermq.model.client_type import ClientType
from embermq.sessions.client_events import ClientEvent, EventKind
from embermq.sessions.listener_terms import Terms
from embermq.sessions.settings import MqttSettings

if TYPE_CHECKING:
    from embermq.edge.connection import Connection
    from embermq.edge.node_link import MemberOf


def _terms(own: OwnSettings, settings: MqttSettings) -> Terms | None:
    """What the listener allows; None when it is what the settings say for all."""
    given = (own.max_qos, own.protocol_versions, own.allow_empty_client_id)
    if given == (None, None, None):
        return None
    max_qos, versions, allow_empty = given
    return Terms(
        settings.max_qos if max_qos is None else max_qos,
        versions or settings.protocol_versions,
        "empty-client-ids" not in settings.unavailable if allow_empty is None else allow_empty,
    )


class Aborted(Protocol):
    """What can be ended at once."""

    def abort(self) -> None: ...


class ListenerContext:
    """A listener's side of its connections."""

    member: "MemberOf | None" = None
    """What another node says of a member of groups here."""
    front = ""
    """The node that has handed the client on, as it calls itself; "" when it came here."""

    def __init__(
        self,
        broker: Broker,
        ticks: TickLoop,
        gate: Gate,
        listener: Listener,
        admission: Admission,
        *,
        connect_timeout_s: float,
    ) -> None:
        self.broker = broker
        self.ticks = ticks
        self.gate = gate
        self.listener = listener
        self.listener_name = str(listener)
        self.admission = admission
        self.terms = _terms(listener.own, broker.state.settings)
        self.loopback = listener.address.is_loopback
        self.tls = listener.tls
        self.client_type = ClientType[listener.own.client_type.upper()]
        self.connect_timeout_ms = int(connect_timeout_s * 1000)
        self.connections: set[Connection] = set()
        self.doors: set[Aborted] = set()
        """Connections that are not, or not here, those of a client."""
        self.empty = asyncio.Event()
        """Set while there is no connection."""
        self.empty.set()
        self.entrance = ConnectCheck(broker, ticks, gate, self.connect_timeout_ms)

    def refused(self, peer: str, reason: str) -> None:
        """Tell of a client that does not come as far as MQTT."""
        event = ClientEvent(kind=EventKind.REFUSED, peer=peer, listener=self.listener_name, reason=reason)
        self.broker.state.tell(event)

    def visitor(self, source: Address | None, transport: asyncio.Transport | None) -> Visitor:
        """What is known of a client before it says who it is. The address that a proxy told counts as well."""
        name, subject = None, None
        if self.tls is not None and transport is not None and self.tls.client_certificates != "off":
            certificate = transport.get_extra_info("peercert")
            name = identity_of(certificate, self.tls.identity)
            subject = identity_of(certificate, "subject")
        return Visitor(
            self.loopback and (source is None or source.is_loopback),
            self.listener.own.allow_anonymous,
            self.client_type,
            name,
            self._address(source, transport),
            subject or "",
        )

    def _address(self, source: Address | None, transport: asyncio.Transport | None) -> str:
        if source is not None:
            return source.host
        peer = transport.get_extra_info("peername") if transport is not None else None
        return str(peer[0]) if isinstance(peer, tuple) else str(self.listener.address)
