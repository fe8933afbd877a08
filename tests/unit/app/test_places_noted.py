"""Commands without the settings of the broker whose data directory they are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from embermq.adapters.sqlite.connection import apply_broker_schema, open_writer
from embermq.adapters.sqlite.log_state import SqliteLogState
from embermq.adapters.sqlite.tick_tables import TickTables
from embermq.app.places_noted import NotedPlaces, noted_places
from embermq.cli.main import main

SERVER = "postgresql://embermq:***@db/embermq"


def broker_db(data_dir: Path, *, static: str = "", is_log_apart: bool = False) -> None:
    """As a broker has left it."""
    data_dir.mkdir(exist_ok=True)
    writer = open_writer(data_dir / "broker.db", synchronous="OFF")
    apply_broker_schema(writer)
    tables = TickTables(writer)
    store = SqliteLogState(tables, durability="os", post=lambda call: call())
    if is_log_apart:
        store.open_log("topic")
    tables.note_places(sessions="redis://r", static=static)
    assert tables.sessions_place == "redis://r"
    store.close()


def test_what_is_noted_is_found(tmp_path: Path) -> None:
    assert noted_places(tmp_path) == NotedPlaces()
    broker_db(tmp_path, static=SERVER, is_log_apart=True)
    assert noted_places(tmp_path) == NotedPlaces(is_log_apart=True, static=SERVER)
    broker_db(tmp_path)
    assert noted_places(tmp_path) == NotedPlaces(is_log_apart=True)
    (tmp_path / "broker.db").write_bytes(b"damaged" * 1000)
    assert noted_places(tmp_path) == NotedPlaces()


@pytest.mark.parametrize("words", [("show", "--topic", "t"), ("prune", "--older-than-hours", "0")])
@pytest.mark.parametrize(
    ("is_log_apart", "static", "told"),
    [
        (
            True,
            "",
            "stores.log: the message log of {} is in a Kafka; give the --config or --set of its broker",
        ),
        (False, SERVER, "stores.static: the messages of {} are in " + SERVER + "; give the --config"),
    ],
)
def test_messages_are_looked_for_where_they_are(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    *,
    is_log_apart: bool,
    static: str,
    told: str,
) -> None:
    broker_db(tmp_path, static=static, is_log_apart=is_log_apart)
    assert main(["messages", *words, "--data-dir", str(tmp_path)]) == 1
    found = capsys.readouterr()
    assert found.out == "" and found.err.startswith("embermq: " + told.format(tmp_path))


def test_accounts_that_no_broker_reads_are_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["users", "list", "--data-dir", str(tmp_path)]
    broker_db(tmp_path)
    assert main(words) == 0 and capsys.readouterr().err == ""
    broker_db(tmp_path, static=SERVER)
    assert main(words) == 0
    assert capsys.readouterr().err == (
        f"these are accounts in {tmp_path}, whose broker has its own in {SERVER}: to reach those give the --config or"
        " --set of its broker\n"
    )
