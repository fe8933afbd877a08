"""Log lines on standard error: text for people, JSON for machines.

Names in them come from clients. No client can write a line of its own, or a field: what cannot be shown is escaped,
values of fields are quoted, and traces are indented.
"""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from functools import lru_cache

from embermq.observability.settings import LoggingSettings

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_PLAIN = re.compile(r"[\w.:/@+-]+", re.ASCII)
INDENT = "    "
TEXTS_REMEMBERED = 1_024
"""Values of fields as they are written: listeners, versions and reasons repeat line by line."""
REMEMBERED_MAX = 128
"""Characters of such a value: clients choose theirs, and 64 KiB of each would stay."""


class _UtcFormatter(logging.Formatter):
    """Tells times in UTC, with offset and milliseconds (RFC 3339)."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging's name
        """The moment of the record."""
        second = int(record.created)
        return f"{_second(second)}.{int((record.created - second) * 1000):03d}+00:00"


class TextFormatter(_UtcFormatter):
    """A line for people; what was given as `extra` follows the message as `name=value`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line without its end, and an indented trace behind it."""
        parts = [self.formatTime(record), record.levelname, _shown(record.getMessage())]
        parts += [f"{name}={_value(value)}" for name, value in _extra(record).items()]
        lines = [" ".join(parts)]
        if record.exc_info:
            lines += [INDENT + _shown(line) for line in self.formatException(record.exc_info).splitlines()]
        return "\n".join(lines)


class JsonFormatter(_UtcFormatter):
    """One JSON object a line: time, level, logger, message, and what was given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= _extra(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


@lru_cache(2)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}


def _shown(text: str) -> str:
    """The text with what cannot be shown spelt out."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _value(value: object) -> str:
    """As logfmt has it: quoted when it is more than a word."""
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    return _remembered(text) if len(text) <= REMEMBERED_MAX else _quoted(text)


@lru_cache(TEXTS_REMEMBERED)
def _remembered(text: str) -> str:
    return _quoted(text)


def _quoted(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else _shown(json.dumps(text, ensure_ascii=False))


def configure_logging(settings: LoggingSettings) -> None:
    """Send what the broker logs to standard error, as the settings say."""
    _leave_out_what_no_line_shows()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter())
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # its start and stop are ours to tell
    # A server that goes away is told by who asked it; the pool's own trace of a connection that it drops is no news.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)


def _leave_out_what_no_line_shows() -> None:
    """No line names a place in the source, a thread or a process, and to find them costs more than the line: who
    called is looked for frame by frame (logging, "Optimization")."""
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    if sys.version_info >= (3, 12):
        logging.logAsyncioTasks = False
