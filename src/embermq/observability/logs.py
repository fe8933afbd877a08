"""Log lines on standard error: text for people, JSON for machines."""

import json
import logging
import sys

from embermq.observability.settings import LoggingSettings

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class TextFormatter(logging.Formatter):
    """A line for people, with what cannot be shown spelt out: names come from clients, and may have line ends."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that logging calls
        """All but a traceback, which comes behind it."""
        if not record.message.isprintable():
            record.message = "".join(
                one if one.isprintable() else one.encode("unicode_escape").decode() for one in record.message
            )
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and what was given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({name: value for name, value in record.__dict__.items() if name not in _STANDARD})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logging(settings: LoggingSettings) -> None:
    """Send what the broker logs to standard error, as the settings say."""
    handler = logging.StreamHandler(sys.stderr)
    text = TextFormatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonFormatter() if settings.format == "json" else text)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # its start and stop are ours to tell
    # A server that goes away is told by who asked it; the pool's own trace of a connection that it drops is no news.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
