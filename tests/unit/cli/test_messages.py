"""`embermq messages show` on a message store as the pipeline writes it."""

from __future__ import annotations

import json
import sqlite3
import time
from importlib.resources import files
from pathlib import Path

import pytest
from tests.support.forked_program import run_program

from embermq.cli.main import main

MANY = 1_200
"""More than two pages."""


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    connection = sqlite3.connect(tmp_path / "messages.db")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(files("embermq.formats").joinpath("messages.sql").read_text())
    properties = json.dumps({"content_type": "text/plain", "user_properties": [{"name": "a", "value": "b"}]})
    rows = [
        (7, 0, "t", 1_700_000_000_000, 1, 0, "pump\x1b[2J", 5, None, properties, "grüße\n".encode()),
        (9, 0, "t", 1_700_000_000_500, 2, 1, "pump", 4, 1_700_000_060_000, None, b"\xff\x00"),
        (10, 0, "other", 1_700_000_001_000, 1, 0, "pump", 4, None, None, b"not this"),
    ]
    rows += [
        (100 + n, 0, "many", 1_700_000_002_000, 1, 0, "p", 4, None, None, b"%d;" % n) for n in range(MANY)
    ]
    connection.executemany("INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()
    return tmp_path


def test_lines_are_for_people(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["messages", "show", "--topic", "t", "--data-dir", str(data_dir)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "7  2023-11-14T22:13:20.000+00:00  QoS 1  pump\\x1b[2J  grüße\\n",
        "9  2023-11-14T22:13:20.500+00:00  QoS 2 retained  pump  0xff00",
    ]


def test_json_is_for_machines(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["messages", "show", "--topic", "t", "--after", "6", "--json", "--data-dir", str(data_dir)]
    assert main(words) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["payload"] == "grüße\n" and first["publisher"] == "pump\x1b[2J"
    assert first["properties"] == {"content_type": "text/plain", "user_properties": [["a", "b"]]}
    assert second["payload_base64"] == "/wA=" and second["expires"] == "2023-11-14T22:14:20.000+00:00"


@pytest.mark.parametrize(("after", "limit", "expected"), [(99, MANY, MANY), (99, 501, 501), (1_298, 9, 1)])
def test_a_range_goes_on_behind_its_offset_up_to_its_limit(
    data_dir: Path, after: int, limit: int, expected: int
) -> None:
    words = ["messages", "show", "--topic", "many", "--raw", "--after", str(after), "--limit", str(limit)]
    done = run_program(*words, "--data-dir", data_dir)
    first = after - 99
    assert done.stdout == "".join(f"{number};" for number in range(first, first + expected))


def test_a_directory_without_an_archive_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["messages", "show", "--topic", "t", "--data-dir", str(tmp_path)]) == 1
    assert f"{tmp_path} has no message store" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--topic", "T\x1b"], "no message of topic T\\x1b; embermq pipeline status"),
        (["--topic", "t", "--after", "9", "--json"], "no message of topic t behind offset 9; "),
    ],
)
def test_nothing_found_is_said_beside_the_output(
    data_dir: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(["messages", "show", *words, "--data-dir", str(data_dir)]) == 0
    found = capsys.readouterr()
    assert found.out == "" and told in found.err and found.err.count("\n") == 1


@pytest.mark.parametrize("topic", ["many/#", "+/many"])
def test_wildcards_are_refused(data_dir: Path, capsys: pytest.CaptureFixture[str], topic: str) -> None:
    assert main(["messages", "show", "--topic", topic, "--data-dir", str(data_dir)]) == 2
    assert f"embermq: '{topic}' has wildcards" in capsys.readouterr().err


def test_an_offset_below_all_is_refused(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["messages", "show", "--topic", "t", "--after", "-2", "--data-dir", str(data_dir)]) == 2
    assert "-2 is not in the range" in capsys.readouterr().err


OLD_MS, HOUR_MS = 1_700_000_000_000, 3_600_000


def hours_since(moment_ms: int) -> str:
    """As many hours ago, give or take some seconds, as `--older-than-hours` takes them."""
    return str((time.time() * 1000 - moment_ms) / HOUR_MS)


def offsets(data_dir: Path) -> list[int]:
    connection = sqlite3.connect(data_dir / "messages.db")
    found = [row[0] for row in connection.execute('SELECT "offset" FROM message ORDER BY 1')]
    connection.close()
    return found


def test_old_messages_are_counted_and_then_deleted(
    data_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embermq.cli.messages.PRUNED_AT_ONCE", 100)
    everything = offsets(data_dir)
    words = ["messages", "prune", "--data-dir", str(data_dir), "--older-than-hours"]
    before = hours_since(OLD_MS + HOUR_MS)  # all of them
    assert main([*words, before, "--dry-run"]) == 0
    assert f": {MANY + 3:,} messages; nothing was deleted" in capsys.readouterr().out
    assert offsets(data_dir) == everything
    connection = sqlite3.connect(data_dir / "messages.db")
    connection.execute(
        'UPDATE message SET accepted_ms = accepted_ms + ? WHERE "offset" IN (9, 150)', (HOUR_MS * 2,)
    )
    connection.commit()
    connection.close()
    assert main([*words, before, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"older": MANY + 1, "deleted": MANY + 1}
    assert offsets(data_dir) == [9, 150]
    assert main([*words, before]) == 0
    assert capsys.readouterr().out.startswith("deleted 0 messages")


def test_a_message_store_of_a_newer_embermq_is_not_pruned(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    connection = sqlite3.connect(data_dir / "messages.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    everything = offsets(data_dir)
    assert main(["messages", "prune", "--data-dir", str(data_dir), "--older-than-hours", "0"]) == 1
    assert "messages.db has schema version 99" in capsys.readouterr().err
    assert offsets(data_dir) == everything
