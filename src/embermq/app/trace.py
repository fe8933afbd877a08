"""`embermq trace`: the life of one message, as far as anything of it is stored.

Nothing but files is read, and nothing is changed: the broker runs or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

from msgspec import Struct

from embermq.app.config import Settings
from embermq.app.errors import OptionError, UserError
from embermq.app.log_look import read_log
from embermq.app.log_place import place_in_log
from embermq.app.message_archive import message_store_of
from embermq.app.places_noted import noted_places
from embermq.app.settings import SQLITE
from embermq.formats.entry_rest import decode_rest
from embermq.formats.log_record import LogRecord, RecordError, decode_record
from embermq.model.client_type import ClientType
from embermq.model.message import Message
from embermq.model.queue_rows import MessageState
from embermq.model.session_writes import QueueState
from embermq.model.unacknowledged import OUTCOMES, WhyUnacknowledged
from embermq.mqtt.topics.names import matches, parse_shared
from embermq.pipeline.places import Places
from embermq.pipeline.sources.log_file import BrokerFile, LogBounds, LogFile
from embermq.queues.names import QUEUE_PREFIX, queue_name
from embermq.queues.settling import sequence_of

SESSIONS_SHOWN = 100
ARCHIVE_PAGE = 500
_STORED = {
    QueueState.QUEUED: "waits, stored",
    QueueState.SENT: "sent, not acknowledged",
    QueueState.RELEASED: "received, not completed",
    QueueState.DONE: "acknowledged",
}
_IN_QUEUE = {
    MessageState.QUEUED: "waits",
    MessageState.RETRY: "waits to be tried again",
    MessageState.ACKED: "acknowledged",
    MessageState.DLQ: "in the dead letters",
}
_SINKS = {"dispatch": "applications.db", "lake": "lake.db", "traffic": "traffic.db"}
_ARCHIVE = ("messages.db", "archive.db")


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
    there now and whose subscriptions match and are older than it."""

    position: str
    topic: str
    publisher: str
    accepted_ms: int
    expires_ms: int
    qos: int
    retain: bool
    payload_bytes: int
    found_in: str
    replayed_from: str
    is_retained_now: bool
    applications: tuple[TracedDelivery, ...]
    sessions: tuple[TracedDelivery, ...]
    sessions_count: int
    queues: tuple[TracedDelivery, ...]
    sinks: dict[str, bool]


class _Found(Struct, frozen=True):
    """A record; of the archive a message alone, without stamps."""

    offset: int
    message: Message
    record: LogRecord | None
    place: str


def trace(wanted: Wanted, settings: Settings) -> TracedMessage:
    """Raises OptionError, UserError."""
    data_dir = Path(settings.data_dir).absolute()
    if settings.stores.log != SQLITE or noted_places(data_dir).is_on_servers:
        raise UserError("messages of a log in Kafka are not traced yet")
    if not (data_dir / "broker.db").is_file():
        raise UserError(f"{data_dir} is not the data directory of a broker; name it with --data-dir")
    if sum(bool(given) for given in (wanted.position, wanted.time, wanted.message)) != 1:
        raise OptionError("one of --position, --time and --message says which message of the topic")
    with ExitStack() as opened:
        return _Trace(Places(data_dir), settings, opened).run(wanted)


