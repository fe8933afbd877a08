"""Brokers by name, and what a shell is told of the commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from embermq.app.errors import OptionError
from embermq.cli.control import Reached, profiles_file, reached
from embermq.cli.main import main

TEXT = """\ufeff[plant]
url = "https://broker.example:8443"
token_file = "plant.token"
ca = "/etc/ca.pem"

[here]
url = "http://localhost:8080"
"""


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    found = tmp_path / "embermq" / "profiles.toml"
    found.parent.mkdir()
    found.write_text(TEXT, encoding="utf-8")
    assert profiles_file() == found
    return found


def test_a_profile_says_where_and_by_what_and_options_win(file: Path) -> None:
    url = "https://broker.example:8443"
    assert reached("plant", None, None, None) == Reached(
        url, file.parent / "plant.token", Path("/etc/ca.pem")
    )
    mine = Path("mine")
    assert reached("plant", None, mine, mine) == Reached(url, mine, mine)
    assert reached("here", None, None, None) == Reached("http://localhost:8080", None, None)
    assert reached(None, "http://x", mine, None) == Reached("http://x", mine, None)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "profiles.toml: No such file"),
        (TEXT, "has no profile 'x'; it has here, plant"),
        ("[x]\nurl = 1", "url"),
        ("[x]\nurl = 'a'\ntoken = 'b'", "token"),
        ("x", "profiles.toml: "),
    ],
)
def test_what_is_wrong_with_it_is_said(
    file: Path, text: str | None, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is None:
        file.unlink()
    else:
        file.write_text(text, encoding="utf-8")
    assert main(["sessions", "list", "--profile", "x"]) == 2
    assert told in capsys.readouterr().err
    with pytest.raises(OptionError, match="one of them"):
        reached("here", "http://x", None, None)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("embermq ses", {"sessions"}),
        ("embermq sessions ", {"list", "show"}),
        ("embermq pub --pass", {"--password"}),
    ],
)
def test_a_shell_is_told_how_a_command_goes_on(
    typed: str, expected: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_EMBERMQ_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
    with pytest.raises(SystemExit, match="0"):
        main([])
    assert expected <= set(capsys.readouterr().out.split())
