"""`embermq messages show` on a message store as the pipeline writes it."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from embermq.cli.main import main

MANY = 1_200
"""More than two pages."""


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    connection = sqlite3.connect(tmp_path / "messages.db")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(files("embermq.model").joinpath("messages.sql").read_text())
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
    done = subprocess.run(
        [sys.executable, "-m", "embermq", *words, "--data-dir", data_dir], capture_output=True, timeout=60
    )
    first = after - 99
    assert done.stdout == b"".join(b"%d;" % number for number in range(first, first + expected))


def test_a_directory_without_an_archive_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["messages", "show", "--topic", "t", "--data-dir", str(tmp_path)]) == 1
    assert f"{tmp_path} has no message store" in capsys.readouterr().err


def test_an_offset_below_all_is_refused(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["messages", "show", "--topic", "t", "--after", "-2", "--data-dir", str(data_dir)]) == 2
    assert "-2 is not in the range" in capsys.readouterr().err
