"""`embermq tokens` and the file behind it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from embermq.admin.access import Scope
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
