"""Topics below $SYS: what the broker says of itself and of its clients, under the names that Mosquitto has made usual.

They are made anew at an interval, and those that changed are published with QoS 0 to whoever has subscribed to them by
a filter that begins with $SYS [MQTT-4.7.2-1]. A new subscription finds the present ones as it finds retained messages.
They live in memory only: no log, no store, no pipeline sees them.

Topics below $SYS/events: what happens at the door, for who has a rule that names them. Messages of QoS 0 that stay
nowhere, to clients of this node. Without rules there are none: nobody has that right.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import exp

from msgspec import Struct

from embermq.access.authorization.rules import EVENTS_PREFIX
from embermq.formats.log_record import encode_record
from embermq.intake.publishing import Publishing
from embermq.model.counters import Counters
from embermq.model.message import Message
from embermq.model.session import RetainedRow
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.sessions.member_ids import is_member_id
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState

ROOT = "$SYS/broker/"
CLUSTER = "$SYS/cluster/"
OF_ALL_NODES = (
    "clients/connected",
    "publish/messages/received",
    "publish/messages/sent",
    "publish/messages/dropped",
    "publish/bytes/received",
    "publish/bytes/sent",
)
"""Sums over the nodes that are reached."""
SESSIONS_STEP = 5_000
"""Sessions looked at in one tick."""
STEP_MS = 1
LOAD_CHANGE_MIN = 0.01
LOAD_PERIODS_S = {"1min": 60, "5min": 300, "15min": 900}
LOADS = {
    "messages/received": "messages/received",
    "messages/sent": "messages/sent",
    "publish/received": "publish/messages/received",
    "publish/sent": "publish/messages/sent",
    "publish/dropped": "publish/messages/dropped",
    "bytes/received": "bytes/received",
    "bytes/sent": "bytes/sent",
    "sockets": "sockets",
    "connections": "connections",
}
"""What there is an average of, a minute, and the total that it comes from."""
UNTOLD = frozenset({"sockets", "connections"})
"""Totals that are only there for their averages."""
DROPPED = tuple(name for name in Counters.__struct_fields__ if name.startswith("dropped_"))


class _Survey(Struct):
    """A count of the sessions, over several ticks; those that are not loaded have no client and nothing stored."""

    left: Iterator[Session]
    total: int
    connected: int = 0
    members: int = 0
    """Clients of other nodes among them."""
    queued: int = 0


class SystemTopics:
    """Begins with `begin`; then the timers of the broker keep it going."""

    def __init__(self, state: BrokerState, publishing: Publishing) -> None:
        self._state = state
        self._publishing = publishing
        self._began_ms = 0
        self._updated_ms = 0
        self._connected_max = 0
        self._totals: dict[str, int] = {}
        self._loads: dict[str, float] = {}
        self._said: dict[str, str] = {}
        self.figures: Mapping[str, int] = {}
        """What this node adds to the topics of its cluster."""
        self.others: Callable[[], Sequence[Mapping[str, int] | None]] | None = None
        """The same of the nodes of the other slots, None for each that is not reached. None where there are none."""

    def begin(self, version: str) -> None:
        """Say what there is to say at the start, and go on at the interval of the settings, if there is one."""
        if not self._state.settings.sys_interval_s:
            return
        self._began_ms = self._updated_ms = self._state.tick.now_ms
        self._say("version", f"embermq version {version}")
        for name in LOADS:
            for period in LOAD_PERIODS_S:
                self._loads[f"load/{name}/{period}"] = 0.0
                self._say(f"load/{name}/{period}", "0.00")
        self._look()

    def _look(self) -> None:
        sessions = self._state.sessions
        self._go_on(_Survey(iter(list(sessions.loaded)), len(sessions)))

    def _go_on(self, survey: _Survey) -> None:
        """Count some more sessions; when all are counted, say what has changed."""
        timers, now_ms = self._state.timers, self._state.tick.now_ms
        for _ in range(SESSIONS_STEP):
            session = next(survey.left, None)
            if session is None:
                self._update(survey)
                timers.at(now_ms + self._state.settings.sys_interval_s * 1000, self._look)
                return
            if session.link is not None:
                survey.connected += 1
                survey.members += self.others is not None and is_member_id(session.client_id)
            survey.queued += session.queued
        timers.at(now_ms + STEP_MS, lambda: self._go_on(survey))

    def _update(self, survey: _Survey) -> None:
        now_ms = self._state.tick.now_ms
        self._connected_max = max(self._connected_max, survey.connected)
        totals = self._count()
        elapsed_s = (now_ms - self._updated_ms) / 1000
        if elapsed_s > 0:
            self._update_loads(totals, elapsed_s)
        self._totals, self._updated_ms = totals, now_ms
        stored = len(self._state.retained) + survey.queued
        gauges = {
            "clients/total": survey.total,
            "clients/connected": survey.connected,
            "clients/active": survey.connected,
            "clients/disconnected": survey.total - survey.connected,
            "clients/inactive": survey.total - survey.connected,
            "clients/maximum": self._connected_max,
            "clients/expired": self._state.counters.sessions_expired,
            "messages/stored": stored,
            "store/messages/count": stored,
            "retained messages/count": len(self._state.retained),
            "subscriptions/count": len(self._state.router),
            "shared_subscriptions/count": self._state.router.shared_count,
        }
        self._say("uptime", f"{(now_ms - self._began_ms) // 1000} seconds")
        for name, value in {**totals, **gauges}.items():
            if name not in UNTOLD:
                self._say(name, str(value))
        if self.others is not None:
            found = {**totals, "clients/connected": survey.connected - survey.members}
            self.figures = {name: found[name] for name in OF_ALL_NODES}
            self._tell_of_all([self.figures, *self.others()])

    def _tell_of_all(self, told: Sequence[Mapping[str, int] | None]) -> None:
        reached = [each for each in told if each is not None]
        self._say("slots", str(len(told)), CLUSTER)
        self._say("slots/reached", str(len(reached)), CLUSTER)
        for name in OF_ALL_NODES:
            self._say(name, str(sum(each.get(name, 0) for each in reached)), CLUSTER)

    def _count(self) -> dict[str, int]:
        counters = self._state.counters
        return {
            "messages/received": counters.packets_received,
            "messages/sent": self._state.packets_sent,
            "publish/messages/received": counters.messages_received,
            "publish/messages/sent": counters.messages_sent,
            "publish/messages/dropped": sum(getattr(counters, name) for name in DROPPED),
            "publish/bytes/received": counters.payload_bytes_received,
            "publish/bytes/sent": counters.payload_bytes_sent,
            "bytes/received": counters.bytes_received,
            "bytes/sent": counters.bytes_sent,
            "sockets": counters.sockets_opened,
            "connections": counters.connections_accepted + counters.connections_refused,
        }

    def _update_loads(self, totals: dict[str, int], elapsed_s: float) -> None:
        """Exponential averages of what happens in a minute."""
        for name, source in LOADS.items():
            a_minute = (totals[source] - self._totals.get(source, 0)) * 60 / elapsed_s
            for period, period_s in LOAD_PERIODS_S.items():
                topic = f"load/{name}/{period}"
                old = self._loads[topic]
                new = a_minute + exp(-elapsed_s / period_s) * (old - a_minute)
                self._loads[topic] = new
                if abs(new - old) >= LOAD_CHANGE_MIN:
                    self._say(topic, f"{new:.2f}")

    def _say(self, name: str, text: str, root: str = ROOT) -> None:
        """Publish, unless that is what was said last."""
        topic = root + name
        if self._said.get(topic) == text:
            return
        self._said[topic] = text
        message = Message(topic, text.encode(), 0, True, "", ProtocolVersion.V5, self._state.tick.now_ms)
        self._state.system.put(topic, RetainedRow(topic, -1, encode_record(message)))
        self._publishing.publish_unstored(message)


class EventTopics:
    """Publishes what it is told of; how much that is, is up to who tells."""

    def __init__(self, state: BrokerState, publishing: Publishing) -> None:
        self._state = state
        self._publishing = publishing
        self._waiting: list[tuple[str, bytes]] = []

    def is_wanted(self, name: str) -> bool:
        """Whether anybody has subscribed who may receive it: else there is no need to make the message."""
        state = self._state
        if state.rules is None:
            return False
        return not state.router.match_for(EVENTS_PREFIX + name, "").is_empty

    def tell(self, name: str, payload: bytes) -> None:
        """Publish below `$SYS/events/`, with the next tick: events arise where links end, also in the midst of a
        delivery."""
        self._waiting.append((name, payload))
        if len(self._waiting) == 1:
            tick = self._state.tick
            self._state.timers.at(tick.now_ms, self._publish)
            tick.wake()

    def _publish(self) -> None:
        if self._state.rules is None:
            self._waiting.clear()
            return
        waiting, self._waiting = self._waiting, []
        for name, payload in waiting:
            date_ms = self._state.tick.date_ms
            self._publishing.publish_unstored(
                Message(EVENTS_PREFIX + name, payload, 0, False, "", ProtocolVersion.V5, date_ms)
            )
