"""What every store of readers' positions promises, and what it keeps besides where logs are in a store of their own."""

from __future__ import annotations

from functools import partial

import pytest
from tests.contracts.servers_stores import ServersStores
from tests.contracts.stores import Stores, told

from embermq.adapters.redis import application_writer
from embermq.adapters.redis.applications import noted_unacknowledged
from embermq.formats.redis_applications import NotedUnacknowledged
from embermq.model.application_positions import EarlyMark, ReaderPosition, StoredPositions
from embermq.model.session_writes import QueueState
from embermq.model.tick_writes import ApplicationMark
from embermq.model.unacknowledged import Unacknowledged, WhyUnacknowledged
from embermq.ports.reader_positions import StoredReader

ON_SERVERS = True


def found(stores: Stores, generation: int) -> StoredReader:
    """What the store answers."""
    stored: StoredReader = told(stores, partial(stores.readers.load, generation))
    return stored


def position(committed: int) -> ReaderPosition:
    """In the embedded log."""
    return ReaderPosition("", 7, StoredPositions(committed, committed))


def mark(generation: int, offset: int, state: int = QueueState.SENT) -> ApplicationMark:
    return ApplicationMark(generation, offset, offset + 1, state)


@pytest.mark.promise("application-8")
def test_what_the_newest_tick_said_and_the_marks_above_it(stores: Stores) -> None:
    stores.begin_sessions(1, 2)
    assert found(stores, 1).position is None
    stores.write(
        application_positions={1: position(2), 2: position(3)},
        application_marks=[mark(1, 9), mark(1, 4), mark(2, 4)],
    )
    stores.write(application_positions={1: position(5)}, application_marks=[mark(1, 9, QueueState.DONE)])
    stores.reopen()
    stored = found(stores, 1)
    assert stored.position == position(5)
    assert stored.marks == (mark(1, 9, QueueState.DONE),)
    assert found(stores, 2).marks == (mark(2, 4),)


@pytest.mark.promise("application-8")
@pytest.mark.parametrize("stores", ["stand-in", "servers"], indirect=True)
def test_a_log_of_its_own_is_known_with_its_floors_and_what_was_served_without_it(stores: Stores) -> None:
    stores.begin_sessions(1)
    early = {2**50 + 9: EarlyMark(1, 1), 2**50 + 3: EarlyMark(65_535, 2, is_released=True)}
    positions = StoredPositions(1, 5, ((0, 2**40), (3, 1)))
    whole = ReaderPosition("log", 7, positions, ((1, 2), (2**50, 2**50 + 10)), early, 2**40)
    stores.write(application_positions={1: whole})
    stores.reopen()
    assert found(stores, 1).position == whole


@pytest.mark.promise("application-8")
@pytest.mark.parametrize("stores", ["stand-in", "servers"], indirect=True)
def test_where_a_record_stands_is_said_once(stores: Stores) -> None:
    stores.begin_sessions(1)
    sent = ApplicationMark(1, 4, 5, QueueState.SENT, 2**41)
    stores.write(application_positions={1: position(2)}, application_marks=[sent, mark(1, 6)])
    stores.reopen()
    assert found(stores, 1).marks == (sent, mark(1, 6))
    stores.write(application_marks=[mark(1, 4, QueueState.RELEASED)])
    (released, _) = found(stores, 1).marks
    assert released == ApplicationMark(1, 4, 5, QueueState.RELEASED, 2**41)


@pytest.mark.promise("pipeline-12")
@pytest.mark.parametrize("stores", ["servers"], indirect=True)
def test_so_many_reasons_are_kept_and_the_others_counted(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest go. What is done again, as after a lost answer, is there once."""
    assert isinstance(stores, ServersStores)
    stores.begin_sessions(1, 2)

    def kept(generation: int) -> NotedUnacknowledged:
        owner = stores.owners.get(generation)
        assert owner is not None
        return noted_unacknowledged(stores.raw, owner)

    why = WhyUnacknowledged
    two = [Unacknowledged(1, 2**46 + 4, why.TOO_LARGE), Unacknowledged(1, 7, why.EXPIRED)]
    for _ in range(2):
        stores.write(unacknowledged=[*two, Unacknowledged(2, 7, why.REFUSED)])
    assert kept(1) == NotedUnacknowledged({2**46 + 4: why.TOO_LARGE, 7: why.EXPIRED})
    assert kept(2) == NotedUnacknowledged({7: why.REFUSED})
    monkeypatch.setattr(application_writer, "UNACKNOWLEDGED_MAX", 3)
    for position in range(20, 26, 2):
        stores.write(unacknowledged=[Unacknowledged(1, position + more, why.SKIPPED) for more in range(2)])
    assert kept(1) == NotedUnacknowledged(dict.fromkeys((24, 25), why.SKIPPED), 8, 2**46 + 5)
    stores.write(deleted_sessions=[1], ended_applications=[1])
    assert "s:u:{app-1}" not in stores.all_keys() and "s:u:{app-2}" in stores.all_keys()


@pytest.mark.promise("application-2")
def test_it_goes_with_its_session(stores: Stores) -> None:
    stores.begin_sessions(1, 2)
    stores.write(
        application_positions={1: position(2), 2: position(3)},
        application_marks=[mark(1, 4), mark(2, 4)],
    )
    stores.write(application_positions={1: position(3)}, ended_applications=[1], deleted_sessions=[1])
    gone, other = found(stores, 1), found(stores, 2)
    assert (gone.position, gone.marks) == (None, ())
    assert (other.position, other.marks) == (position(3), (mark(2, 4),))


def test_another_log_in_its_place_begins_anew_in_one_step(stores: Stores) -> None:
    stores.begin_sessions(1)
    stores.write(application_positions={1: position(2**40)}, application_marks=[mark(1, 20), mark(1, 21)])
    stores.write(
        restarted_applications=[1],
        application_positions={1: position(0)},
        application_marks=[mark(1, 2)],
    )
    stored = found(stores, 1)
    assert (stored.position, stored.marks) == (position(0), (mark(1, 2),))
