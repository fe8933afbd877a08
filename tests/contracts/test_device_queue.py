"""What every device queue promises."""

from __future__ import annotations

import msgspec
import pytest
from tests.contracts.stores import Stores

from embermq.model.client_type import ClientType
from embermq.model.session import SessionRow
from embermq.model.session_writes import QUEUE_SEQ_STEP, QueueMark, QueueRow, QueueState

STEP = QUEUE_SEQ_STEP


def session(generation: int) -> SessionRow:
    return SessionRow("c", generation, 1, ClientType.DEVICE, "", 5, 60, True, 0, 0)


def row(number: int, *, generation: int = 1, state: int = QueueState.QUEUED, packet_id: int = 0) -> QueueRow:
    """Row `number` stands at place `number` and comes from offset 10 x `number`."""
    return QueueRow(
        generation, number * STEP, number * 10, packet_id, state, 5, 2**42, (1, 300), b"record %d" % number
    )


def mark(number: int, state: int, packet_id: int = 0, generation: int = 1) -> QueueMark:
    return QueueMark(generation, number * STEP, number * 10, state, packet_id)


def numbers(rows: list[QueueRow]) -> list[int]:
    return [found.seq // STEP for found in rows]


@pytest.mark.promise("device-8")
def test_pages_come_in_order_and_whole(stores: Stores) -> None:
    stores.write(queue_rows=[row(number) for number in (3, 1, 2)] + [row(9, generation=2)])
    stores.write(queue_rows=[row(4)])
    assert stores.queue.page(1, 0, 10) == [row(number) for number in (1, 2, 3, 4)]
    assert numbers(stores.queue.page(1, 0, 2)) == [1, 2]
    assert numbers(stores.queue.page(1, 2 * STEP, 10)) == [3, 4]
    assert stores.queue.page(1, 4 * STEP, 10) == []
    assert stores.queue.page(3, 0, 10) == []


@pytest.mark.promise("device-8", "device-9")
def test_in_flight_is_what_was_sent_and_not_done(stores: Stores) -> None:
    stores.write(queue_rows=[row(number) for number in range(1, 6)])
    stores.write(
        queue_marks=[
            mark(2, QueueState.SENT, 12),
            mark(1, QueueState.SENT, 11),
            mark(3, QueueState.SENT, 13),
            mark(3, QueueState.RELEASED, 13),
        ]
    )
    found = stores.queue.in_flight(1)
    assert [(entry.seq // STEP, entry.state, entry.packet_id) for entry in found] == [
        (1, QueueState.SENT, 11),
        (2, QueueState.SENT, 12),
        (3, QueueState.RELEASED, 13),
    ]
    assert found[2].record == b"record 3"
    assert numbers(stores.queue.page(1, 0, 10)) == [4, 5]


@pytest.mark.promise("device-7")
def test_marking_keeps_the_deadline(stores: Stores) -> None:
    stores.write(queue_rows=[row(1, state=QueueState.SENT, packet_id=4)])
    stores.write(queue_marks=[mark(1, QueueState.RELEASED, 4)])
    (found,) = stores.queue.in_flight(1)
    assert found.expires_ms == 2**42


def test_what_came_by_a_shared_subscription_is_known_apart(stores: Stores) -> None:
    """And by which."""
    g, h = 0xFFFFFFFF << 1 | 1, 7
    copies = [msgspec.structs.replace(row(2), offset=10, flags=1 | g << 3)]
    copies += [msgspec.structs.replace(row(number), flags=2 | h << 3) for number in (3, 4)]
    stores.write(sessions=[session(1)], queue_rows=[row(1), *copies])
    stores.write(queue_marks=[mark(3, QueueState.DONE)])
    other = msgspec.structs.replace(session(2), client_id="d")
    of_other = msgspec.structs.replace(row(7, generation=2), flags=2 | g << 3)
    stores.write(sessions=[other], queue_rows=[of_other])
    assert stores.history.known_offsets(1, 0) == {0: {10}, g: {10}, h: {30, 40}}
    assert stores.history.known_offsets(1, 11) == {h: {30, 40}}
    assert stores.history.known_by_shares(0) == {g: {10, 70}, h: {30, 40}}
    assert stores.history.known_by_shares(31) == {g: {70}, h: {40}}
    stores.reopen()
    assert stores.history.known_offsets(1, 0) == {0: {10}, g: {10}, h: {30, 40}}


@pytest.mark.promise("device-14")
def test_what_is_queued_and_what_was_sent_for_a_shared_subscription(stores: Stores) -> None:
    mark_of = 0xFFFFFFFF << 1 | 1
    of_group = [msgspec.structs.replace(row(number), flags=2 | mark_of << 3) for number in (2, 3, 4, 5)]
    stores.write(sessions=[session(1)], queue_rows=[row(1), *of_group, row(6)])
    sent = [mark(number, QueueState.SENT, 10 + number) for number in (1, 3, 4, 5)]
    stores.write(
        queue_marks=[*sent, mark(4, QueueState.RELEASED, 14), mark(5, QueueState.DONE, 15)],
    )
    stores.reopen()
    assert stores.history.queued(1) == [(2 * STEP, 20, 8), (6 * STEP, 60, 8)]
    assert stores.history.shared_sent(1) == {(mark_of, 30), (mark_of, 40)}
    assert stores.history.queued(7) == [] and stores.history.shared_sent(7) == set()


@pytest.mark.promise("device-5")
def test_a_done_delivery_is_known_until_the_floor_has_passed_it(stores: Stores) -> None:
    stores.write(sessions=[session(1)], queue_rows=[row(number) for number in (1, 2, 3)])
    stores.write(queue_marks=[mark(number, QueueState.DONE) for number in (1, 2)])
    assert numbers(stores.queue.page(1, 0, 10)) == [3]
    assert stores.history.known_offsets(1, 0) == {0: {10, 20, 30}}
    assert stores.history.known_offsets(1, 20) == {0: {20, 30}}
    assert list(stores.sessions.load().sessions)[-1].queued == 1
    stores.write(dispatcher_floor=20)
    assert stores.history.known_offsets(1, 0) == {0: {20, 30}}
    stores.reopen()
    assert stores.history.known_offsets(1, 0) == {0: {20, 30}}
    stores.write(queue_marks=[mark(3, QueueState.DONE)], dispatcher_floor=31)
    assert stores.history.known_offsets(1, 0) == {}


@pytest.mark.promise("device-5")
def test_what_is_done_below_the_floor_leaves_nothing(stores: Stores) -> None:
    stores.write(dispatcher_floor=100)
    retained = QueueRow(1, 50 * STEP, -1, 3, QueueState.SENT, 5, 2**42, (), b"retained")
    stores.write(queue_rows=[row(1), retained])
    stores.write(queue_marks=[mark(1, QueueState.DONE), QueueMark(1, 50 * STEP, -1, QueueState.DONE, 0)])
    assert stores.history.known_offsets(1, -1) == {}
    assert stores.queue.in_flight(1) == []


@pytest.mark.promise("device-6")
def test_the_oldest_are_those_that_wait(stores: Stores) -> None:
    stores.write(queue_rows=[row(number) for number in range(1, 8)])
    stores.write(queue_marks=[mark(1, QueueState.SENT, 1), mark(2, QueueState.DONE)])
    assert [seq for seq, _ in stores.queue.oldest(1, 0, 3)] == [3 * STEP, 4 * STEP, 5 * STEP]
    assert [seq for seq, _ in stores.queue.oldest(1, 5 * STEP, 3)] == [6 * STEP, 7 * STEP]
    stores.write(queue_dropped=[(1, 3 * STEP), (1, 4 * STEP)])
    assert numbers(stores.queue.page(1, 0, 10)) == [5, 6, 7]


def test_a_page_ends_with_the_row_that_fills_it(stores: Stores) -> None:
    stores.write(queue_rows=[row(number) for number in range(1, 6)])
    size = len(row(1).record)
    assert numbers(stores.queue.page(1, 0, 10, bytes_max=1)) == [1]
    assert numbers(stores.queue.page(1, 0, 10, bytes_max=2 * size)) == [1, 2]
    assert numbers(stores.queue.page(1, 2 * STEP, 10, bytes_max=2 * size + 1)) == [3, 4, 5]
    assert numbers(stores.queue.page(1, 0, 1, bytes_max=2 * size)) == [1]


def test_bytes_are_those_of_records_that_are_not_done(stores: Stores) -> None:
    stores.write(sessions=[session(1)], queue_rows=[row(number) for number in (1, 2, 10, 11)])
    stores.write(
        queue_marks=[mark(1, QueueState.DONE), mark(2, QueueState.SENT, 7)], queue_dropped=[(1, 11 * STEP)]
    )
    assert stores.queue.oldest(1, 0, 10) == [(10 * STEP, len(b"record 10"))]
    stores.reopen()
    (stored,) = stores.sessions.load().sessions
    assert (stored.queued, stored.queued_bytes) == (2, len(b"record 2") + len(b"record 10"))


@pytest.mark.promise("device-5")
def test_what_was_dropped_stays_known_until_the_floor_passes(stores: Stores) -> None:
    stores.write(queue_rows=[row(1), row(2), row(3)])
    stores.write(dispatcher_floor=20)
    stores.write(queue_dropped=[(1, 1 * STEP), (1, 2 * STEP)])
    assert numbers(stores.queue.page(1, 0, 10)) == [3]
    assert stores.history.known_offsets(1, 0) == {0: {20, 30}}
    stores.write(dispatcher_floor=21)
    assert stores.history.known_offsets(1, 0) == {0: {30}}


@pytest.mark.promise("device-5")
def test_the_place_before_later_records(stores: Stores) -> None:
    stores.write(queue_rows=[row(number) for number in (2, 3, 4)])
    assert stores.history.queued_seq_after(1, 0) == 2 * STEP
    assert stores.history.queued_seq_after(1, 20) == 3 * STEP
    assert stores.history.queued_seq_after(1, 25) == 3 * STEP
    assert stores.history.queued_seq_after(1, 40) is None
    stores.write(queue_marks=[mark(3, QueueState.SENT, 1)])
    assert stores.history.queued_seq_after(1, 20) == 4 * STEP


def test_saving_the_same_place_twice_keeps_one(stores: Stores) -> None:
    stores.write(queue_rows=[row(1)])
    stores.write(queue_rows=[row(1)])
    assert numbers(stores.queue.page(1, 0, 10)) == [1]


@pytest.mark.promise("device-4")
def test_sequence_numbers_go_on_after_a_restart(stores: Stores) -> None:
    stores.write(sessions=[session(1)], queue_rows=[row(1), row(5)])
    stores.reopen()
    (stored,) = stores.sessions.load().sessions
    assert stored.queue_seq_next > 5 * STEP
    assert stored.queued == 2
