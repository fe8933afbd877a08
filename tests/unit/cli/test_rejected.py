"""`embermq pipeline rejected list` on the embedded log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embermq.cli.main import main
from embermq.pipeline.sinks.application_logs import ApplicationLogSink

NOON_MS = 1_750_000_000_000
REASON = "record format 9.0 is not known\x1b[2J"


@pytest.mark.promise("pipeline-4")
def test_reasons_are_listed_the_newest_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pipeline", "rejected", "list", "--data-dir", str(tmp_path)]
    assert main(words) == 0
    assert capsys.readouterr().out == "nothing was rejected\n"
    sink = ApplicationLogSink(tmp_path / "applications.db")
    rows = [(number, REASON, b"raw", 1_750_000_000_000 + number) for number in range(5)]
    sink.file.connection.executemany("INSERT INTO rejected VALUES (?, ?, ?, ?)", rows)
    sink.file.close()
    assert main([*words, "--limit", "2", "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["offset"], one["reason"], one["bytes"]) for one in told] == [(3, REASON, 3), (4, REASON, 3)]
    assert main([*words, "--limit", "1"]) == 0
    line = capsys.readouterr().out
    assert (
        line.startswith("2025-06-15T15:06:40+00:00  0:4  3 bytes  record format 9.0") and "\x1b" not in line
    )


def test_reasons_are_counted_whatever_numbers_they_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["pipeline", "rejected", "reasons", "--data-dir", str(tmp_path)]
    assert main(words) == 0
    assert capsys.readouterr().out == "nothing was rejected\n"
    sink = ApplicationLogSink(tmp_path / "applications.db")
    rows = [
        (number, f"a record of {number} bytes is damaged", b"raw", NOON_MS + number) for number in (12, 9, 15)
    ]
    rows.append((20, REASON, b"", NOON_MS))
    sink.file.connection.executemany("INSERT INTO rejected VALUES (?, ?, ?, ?)", rows)
    sink.file.close()
    assert main([*words, "--json"]) == 0
    alike, alone = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert alike == {
        "reason": "a record of N bytes is damaged",
        "records": 3,
        "bytes": 9,
        "first": "0:9",
        "last": "0:15",
        "last_ms": NOON_MS + 15,
    }
    assert (alone["reason"], alone["records"], alone["first"]) == (REASON, 1, "0:20")
    assert main(words) == 0
    heads, line, _ = capsys.readouterr().out.splitlines()
    assert heads.split() == ["first", "last", "newest", "records", "bytes", "reason"]
    assert line.split()[:2] == ["0:9", "0:15"] and line.endswith("3      9  a record of N bytes is damaged")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "rejected", "list", "--data-dir", str(tmp_path / "no")]) != 0
    assert "no is not the data directory of a broker" in capsys.readouterr().err
