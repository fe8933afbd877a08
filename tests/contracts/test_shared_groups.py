"""What every store of shared groups promises."""

from __future__ import annotations

from functools import partial

import pytest
from msgspec.structs import replace
from tests.contracts.stores import Stores, told

from embermq.formats.log_record import encode_record
from embermq.model.application_positions import StoredPositions
from embermq.model.message import Message
from embermq.model.session_writes import QueueState
from embermq.model.shared_logs import SharedGroupRow, SharedMark, SharedWrites

ROW = SharedGroupRow("workers", "orders/#", 7, 6, 2**40, "topic-id", ((0, 3), (2, 2**40)))
RECORD = encode_record(Message("orders/1", b"record", 2, False, "ann", 5, 2**41), b"")
SENT = SharedMark(7, 2, 10, 4, 65_535, QueueState.SENT, RECORD, (1, 2**28 - 1), True)

pytestmark = [
    pytest.mark.promise("application-11"),
    pytest.mark.parametrize("stores", ["stand-in", "servers"], indirect=True),
]


def in_flight(stores: Stores, session: int) -> list[SharedMark]:
    return told(stores, partial(stores.shared.in_flight, session))


def test_groups_are_what_the_newest_tick_said(stores: Stores) -> None:
    assert stores.shared.load().groups == []
    other = replace(ROW, share="é", generation=8)
    stores.write(shared=SharedWrites(groups=[ROW, other]))
    stores.write(shared=SharedWrites(groups=[replace(ROW, since=5)], ended_groups=[8]))
    stores.reopen()
    assert stores.shared.load().groups == [replace(ROW, since=5)]


def test_positions_stay_with_their_group(stores: Stores) -> None:
    first, second = StoredPositions(1, 3, ((0, 9), (1, 2**40))), StoredPositions(2, 2)
    stores.write(shared=SharedWrites(groups=[ROW], positions={(7, 0): second, (7, 1): second}))
    stores.write(shared=SharedWrites(positions={(7, 0): first}))
    stores.reopen()
    assert stores.shared.load().positions == {(7, 0): first, (7, 1): second}
    stores.write(shared=SharedWrites(ended_groups=[7]))
    assert stores.shared.load().positions == {}


def test_what_is_in_flight_keeps_its_order_and_what_it_was_sent_with(stores: Stores) -> None:
    stores.begin_sessions(4)
    later = replace(SENT, partition=0, offset=1)
    stores.write(shared=SharedWrites(groups=[ROW], marks=[SENT, later]))
    released = replace(SENT, state=QueueState.RELEASED, record=b"", identifiers=(), retain=False)
    stores.write(shared=SharedWrites(marks=[released]))
    stores.reopen()
    kept = replace(released, identifiers=SENT.identifiers, retain=True)
    assert in_flight(stores, 4) == [kept, later]
    assert in_flight(stores, 5) == []
    assert sorted(stores.shared.load().claims) == [(7, 0, 1), (7, 2, 10)]


def test_what_is_done_is_remembered_until_the_group_has_passed_it(stores: Stores) -> None:
    done = [replace(SENT, session=0, offset=offset, state=QueueState.DONE) for offset in (10, 11)]
    stores.begin_sessions(4)
    sent = replace(SENT, offset=9)
    stores.write(shared=SharedWrites(groups=[ROW], marks=[sent, *done]))
    assert sorted(stores.shared.load().claims) == [(7, 2, 9), (7, 2, 10), (7, 2, 11)]
    stores.write(shared=SharedWrites(positions={(7, 2): StoredPositions(0, 11)}))
    stores.reopen()
    assert sorted(stores.shared.load().claims) == [(7, 2, 9), (7, 2, 11)]
    stores.write(shared=SharedWrites(marks=[replace(sent, state=QueueState.DONE, record=b"")]))
    assert stores.shared.load().claims == [(7, 2, 11)]


def test_what_is_in_flight_outlives_its_group_and_ends_with_its_session(stores: Stores) -> None:
    stores.begin_sessions(4)
    done = replace(SENT, session=0, offset=11, state=QueueState.DONE)
    stores.write(shared=SharedWrites(groups=[ROW], marks=[SENT, done]))
    stores.write(shared=SharedWrites(ended_groups=[7]))
    assert in_flight(stores, 4) == [SENT]
    assert stores.shared.load().claims == [(7, 2, 10)]
    stores.write(ended_applications=[4], deleted_sessions=[4])
    stores.reopen()
    assert in_flight(stores, 4) == []
    assert stores.shared.load().claims == []


def test_what_ends_with_its_session_is_nobody_else_s(stores: Stores) -> None:
    stores.begin_sessions(4)
    stores.write(shared=SharedWrites(groups=[ROW], marks=[SENT]))
    stores.write(ended_applications=[4], deleted_sessions=[4])
    stores.reopen()
    assert in_flight(stores, 4) == []
    assert stores.shared.load().claims == [(7, 2, 10)]
