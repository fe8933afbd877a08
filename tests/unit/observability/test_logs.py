"""Lines that nobody but the broker writes."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from embermq.observability import logs
from embermq.observability.logs import JsonFormatter, TextFormatter, configure_logging
from embermq.observability.settings import LoggingSettings

CREATED_S = 1_763_897_706.0425
TIME = "2025-11-23T11:35:06.042+00:00"
FORGED = "c1\n2026-01-01T00:00:00.000+00:00 INFO client connected event=connected user=root\r\x1b[2K\u202e\x85\ud800"


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    found = logging.LogRecord("embermq", logging.INFO, __file__, 1, message, args, None)
    found.created = CREATED_S
    found.__dict__.update(extra)
    return found


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_times_are_in_utc_with_offset_and_milliseconds(formatter: logging.Formatter) -> None:
    assert TIME in formatter.format(record("x"))


def test_the_same_second_has_other_milliseconds() -> None:
    lines = []
    for created_s in (CREATED_S, CREATED_S + 0.95, CREATED_S + 0.96, CREATED_S + 3_600, CREATED_S):
        one = record("x")
        one.created = created_s
        lines.append(TextFormatter().format(one).split(" ")[0])
    assert lines == [
        TIME,
        "2025-11-23T11:35:06.992+00:00",
        "2025-11-23T11:35:07.002+00:00",
        "2025-11-23T12:35:06.042+00:00",
        TIME,
    ]


def test_what_clients_make_long_does_not_stay_in_memory() -> None:
    before = logs._remembered.cache_info().misses
    TextFormatter().format(record("x", topic="t" * 10_000))
    assert logs._remembered.cache_info().misses == before


def test_fields_of_a_text_line_are_quoted_when_they_are_more_than_a_word() -> None:
    line = TextFormatter().format(record("client connected", client_id="c 1", user='a"b', kept=True, code=3))
    assert line == f'{TIME} INFO client connected client_id="c 1" user="a\\"b" kept=true code=3'


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
@pytest.mark.parametrize("place", ["message", "field"])
def test_a_client_id_makes_neither_a_line_nor_a_field(formatter: logging.Formatter, place: str) -> None:
    told = record("client %s", FORGED) if place == "message" else record("client", client_id=FORGED)
    line = formatter.format(told)
    assert line.isprintable() and len(line.splitlines()) == 1
    if isinstance(formatter, JsonFormatter):
        assert "user" not in json.loads(line)
    elif place == "field":
        assert line.count('"') == 2, "what it says of a user is inside of the quotes"


def test_a_trace_has_no_line_that_looks_like_one_of_the_log() -> None:
    found = record("failed")
    try:
        raise ValueError(FORGED)
    except ValueError:
        found.exc_info = sys.exc_info()
    first, *others = TextFormatter().format(found).split("\n")
    assert first == f"{TIME} INFO failed"
    assert others and all(line.startswith("    ") and line.isprintable() for line in others)


def test_what_no_line_shows_is_not_looked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    loggers = [root, logging.getLogger("uvicorn"), logging.getLogger("sqlalchemy.pool")]
    levels = [logger.level for logger in loggers]
    for name in ("_srcfile", "logThreads", "logProcesses", "logMultiprocessing", "logAsyncioTasks"):
        monkeypatch.setattr(logging, name, getattr(logging, name, True), raising=False)
    monkeypatch.setattr(root, "handlers", [])
    made: list[logging.LogRecord] = []
    try:
        configure_logging(LoggingSettings())
        root.handlers[0].addFilter(lambda one: not made.append(one))  # type: ignore[func-returns-value]
        logging.getLogger("embermq.test").warning("told", extra={"event": "connected"})
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
    assert capsys.readouterr().err.endswith(" WARNING told event=connected\n")
    assert made[0].lineno == 0 and made[0].thread is None and made[0].process is None