class _Trace:
    """Files of one data directory."""

    def __init__(self, places: Places, settings: Settings, opened: ExitStack) -> None:
        self._places = places
        self._settings = settings
        self._opened = opened
        self._files: dict[Path, BrokerFile] = {}
        self._broker = self._open(places.broker)
        self._log_bounds = _bounds(places)

    def _open(self, path: Path) -> BrokerFile:
        if path not in self._files:
            self._files[path] = self._opened.enter_context(closing(BrokerFile(path)))
        return self._files[path]

    def run(self, wanted: Wanted) -> TracedMessage:
        found = self._find(wanted)
        message = found.message
        if message.topic != wanted.topic:
            raise UserError(
                f"0:{found.offset} is a message of topic {message.topic!r}, not of {wanted.topic!r}"
            )
        said = dict(message.properties.user_properties) if message.properties is not None else {}
        sessions = list(self._sessions(found))
        retained = self._broker.query('SELECT "offset" FROM retained WHERE topic = ?', (message.topic,))
        return TracedMessage(
            position=f"0:{found.offset}",
            topic=message.topic,
            publisher=message.publisher,
            accepted_ms=message.accepted_ms,
            expires_ms=message.expires_ms,
            qos=message.qos,
            retain=message.retain,
            payload_bytes=len(message.payload),
            found_in=found.place,
            replayed_from=said.get("replayed-from", ""),
            is_retained_now=any(row[0] == found.offset for row in retained or ()),
            applications=tuple(self._applications(found)),
            sessions=tuple(sessions[:SESSIONS_SHOWN]),
            sessions_count=len(sessions),
            queues=tuple(self._queues(found)),
            sinks=self._sinks(found.offset),
        )

    # Which message

    def _find(self, wanted: Wanted) -> _Found:
        if wanted.position:
            return self._at(_offset(wanted.position), wanted.topic)
        if wanted.message:
            return self._at(self._offset_of(wanted), wanted.topic)
        _, time_ms = place_in_log("--time", wanted.time)
        if time_ms is None:
            raise OptionError(f"--time: {wanted.time!r} is no time as 2026-01-31T12:00")
        found = self._since(wanted.topic, time_ms)
        if found is None:
            raise UserError(f"no message of topic {wanted.topic!r} was accepted at {wanted.time} or later")
        return found

    def _at(self, offset: int, topic: str) -> _Found:
        """Raises UserError with where it was looked for."""
        if offset >= self._log_bounds.end:
            raise UserError(f"the log ends before 0:{offset}, at 0:{self._log_bounds.end}")
        for entry in read_log(self._places.data_dir, offset):
            if entry.offset != offset:
                break
            if entry.record is None:
                raise UserError(f"0:{offset} is damaged: {entry.problem}")
            return _Found(offset, entry.record.message, entry.record, "the log")
        parked = self._open(self._places.data_dir / "parked.db")
        for file, statement, place in (
            (
                parked,
                'SELECT record FROM parked_record WHERE "offset" = ? LIMIT 1',
                "bodies kept for applications",
            ),
            (self._broker, 'SELECT record FROM queue_body WHERE "offset" = ?', "bodies kept for queues"),
        ):
            for (body,) in file.query(statement, (offset,)) or ():
                try:
                    record = decode_record(body)
                except RecordError as error:
                    raise UserError(f"0:{offset} is damaged: {error}") from None
                return _Found(offset, record.message, record, place)
        stored = None
        if self._has_archive():
            with message_store_of(self._settings) as store:
                stored = store.get(topic, offset)
        if stored is None:
            raise UserError(
                f"0:{offset} is not in the log, which begins at 0:{self._log_bounds.first}, and the message store has"
                f" no such message of topic {topic!r}; look into the lake"
            )
        return _Found(offset, stored.message, None, "the message store, which does not say for whom it was")

    def _has_archive(self) -> bool:
        return any((self._places.data_dir / name).is_file() for name in _ARCHIVE)

    def _since(self, topic: str, time_ms: int) -> _Found | None:
        """The archive has older ones than the log."""
        if self._has_archive():
            with message_store_of(self._settings) as store:
                after = -1
                while page := store.range(topic, after, ARCHIVE_PAGE):
                    for one in page:
                        if one.message.accepted_ms >= time_ms:
                            return self._at(one.offset, topic)
                    after = page[-1].offset
        with closing(LogFile(self._places.log)) as log:
            begin = log.before(time_ms)
        for entry in read_log(self._places.data_dir, begin):
            record = entry.record
            if record is not None and record.message.topic == topic and record.message.accepted_ms >= time_ms:
                return _Found(entry.offset, record.message, record, "the log")
        return None

    def _offset_of(self, wanted: Wanted) -> int:
        """Of a message that is in a durable queue. Raises UserError, OptionError."""
        if not wanted.topic.startswith(QUEUE_PREFIX):
            raise OptionError(
                f"--message: {wanted.topic!r} is no durable queue; only their messages have ids"
            )
        name = queue_name(wanted.topic)
        queues = self._broker.query("SELECT generation FROM queue WHERE name = ?", (name,))
        if not queues:
            raise UserError(f"there is no queue {name!r}")
        queue = int(queues[0][0])
        sequence = sequence_of(queue, wanted.message)
        found = self._broker.query(
            'SELECT "offset" FROM queue_entry WHERE queue = ?1 AND sequence = ?2'
            ' UNION ALL SELECT "offset" FROM queue_delayed WHERE queue = ?1 AND ticket = ?2',
            (queue, sequence),
        )
        if found:
            return int(found[0][0])
        moved = self._broker.query(
            'SELECT "offset", rest FROM queue_entry WHERE rest IS NOT NULL AND (queue = ? OR queue IN'
            " (SELECT generation FROM queue WHERE name = ?))",
            (queue, f"dlq/{name}"),
        )
        for offset, rest in moved or ():
            more = decode_rest(rest)
            letter = more.dead_letter
            if more.origin_id == wanted.message or (
                letter is not None and letter.message_id == wanted.message
            ):
                return int(offset)
        raise UserError(
            f"the queue {name!r} has no message {wanted.message!r}, nor a dead letter of it: it was acknowledged, has"
            " expired or was removed, or never was"
        )

    # What became of it

    def _applications(self, found: _Found) -> Iterator[TracedDelivery]:
        for stamp in found.record.stamps if found.record is not None else ():
            outcome, at_ms = self._application_outcome(stamp.generation, found.offset)
            yield TracedDelivery(to=stamp.log, outcome=outcome, at_ms=at_ms)

    def _application_outcome(self, generation: int, offset: int) -> tuple[str, int | None]:
        """Read in this order it is right while the broker runs: see `pipeline.sources.settlements`."""
        at = (generation, offset)
        run = self._broker.query
        dispatched = self._progress("applications.db", "dispatch")
        is_entry = self._open(self._places.applications).query(
            'SELECT 1 FROM application_log WHERE generation = ? AND "offset" = ?', at
        )
        known_to = self._meta("log_end")
        reasons = run(
            'SELECT why, written_ms FROM application_unacknowledged WHERE generation = ? AND "offset" = ? AND why <> ?'
            " ORDER BY why DESC",
            (*at, int(WhyUnacknowledged.ENDED)),
        )
        if reasons:
            return OUTCOMES[WhyUnacknowledged(reasons[0][0])], int(reasons[0][1])
        floor = self._broker.query(
            "SELECT COALESCE(committed_offset, 0) FROM session LEFT JOIN application_position USING (generation)"
            " WHERE session.generation = ?",
            (generation,),
        )
        if not floor and offset >= known_to:
            return "has just been accepted", None
        if not floor:
            ended = run(
                'SELECT "offset", written_ms FROM application_unacknowledged WHERE generation = ? AND why = ?',
                (generation, int(WhyUnacknowledged.ENDED)),
            )
            if ended and offset < ended[0][0]:
                return "acknowledged", None
            return "the session ended before it was acknowledged", int(ended[0][1]) if ended else None
        if offset < floor[0][0]:
            return "acknowledged", None
        marks = run('SELECT state FROM application_inflight WHERE generation = ? AND "offset" = ?', at)
        if marks:
            return _STORED[marks[0][0]], None
        if is_entry:
            return "waits in its log", None
        return ("lost: its log does not have it" if offset < dispatched else "waits for dispatch"), None

    def _sessions(self, found: _Found) -> Iterator[TracedDelivery]:
        """Those that records do not name: what is stored, then who has been there to get it."""
        rows = self._broker.query(
            "SELECT client_id, state FROM device_queue JOIN session USING (generation)"
            ' WHERE "offset" = ? ORDER BY client_id',
            (found.offset,),
        )
        stored = {str(client): _STORED[state] for client, state in rows or ()}
        floor = self._meta("dispatcher_floor")
        if found.offset < floor:
            settled = f"acknowledged, or dropped by a limit or expiry: nothing is left before 0:{floor}"
        else:
            settled = "on its way, or to come"
        for client, kind, topic_filter in (
            self._broker.query(
                "SELECT client_id, client_type, topic_filter FROM subscription JOIN session USING (generation)"
                " WHERE queue = '' AND since_offset <= ? ORDER BY client_id, topic_filter",
                (found.offset,),
            )
            or ()
        ):
            shared = parse_shared(topic_filter)
            is_own_log = kind == ClientType.APPLICATION and shared is None
            if is_own_log or not matches(
                topic_filter if shared is None else shared.topic_filter, found.message.topic
            ):
                continue
            outcome = stored.pop(client, "")
            if not outcome and shared is not None:
                outcome = "one member of its group gets it"
            yield TracedDelivery(to=client, outcome=outcome or settled, by=topic_filter)
        for client, outcome in stored.items():
            yield TracedDelivery(to=client, outcome=outcome)

    def _queues(self, found: _Found) -> Iterator[TracedDelivery]:
        of_queue = queue_name(found.message.topic) if found.message.topic.startswith(QUEUE_PREFIX) else ""
        names = set()
        for queue, name, sequence in (
            self._broker.query(
                'SELECT queue, name, sequence FROM queue_entry JOIN queue ON generation = queue WHERE "offset" = ?',
                (found.offset,),
            )
            or ()
        ):
            names.add(name)
            marks = self._broker.query(
                "SELECT message_group, state FROM queue_mark WHERE queue = ? AND sequence = ?",
                (queue, sequence),
            )
            yield TracedDelivery(to=name, outcome="is in the queue")
            for group, state in marks or ():
                yield TracedDelivery(
                    to=name, by=str(group).partition("\0")[0], outcome=_IN_QUEUE[MessageState(state)]
                )
        for (name,) in (
            self._broker.query(
                'SELECT name FROM queue_delayed JOIN queue ON generation = queue WHERE "offset" = ?',
                (found.offset,),
            )
            or ()
        ):
            names.add(name)
            yield TracedDelivery(to=name, outcome="is delayed")
        if of_queue and not names:
            yield TracedDelivery(
                to=of_queue, outcome="not in the queue any more: acknowledged, expired or removed"
            )

    def _sinks(self, offset: int) -> dict[str, bool]:
        found = {reader: offset < self._progress(name, reader) for reader, name in _SINKS.items()}
        return found | {"archive": any(offset < self._progress(name, "archive") for name in _ARCHIVE)}

    def _progress(self, name: str, reader: str) -> int:
        rows = self._open(self._places.data_dir / name).query(
            "SELECT next_offset FROM progress WHERE reader = ?", (reader,)
        )
        return int(rows[0][0]) if rows else 0

    def _meta(self, name: str) -> int:
        rows = self._broker.query("SELECT value FROM meta WHERE name = ?", (name,))
        return int(rows[0][0]) if rows else 0


def _bounds(places: Places) -> LogBounds:
    with closing(LogFile(places.log)) as log:
        return log.bounds() or LogBounds(0, 0)


def _offset(text: str) -> int:
    """Raises OptionError."""
    partition, separator, offset = text.rpartition(":")
    if not offset.isascii() or not offset.isdigit() or len(offset) > 18 or (separator and partition != "0"):
        raise OptionError(f"--position: {text!r} is no position as 0:1200")
    return int(offset)
