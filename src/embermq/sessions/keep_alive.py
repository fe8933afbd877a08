"""Keep-alive: the connection of a client that has said nothing for one and a half times of it ends [MQTT-3.1.2-22]."""

from functools import partial

from embermq.mqtt.wire.packets import Connect
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.sessions.link import Link
from embermq.sessions.session import PACKET_IDS
from embermq.sessions.state import BrokerState


class KeepAlive:
    """Watches links from their CONNECT on."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def watch(self, link: Link, packet: Connect, *, limits: bool = True) -> None:
        """From now on, by what the client asked for and the most that is allowed, where that `limits` it."""
        keep_alive_s = packet.keep_alive_s
        if limits and packet.version == ProtocolVersion.V5:
            limit_s = self._state.settings.keep_alive_max_s
            if limit_s < PACKET_IDS and (keep_alive_s == 0 or keep_alive_s > limit_s):
                keep_alive_s = limit_s
        link.keep_alive_ms = keep_alive_s * 1500
        self._state.timers.cancel(link.timer)
        if link.keep_alive_ms:
            link.timer = self._state.timers.at(
                self._state.tick.now_ms + link.keep_alive_ms, partial(self._check, link)
            )

    def _check(self, link: Link) -> None:
        if link.closing:
            return
        due_ms = link.last_ms + link.keep_alive_ms
        if self._state.tick.now_ms >= due_ms:
            link.disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT)  # [MQTT-3.1.2-22]
        else:
            link.timer = self._state.timers.at(due_ms, partial(self._check, link))
