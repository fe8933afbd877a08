"""What is kept of a replay until it is done, and how the broker that runs is asked.

A folder has the job, what was chosen, and what the broker refused; one process at a time works in it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from embermq.adapters.segments.writer import sync_path
from embermq.admin.operations import REPLAY_MESSAGES
from embermq.app.control import ControlClient, NoAnswer
from embermq.app.errors import UserError
from embermq.pipeline.errors import BrokerAway
from embermq.pipeline.jobs.replay_feed import RefusedMessage, Taken

PATIENCE_S = 60.0
"""How long a broker is waited for that goes away meanwhile: a start with a million messages takes a few seconds."""
JOB, REFUSED, CHOSEN = "replay.json", "refused.jsonl", "chosen"
_LOCK = "lock"
_Job = TypeVar("_Job", bound=Struct)


class RefusedFile:
    """The messages that the broker did not take, by number, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found: dict[int, RefusedMessage] = {}
        with suppress(FileNotFoundError):
            for line in path.read_bytes().splitlines():
                with suppress(
                    msgspec.DecodeError
                ):  # the end of a line that was being written: it is refused again
                    one = msgspec.json.decode(line, type=RefusedMessage)
                    self.found[one.number] = one

    def __contains__(self, number: object) -> bool:
        return number in self.found

    def add(self, refused: RefusedMessage) -> None:
        """Note a refused message; durable when it returns."""
        with self._path.open("ab") as file:
            file.write(b"\n" + msgspec.json.encode(refused))
            file.flush()
            os.fsync(file.fileno())
        self.found[refused.number] = refused


class ControlDoor:
    """The API on the control socket."""

    def __init__(self, broker: ControlClient, replay: str, client: str) -> None:
        self._broker = broker
        self._replay = replay
        self._client = client

    def take(self, first: int, messages: Sequence[bytes | None]) -> Taken:
        """Raises BrokerAway, and UserError when the broker refuses."""
        try:
            answer = self._broker.ask(
                REPLAY_MESSAGES, replay=self._replay, first=first, messages=messages, client=self._client
            )
        except NoAnswer as error:
            raise BrokerAway(str(error)) from error
        return msgspec.convert(answer, Taken)


@contextmanager
def held_folder(folder: Path, doing: str) -> Iterator[Path]:
    """It is there, and nobody else works in it meanwhile. Raises UserError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UserError(f"another process is at {doing}; wait for it, or end it") from None
    try:
        yield folder
    finally:
        os.close(descriptor)


def read_job(folder: Path, kind: type[_Job]) -> _Job | None:
    """The one that was saved; None when there is none."""
    with suppress(FileNotFoundError):
        return msgspec.json.decode((folder / JOB).read_bytes(), type=kind)
    return None


def save_job(folder: Path, job: Struct) -> None:
    """Write what was asked for in place of what stands there; durable when it returns."""
    fresh = folder / f"{JOB}.new"
    with fresh.open("wb") as file:
        file.write(msgspec.json.encode(job))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(folder / JOB)
    sync_path(folder)


def forget_job(folder: Path) -> None:
    """With all that was chosen and refused."""
    for name in (JOB, REFUSED, CHOSEN):
        remove(folder / name)


def remove(path: Path) -> None:
    """A file, or a folder with all that is in it."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
