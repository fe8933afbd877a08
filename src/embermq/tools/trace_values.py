"""Which message is traced, and what is told of it; what both kinds of stores have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from msgspec import Struct

from embermq.app.config import Settings
from embermq.app.errors import OptionError, UserError
from embermq.app.message_archive import message_store_of
from embermq.formats.log_record import LogRecord, slot_in
from embermq.model.client_type import ClientType
from embermq.model.message import Message
from embermq.model.queue_rows import MessageState
from embermq.model.session_writes import QueueState
from embermq.mqtt.topics.names import matches, parse_shared
from embermq.tools.report_folder import place_in_log, told_position

SESSIONS_SHOWN = 100
ARCHIVE_PAGE = 500
STORED = {
    QueueState.QUEUED: "waits, stored",
    QueueState.SENT: "sent, not acknowledged",
    QueueState.RELEASED: "received, not completed",
    QueueState.DONE: "acknowledged",
}
IN_QUEUE = {
    MessageState.QUEUED: "waits",
    MessageState.RETRY: "waits to be tried again",
    MessageState.ACKED: "acknowledged",
    MessageState.DLQ: "in the dead letters",
}
NOT_IN_QUEUE = "not in the queue any more: acknowledged, expired or removed"


class Wanted(Struct, frozen=True, kw_only=True):
    """Which message of a topic: at a position, the first that was accepted at a time or later, or by the id that
    consumers of a durable queue see. One of them is given."""

    topic: str
    position: str = ""
    time: str = ""
    message: str = ""


class TracedDelivery(Struct, frozen=True, kw_only=True):
    """To one receiver, and what became of it."""

    to: str
    outcome: str
    by: str = ""
    """The filter, or the group."""
    at_ms: int | None = None
    """When it was settled without an acknowledgement."""


class TracedMessage(Struct, frozen=True, kw_only=True):
    """`found_in` says where its record is. `sinks`: what has passed it, by name. `sessions_count`: of sessions that are
    there now and whose subscriptions match and are older than it. `copy_of`: where a copy of another slot's record
    comes from, "" for none. `copies` in other slots, told where all slots were looked into; `slot` says of which it is
    then."""

    position: str
    topic: str
    publisher: str
    accepted_ms: int
    expires_ms: int
    qos: int
    retain: bool
    payload_bytes: int
    found_in: str
    copy_of: str
    replayed_from: str
    is_retained_now: bool
    applications: tuple[TracedDelivery, ...]
    sessions: tuple[TracedDelivery, ...]
    sessions_count: int
    queues: tuple[TracedDelivery, ...]
    sinks: dict[str, bool]
    slot: int | None = None
    copies: tuple[TracedMessage, ...] = ()


class FoundMessage(Struct, frozen=True):
    """A record; of the archive a message alone, without stamps."""

    offset: int
    message: Message
    record: LogRecord | None
    place: str


class Trace(ABC):
    """One message's life in one broker's stores."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def run(self, wanted: Wanted) -> TracedMessage:
        """Find the message and what became of it. Raises UserError when it is not there, OptionError for
        what was asked."""
        return self.life_of(self.find(wanted), wanted.topic)

    def life_of(self, found: FoundMessage, topic: str) -> TracedMessage:
        """What became of it here. Raises UserError when it is of another topic."""
        message, position = found.message, told_position(found.offset)
        if message.topic != topic:
            raise UserError(f"{position} is a message of topic {message.topic!r}, not of {topic!r}")
        said = dict(message.properties.user_properties) if message.properties is not None else {}
        sessions = list(self._sessions(found))
        return TracedMessage(
            position=position,
            topic=message.topic,
            publisher=message.publisher,
            accepted_ms=message.accepted_ms,
            expires_ms=message.expires_ms,
            qos=message.qos,
            retain=message.retain,
            payload_bytes=len(message.payload),
            found_in=found.place,
            copy_of=_copy_of(found.record),
            replayed_from=said.get("replayed-from", ""),
            is_retained_now=self._retained_at(message.topic) == found.offset,
            applications=tuple(self._applications(found)),
            sessions=tuple(sessions[:SESSIONS_SHOWN]),
            sessions_count=len(sessions),
            queues=tuple(self._queues(found)),
            sinks=self._sinks(found.offset),
        )

    def find(self, wanted: Wanted) -> FoundMessage:
        """Raises UserError when it is not there, OptionError for what was asked."""
        if wanted.position:
            return self._at(_position(wanted.position), wanted.topic)
        if wanted.message:
            return self._at(self._offset_of(wanted), wanted.topic)
        _, time_ms = place_in_log("--time", wanted.time)
        if time_ms is None:
            raise OptionError(f"--time: {wanted.time!r} is no time as 2026-01-31T12:00")
        found = self._archived_since(wanted.topic, time_ms) or self._since(wanted.topic, time_ms)
        if found is None:
            raise UserError(f"no message of topic {wanted.topic!r} was accepted at {wanted.time} or later")
        return found

    def _archived_since(self, topic: str, time_ms: int) -> FoundMessage | None:
        """The archive has older ones than the log."""
        if not self._has_archive():
            return None
        with message_store_of(self._settings) as store:
            after = -1
            while page := store.range(topic, after, ARCHIVE_PAGE):
                for one in page:
                    if one.message.accepted_ms >= time_ms:
                        return self._at(one.offset, topic)
                after = page[-1].offset
        return None

    def _archived(self, offset: int, topic: str, log_first: int) -> FoundMessage:
        """What neither the log nor another store has. Raises UserError."""
        stored = None
        if self._has_archive():
            with message_store_of(self._settings) as store:
                stored = store.get(topic, offset)
        if stored is None:
            raise UserError(
                f"{told_position(offset)} is not in the log, which begins at {told_position(log_first)}, and the"
                f" message store has no such message of topic {topic!r}; look into the lake"
            )
        return FoundMessage(
            offset, stored.message, None, "the message store, which does not say for whom it was"
        )

    def _matching(
        self, topic: str, subscriptions: Iterable[tuple[str, int, str]], stored: dict[str, str], settled: str
    ) -> Iterator[TracedDelivery]:
        """Sessions that records do not name: those that have something `stored`, and who has been there to get it, of
        `subscriptions` as (client id, type, filter)."""
        left = dict(stored)
        for client, kind, topic_filter in subscriptions:
            is_shared = parse_shared(topic_filter) is not None
            if (kind == ClientType.APPLICATION and not is_shared) or not leads(topic_filter, topic):
                continue
            outcome = left.pop(client, "")
            if not outcome and is_shared:
                outcome = "one member of its group gets it"
            yield TracedDelivery(to=client, outcome=outcome or settled, by=topic_filter)
        for client, outcome in left.items():
            yield TracedDelivery(to=client, outcome=outcome)

    @abstractmethod
    def _has_archive(self) -> bool:
        """Whether there is a message store to look into."""

    @abstractmethod
    def _at(self, offset: int, topic: str) -> FoundMessage:
        """Raises UserError with where it was looked for."""

    @abstractmethod
    def _since(self, topic: str, time_ms: int) -> FoundMessage | None:
        """The first one in the log that was accepted then or later."""

    @abstractmethod
    def _offset_of(self, wanted: Wanted) -> int:
        """Of a message that is in a durable queue. Raises UserError, OptionError."""

    @abstractmethod
    def _retained_at(self, topic: str) -> int | None:
        """Where the retained message of the topic is."""

    @abstractmethod
    def _applications(self, found: FoundMessage) -> Iterator[TracedDelivery]: ...

    @abstractmethod
    def _sessions(self, found: FoundMessage) -> Iterator[TracedDelivery]: ...

    @abstractmethod
    def _queues(self, found: FoundMessage) -> Iterator[TracedDelivery]: ...

    @abstractmethod
    def _sinks(self, offset: int) -> dict[str, bool]: ...


def leads(topic_filter: str, topic: str) -> bool:
    """Whether a subscription gets a topic."""
    shared = parse_shared(topic_filter)
    return matches(topic_filter if shared is None else shared.topic_filter, topic)


def no_such_message(queue: str, message: str) -> UserError:
    """Make the error that says that nothing of a message is left."""
    return UserError(
        f"the queue {queue!r} has no message {message!r}, nor a dead letter of it: it was acknowledged, has"
        " expired or was removed, or never was"
    )


def settled_by(offset: int, floor: int) -> str:
    """What became of a delivery of which nothing is stored."""
    if offset < floor:
        return f"acknowledged, or dropped by a limit or expiry: nothing is left before {told_position(floor)}"
    return "on its way, or to come"


def _copy_of(record: LogRecord | None) -> str:
    found = None if record is None else slot_in(record)
    return "" if found is None else f"{told_position(found[1])} of slot {found[0]}"


def _position(text: str) -> int:
    """Raises OptionError."""
    try:
        position, _ = place_in_log("--position", text)
    except OptionError:
        position = None
    if position is None:
        raise OptionError(f"--position: {text!r} is no position as 0:1200")
    return position
