"""A password that stands in a file, so that it is in no URL and on no command line."""

from __future__ import annotations

from pathlib import Path

from embermq.app.errors import StartError


def read_password(setting: str, path: str) -> str:
    """What the file says, without a line end. Raises StartError, naming the setting, never what the file says."""
    try:
        password = Path(path).read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise StartError(f"{setting}: {path!r}: {reason}") from None
    if not password:
        raise StartError(f"{setting}: {path!r}: is empty")
    return password
