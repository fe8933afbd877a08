"""Client events as log lines and as messages, as many a second as the settings allow.

One client, or one address of clients that have not proved who they are, gets a tenth of that, so that it cannot hide
what others do.
"""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Protocol

import msgspec
from msgspec import Struct, field

from embermq.sessions.client_events import ClientEvent, EventKind

LOG = logging.getLogger("embermq.clients")
SOURCE_SHARE = 10
REPORT_S = 10.0
"""How long what is left out is counted until a line says how much it was."""
TEXT_CHARACTERS_MAX = 256
"""Of a client id, a user, a topic and a reason; MQTT allows 65,535 bytes."""
LEVELS = {kind: kind.value.replace(" ", "_") for kind in EventKind}
"""Below `$SYS/events/`."""
UNPROVED = frozenset({EventKind.LOGIN_FAILED, EventKind.REFUSED})
"""The client id of such an event may be anything, so the address is what counts."""


class _Rate(Struct):
    """Events of one kind in one second."""

    second: int = -1
    told: int = 0
    by_source: dict[str, int] = field(default_factory=dict)
    """Has `told` entries at most."""


class EventSink(Protocol):
    """Takes client events that the rate admits."""

    def wants(self, kind: EventKind) -> bool:
        """Whether anybody looks there at this kind: else nothing is made or counted."""
        ...

    def write(self, event: ClientEvent) -> None:
        """One that the rate admits."""
        ...

    def left_out(self, kind: EventKind, count: int) -> None:
        """Say that the rate did not admit so many events of a kind."""
        ...


class LimitedEvents:
    """Told of events on the event loop; hands on to a sink as many of each kind a second as `rate_max`."""

    def __init__(self, sink: EventSink, rate_max: int, loop: asyncio.AbstractEventLoop) -> None:
        self._sink = sink
        self._rate_max = rate_max
        self._source_max = max(1, rate_max // SOURCE_SHARE)
        self._loop = loop
        self._rates = {kind: _Rate() for kind in EventKind}
        self._left_out: dict[EventKind, int] = {}
        self._report: asyncio.TimerHandle | None = None

    def tell(self, event: ClientEvent) -> None:
        """Hand the event on, or count it as left out."""
        if not self._rate_max or not self._sink.wants(event.kind):
            return
        if self._admits(event):
            self._sink.write(event)
            return
        self._left_out[event.kind] = self._left_out.get(event.kind, 0) + 1
        if self._report is None:
            self._report = self._loop.call_later(REPORT_S, self._say_left_out)

    def _admits(self, event: ClientEvent) -> bool:
        rate, second = self._rates[event.kind], int(self._loop.time())
        if rate.second != second:
            rate.second, rate.told = second, 0
            rate.by_source.clear()
        if rate.told >= self._rate_max:
            return False
        source = event.peer.rpartition(":")[0] if event.kind in UNPROVED else event.client_id
        count = rate.by_source.get(source, 0)
        if count >= self._source_max:
            return False
        rate.told += 1
        rate.by_source[source] = count + 1
        return True

    def _say_left_out(self) -> None:
        self._report = None
        left_out, self._left_out = self._left_out, {}
        for kind, count in left_out.items():
            self._sink.left_out(kind, count)

    def close(self) -> None:
        """Say what was left out last."""
        if self._report is not None:
            self._report.cancel()
            self._say_left_out()


class LogSink:
    """Writes client events as lines of the log."""

    def wants(self, kind: EventKind) -> bool:
        """Whether the level of the log has such lines at all."""
        return LOG.isEnabledFor(logging.INFO)

    def write(self, event: ClientEvent) -> None:
        LOG.info("client %s", event.kind.value, extra=fields_of(event))

    def left_out(self, kind: EventKind, count: int) -> None:
        LOG.info("client events left out", extra={"event": kind.value, "left_out": count})


class Topics(Protocol):
    """Messages below `$SYS/events/`, implemented in intake."""

    def is_wanted(self, name: str) -> bool: ...

    def tell(self, name: str, payload: bytes) -> None: ...


class TopicSink:
    """Messages: an object of JSON below `$SYS/events/<kind>` each."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def wants(self, kind: EventKind) -> bool:
        """Whether somebody has subscribed to the kind."""
        return self._topics.is_wanted(LEVELS[kind])

    def write(self, event: ClientEvent) -> None:
        self._tell(LEVELS[event.kind], fields_of(event))

    def left_out(self, kind: EventKind, count: int) -> None:
        """One message, with those of the same kind."""
        self._tell(LEVELS[kind], {"event": kind.value, "left_out": count})

    def _tell(self, name: str, fields: dict[str, object]) -> None:
        self._topics.tell(name, msgspec.json.encode({"time": time_text(), **fields}))


def time_text() -> str:
    """The present moment, as events tell it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def fields_of(event: ClientEvent) -> dict[str, object]:
    """What is known of the event, by the names under which it is told; texts are shortened, and a token is none of
    them."""
    texts = {
        "client_id": event.client_id,
        "user": _without_token(event.user),
        "peer": event.peer,
        "listener": event.listener,
        "topic": event.topic,
        "protocol": event.protocol,
        "reason": event.reason,
    }
    found: dict[str, object] = {"event": event.kind.value}
    found |= {name: _shortened(text) for name, text in texts.items() if text}
    if event.code is not None:
        found["code"] = f"0x{event.code:02x}"
    if event.session_present is not None:
        found["session_present"] = event.session_present
    return found


def _shortened(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[:TEXT_CHARACTERS_MAX] + "…"


def _without_token(user: str) -> str:
    """Some clients bring their token as the user name."""
    return "(a token)" if user.startswith("ey") and user.count(".") == 2 else user
