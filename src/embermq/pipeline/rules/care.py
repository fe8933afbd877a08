"""A rule that Spark's Java dies of is paused, so that the pipeline lives.

Each rule notes before a batch that it is at work, and takes the note away after it. Who finds a note when the driver
starts was at work when the one before died. Then rules work one at a time, until the one is known.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct
from py4j.protocol import Py4JError, Py4JJavaError

from embermq.pipeline.errors import RuleError
from embermq.pipeline.paused import pause_queries
from embermq.pipeline.places import Places
from embermq.pipeline.rules.settings import query_of_rule

DEATHS_MAX = 3
FOLDER = "rules-at-work"


class _Note(Struct, frozen=True):
    position: str
    deaths: int


class Care:
    """Of all rules of one driver. Threads share it."""

    def __init__(self, places: Places) -> None:
        self._data_dir = places.data_dir
        self._folder = places.work / FOLDER
        self._folder.mkdir(parents=True, exist_ok=True)
        self._found = {
            path.name: note for path in self._folder.iterdir() if (note := _read(path)) is not None
        }
        self._alone = threading.Lock()

    @contextmanager
    def at_work(self, rule: str, position: str) -> Iterator[None]:
        """While the rule has a batch from `position` on, partition and offset. Raises RuleError when Java has died of
        that too often."""
        if not self._found:
            with self._noted(rule, position, 0):
                yield
            return
        with self._alone:
            before = self._found.get(rule)
            deaths = before.deaths if before is not None and before.position == position else 0
            if deaths >= DEATHS_MAX:
                (self._folder / rule).unlink(missing_ok=True)
                del self._found[rule]
                reason = f"Spark's Java has ended {deaths} times while it read from message {position} on"
                self.pause(rule, reason)
                raise RuleError(reason)
            with self._noted(rule, position, deaths):
                yield
            self._found.pop(rule, None)

    def pause(self, rule: str, reason: str) -> None:
        """Let it rest until a person resumes it."""
        pause_queries(self._data_dir, [query_of_rule(rule)], reason)

    @contextmanager
    def _noted(self, rule: str, position: str, deaths: int) -> Iterator[None]:
        note = self._folder / rule
        note.write_bytes(msgspec.json.encode(_Note(position, deaths + 1)))
        try:
            yield
        except Exception as error:
            if not is_java_gone(error):
                note.unlink(missing_ok=True)
            raise
        note.unlink(missing_ok=True)


def is_java_gone(error: Exception) -> bool:
    """How PySpark tells that its Java has ended."""
    if isinstance(error, Py4JJavaError):
        return False
    return isinstance(error, Py4JError | ConnectionError | EOFError)


def _read(path: Path) -> _Note | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Note)
    except (OSError, msgspec.DecodeError):
        return None
