"""Which row of a client becomes what, without Spark and servers."""

from pathlib import Path
from typing import Any

import pytest

from embermq.formats.log_record import decode_record
from embermq.model.session_writes import QUEUE_SEQ_STEP, QueueRow, QueueState
from embermq_migrate import migrated_clients
from embermq_migrate.errors import MigrationError
from embermq_migrate.migrated_clients import ROW_COLUMNS, PieceTerms, PieceWriter
from embermq_migrate.migration_file import wait_for_writers, writing
from embermq_migrate.session_target import ClientWrites, Known, SessionTarget

NOW_MS = 1_750_000_000_000
TERMS = PieceTerms(first_generation=10, generations=5, session_expiry_s=60, half_done=False, dry=False)


class MemoryTarget(SessionTarget):
    """Sessions and rows by client id; `writes` counts the calls."""

    def __init__(self) -> None:
        self.sessions: dict[str, tuple[int, int]] = {}
        self.rows: dict[str, list[QueueRow]] = {}
        self.last_ids: dict[str, int] = {}
        self.writes = 0

    def known(self, client_ids: list[str]) -> dict[str, Known]:
        found = {}
        for client_id in client_ids:
            if client_id in self.sessions:
                places = {row.seq: row.packet_id for row in self.rows.get(client_id, [])}
                found[client_id] = Known(*self.sessions[client_id], places)
        return found

    def write(self, clients: list[ClientWrites]) -> None:
        self.writes += 1
        for client in clients:
            if client.session is not None:
                assert client.client_id not in self.sessions
                self.sessions[client.client_id] = (client.session.generation, client.session.epoch)
            self.rows.setdefault(client.client_id, []).extend(row for row, _ in client.rows)
            if client.last_packet_id:
                self.last_ids.setdefault(client.client_id, client.last_packet_id)

    def close(self) -> None:
        pass


def row(**values: object) -> tuple[Any, ...]:
    return tuple(values.get(name) for name in ROW_COLUMNS)


def session(client_id: str, last_packet_id: int | None = None) -> tuple[Any, ...]:
    return row(kind="session", client_id=client_id, last_packet_id=last_packet_id)


def message(client_id: str, serial: int, packet_id: int, **values: object) -> tuple[Any, ...]:
    plain: dict[str, object] = {
        "kind": "message",
        "client_id": client_id,
        "serial_number": serial,
        "verdict": "good",
        "packet_id": packet_id,
        "released": False,
        "topic": "t",
        "time": NOW_MS,
        "qos": 2,
        "retain": False,
        "expires_ms": NOW_MS + 1000,
        "payload": b"%d" % serial,
    }
    return row(**(plain | values))


def taken(target: MemoryTarget, *rows: tuple[Any, ...], terms: PieceTerms = TERMS) -> PieceWriter:
    """A whole piece."""
    writer = PieceWriter(target, terms, lambda generation: 10 <= generation < 20, NOW_MS)
    for one in (*rows, row(kind="end")):
        writer.take(one)
    assert writer.is_over
    return writer


