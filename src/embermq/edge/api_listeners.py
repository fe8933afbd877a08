"""Listeners of the API over TLS: accepted here, served by whoever makes a protocol for each connection."""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial

from embermq.edge.connection_limits import Admission, ConnectionSlot
from embermq.edge.listener_settings import Listener
from embermq.edge.listening_sockets import Handshakes, Listening, bind
from embermq.edge.settings import Address, ClientSettings
from embermq.edge.tls import context_of, identity_of
from embermq.sessions.client_events import ClientEvent, EventKind
from embermq.sessions.state import BrokerState

HANDSHAKE_S = 10.0

Serve = Callable[[], asyncio.Protocol]


class ApiListeners:
    """They share their handshakes. A connection counts here until its handshake is done, then where it is served."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._admission = Admission(ClientSettings(), state.counters)
        self._handshakes = Handshakes(state.counters)
        self._listening: list[tuple[Listener, Listening]] = []

    async def open(self, listener: Listener, serve: Serve) -> list[Address]:
        """Accept from now on; returns where. Raises OSError, and TlsFileError for certificates that cannot be used."""
        context = context_of(listener)
        sockets = await bind(listener.address, "")
        listening = Listening(
            sockets,
            partial(self._served, serve),
            self._admission,
            self._handshakes,
            handshake_s=HANDSHAKE_S,
            proxied=False,
            on_refused=partial(self._refused, str(listener)),
        )
        self._listening.append((listener, listening))
        listening.serve(context)
        return [Address(*sock.getsockname()[:2]) for sock in sockets]

    def _refused(self, listener: str, peer: str, reason: str) -> None:
        self._state.tell(ClientEvent(kind=EventKind.REFUSED, peer=peer, listener=listener, reason=reason))

    def _served(self, serve: Serve, place: ConnectionSlot, _: Address | None) -> asyncio.Protocol:
        self._admission.leave(place)
        return serve()

    def reload_certificates(self) -> list[tuple[Listener, str]]:
        """As `MqttServer.reload_certificates`."""
        return [(listener, listening.reload(listener)) for listener, listening in self._listening]

    def close(self) -> None:
        """Accept nobody any more; who is there stays."""
        for _, listening in self._listening:
            listening.close()
        self._listening.clear()


def certificate_name(listener: Listener, transport: asyncio.BaseTransport) -> str:
    """The name that the verified certificate of a connection proves, "" for none."""
    found: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    if listener.tls is None or found is None:
        return ""
    return identity_of(found.getpeercert(), listener.tls.identity) or ""
