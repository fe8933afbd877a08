"""Commands of packages of their own: there when they are installed, named when they are not."""

from __future__ import annotations

import pytest

from embermq.cli import packaged
from embermq.cli.main import main, new_app, run_program

COMMANDS = [(packaged.COMMANDS, "bench"), (packaged.PIPELINE_COMMANDS, "migrate")]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["bench"], "p2p"),
        (["pub"], "-h, --host"),
        (["sub"], "-h, --host"),
        (["pipeline", "migrate"], "--from"),
        ([], "bench"),
    ],
)
def test_an_installed_package_has_its_command(
    capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main([*words, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"Usage: {' '.join(['embermq', *words])} " in shown and told in shown
    assert "Not installed" not in shown


@pytest.mark.parametrize("words", [[], ["anything", "--from", "x"], ["--help"]])
@pytest.mark.parametrize(("group", "command"), COMMANDS)
def test_a_command_that_is_not_installed_names_its_package(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    group: str,
    command: str,
    words: list[str],
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    app = new_app()
    app.callback()(lambda: None)
    packaged.add_packaged(app, group)
    assert run_program("embermq", app, [command, *words]) == 1
    told = f"embermq {command} is not installed: run `make install`, or pip install embermq-{command}"
    told += f", which is in ./{command} of the repository"
    assert capsys.readouterr().err == f"embermq: {told}\n"


def test_the_others_are_listed_without_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "Not installed: it is in embermq-bench." in shown and "check-config" in shown
