"""What a backup does when its files are not what they should be, or move."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from embermq.adapters.sqlite.connection import apply_broker_schema, open_writer
from embermq.app.config import Settings
from embermq.app.errors import UserError
from embermq.app.places_noted import note_places, noted_places
from embermq.app.settings import StoreSettings
from embermq.cli.main import main
from embermq.pipeline.rules.set_aside import SetAside, set_aside_of
from embermq.tools.backup import make_backup, restore_backup

LAST = 3
"""The commit that lake.db knows of."""
LEDGER = f"""
CREATE TABLE progress (reader TEXT PRIMARY KEY, next_offset INTEGER NOT NULL);
CREATE TABLE lake_version (id INTEGER PRIMARY KEY, version INTEGER NOT NULL, boot TEXT NOT NULL);
INSERT INTO progress VALUES ('lake', 1);
INSERT INTO lake_version VALUES (1, {LAST}, 'of that machine');
"""
FILES = (
    *(f"_delta_log/{number:020}.json" for number in range(LAST + 2)),
    f"_delta_log/{LAST:020}.checkpoint.parquet",
    f"_delta_log/{LAST + 1:020}.crc",
    "_delta_log/_last_checkpoint",
    "_delta_log/.half.tmp",
    "part-0.parquet",
    "xy/part-1.parquet",
    ".part-0.parquet.crc",
)


def quiet(_doing: str, _done: int, _total: int) -> None:
    """For backups that nobody watches."""


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data directory whose lake has gone on since lake.db was written."""
    directory = tmp_path / "data"
    for name in FILES:
        (directory / "lake" / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / "lake" / name).write_bytes(name.encode())
    writer = open_writer(directory / "broker.db", synchronous="OFF")
    apply_broker_schema(writer)
    writer.close()
    ledger = sqlite3.connect(directory / "lake.db")
    ledger.executescript(LEDGER)
    ledger.close()
    return directory


def test_of_a_broker_on_servers_all_is_saved_that_is_here(tmp_path: Path) -> None:
    """It has no broker.db; a directory of nobody has none either, and is refused."""
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    with closing(sqlite3.connect(data_dir / "users.db")) as users:
        users.execute("CREATE TABLE account (name TEXT)")
    aside = SetAside(data_dir / "rules.db", "hot")
    aside.add("failed", 1, 5, "it is no number")
    with closing(sqlite3.connect(data_dir / "rules.db")) as rules, rules:
        rules.execute("CREATE TABLE rule_tables (rule TEXT PRIMARY KEY, version INTEGER, boot TEXT)")
        rules.execute("INSERT INTO rule_tables VALUES ('hot', 7, 'the one before')")
    with pytest.raises(UserError, match="is not the data directory of a broker"):
        make_backup(data_dir, tmp_path / "saved", quiet)
    note_places(data_dir, Settings(stores=StoreSettings(log="kafka://k", session="redis://r")))
    made = make_backup(data_dir, tmp_path / "saved", quiet)
    aside.add("failed", 1, 6, "since the backup")
    aside.close()
    assert str(made).startswith("3 files, ") and "log" not in str(made)
    restore_backup(tmp_path / "saved", tmp_path / "fresh", quiet)
    assert {path.name for path in (tmp_path / "fresh").iterdir()} == {
        "users.db",
        "rules.db",
        "places.json",
    }
    assert [one.reason for one in set_aside_of(tmp_path / "fresh" / "rules.db", "hot", 9)] == [
        "it is no number"
    ]
    with closing(sqlite3.connect(tmp_path / "fresh/rules.db")) as rules:
        assert rules.execute("SELECT * FROM rule_tables").fetchall() == [("hot", 7, "")], (
            "it may have gone on"
        )
    assert noted_places(tmp_path / "fresh").is_on_servers


def lake_in(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def test_the_lake_ends_with_the_commit_that_its_position_is_of(data_dir: Path, tmp_path: Path) -> None:
    make_backup(data_dir, tmp_path / "saved", quiet)
    restore_backup(tmp_path / "saved", tmp_path / "fresh", quiet)
    commits = {f"_delta_log/{number:020}.json" for number in range(LAST + 1)}
    expected = commits | {f"_delta_log/{LAST:020}.checkpoint.parquet", "part-0.parquet", "xy/part-1.parquet"}
    assert lake_in(tmp_path / "fresh/lake") == expected
    with closing(sqlite3.connect(tmp_path / "fresh/lake.db")) as ledger:
        assert ledger.execute("SELECT version, boot FROM lake_version").fetchall() == [(LAST, "")], (
            "a lake in another place went on since, and a start takes nothing of it back"
        )


def test_a_file_of_the_lake_that_is_removed_meanwhile_is_not_missed(data_dir: Path, tmp_path: Path) -> None:
    def vacuum(_doing: str, _done: int, _total: int) -> None:
        (data_dir / "lake/part-0.parquet").unlink(missing_ok=True)

    make_backup(data_dir, tmp_path / "saved", vacuum)
    restore_backup(tmp_path / "saved", tmp_path / "fresh", quiet)
    assert "xy/part-1.parquet" in lake_in(tmp_path / "fresh/lake")
    assert "part-0.parquet" not in lake_in(tmp_path / "fresh/lake")


@pytest.mark.parametrize(
    "name",
    [
        "../saved/lake.db",
        "lake/../../saved/lake.db",
        "{saved}/lake.db",
        "",
        ".",
        "lake.db\0",
        "{saved}/new.db",
    ],
)
def test_names_that_lead_out_of_the_directory_are_refused(data_dir: Path, tmp_path: Path, name: str) -> None:
    """Also those that are inside the backup, by the name that it happens to have."""
    saved = tmp_path / "saved"
    make_backup(data_dir, saved, quiet)
    manifest = json.loads((saved / "backup.json").read_text())
    manifest["files"][0]["name"] = name.format(saved=saved)
    (saved / "backup.json").write_text(json.dumps(manifest))
    (tmp_path / "below").mkdir()
    with pytest.raises(UserError, match="is not inside the backup"):
        restore_backup(saved, tmp_path / "below/fresh", quiet)
    assert not any((tmp_path / "below").iterdir())


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            ("stores.log=kafka://u:secret@k1:9092", "stores.session=redis://:secret@r1:6379"),
            (
                "the message log and the logs of applications are not in it:",
                "sessions, what is queued for them, and retained messages are",
            ),
        ),
        (
            ("stores.static=postgresql://u:secret@p1/db",),
            ("accounts and archived messages are not in it: they are in",),
        ),
    ],
)
def test_what_is_on_a_server_is_named(
    data_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    settings: tuple[str, ...],
    told: tuple[str, ...],
) -> None:
    """Nobody should find out after a restore."""
    words = ["backup", str(tmp_path / "saved"), "--data-dir", str(data_dir)]
    given = [word for setting in settings for word in ("--set", setting)]
    assert main([*words, *given]) == 0
    _, *rest = capsys.readouterr().out.splitlines()
    for line, begin in zip(rest, told, strict=True):
        assert line.startswith(begin) and "secret" not in line
