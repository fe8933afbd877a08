"""What every store of parked messages promises."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pytest
from msgspec.structs import replace
from tests.contracts.stores import Stores, told

from embermq.formats.log_record import encode_record
from embermq.model.message import Message
from embermq.model.parked_message import ParkedChange, ParkedEnd, ParkedMessage, ParkedStage, ParkedState
from embermq.model.session_writes import QueueState

ON_SERVERS = True
RECORD = encode_record(Message("t/ü", b"\0\1\2" * 100, 2, True, "ann", 5, 2**41), b"")


def message(generation: int, number: int, **other: object) -> ParkedMessage:
    at = ParkedState(generation, number, ParkedStage.PARKED, QueueState.SENT, 65_535, 2)
    kept = ParkedMessage(at, 2**41, 4, True, (1, 268_435_455), "t/ü", 3, RECORD)
    return replace(kept, **other)


def read(stores: Stores, generation: int, number: int) -> ParkedMessage | None:
    ask = partial(stores.parked.read, generation, [number], 1)
    found: Mapping[int, ParkedMessage | None] = told(stores, ask)
    assert list(found) == [number]
    return found[number]


@pytest.mark.promise("application-6")
def test_what_was_parked_is_read_again(stores: Stores) -> None:
    stores.begin_sessions(1, 2)
    assert stores.parked.load() == []
    stores.write(parked=[message(2, 2), message(1, 1, identifiers=(), retain=False), message(2, 1)])
    stores.reopen()
    kept = message(1, 1, identifiers=(), retain=False)
    assert [(at.generation, at.number) for at in stores.parked.load()] == [(1, 1), (2, 1), (2, 2)]
    assert stores.parked.load()[0] == kept.at
    assert read(stores, 1, 1) == kept
    assert read(stores, 1, 2) is None


@pytest.mark.promise("application-6")
def test_many_are_read_up_to_a_size(stores: Stores) -> None:
    stores.begin_sessions(1)
    stores.write(parked=[message(1, number) for number in (1, 2, 3)])

    def found(numbers: list[int], bytes_max: int) -> Mapping[int, ParkedMessage | None]:
        return told(stores, partial(stores.parked.read, 1, numbers, bytes_max))

    size = len(message(1, 1).record)
    assert found([3, 9, 1], 10 * size) == {3: message(1, 3), 9: None, 1: message(1, 1)}
    assert found([3, 1, 2], 1) == {3: message(1, 3)}
    assert found([9, 1, 2, 3], size + 1) == {9: None, 1: message(1, 1), 2: message(1, 2)}
    assert found([], 1) == found([], 0) == {}


@pytest.mark.promise("application-6")
def test_many_are_read_without_their_records(stores: Stores) -> None:
    stores.begin_sessions(1)
    lost = message(1, 3, record=b"")  # before it was parked
    stores.write(parked=[message(1, 1), message(1, 2), lost])
    found: Mapping[int, ParkedMessage | None] = told(stores, partial(stores.parked.read, 1, [3, 9, 1, 2], 0))
    assert found == {3: lost, 9: None, 1: message(1, 1, record=b""), 2: message(1, 2, record=b"")}


@pytest.mark.promise("application-6")
def test_changes_count_in_their_order(stores: Stores) -> None:
    stores.begin_sessions(1)
    first, second = message(1, 1), message(1, 2)
    due = replace(second.at, stage=ParkedStage.DUE)
    under_way = replace(second.at, stage=ParkedStage.UNDER_WAY, packet_id=7, state=QueueState.RELEASED)
    stores.write(parked=[first, second, ParkedEnd(1, 1), ParkedChange(due)])
    assert stores.parked.load() == [due]
    stores.write(parked=[ParkedChange(under_way), ParkedChange(first.at), ParkedEnd(1, 9)])
    stores.reopen()
    assert stores.parked.load() == [under_way]
    assert read(stores, 1, 2) == replace(second, at=under_way)
    stores.write(parked=[ParkedEnd(1, 2)])
    assert stores.parked.load() == []


@pytest.mark.promise("application-6")
def test_of_what_is_deleted_only_the_packet_id_stays(stores: Stores) -> None:
    deleted = replace(message(1, 1).at, stage=ParkedStage.DELETED)
    stores.begin_sessions(1)
    stores.write(parked=[message(1, 1), message(1, 2), ParkedChange(deleted)])
    stores.reopen()
    assert stores.parked.load() == [deleted, message(1, 2).at]
    assert read(stores, 1, 1) is None
    assert read(stores, 1, 2) == message(1, 2)


@pytest.mark.promise("application-2", "application-6")
def test_they_go_with_their_application(stores: Stores) -> None:
    stores.begin_sessions(1, 2)
    stores.write(parked=[message(1, 1), message(2, 1)])
    stores.write(parked=[message(1, 2)], ended_applications=[1], deleted_sessions=[1])
    assert [at.generation for at in stores.parked.load()] == [2]


@pytest.mark.promise("application-6")
def test_a_tick_with_nothing_else_is_not_empty(stores: Stores) -> None:
    from tests.contracts.stores import tick_writes

    assert not tick_writes(parked=[ParkedEnd(1, 1)]).is_empty()
    kept = tick_writes(parked=[ParkedEnd(1, 2)])
    kept.put_before(tick_writes(parked=[ParkedEnd(1, 1)]))
    assert kept.parked == [ParkedEnd(1, 1), ParkedEnd(1, 2)]
