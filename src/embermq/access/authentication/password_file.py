"""Reading the password files of Mosquitto: a line `name:hash` for each user."""

from __future__ import annotations

from msgspec import Struct

from embermq.access.authentication.imported_hashes import is_imported, parse_imported

FILE_BYTES_MAX = 64 * 1024 * 1024


class PasswordEntry(Struct, frozen=True):
    """One user of the file; `line` counts from 1."""

    line: int
    name: str
    password_hash: str

    def __repr__(self) -> str:
        """Without the hash."""
        return f"Entry(line={self.line}, name={self.name!r})"


def parse_password_file(data: bytes) -> tuple[list[PasswordEntry], list[str]]:
    """The users, and what is wrong, by line. Empty lines and those that begin with # say nothing.

    What is wrong is told without what the line holds: it may be a password.
    """
    entries: dict[str, PasswordEntry] = {}
    problems: list[str] = []
    for number, ended in enumerate(data.split(b"\n"), 1):
        line = ended.rstrip(b"\r")
        if not line.strip() or line.startswith(b"#"):
            continue
        try:
            entry = _parse(number, line)
            if entry.name in entries:
                raise ValueError(f"names a user again who is in line {entries[entry.name].line}")
        except ValueError as error:
            problems.append(f"line {number}: {error}")
        else:
            entries[entry.name] = entry
    return list(entries.values()), problems


def _parse(number: int, line: bytes) -> PasswordEntry:
    try:
        text = line.decode()
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    name, colon, password_hash = text.partition(":")
    if not colon:
        raise ValueError("is not name:hash")
    if not password_hash.startswith("$"):
        raise ValueError("has a password in plain text; mosquitto_passwd -U FILE hashes those")
    if not is_imported(password_hash):
        raise ValueError("has a hash of a kind that is not understood; $6$ and $7$ are")
    try:
        parse_imported(password_hash)
    except ValueError as error:
        raise ValueError(f"the hash {error}") from None
    return PasswordEntry(number, name, password_hash)
