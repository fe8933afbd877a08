"""`embermq trace`: the life of one message, as far as anything of it is stored.

Files are read, or the servers that the broker keeps its data on, and nothing is changed: the broker runs or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

from embermq.app.config import Settings
from embermq.app.errors import OptionError, UserError
from embermq.app.settings import SQLITE
from embermq.app.slots import asked_slots
from embermq.formats.entry_rest import decode_rest
from embermq.formats.log_record import RecordError, decode_record
from embermq.model.queue_rows import MessageState
from embermq.model.unacknowledged import OUTCOMES, WhyUnacknowledged
from embermq.pipeline.places import Places
from embermq.pipeline.sources.log_file import BrokerFile, LogBounds, LogFile
from embermq.queues.names import QUEUE_PREFIX, queue_name
from embermq.queues.settling import sequence_of
from embermq.tools.log_look import read_log
from embermq.tools.report_folder import data_of
from embermq.tools.trace_values import (
    IN_QUEUE,
    NOT_IN_QUEUE,
    STORED,
    FoundMessage,
    Trace,
    TracedDelivery,
    TracedMessage,
    Wanted,
    no_such_message,
    settled_by,
)

_SINKS = {"dispatch": "applications.db", "lake": "lake.db", "traffic": "traffic.db"}
_ARCHIVE = ("messages.db", "archive.db")


def trace(wanted: Wanted, settings: Settings, slot: int | None = None) -> TracedMessage:
    """Follow one message from its record to all who got it; of several slots in all, unless one is named. Raises
    OptionError for what was asked, UserError for what is not there."""
    data_dir = data_of(settings, by_slot=True)
    if sum(bool(given) for given in (wanted.position, wanted.time, wanted.message)) != 1:
        raise OptionError("one of --position, --time and --message says which message of the topic")
    with ExitStack() as opened:
        if settings.stores.log == SQLITE:
            return _FileTrace(Places(data_dir), settings, opened).run(wanted)
        from embermq.tools.trace_servers import trace_on_servers  # its clients are not in every installation

        return trace_on_servers(wanted, asked_slots(settings, slot), opened)


class _FileTrace(Trace):
    """Files of one data directory."""

    def __init__(self, places: Places, settings: Settings, opened: ExitStack) -> None:
        super().__init__(settings)
        self._places = places
        self._opened = opened
        self._files: dict[Path, BrokerFile] = {}
        self._broker = self._open(places.broker)
        self._log_bounds = _bounds(places)

    def _open(self, path: Path) -> BrokerFile:
        if path not in self._files:
            self._files[path] = self._opened.enter_context(closing(BrokerFile(path)))
        return self._files[path]

    # Which message

    def _at(self, offset: int, topic: str) -> FoundMessage:
        """Raises UserError with where it was looked for."""
        if offset >= self._log_bounds.end:
            raise UserError(f"the log ends before 0:{offset}, at 0:{self._log_bounds.end}")
        for entry in read_log(self._places.data_dir, offset):
            if entry.offset != offset:
                break
            if entry.record is None:
                raise UserError(f"0:{offset} is damaged: {entry.problem}")
            return FoundMessage(offset, entry.record.message, entry.record, "the log")
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
                return FoundMessage(offset, record.message, record, place)
        return self._archived(offset, topic, self._log_bounds.first)

    def _has_archive(self) -> bool:
        return any((self._places.data_dir / name).is_file() for name in _ARCHIVE)

    def _since(self, topic: str, time_ms: int) -> FoundMessage | None:
        with closing(LogFile(self._places.log)) as log:
            begin = log.before(time_ms)
        for entry in read_log(self._places.data_dir, begin):
            record = entry.record
            if record is not None and record.message.topic == topic and record.message.accepted_ms >= time_ms:
                return FoundMessage(entry.offset, record.message, record, "the log")
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
        raise no_such_message(name, wanted.message)

    def _retained_at(self, topic: str) -> int | None:
        rows = self._broker.query('SELECT "offset" FROM retained WHERE topic = ?', (topic,))
        return int(rows[0][0]) if rows else None

    # What became of it

    def _applications(self, found: FoundMessage) -> Iterator[TracedDelivery]:
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
            return STORED[marks[0][0]], None
        if is_entry:
            return "waits in its log", None
        return ("lost: its log does not have it" if offset < dispatched else "waits for dispatch"), None

    def _sessions(self, found: FoundMessage) -> Iterator[TracedDelivery]:
        rows = self._broker.query(
            "SELECT client_id, state FROM device_queue JOIN session USING (generation)"
            ' WHERE "offset" = ? ORDER BY client_id',
            (found.offset,),
        )
        stored = {str(client): STORED[state] for client, state in rows or ()}
        subscriptions = self._broker.query(
            "SELECT client_id, client_type, topic_filter FROM subscription JOIN session USING (generation)"
            " WHERE queue = '' AND since_offset <= ? ORDER BY client_id, topic_filter",
            (found.offset,),
        )
        settled = settled_by(found.offset, self._meta("dispatcher_floor"))
        return self._matching(found.message.topic, subscriptions or (), stored, settled)

    def _queues(self, found: FoundMessage) -> Iterator[TracedDelivery]:
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
                    to=name, by=str(group).partition("\0")[0], outcome=IN_QUEUE[MessageState(state)]
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
            yield TracedDelivery(to=of_queue, outcome=NOT_IN_QUEUE)

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
