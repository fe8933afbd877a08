"""Every command of the documentation is one that there is, with options that it has. Nothing is run here;
tests/integration/test_documented_commands.py runs what can be run beside others."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.support.typed_commands import FENCED, FOLDER, PAGES, PROGRAMS, ROOT, Block, blocks, inline, parts

from embermq.admin.operations import HTTP_OPERATIONS
from embermq.cli.main import app_for

INDENTED = re.compile(
    rf"^    (?:\$ )?(?:{re.escape(FOLDER)})?(?:{'|'.join(sorted(PROGRAMS))}) ", re.MULTILINE
)
BLOCKS = [block for page in PAGES for block in blocks(page)]
DONE_AT_ONCE = ("--install-completion", "--version", "--help")
"""Options that do something while they are parsed."""
SHORT = re.compile(r"^Usage:|^Missing|requires an argument")
PLACEHOLDER = re.compile(r"'[A-Z][A-Z-]*'|'\.\.\.'")
REQUEST = re.compile(r"`(?:(GET|PUT|POST|PATCH|DELETE) )(/[^`?,; ]+)")
OFFERED = {(each.method, f"/api/v1{path}") for each in HTTP_OPERATIONS for path in each.paths}
ADDRESSES = {"", "health", "ready", "metrics", *(path[1:] for _, path in OFFERED)}
PART = re.compile(r"\{[a-z_]+\}")
MOSQUITTO = ("mosquitto_pub", "mosquitto_sub")
Words = Sequence[str]


@cache
def command_of(first: str) -> Any:
    """The program with that command, or with all of them when there is no such one."""
    return typer.main.get_command(app_for([first]))


def parsed(words: Words, *, whole: bool) -> None:
    """As the program parses them. A command that is not `whole`, since a text only names it, may lack what it needs.
    Raises AssertionError."""
    if {"...", "…", *DONE_AT_ONCE} & set(words):
        return
    command = command_of(words[0] if words else "")
    context: Any = None
    name: str | None = "embermq"
    left = list(words)
    try:
        while True:
            context = command.make_context(name, left, parent=context)
            if not hasattr(command, "resolve_command"):
                return
            name, command, left = command.resolve_command(context, [*context._protected_args, *context.args])
    except Exception as error:
        told = error.format_message() if hasattr(error, "format_message") else repr(error)
        if PLACEHOLDER.search(told) or (SHORT.search(told) and not whole):
            return
        raise AssertionError(f"embermq {' '.join(words)}: {told}") from error


@cache
def help_of(program: str) -> str:
    """Of one of Mosquitto's."""
    return subprocess.run([program, "--help"], capture_output=True, text=True, check=False).stdout


@cache
def targets() -> set[str]:
    """Of make."""
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def check(words: Words) -> None:
    """Raises AssertionError."""
    program, given = words[0].removeprefix(FOLDER), words[1:]
    assert program in PROGRAMS, f"is {program!r} a program that every reader has? Then it belongs to PROGRAMS"
    if program == "embermq":
        parsed(given, whole=True)
    elif program == "make":
        assert {word for word in given if "=" not in word} <= targets(), words
    elif program in MOSQUITTO and shutil.which(program):
        options = {word for word in given if re.fullmatch(r"-[a-zA-Z]|--[a-z-]+", word)}
        assert {option for option in options if option not in help_of(program)} == set(), words
    elif program == "python" and "-c" in given:
        ast.parse(given[given.index("-c") + 1])
    elif program == "curl":
        (address,) = (word for word in given if "://" in word)
        asked = address.partition("://")[2].partition("/")[2].partition("?")[0]
        assert any(re.fullmatch(PART.sub("[^/]+", one), asked) for one in ADDRESSES), words
    elif program == "podman" and given[0] == "exec":
        check(given[2 + given.index("-it") :] if "-it" in given else given[2:])


def test_pages_have_commands() -> None:
    assert len(BLOCKS) > 45
    assert {"README.md", "operations.md", "queues.md", "clients.md"} <= {block.page.name for block in BLOCKS}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_stand_in_fences_where_tests_find_them(page: Path) -> None:
    assert INDENTED.findall(FENCED.sub("", page.read_text())) == []


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_what_a_block_has_one_type_can_be_typed(block: Block) -> None:
    for words in parts(block.text):
        check(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_that_a_text_names_are_there(page: Path) -> None:
    for words in inline(page):
        parsed(words[1:], whole=False)


def test_extras_and_targets_that_a_text_names_are_there() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    for page in PAGES:
        text = page.read_text()
        assert set(re.findall(r"embermq\[(\w+)\]", text)) <= extras, page
        assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets(), page


def test_requests_that_a_text_names_are_there() -> None:
    """With any name for a part of the path that is to be filled in."""
    offered = {(method, re.sub(r"\{\w+\}", "{}", path)) for method, path in OFFERED}
    named = {
        (method, re.sub(r"\{\w+\}", "{}", path))
        for page in PAGES
        for method, path in REQUEST.findall(page.read_text())
        if path.startswith("/api/v1/") and "..." not in path
    }
    assert named - offered == set()


@pytest.mark.parametrize(
    "wrong",
    [
        "embermq sesions list",
        "embermq sessions list --awya",
        "embermq sessions show",
        "embermq pub -t a -m b -q 3",
        "make runn",
        "curl http://127.0.0.1:8080/api/v1/nothing",
        "telnet 127.0.0.1",
        "podman exec -it embermq embermq users ad ann",
        "python -c 'import'",
    ],
)
def test_a_mistyped_command_is_found(wrong: str) -> None:
    (words,) = parts(wrong)
    with pytest.raises((AssertionError, SyntaxError)):
        check(words)
