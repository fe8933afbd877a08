"""A data directory that is started with the other profile, and commands without the settings of its broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from embermq.app.config import Settings
from embermq.app.errors import StartError
from embermq.app.places_noted import NotedPlaces, check_profile, note_places, noted_places
from embermq.app.settings import StoreSettings
from embermq.cli.main import main

SERVER = "postgresql://embermq:***@db/embermq"
EMBEDDED = Settings()
ON_SERVERS = Settings(stores=StoreSettings(log="kafka://u:secret@k", session="redis://:secret@r"))


def start(data_dir: Path, *, static: str = "sqlite", servers: bool = False) -> None:
    """What a start leaves."""
    data_dir.mkdir(exist_ok=True)
    stores = ON_SERVERS.stores if servers else EMBEDDED.stores
    note_places(
        data_dir, Settings(stores=StoreSettings(log=stores.log, session=stores.session, static=static))
    )


def test_what_is_noted_is_found_without_passwords(tmp_path: Path) -> None:
    assert noted_places(tmp_path) == NotedPlaces()
    start(tmp_path, static=SERVER.replace("***", "secret"), servers=True)
    found = noted_places(tmp_path)
    assert found == NotedPlaces(log="kafka://u:***@k", session="redis://:***@r", static=SERVER)
    assert found.is_on_servers and b"secret" not in (tmp_path / "places.json").read_bytes()
    start(tmp_path)
    assert noted_places(tmp_path) == NotedPlaces(log="sqlite", session="sqlite", static="sqlite")
    (tmp_path / "places.json").write_bytes(b"damaged" * 1000)
    assert noted_places(tmp_path) == NotedPlaces()


def test_what_cannot_be_noted_keeps_nobody_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "places.new").mkdir()
    note_places(tmp_path, EMBEDDED)
    note_places(tmp_path, EMBEDDED)
    assert [text.partition(": ")[0] for text in caplog.messages] == [
        f"{tmp_path}/places.json cannot be written"
    ] * 2


def test_a_data_directory_stays_with_its_profile(tmp_path: Path) -> None:
    """Also a new one, and one whose note is gone."""
    for settings in (EMBEDDED, ON_SERVERS):
        check_profile(tmp_path, settings)
    start(tmp_path, servers=True)
    check_profile(tmp_path, ON_SERVERS)
    told = rf"{tmp_path} is not in it but in kafka://u:\*\*\*@k, its sessions are in redis://:\*\*\*@r; name both"
    with pytest.raises(StartError, match=told):
        check_profile(tmp_path, EMBEDDED)
    (tmp_path / "places.json").unlink()
    (tmp_path / "log").mkdir()
    check_profile(tmp_path, EMBEDDED)
    told = r"is in its folder log and is not moved to kafka://u:\*\*\*@k; take another"
    with pytest.raises(StartError, match=told):
        check_profile(tmp_path, ON_SERVERS)


@pytest.mark.parametrize("words", [("show", "--topic", "t"), ("prune", "--older-than-hours", "0")])
@pytest.mark.parametrize(
    ("servers", "static", "told"),
    [
        (
            True,
            "sqlite",
            "stores.log: the message log of {} is in kafka://u:***@k; give the --config or --set of its broker",
        ),
        (False, SERVER, "stores.static: the messages of {} are in " + SERVER + "; give the --config"),
    ],
)
def test_messages_are_looked_for_where_they_are(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    *,
    servers: bool,
    static: str,
    told: str,
) -> None:
    start(tmp_path, static=static, servers=servers)
    assert main(["messages", *words, "--data-dir", str(tmp_path)]) == 1
    found = capsys.readouterr()
    assert found.out == "" and found.err.startswith("embermq: " + told.format(tmp_path))


def test_accounts_that_no_broker_reads_are_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["users", "list", "--data-dir", str(tmp_path)]
    start(tmp_path)
    assert main(words) == 0 and capsys.readouterr().err == ""
    start(tmp_path, static=SERVER)
    assert main(words) == 0
    assert capsys.readouterr().err == (
        f"these are accounts in {tmp_path}, whose broker has its own in {SERVER}: to reach those give the --config or"
        " --set of its broker\n"
    )
