"""`embermq pipeline migrate`: what it asks for, what it prints, how it ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest

from embermq.app.config import Settings
from embermq.cli.main import main
from embermq_migrate import migration, old_tables, redis_sessions
from embermq_migrate.errors import MigrationError
from embermq_migrate.job import MigrationReport, MigrationTerms, Progress
from embermq_migrate.migration import MigrationOrder, write_rejects
from embermq_migrate.migration_file import Counts, MigrationFile, Rejected
from embermq_migrate.old_tables import Piece
from embermq_migrate.redis_sessions import RedisPlace

COUNTS = Counts(
    clients=3,
    clients_written=2,
    clients_taken_over=1,
    read=10,
    written=6,
    taken_over=1,
    rejected=3,
    renumbered=1,
)
REPORT = MigrationReport(
    source="postgresql://db/old",
    target="redis://cache",
    dry_run=False,
    resumed=True,
    pieces=4,
    pieces_done_before=1,
    columns_absent=("correlation_data",),
    seconds=1.5,
    counts=COUNTS,
)
FROM = ["pipeline", "migrate", "--from", "postgresql://u:secret@db/old"]


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> list[MigrationOrder]:
    """What was asked for; the answer is `REPORT`."""
    found: list[MigrationOrder] = []

    def run(order: MigrationOrder, settings: Settings, progress: Progress) -> MigrationReport:
        found.append(order)
        progress(5, 10)
        return REPORT

    COUNTS.reasons = {"qos": 2, "topic": 1}
    COUNTS.rejected = 3
    monkeypatch.setattr(migration, "run_migration", run)
    return found


def test_a_summary_for_people(orders: list[MigrationOrder], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FROM, "--rejects", "r.jsonl"]) == 3
    printed = capsys.readouterr()
    assert not printed.err and "secret" not in printed.out
    for text in (
        "from      postgresql://db/old",
        "6 written, 0 there already",
        "1 clients with 1 messages, which have connected here since",
        "renumbered 1:",
        "absent    correlation_data",
        "1 of 4 pieces had been done before",
        "rejected for qos: 2",
        "they are in r.jsonl",
    ):
        assert text in printed.out, text


def test_a_report_for_machines(orders: list[MigrationOrder], capsys: pytest.CaptureFixture[str]) -> None:
    COUNTS.rejected = 0
    assert main([*FROM, "--json", "--dry-run", "--session-expiry", "never", "--message-ttl", "60"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out, type=MigrationReport) == REPORT
    (order,) = orders
    assert (order.dry_run, order.session_expiry_s, order.message_ttl_s, order.target) == (
        True,
        0xFFFF_FFFF,
        60,
        "",
    )


@pytest.mark.parametrize("wrong", ["0", "-1", "4294967296", "soon", "٣"])
def test_a_session_expiry_that_cannot_be(
    orders: list[MigrationOrder], capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    assert main([*FROM, f"--session-expiry={wrong}"]) == 2
    assert "is neither 1..4294967295 nor never" in capsys.readouterr().err
    assert not orders


@pytest.mark.parametrize(
    ("source", "target", "told"),
    [
        ("env:NOWHERE", "sqlite", "--from: there is no environment variable NOWHERE"),
        ("mysql://u:secret@db/old", "sqlite", "--from: a URL postgresql://"),
        ("postgresql://u:secret@db/old", "env:NOWHERE", "--to: there is no environment variable NOWHERE"),
        ("postgresql://u:secret@db/old", "memcached://u:secret@cache", "--to: "),
    ],
)
def test_an_address_that_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, target: str, told: str
) -> None:
    data_dir = tmp_path / "data"
    words = ["--from", source, "--to", target, "--data-dir", str(data_dir)]
    assert main(["pipeline", "migrate", *words]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"embermq: {told}") and shown.count("\n") == 1 and "secret" not in shown
    assert not data_dir.exists()


def test_rejects_as_lines_of_json(tmp_path: Path) -> None:
    file = MigrationFile(tmp_path / "migration.db")
    piece = Piece(0, "a", "b", 2, 3)
    run = file.begin("s", "t", "", iter([piece]))
    rows = [
        Rejected("b", 1, 7, "x" * 5_000, "qos", "qos 0 is not 1 or 2"),
        Rejected(None, None, None, None, "client_id", "the client id is missing"),
    ]
    file.complete(run, 0, Counts(read=2, rejected=2), rows)
    assert file.unfinished("s", "t", "") == run and file.unfinished("s", "other", "") is None
    file.finish(run)
    assert file.unfinished("s", "t", "") is None
    file.close()
    terms = MigrationTerms(source="", broker_db="", file=str(tmp_path / "migration.db"))
    write_rejects(terms, tmp_path / "rejects.jsonl")
    lines = [msgspec.json.decode(line) for line in (tmp_path / "rejects.jsonl").read_bytes().splitlines()]
    assert [(line["client_id"], line["reason"]) for line in lines] == [(None, "client_id"), ("b", "qos")]
    assert len(lines[1]["topic"]) == 1_000


@pytest.mark.parametrize(
    ("package", "connect"),
    [
        ("psycopg", partial(old_tables.connect, "postgresql://x/y")),
        ("redis", partial(redis_sessions.connect, RedisPlace(shown="redis://x", nodes=(("x", 1),)))),
    ],
)
def test_a_missing_driver_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, package: str, connect: Callable[[], object]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MigrationError, match=r"needs embermq\[servers\]: run `make servers`"):
        connect()


@pytest.mark.parametrize("unquoted", ["se/cret", "se?cret", "se@cret", "12/cret"])
def test_a_password_that_should_have_been_quoted_is_not_told_in_parts(unquoted: str) -> None:
    with pytest.raises(MigrationError, match="cannot be understood") as caught:
        old_tables.connect(f"postgresql://u:{unquoted}@127.0.0.1:1/old")
    assert not any(part in str(caught.value) for part in ("se@", "se?", "se/", "12", "cret"))


def test_rejects_that_cannot_be_written_are_told_before_anything_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rejects, data_dir = tmp_path / "none" / "rejects.jsonl", tmp_path / "data"
    words = ["--to", "sqlite", "--data-dir", str(data_dir), "--rejects", str(rejects)]
    assert main(["pipeline", "migrate", "--from", "postgresql://u:secret@127.0.0.1:1/old", *words]) == 1
    assert capsys.readouterr().err == f"embermq: {rejects}: No such file or directory\n"
    assert not data_dir.exists()


def test_a_damaged_file_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    (data_dir / migration.FILE).write_bytes(b"no database" * 1_000)

    def opened(terms: MigrationTerms, *_: object) -> None:
        MigrationFile(Path(terms.file))

    monkeypatch.setattr(migration, "_migrate", opened)
    assert main([*FROM, "--to", "sqlite", "--data-dir", str(data_dir)]) == 1
    told = capsys.readouterr().err
    assert "file is not a database" in told and told.count("\n") == 1
