"""What a reader of the documentation would type: the commands of its pages."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "client/README.md", "tests/README.md")),
        *(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions"),
    ]
)
"""Decisions tell of what there was."""
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
SHELLS = ("", "sh", "console")
PROGRAMS = {
    "base64", "basenc", "cat", "cd", "curl", "do", "done", "embermq", "export", "git", "head", "make", "mosquitto_pub",
    "mosquitto_sub", "pip", "podman", "printf", "python", "read", "redis-server", "seq", "sqlite3", "systemctl", "tail",
    "while", "xargs",
}  # fmt: skip
"""With what a line of a block of commands may begin, and every part of it that a pipe or an `&&` begins."""
FOLDER = ".venv/bin/"
BETWEEN = {"|", "||", "&&", ";", "("}


@dataclass(frozen=True, slots=True)
class Block:
    """Commands that a page shows together."""

    page: Path
    number: int
    text: str
    told: str
    """What it says that the commands print, in a block that shows both."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}-{self.number}"


def blocks(page: Path) -> Iterator[Block]:
    """Those whose first line is a command."""
    for number, (language, text) in enumerate(FENCED.findall(page.read_text())):
        if language not in SHELLS:
            continue
        lines = text.splitlines(keepends=True)
        if language == "console":
            typed = "".join(line[2:] for line in lines if line.startswith("$ "))
            yield Block(page, number, typed, "".join(line for line in lines if not line.startswith("$ ")))
        elif lines[0].split() and is_program(lines[0].split()[0]):
            yield Block(page, number, text, "")


def is_program(word: str) -> bool:
    """Whether it is one that a reader has."""
    return word.removeprefix(FOLDER) in PROGRAMS


def parts(text: str) -> list[list[str]]:
    """The commands of a text, each as words, without comments and without what leads to files; of what may be left out
    (`[--json]`) with it, and of what may be chosen (`a|b`) the first. Raises ValueError for quotes that do not end."""
    found: list[list[str]] = []
    for line in map(chosen, joined(text)):
        reader = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
        reader.commenters = "#"
        reader.whitespace_split = True
        words: list[str] = []
        skips = False
        for token in reader:
            if skips:
                skips = False
            elif token in BETWEEN:
                found.append(words)
                words = []
            elif set(token) <= {"<", ">"}:
                skips = True
            else:
                words.append(token)
        found.append(words)
    return [words for words in found if words]


def chosen(line: str) -> str:
    """Without the signs of a synopsis, which has no quotes."""
    if "'" in line or '"' in line or "embermq[" in line:
        return line
    return (
        re.sub(r"(?<=\w)(\|[\w-]+)+", "", line).replace("[", "").replace("]", "").replace("NAME...", "NAME")
    )


def joined(text: str) -> list[str]:
    """Lines, where those that a quote or a backslash holds together are one."""
    lines: list[str] = []
    open_line = ""
    for line in text.splitlines():
        open_line += line
        if open_line.endswith("\\"):
            open_line = open_line[:-1]
            continue
        try:
            shlex.split(open_line, comments=True)
        except ValueError:
            open_line += "\n"
            continue
        lines.append(open_line)
        open_line = ""
    if open_line:
        raise ValueError(f"a quote that does not end: {open_line}")
    return lines


def inline(page: Path) -> Iterator[list[str]]:
    """Commands of EmberMQ that stand in the text of a page, in backticks."""
    text = FENCED.sub("", page.read_text())
    for quoted in INLINE.findall(text):
        if quoted.removeprefix(FOLDER).startswith("embermq "):
            yield from parts(quoted)
