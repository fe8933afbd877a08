"""The audit trail on disk: `audit-trail.jsonl` in the data directory, and older parts of it.

A change has two lines: one before it is done, and one with what became of it. Lines are only ever appended, by the
broker and by commands, one at a time; parts that are full get a number, and the oldest goes when there are too many.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import pwd
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from embermq.admin.trail import DONE, VALUE_CHARACTERS_MAX, ChangeBegun, ChangeView, ListChangesRequest
from embermq.app.durable_file import sync_folder
from embermq.ports.errors import StoreError

STEM = "audit-trail"
PART_BYTES_MAX = 8 * 1024 * 1024
PARTS_MAX = 8
"""So the trail has 64 MiB at most, some 200,000 changes."""
FILES = (f"{STEM}.jsonl", *(f"{STEM}.{number}.jsonl" for number in range(1, PARTS_MAX)))
"""The present part, then the older ones."""
LOCK_NAME = f"{STEM}.lock"
UNKNOWN = "unknown"

_log = logging.getLogger(__name__)


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`outcome` is "" in the first line of a change, and the only news in its second."""

    id: str
    at: str
    by: str = ""
    peer: str = ""
    over: str = ""
    operation: str = ""
    object: Mapping[str, Any] = {}
    outcome: str = ""


class AuditTrail:
    """The broker's end, on the event loop. Lines that come together are one write."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._waiting: list[bytes] = []
        self._turn = asyncio.Lock()
        self._ends: set[asyncio.Task[None]] = set()
        self._complaint = ""

    async def begin(self, change: ChangeBegun) -> str:
        """See `Trail`."""
        change_id, line = _begun(change)
        self._waiting.append(line)
        await self._write()
        return change_id

    def end(self, change_id: str, outcome: str) -> None:
        """See `Trail`."""
        self._waiting.append(_ended(change_id, outcome))
        task = asyncio.ensure_future(self._write())
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    async def close(self) -> None:
        """Returns when all is written."""
        await self._write()

    async def _write(self) -> None:
        async with self._turn:
            lines, self._waiting = self._waiting, []
            if not lines:
                return
            try:
                await asyncio.to_thread(append, self._data_dir, lines)
            except OSError as error:
                if str(error) != self._complaint:  # once, since a full disk stays full
                    self._complaint = str(error)
                    _log.error("changes by operators are not in the audit trail: %s", error)
            else:
                self._complaint = ""

    async def page(self, asked: ListChangesRequest) -> Sequence[ChangeView]:
        """See `TrailDesk`."""
        try:
            return await asyncio.to_thread(changes, self._data_dir, asked)
        except OSError as error:
            raise StoreError(f"the audit trail cannot be read: {error}") from error


@contextmanager
def command_recorded(data_dir: Path, operation: str, about: Mapping[str, object]) -> Iterator[None]:
    """What a command changes without the broker. A data directory that is not there yet gets its lines afterwards.
    Raises OSError: what cannot be recorded is not done."""
    change = ChangeBegun(by=f"user {user_name()}", peer="", over="command", operation=operation, object=about)
    change_id, line = _begun(change)
    is_begun = data_dir.is_dir()
    if is_begun:
        append(data_dir, [line])
    outcome = UNKNOWN
    try:
        yield
        outcome = DONE
    except Exception as error:
        outcome = f"refused: {error}"[:VALUE_CHARACTERS_MAX]
        raise
    finally:
        if is_begun:
            append(data_dir, [_ended(change_id, outcome)])
        elif outcome == DONE and data_dir.is_dir():
            append(data_dir, [line, _ended(change_id, outcome)])


def user_name(uid: int | None = None) -> str:
    """Of the operating system: who has this number, or runs this process."""
    number = os.getuid() if uid is None else uid
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def append(data_dir: Path, lines: Sequence[bytes]) -> None:
    """Durably, and as the data directory's owner, whoever runs the command. May be called from any thread and process.
    Raises OSError."""
    owner = data_dir.stat()
    lock = _opened(data_dir / LOCK_NAME, owner, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        present = data_dir / FILES[0]
        if present.exists() and present.stat().st_size >= PART_BYTES_MAX:
            for newer, older in reversed(tuple(pairwise(FILES))):
                if (data_dir / newer).exists():
                    os.replace(data_dir / newer, data_dir / older)
        file = _opened(present, owner, os.O_RDWR | os.O_APPEND)
        try:
            size = os.fstat(file).st_size
            torn = b"\n" if size and os.pread(file, 1, size - 1) != b"\n" else b""
            data = torn + b"".join(lines)
            if os.write(file, data) < len(data):  # what is there is a torn line
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(present))
            os.fsync(file)
            if not size:
                sync_folder(data_dir)
        finally:
            os.close(file)
    finally:
        os.close(lock)


def _opened(path: Path, owner: os.stat_result, flags: int) -> int:
    file = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if os.geteuid() == 0 and os.fstat(file).st_uid != owner.st_uid:
        os.fchown(file, owner.st_uid, owner.st_gid)
    return file


def changes(data_dir: Path, asked: ListChangesRequest) -> list[ChangeView]:
    """Newest first. Raises OSError."""
    found: list[ChangeView] = []
    outcomes: dict[str, str] = {}
    is_behind = not asked.after
    for line in _from_the_end(data_dir):
        if line.outcome:
            outcomes[line.id] = line.outcome
            continue
        outcome = outcomes.pop(line.id, UNKNOWN)
        if (
            is_behind
            and (not asked.by or line.by == asked.by)
            and (not asked.what or line.operation == asked.what)
        ):
            found.append(
                ChangeView(
                    id=line.id, at=line.at, by=line.by, peer=line.peer, over=line.over,
                    operation=line.operation, object=line.object, outcome=outcome,
                )
            )  # fmt: skip
            if len(found) == asked.limit:
                break
        is_behind = is_behind or line.id == asked.after
    return found


def _from_the_end(data_dir: Path) -> Iterator[_Line]:
    for name in FILES:
        try:
            data = (data_dir / name).read_bytes()
        except FileNotFoundError:
            continue
        for each in reversed(data.splitlines()):
            try:
                yield msgspec.json.decode(each, type=_Line)
            except msgspec.MsgspecError:  # torn by a loss of power
                continue


def _begun(change: ChangeBegun) -> tuple[str, bytes]:
    change_id = secrets.token_hex(8)
    line = _Line(
        id=change_id, at=_now(), by=change.by, peer=change.peer, over=change.over,
        operation=change.operation, object=change.object,
    )  # fmt: skip
    return change_id, msgspec.json.encode(line) + b"\n"


def _ended(change_id: str, outcome: str) -> bytes:
    return msgspec.json.encode(_Line(id=change_id, at=_now(), outcome=outcome)) + b"\n"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
