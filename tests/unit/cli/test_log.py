"""`embermq log`: what is whole, what is damaged, and what records there are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.pipeline.log_writer import LogWriter, record

from embermq.cli.main import main


@pytest.fixture
def log(tmp_path: Path) -> LogWriter:
    writer = LogWriter(tmp_path)
    for tick in range(3):
        writer.append([record(f"plant/{tick}", b"x" * 10) for _ in range(4)])
    return writer


def asked(*words: str, log: LogWriter, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    code = main(["log", *words, "--data-dir", str(log.places.data_dir)])
    return code, capsys.readouterr().out.splitlines()


def test_a_whole_log_is_ok_file_by_file(log: LogWriter, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = asked("verify", log=log, capsys=capsys)
    assert code == 0
    assert len(lines) == 3
    assert all(line.endswith("ok") for line in lines)
    assert "offsets 4 to 8  1 frames" in lines[1]


def test_damage_is_named_with_its_place(log: LogWriter, capsys: pytest.CaptureFixture[str]) -> None:
    log.damage(4, record("plant/1", b"y" * 10)[:-1] + b"?")
    code, lines = asked("verify", "--json", log=log, capsys=capsys)
    assert code == 3
    reports = [json.loads(line) for line in lines]
    assert [bool(report["damage"]) for report in reports] == [False, True, False]
    (place,) = reports[1]["damage"]
    assert place.startswith("offset 4: a record of")


def test_records_are_listed_without_their_payloads(
    log: LogWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = asked("show", "--from", "3", "--limit", "2", log=log, capsys=capsys)
    assert code == 0
    assert [line.split()[0] for line in lines] == ["3", "4"]
    assert "plant/1" in lines[1] and "10 bytes" in lines[1] and "xxxx" not in lines[1]
    code, lines = asked("show", "--from", "11", "--json", log=log, capsys=capsys)
    assert json.loads(lines[0])["topic"] == "plant/2"


def test_a_directory_without_a_log_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "verify", "--data-dir", str(tmp_path)]) == 1
    assert "has no embedded message log" in capsys.readouterr().err
