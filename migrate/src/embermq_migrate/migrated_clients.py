"""The judged rows of one piece, by client, into the target; what is there is left as it is.

A message is known by its client id and serial number: its place in the queue is made from the serial number alone.
"""

import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct, field

from embermq.formats.log_record import encode_record
from embermq.model.client_type import ClientType
from embermq.model.message import Message
from embermq.model.session import NEVER_EXPIRES, SessionRow
from embermq.model.session_writes import QUEUE_SEQ_STEP, QueueRow, QueueState
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq_migrate.errors import MigrationError
from embermq_migrate.judging import EXPIRED, GOOD, OVER_LIMIT, REJECTED
from embermq_migrate.migration_file import Counts, MigrationFile, Rejected
from embermq_migrate.session_target import UNTOUCHED_EPOCH, ClientWrites, Known, SessionTarget

FLUSH_ROWS = 2_000
FLUSH_CLIENTS = 500
FLUSH_BYTES = 4 * 1024 * 1024
PACKET_IDS = 65_535

ROW_COLUMNS = (
    "kind",
    "client_id",
    "serial_number",
    "last_packet_id",
    "verdict",
    "reason",
    "detail",
    "packet_id",
    "released",
    "topic",
    "time",
    "qos",
    "retain",
    "expiry_s",
    "expires_ms",
    "payload_format_indicator",
    "content_type",
    "response_topic",
    "correlation_data",
    "properties",
    "payload",
)


class PieceTerms(Struct, frozen=True):
    """What holds for every client of one piece. Generations come from `first_generation` on; `half_done` says that
    the run before was not finished, so a client may be there with a part of its messages; `dry` writes nothing."""

    first_generation: int
    generations: int
    session_expiry_s: int
    half_done: bool
    dry: bool


class _Client(Struct):
    client_id: str
    last_packet_id: int | None
    known: Known | None = None
    is_new: bool = True
    """Its session is still to be written."""
    refusal: tuple[str, str] | None = None
    taken_over: bool = False
    generation: int = 0
    ids: set[int] = field(default_factory=set)
    newest_id: int = 0
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    held: list[tuple[Any, ...]] = field(default_factory=list)
    """Rows whose packet id is another's: they get one that is free at the end."""
    is_whole: bool = False


(
    _KIND,
    _CLIENT_ID,
    _SERIAL,
    _LAST_ID,
    _VERDICT,
    _REASON,
    _DETAIL,
    _PACKET_ID,
    _RELEASED,
    _TOPIC,
    _TIME,
    _QOS,
    _RETAIN,
    _EXPIRY_S,
    _EXPIRES_MS,
    _FORMAT,
    _CONTENT_TYPE,
    _RESPONSE_TOPIC,
    _CORRELATION,
    _PROPERTIES,
    _PAYLOAD,
) = range(len(ROW_COLUMNS))


