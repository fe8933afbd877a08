"""Pages for people in trouble or new here, against the source: exit codes, quoted messages, glossary, decisions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [ROOT / folder / "src" for folder in (".", "bench", "migrate")]
TROUBLE = ROOT / "docs" / "troubleshooting.md"
GLOSSARY = ROOT / "docs" / "glossary.md"
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
DECISION_LINES_MAX = 45
WORDS_OF_A_MESSAGE = 4
"""Shorter quotes are names, or put together in the source out of several parts."""
FROM_OUTSIDE = (
    "Address already in use",
    "No space left on device",
    "file is not a database",
    "cannot read the schema version in",
    "the driver ended with code",
    "Python worker failed to connect back",
)
"""Texts of the system, SQLite and Spark, and two that the source puts together."""
COMMANDS = ("embermq ", "queues ", "openssl ", "redis-cli ", "ps ")
ENDS = ("Exit", "SystemExit", "_exit")
TERMS = """message log, program log, record, offset, position, stamp, application log, device queue, durable queue,
message store, lake, checkpoint, DEVICE, APPLICATION, session, kept session, generation, epoch, takeover, in flight,
parked, tick, commit, dispatcher, floor, cursor, progress, behind, pin, broker time, consumer group, lease, settle,
dead letter, suspect, slot, pipeline, dispatch, store, data directory"""


@cache
def trees() -> tuple[ast.Module, ...]:
    return tuple(ast.parse(path.read_text()) for source in SOURCES for path in sorted(source.rglob("*.py")))


def exit_codes() -> Iterator[int]:
    """Constants that name an exit code, `exit_code` of errors, and numbers with which a program ends."""
    for node in (node for tree in trees() for node in ast.walk(tree)):
        found: list[ast.expr] = []
        if isinstance(node, ast.Assign) and any(map(_names_an_exit_code, node.targets)):
            found = [node.value]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ENDS:
            found = [
                side
                for given in node.args
                for side in ([given.body, given.orelse] if isinstance(given, ast.IfExp) else [given])
            ]
        for one in found:
            if isinstance(one, ast.Constant) and type(one.value) is int:
                yield one.value


def _names_an_exit_code(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and (target.id == "exit_code" or target.id.startswith("EXIT_"))


def test_every_exit_code_is_explained() -> None:
    rows = re.findall(r"^\| ([\d, ]+) \|", TROUBLE.read_text(), re.MULTILINE)
    explained = {int(code) for row in rows for code in row.split(",")}
    used = set(exit_codes())
    assert {1, 2, 3, 4} <= used
    assert used <= explained, f"docs/troubleshooting.md does not explain {sorted(used - explained)}"


def squeezed(text: str) -> str:
    return " ".join(text.split())


def messages() -> str:
    """Every text of the source, with `…` for what is put in."""
    found: list[str] = []
    for node in (node for tree in trees() for node in ast.walk(tree)):
        if isinstance(node, ast.JoinedStr):
            parts = (value.value if isinstance(value, ast.Constant) else "…" for value in node.values)
            found.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            text = node.value if isinstance(node.value, str) else node.value.decode(errors="replace")
            found.append(re.sub(r"%[srd]|%\.\df", "…", text))
    return squeezed("\n".join(found))


def quoted() -> set[str]:
    """What the page quotes of messages: parts between `…` that are long enough to be told from anything else."""
    text = re.sub(r"```.*?```", "", TROUBLE.read_text(), flags=re.DOTALL)
    quotes = (quote for quote in re.findall(r"`([^`\n]+)`", text) if not quote.startswith(COMMANDS))
    parts = (part.strip(" ;:,()-") for quote in quotes for part in re.split(r"…|: |\d+$", quote))
    return {part for part in parts if len(part.split()) >= WORDS_OF_A_MESSAGE}


def test_quoted_messages_are_printed() -> None:
    """Who changes a message changes the page, or nobody finds the way out by searching for it."""
    quotes, printed = quoted(), messages()
    assert len(quotes) > 50
    unknown = {quote for quote in quotes if not quote.startswith(FROM_OUTSIDE) and quote not in printed}
    assert not unknown, f"docs/troubleshooting.md quotes what the source does not say: {sorted(unknown)}"


def test_the_glossary_has_its_terms() -> None:
    heads = " ".join(re.findall(r"^\*\*.*?\.(?: |$)", GLOSSARY.read_text(), re.MULTILINE))
    bold = set(re.findall(r"\*\*([^*]+)\*\*", GLOSSARY.read_text())) | set(re.findall(r"\*([^*]+)\*", heads))
    missing = {term.strip() for term in squeezed(TERMS).split(",")} - bold
    assert not missing, f"docs/glossary.md has no entry for {sorted(missing)}"


def test_front_pages_lead_to_glossary_and_troubleshooting() -> None:
    for page, folder in ((ROOT / "README.md", "docs/"), (ROOT / "docs" / "index.md", "")):
        assert {f"({folder}glossary.md)", f"({folder}troubleshooting.md)"} <= set(
            re.findall(r"\([\w/]+\.md\)", page.read_text())
        )


def test_decisions_are_one_page_and_in_the_index() -> None:
    """What is reference belongs to another page."""
    index = (DECISIONS[0].parent / "README.md").read_text()
    long = {page.stem for page in DECISIONS if len(page.read_text().splitlines()) > DECISION_LINES_MAX}
    assert long == set()
    missing = {page.stem for page in DECISIONS if f"| [{int(page.name[:4])}]({page.name}) |" not in index}
    assert missing == set(), "docs/decisions/README.md needs a line for each"
