"""`embermq tokens` and the file behind it."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest

from embermq.admin.access import ApiToken, Scope, token_hash
from embermq.app.api_tokens import FILE_NAME, TokenFile
from embermq.cli.main import main


def test_the_file_is_its_owner_s_alone_and_holds_no_token(tmp_path: Path) -> None:
    secret = TokenFile(tmp_path / "data").create("a", Scope.READ, 0)
    found = tmp_path / "data" / FILE_NAME
    assert stat.S_IMODE(found.stat().st_mode) == 0o600 and stat.S_IMODE(found.parent.stat().st_mode) == 0o700
    assert secret not in found.read_text() and secret.removeprefix("emq_") not in found.read_text()


def test_who_takes_back_the_last_token_is_told_what_that_opens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        assert main(["tokens", "create", name, "--data-dir", str(tmp_path)]) == 0
    assert main(["tokens", "revoke", "a", "--data-dir", str(tmp_path)]) == 0
    assert "no token is left" not in capsys.readouterr().err
    assert main(["tokens", "revoke", "b", "--data-dir", str(tmp_path)]) == 0
    assert "no token is left: programs on this machine may use the API without one" in capsys.readouterr().err


def test_a_directory_that_was_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A token beside the broker's own would be no token, and an empty list of another place says nothing of it."""
    place = ["--data-dir", str(tmp_path / "mistyped")]
    for words in (["list"], ["revoke", "a"]):
        assert main(["tokens", *words, *place]) == 1
        told = f"embermq: there is no data directory {tmp_path}/mistyped; name it with --data-dir\n"
        assert capsys.readouterr() == ("", told)
    assert not list(tmp_path.iterdir())
    assert main(["tokens", "create", "a", *place]) == 0
    made = capsys.readouterr()
    assert made.out.startswith("emq_") and made.out.count("\n") == 1
    assert made.err.startswith(f"made the data directory {tmp_path}/mistyped: ")
    assert main(["tokens", "create", "b", *place]) == 0
    assert capsys.readouterr().err == ""


def test_a_token_that_is_over_at_once_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokens", "create", "a", "--expires", "0s", "--data-dir", str(tmp_path)]) == 2
    assert capsys.readouterr() == ("", "embermq: --expires: 0s is over at once\n")
    assert not (tmp_path / FILE_NAME).exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "a\x1b[31m"),
        ("name", "a\n"),
        ("hash", "é"),
        ("hash", "0" * 63),
        ("created_ms", 99_999_999_999_999_999),
        ("expires_ms", -1),
        ("scope", "root"),
    ],
)
def test_a_file_that_says_what_cannot_be_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, value: object
) -> None:
    token = msgspec.to_builtins(ApiToken("a", Scope.READ, token_hash("x"), 0))
    (tmp_path / FILE_NAME).write_bytes(msgspec.json.encode([{**token, field: value}]))
    assert main(["tokens", "list", "--data-dir", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "api-tokens.json is damaged" in told and f"$[0].{field}" in told and told.count("\n") == 1
