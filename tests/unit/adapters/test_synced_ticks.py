"""What of a tick waits for the disk, where the records are in a store of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import pytest

from embermq.adapters.sqlite.connection import apply_broker_schema, open_reader, open_writer
from embermq.adapters.sqlite.log_state import CHECKPOINT_PAGES, UNSYNCED_S, SqliteLogState
from embermq.adapters.sqlite.tick_tables import TickTables
from embermq.model.application_positions import ReaderPosition, StoredPositions
from embermq.model.parked_message import ParkedEnd
from embermq.model.session_writes import QueueState
from embermq.model.tick_writes import ApplicationMark, TickWrites
from embermq.ports.errors import StoreError
from embermq.ports.tick_store import Receipt

ANSWER_S = 30.0
FULL, NORMAL = 2, 1
MARK = ApplicationMark(7, 3, 1, QueueState.SENT)
PLACE = ReaderPosition("log", 1, StoredPositions(1, 3, ()))
OTHERS: dict[str, Any] = {
    "records": [b"x"],
    "restarted_applications": [7],
    "application_synced": True,
    "parked": [ParkedEnd(7, 1)],
    "ended_applications": [7],
    "receipts": [b"x"],
    "cursors": {7: None},
    "generation_reserved": 1_000,
}


class Place:
    """A broker.db beside a log, and the clock that it sees."""

    def __init__(self, folder: Path) -> None:
        self.posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.writer = open_writer(folder / "broker.db", synchronous="FULL")
        apply_broker_schema(self.writer)
        self.store = SqliteLogState(TickTables(self.writer), durability="fsync", post=self._post)
        self.now_s = 1_000.0
        self.posters: list[str] = []
        """The threads that answered."""

    def _post(self, call: Callable[[], None]) -> None:
        self.posters.append(threading.current_thread().name)
        self.posted.put(call)

    def keep(self, writes: TickWrites) -> int:
        """How the tick was committed."""
        answers: list[Receipt | StoreError] = []
        self.store.keep(writes, 0, 0, answers.append)
        self.posted.get(timeout=ANSWER_S)()
        assert answers == [Receipt(0, 0)]
        return int(self.writer.execute("PRAGMA synchronous").fetchone()[0])

    def checkpoint_pages(self) -> int:
        """Of the connection, as it is now."""
        return int(self.writer.execute("PRAGMA wal_autocheckpoint").fetchone()[0])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    found = Place(tmp_path)
    monkeypatch.setattr("embermq.adapters.sqlite.log_state.time.monotonic", lambda: found.now_s)
    yield found
    found.store.close()


def marks() -> TickWrites:
    return TickWrites(application_marks=[MARK], application_positions={7: PLACE}, dispatcher_floor=5)


def test_marks_of_qos_1_are_synced_once_a_second(place: Place) -> None:
    assert [place.keep(marks()) for _ in range(3)] == [FULL, NORMAL, NORMAL]
    place.now_s += UNSYNCED_S
    assert [place.keep(marks()) for _ in range(2)] == [FULL, NORMAL]


def test_what_has_to_be_on_the_disk_takes_what_came_before_along(place: Place) -> None:
    place.keep(marks())
    assert place.keep(marks()) == NORMAL
    assert place.keep(msgspec.structs.replace(marks(), application_synced=True)) == FULL
    assert place.keep(marks()) == NORMAL


def test_what_is_not_synced_is_with_the_kernel_at_once_and_copies_no_journal(
    place: Place, tmp_path: Path
) -> None:
    place.keep(marks())
    assert place.checkpoint_pages() == CHECKPOINT_PAGES
    another = TickWrites(application_marks=[ApplicationMark(7, 4, 2, QueueState.SENT)])
    place.store.keep(another, 0, 0, lambda _: None)
    with closing(open_reader(tmp_path / "broker.db")) as reader:
        assert reader.execute("SELECT COUNT(*) FROM application_inflight").fetchone() == (2,)
    place.posted.get(timeout=ANSWER_S)()
    assert place.posters[1:] == [threading.current_thread().name]
    assert place.checkpoint_pages() == 0
    place.now_s += UNSYNCED_S
    place.keep(marks())
    assert place.checkpoint_pages() == CHECKPOINT_PAGES


@pytest.mark.parametrize("field", OTHERS)
def test_only_marks_and_positions_may_be_lost(field: str) -> None:
    assert marks().may_be_lost_with_power()
    assert not msgspec.structs.replace(marks(), **{field: OTHERS[field]}).may_be_lost_with_power()


def test_session_data_may_not_be_lost() -> None:
    writes = marks()
    writes.session.released.append((7, 1))
    assert not writes.may_be_lost_with_power()
    known = {
        "application_marks",
        "application_positions",
        "dispatcher_floor",
        "session",
        "shared",
        "queues",
        *OTHERS,
    }
    assert {field.name for field in msgspec.structs.fields(TickWrites)} == known
