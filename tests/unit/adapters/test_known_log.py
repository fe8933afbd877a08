"""What broker.db remembers of a message log in a store of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from embermq.adapters.sqlite.connection import apply_broker_schema, open_reader, open_writer
from embermq.adapters.sqlite.log_state import SqliteLogState
from embermq.adapters.sqlite.reader_positions import SqliteReaderPositions
from embermq.adapters.sqlite.shared_tables import SqliteSharedGroups
from embermq.adapters.sqlite.tick_tables import TickTables
from embermq.model.application_positions import StoredPositions
from embermq.model.session_writes import QueueState
from embermq.model.shared_logs import SharedGroupRow, SharedWrites
from embermq.model.tick_writes import ApplicationMark, TickWrites

ROW = SharedGroupRow("workers", "orders/#", 7, 6, 0, "topic-id", ((0, 0),))
Answer = TypeVar("Answer")


def of_a_run(folder: Path, asked: Callable[[SqliteLogState], Answer]) -> Answer:
    writer = open_writer(folder / "broker.db", synchronous="OFF")
    apply_broker_schema(writer)
    store = SqliteLogState(TickTables(writer), durability="os", post=lambda call: call())
    try:
        return asked(store)
    finally:
        store.close()


def stored(folder: Path) -> dict[tuple[int, int], StoredPositions]:
    with closing(open_reader(folder / "broker.db")) as reader:
        return dict(SqliteSharedGroups(reader).load().positions)


def test_with_another_log_floors_in_the_one_before_are_forgotten_and_its_numbers_are_known(
    tmp_path: Path,
) -> None:
    at = StoredPositions(3, 5, ((0, 90), (1, 80)))
    writes = TickWrites(shared=SharedWrites(groups=[ROW], positions={(7, 0): at}))

    def first(store: SqliteLogState) -> None:
        store.open_log("one", 40, 40)
        store.keep(writes, 40, 0, lambda _: None)

    of_a_run(tmp_path, first)
    of_a_run(tmp_path, lambda store: store.open_log("one", 50, 50))
    assert stored(tmp_path) == {(7, 0): at}
    assert of_a_run(tmp_path, lambda store: store.known_log().since) == 0
    of_a_run(tmp_path, lambda store: store.open_log("two", 0, 60))
    assert stored(tmp_path) == {(7, 0): StoredPositions(3, 5)}
    of_a_run(tmp_path, lambda store: store.open_log("two", 70, 70))
    assert of_a_run(tmp_path, lambda store: store.known_log().since) == 60


def test_with_another_log_nobody_looks_in_it_for_what_was_under_way(tmp_path: Path) -> None:
    mark = ApplicationMark(7, 4, 1, QueueState.SENT, 0, 90, 30)

    def first(store: SqliteLogState) -> None:
        store.open_log("one", 40, 40)
        store.keep(TickWrites(application_marks=[mark]), 40, 0, lambda _: None)

    def marks() -> tuple[ApplicationMark, ...]:
        with closing(open_reader(tmp_path / "broker.db")) as reader:
            return SqliteReaderPositions(reader).load(7).marks

    of_a_run(tmp_path, first)
    assert marks() == (mark,)
    of_a_run(tmp_path, lambda store: store.open_log("two", 0, 60))
    assert marks() == (ApplicationMark(7, 4, 1, QueueState.SENT),)
