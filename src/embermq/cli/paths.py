"""Names in the paths of the API."""

from __future__ import annotations

from urllib.parse import quote

from embermq.app.errors import OptionError

QUEUES = "/api/v1/queues"


def queue_path(name: str) -> str:
    """Where the API has a durable queue."""
    return f"{QUEUES}/{quoted(name)}"


def quoted(name: str) -> str:
    """One part of a path, whatever the name holds: `.` and `..` name queues here and lead nowhere, and what
    was typed may be no UTF-8."""
    if not name:
        raise OptionError("a name, or an id, is empty")
    return quote(name, safe="", errors="surrogateescape").replace(".", "%2E")