class PieceWriter:
    """Takes the rows of one piece in their order; `finish` when the last one has come."""

    def __init__(
        self,
        target: SessionTarget,
        terms: PieceTerms,
        is_ours: Callable[[int], bool],
        now_ms: int | None = None,
    ) -> None:
        self.counts = Counts()
        self.rejects: list[Rejected] = []
        self.is_over = False
        self._target = target
        self._terms = terms
        self._is_ours = is_ours
        self._now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        self._next_generation = terms.first_generation
        self._clients: list[_Client] = []
        self._held_rows = self._held_bytes = 0

    def take(self, row: tuple[Any, ...]) -> None:
        """One row of `ROW_COLUMNS`."""
        kind = row[_KIND]
        if kind == "session":
            self._close_client()
            if len(self._clients) >= FLUSH_CLIENTS:
                self._flush()
            self._clients.append(_Client(row[_CLIENT_ID], row[_LAST_ID]))
            self.counts.clients += 1
        elif kind == "end":
            self._close_client()
            self._flush()
            self.is_over = True
        else:
            self._take_message(row)

    def _take_message(self, row: tuple[Any, ...]) -> None:
        counts = self.counts
        counts.read += 1
        verdict = row[_VERDICT]
        if verdict == GOOD:
            self._clients[-1].rows.append(row)
            self._held_rows += 1
            self._held_bytes += len(row[_PAYLOAD])
            if self._held_rows >= FLUSH_ROWS or self._held_bytes >= FLUSH_BYTES:
                self._flush()
        elif verdict == REJECTED:
            self._reject(row, row[_REASON], row[_DETAIL])
        elif verdict == EXPIRED:
            counts.expired += 1
        else:
            assert verdict == OVER_LIMIT
            counts.over_limit += 1

    def _reject(self, row: tuple[Any, ...], reason: str, detail: str) -> None:
        self.counts.rejected += 1
        self.counts.reasons[reason] = self.counts.reasons.get(reason, 0) + 1
        self.rejects.append(
            Rejected(row[_CLIENT_ID], row[_SERIAL], row[_PACKET_ID], row[_TOPIC], reason, detail)
        )

    def _close_client(self) -> None:
        if self._clients:
            self._clients[-1].is_whole = True

    def _flush(self) -> None:
        """Write what is held; the last client may go on."""
        clients, self._clients = self._clients, []
        self._held_rows = self._held_bytes = 0
        if not clients:
            return
        unknown = [client.client_id for client in clients if client.known is None]
        found = self._target.known(unknown) if unknown else {}
        writes: list[ClientWrites] = []
        for client in clients:
            if client.known is None:
                self._meet(client, found.get(client.client_id))
            written = self._writes(client)
            if written is not None:
                writes.append(written)
        if writes and not self._terms.dry:
            self._target.write(writes)
        last = clients[-1]
        if not last.is_whole:
            self._clients.append(last)

    def _meet(self, client: _Client, known: Known | None) -> None:
        """Decide what the client's messages may do, from what the target has of it."""
        client.known = known or Known(0, 0, {})
        client.ids = set(client.known.places.values())
        if known is None or not known.generation:
            client.generation = self._new_generation()
            self.counts.clients_written += 1
            return
        client.is_new = False
        client.generation = known.generation
        if not self._is_ours(known.generation):
            client.refusal = ("session", "the client has a session here that was not migrated")
        elif known.epoch == UNTOUCHED_EPOCH:
            self.counts.clients_there += 1
        elif self._terms.half_done:
            client.refusal = ("session", "the client connected here before its migration was finished")
        else:
            client.taken_over = True
            self.counts.clients_taken_over += 1

    def _new_generation(self) -> int:
        generation = self._next_generation
        if generation >= self._terms.first_generation + self._terms.generations:
            raise MigrationError(
                "there are more clients than when the tables were counted: stop the broker that writes to them,"
                " then start the migration again"
            )
        self._next_generation = generation + 1
        return generation

    def _writes(self, client: _Client) -> ClientWrites | None:
        rows, client.rows = client.rows, []
        known = client.known
        assert known is not None
        fresh: list[tuple[QueueRow, Message]] = []
        for row in rows:
            client.newest_id = row[_PACKET_ID]
            if client.taken_over:
                self.counts.taken_over += 1
            elif _place(row) in known.places:
                self.counts.there += 1
            elif client.refusal is not None:
                self._reject(row, *client.refusal)
            elif row[_PACKET_ID] not in client.ids:
                client.ids.add(row[_PACKET_ID])
                fresh.append(_queue_row(row, client.generation, row[_PACKET_ID]))
            elif row[_RELEASED]:
                self._reject(row, "packet_id", f"packet_id {row[_PACKET_ID]} is another message's")
            else:
                client.held.append(row)
        if client.is_whole:
            fresh += [self._renumbered(client, row) for row in client.held]
        self.counts.written += len(fresh)
        session = self._session(client) if client.is_new else None
        client.is_new = False
        if (
            client.taken_over
            or client.refusal is not None
            or (session is None and not fresh and not client.is_whole)
        ):
            return None
        return ClientWrites(client.client_id, session, fresh, self._last_packet_id(client))

    def _renumbered(self, client: _Client, row: tuple[Any, ...]) -> tuple[QueueRow, Message]:
        packet_id = row[_PACKET_ID]
        for _ in range(PACKET_IDS):
            packet_id = packet_id + 1 if packet_id < PACKET_IDS else 1
            if packet_id not in client.ids:
                break
        client.ids.add(packet_id)
        self.counts.renumbered += 1
        return _queue_row(row, client.generation, packet_id)

    def _last_packet_id(self, client: _Client) -> int:
        if not client.is_whole:
            return 0
        said = client.last_packet_id or 0
        return said if 1 <= said <= PACKET_IDS else client.newest_id

    def _session(self, client: _Client) -> SessionRow:
        expiry_s = self._terms.session_expiry_s
        return SessionRow(
            client.client_id,
            client.generation,
            UNTOUCHED_EPOCH,
            ClientType.DEVICE,
            "",
            ProtocolVersion.V311,
            expiry_s,
            False,
            0 if expiry_s == NEVER_EXPIRES else self._now_ms + expiry_s * 1000,
            self._now_ms,
        )


def _place(row: tuple[Any, ...]) -> int:
    return int(row[_SERIAL] + 1) * QUEUE_SEQ_STEP


def _queue_row(row: tuple[Any, ...], generation: int, packet_id: int) -> tuple[QueueRow, Message]:
    """A migrated message has no position in the log, as a retained one."""
    properties: Properties | None = None
    expiry_s = row[_EXPIRY_S]
    pairs = row[_PROPERTIES]
    if (
        pairs
        or expiry_s is not None
        or row[_FORMAT] is not None
        or row[_CONTENT_TYPE] is not None
        or row[_RESPONSE_TOPIC] is not None
        or row[_CORRELATION] is not None
    ):
        properties = Properties(
            payload_format_indicator=row[_FORMAT],
            message_expiry_interval=expiry_s,
            content_type=row[_CONTENT_TYPE],
            response_topic=row[_RESPONSE_TOPIC],
            correlation_data=row[_CORRELATION],
            user_properties=tuple((pair["k"], pair["v"]) for pair in pairs or ()),
        )
    qos, time_ms = row[_QOS], row[_TIME]
    message = Message(
        row[_TOPIC],
        row[_PAYLOAD],
        qos,
        row[_RETAIN],
        "",
        ProtocolVersion.V311 if properties is None else ProtocolVersion.V5,
        time_ms,
        0 if expiry_s is None else time_ms + expiry_s * 1000,
        properties,
    )
    stored = QueueRow(
        generation,
        _place(row),
        -1,
        packet_id,
        QueueState.RELEASED if row[_RELEASED] else QueueState.QUEUED,
        qos | row[_RETAIN] << 2,
        row[_EXPIRES_MS],
        (),
        encode_record(message),
    )
    return stored, message


def write_piece(writer: PieceWriter, file: MigrationFile, run: int, number: int) -> bytes:
    """After the last row: keep the counts and the rejects of the piece. Returns the counts as JSON."""
    if not writer.is_over:
        raise MigrationError(f"piece {number} ended early")
    file.complete(run, number, writer.counts, writer.rejects)
    return msgspec.json.encode(writer.counts)