def ids(target: MemoryTarget, client_id: str) -> list[tuple[int, int]]:
    """(serial number, packet id) by place."""
    rows = sorted(target.rows[client_id], key=lambda one: one.seq)
    return [(one.seq // QUEUE_SEQ_STEP - 1, one.packet_id) for one in rows]


@pytest.mark.parametrize("flush_rows", [1, 2, 3, 100])
def test_however_the_rows_of_a_client_are_cut_the_outcome_is_one(
    monkeypatch: pytest.MonkeyPatch, flush_rows: int
) -> None:
    monkeypatch.setattr(migrated_clients, "FLUSH_ROWS", flush_rows)
    monkeypatch.setattr(migrated_clients, "FLUSH_CLIENTS", 1)
    rows = [
        session("a", 9),
        message("a", 0, 65_535),
        message("a", 1, 65_535),  # its id is taken, and the next one too
        message("a", 2, 1, released=True),
        message("a", 3, 1, released=True),  # a PUBREL cannot get another id
        message("a", 4, 3),
        session("b"),
        message("b", 7, 4),
        session("c", 70_000),
    ]
    target = MemoryTarget()
    writer = taken(target, *rows)
    assert ids(target, "a") == [(0, 65_535), (1, 2), (2, 1), (4, 3)]
    assert ids(target, "b") == [(7, 4)]
    assert target.sessions == {"a": (10, 0), "b": (11, 0), "c": (12, 0)}
    assert target.last_ids == {"a": 9, "b": 4}
    assert (writer.counts.written, writer.counts.renumbered, writer.counts.rejected) == (5, 1, 1)
    assert [(one.serial_number, one.reason) for one in writer.rejects] == [(3, "packet_id")]
    states = {one.seq // QUEUE_SEQ_STEP - 1: one.state for one in target.rows["a"]}
    assert states == {
        0: QueueState.QUEUED,
        1: QueueState.QUEUED,
        2: QueueState.RELEASED,
        4: QueueState.QUEUED,
    }

    before = {name: list(rows) for name, rows in target.rows.items()}
    again = taken(target, *rows)
    assert (again.counts.written, again.counts.there, again.counts.clients_there) == (0, 5, 3)
    assert target.rows == before and again.counts.rejected == 1


def test_what_is_stored_of_a_message() -> None:
    target = MemoryTarget()
    properties = {
        "payload_format_indicator": 1,
        "content_type": "text/plain",
        "response_topic": "r",
        "correlation_data": b"c",
        "properties": [{"k": "a", "v": "b"}, {"k": "a", "v": "c"}],
        "expiry_s": 0xFFFF_FFFF,
    }
    taken(target, session("a"), message("a", 0, 5, retain=True, qos=1, **properties), message("a", 1, 6))
    first, second = target.rows["a"]
    stored = decode_record(first.record).message
    assert (first.flags, first.offset, first.expires_ms) == (1 | 4, -1, NOW_MS + 1000)
    assert stored.expires_ms == NOW_MS + 0xFFFF_FFFF * 1000 and stored.accepted_ms == NOW_MS
    assert stored.properties is not None
    assert stored.properties.user_properties == (("a", "b"), ("a", "c"))
    assert stored.properties.message_expiry_interval == 0xFFFF_FFFF
    assert decode_record(second.record).message.properties is None


def test_a_client_that_connected_before_its_piece_was_done_is_told() -> None:
    target = MemoryTarget()
    target.sessions = {"a": (10, 1), "b": (99, 0)}
    rows = (session("a"), message("a", 0, 1), session("b"), message("b", 0, 1))
    writer = taken(target, *rows)
    assert (writer.counts.taken_over, writer.counts.clients_taken_over, writer.counts.rejected) == (1, 1, 1)
    resumed = PieceTerms(first_generation=15, generations=5, session_expiry_s=60, half_done=True, dry=False)
    writer = taken(target, *rows, terms=resumed)
    assert [(one.client_id, one.reason) for one in writer.rejects] == [("a", "session"), ("b", "session")]
    assert "before its migration was finished" in writer.rejects[0].detail
    assert not target.rows


def test_more_clients_than_were_counted_end_the_piece() -> None:
    with pytest.raises(MigrationError, match="more clients than when the tables were counted"):
        taken(MemoryTarget(), *(session(f"c{number}") for number in range(6)))


def test_the_next_driver_waits_for_tasks_of_one_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "migration.db"
    wait_for_writers(path, 0)
    with writing(path), writing(path), pytest.raises(MigrationError, match="still writing after 0 s"):
        wait_for_writers(path, 0)
    wait_for_writers(path, 0)


def test_a_dry_run_only_counts() -> None:
    target = MemoryTarget()
    dry = PieceTerms(first_generation=1, generations=5, session_expiry_s=60, half_done=False, dry=True)
    writer = taken(target, session("a"), message("a", 0, 1), terms=dry)
    assert (writer.counts.written, writer.counts.clients_written, target.writes) == (1, 1, 0)
