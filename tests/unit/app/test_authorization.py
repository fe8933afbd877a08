"""Files of rules: reading them, and noticing that they change."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.support.waiting import wait_for

from embermq.access.authorization.rule_set import RuleSet
from embermq.access.authorization.rules import Action, Principal
from embermq.access.authorization.settings import AuthorizationSettings
from embermq.app import authorization
from embermq.app.authorization import RuleFiles
from embermq.app.config import load_configuration
from embermq.app.errors import ConfigError, RulesFileError

ALLOW = '[[rule]]\nallow = "all"\ntopics = "{}"\n'
SOMEBODY = Principal("u", "c")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rules.toml"


def files(path: Path, **settings: object) -> RuleFiles:
    return RuleFiles(AuthorizationSettings(rules=str(path), **settings))  # type: ignore[arg-type]


def allowed(rules: RuleSet | None, topic: str) -> bool:
    assert rules is not None
    return rules.decide(SOMEBODY, Action.PUBLISH, topic).allowed


def test_without_files_there_are_no_rules() -> None:
    assert RuleFiles(AuthorizationSettings()).read() is None


@pytest.mark.parametrize(("no_match", "expected"), [("auto", False), ("deny", False), ("allow", True)])
def test_what_no_rule_matches(path: Path, no_match: str, expected: bool) -> None:
    """An empty file denies everything: it may have been cut short."""
    path.write_text("")
    rules = files(path, no_match=no_match).read()
    assert allowed(rules, "t") is expected


def test_rules_come_before_the_mosquitto_acl(path: Path, tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text("pattern write #\n")
    path.write_text('[[rule]]\ndeny = "publish"\ntopics = "no"\n')
    rules = files(path, mosquitto_acl=str(acl)).read()
    assert (allowed(rules, "no"), allowed(rules, "yes")) == (False, True)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot read {path}: No such file or directory"),
        (b"\n\xff", "{path}:2: is not UTF-8"),
        (b"#" * (1024 * 1024 + 1), "{path}: is larger than a file of rules may be, 1048576 bytes"),
        (
            b"[[rule]]",
            "{path}:1: a rule has either allow or deny, with what it is about, or use_server or moved_to",
        ),
    ],
)
def test_what_cannot_be_read_is_told(path: Path, content: bytes | None, told: str) -> None:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RulesFileError) as caught:
        files(path).read()
    assert str(caught.value) == "authorization.rules: " + told.format(path=path)


def test_only_files_are_read(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (tmp_path, fifo):
        with pytest.raises(RulesFileError, match=r"Is a directory|is not a file"):
            files(path).read()


def test_denying_everything_to_everybody_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^authorization.no_match: deny refuses everything"):
        load_configuration(assignments=["authorization.no_match=deny"])


class Watched:
    """Rule files that are watched, and what they have handed over. `before_look` is done before each look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = files(path)
        self.given: list[RuleSet] = []
        self.before_look: Callable[[], None] = lambda: None
        self._looks = 0
        self._look = self.files._look
        self.files._look = self._counted  # type: ignore[method-assign]
        self.files.read()
        self._task = asyncio.get_running_loop().create_task(self.files.watch(self.given.append))

    def _counted(self) -> list[authorization.Mark]:
        self.before_look()
        found = self._look()
        self._looks += 1
        return found

    def put(self, text: str) -> None:
        self.path.write_text(text)

    def replace_unnoticed(self, text: str) -> None:
        """Another file of the same size and time."""
        fresh, stat = self.path.with_name("fresh"), self.path.stat()
        fresh.write_text(text)
        os.utime(fresh, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        fresh.replace(self.path)

    def append(self) -> None:
        with self.path.open("a") as file:
            file.write("#")

    async def looks(self, times: int = 6) -> None:
        """Wait until it has looked so often."""
        enough = self._looks + times
        await wait_for(lambda: self._looks >= enough)

    async def has(self, number: int) -> None:
        """Wait until so many sets of rules have come."""
        await wait_for(lambda: len(self.given) >= number)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.fixture(autouse=True)
def looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorization, "LOOK_S", 0.001)


def test_a_change_is_noticed_and_what_stays_is_not_read_again(path: Path) -> None:
    async def scenario() -> None:
        watched = Watched(path)
        await watched.looks()
        assert watched.given == []
        watched.put(ALLOW.format("b"))  # the same size
        await watched.has(1)
        assert allowed(watched.given[0], "b")
        watched.replace_unnoticed(ALLOW.format("c"))
        await watched.has(2)
        assert allowed(watched.given[1], "c")
        await watched.looks()
        assert len(watched.given) == 2
        await watched.stop()

    path.write_text(ALLOW.format("a"))
    asyncio.run(scenario())


def test_what_is_broken_is_told_once_and_forgotten_when_it_is_mended(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        watched = Watched(path)
        for do in (partial(watched.put, "[[rule]]"), path.unlink):
            do()
            await watched.looks()
            assert watched.given == []
        watched.put(ALLOW.format("b"))
        await watched.has(1)
        await watched.stop()

    path.write_text(ALLOW.format("a"))
    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [error.rpartition(str(path))[2] for error in errors] == [
        ":1: a rule has either allow or deny, with what it is about, or use_server or moved_to",
        ": No such file or directory",
    ]


def test_a_file_that_is_still_being_written_is_left_alone(path: Path) -> None:
    """It changes with every look: its denials may come last."""

    async def scenario() -> None:
        watched = Watched(path)
        watched.before_look = watched.append
        await watched.looks()
        assert watched.given == []
        watched.before_look = lambda: None
        await watched.has(1)
        await watched.stop()

    path.write_text(ALLOW.format("a"))
    asyncio.run(scenario())


def test_a_file_that_could_not_be_opened_is_tried_again_and_that_is_told_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without descriptors left, or with the wrong owner for a while, new denials must not be lost."""
    opened, refusals = os.open, [OSError(errno.EMFILE, "Too many open files")] * 3

    def scarce(name: str, flags: int) -> int:
        if refusals:
            raise refusals.pop()
        return opened(name, flags)

    path.write_text(ALLOW.format("old"))

    async def scenario() -> None:
        watched = Watched(path)
        monkeypatch.setattr(os, "open", scarce)
        watched.put(ALLOW.format("new"))
        await watched.has(1)
        await watched.stop()
        assert allowed(watched.given[-1], "new")

    caplog.set_level(logging.ERROR, "embermq.authorization")
    asyncio.run(scenario())
    assert [record.getMessage().endswith("Too many open files") for record in caplog.records] == [True]
