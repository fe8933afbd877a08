"""What names another waits for it: of two owners on two servers, nothing goes from one before the other has it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.contracts.servers_stores import ServersStores
from tests.contracts.simulated_stores import open_servers
from tests.contracts.stores import tick_writes, told

from embermq.formats.log_record import encode_record
from embermq.formats.redis_applications import group_keys
from embermq.formats.redis_layout import client_keys
from embermq.model.application_positions import ReaderPosition, StoredPositions
from embermq.model.client_type import ClientType
from embermq.model.message import Message
from embermq.model.parked_message import ParkedChange, ParkedMessage, ParkedStage, ParkedState
from embermq.model.session import SessionRow
from embermq.model.session_writes import QUEUE_SEQ_STEP, QueueMark, QueueRow, QueueState
from embermq.model.shared_logs import SharedGroupRow, SharedMark, SharedWrites
from embermq.model.tick_writes import ApplicationMark

RECORD = encode_record(Message("t", b"x", 1, False, "p", 5, 1), b"")
OLD = SessionRow("old", 1, 1, ClientType.APPLICATION, "", 5, 60, False, 0, 0)
NEW = replace(OLD, client_id="new", generation=2)
AGAIN = replace(OLD, generation=3)
GROUP = SharedGroupRow("g", "t", 7, 7, 0, "id", ((0, 0),))
SENT = SharedMark(7, 0, 4, 1, 9, QueueState.SENT, RECORD)
PARKED = ParkedMessage(
    ParkedState(1, 1, ParkedStage.PARKED, QueueState.SENT, 9, 1), 1, 2, False, (), "t", 1, RECORD
)
OF_OLD, OF_NEW, OF_GROUP = (
    client_keys("old", "").session,
    client_keys("new", "").session,
    group_keys("g", "t", "").group,
)


def row(generation: int) -> QueueRow:
    return QueueRow(generation, QUEUE_SEQ_STEP, 5, 0, QueueState.QUEUED, 1 | 8, 2**42, (), RECORD)


@pytest.fixture(params=["redis", "simulated"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServersStores]:
    """Two sessions, "old" with a message of a shared subscription, and a shared group."""
    opened = open_servers(request, tmp_path)
    opened.write(sessions=[OLD, NEW], queue_rows=[row(1)], shared=SharedWrites(groups=[GROUP]))
    yield opened
    opened.link.return_()
    opened.close()


def begins(servers: ServersStores, **writes: object) -> None:
    """A tick of which something cannot be stored yet."""
    servers.submit(tick_writes(**writes))
    servers.settle()


def owners(servers: ServersStores) -> set[int]:
    """Who has a stored message."""
    return {entry.row.generation for entry in servers.sessions.load().sessions if entry.queued}


@pytest.mark.promise("device-9")
def test_a_session_goes_when_what_it_has_handed_on_is_stored(servers: ServersStores) -> None:
    servers.link.away_keys = {OF_NEW}
    begins(servers, queue_rows=[row(2)], handed_on=[(1, 2)], deleted_sessions=[1])
    assert owners(servers) == {1}
    assert servers.store.waits
    servers.link.return_()
    servers.settle()
    assert owners(servers) == {2}
    assert not servers.store.waits


@pytest.mark.promise("device-9")
def test_a_message_is_done_when_it_is_stored_for_who_has_it_now(servers: ServersStores) -> None:
    done = QueueMark(1, QUEUE_SEQ_STEP, 5, QueueState.DONE, 0)
    servers.link.away_keys = {OF_NEW}
    begins(servers, queue_rows=[row(2)], handed_on=[(1, 2)], queue_marks=[done])
    begins(servers, deleted_sessions=[1])
    assert owners(servers) == {1}
    servers.link.return_()
    servers.settle()
    assert owners(servers) == {2}


@pytest.mark.promise("device-9")
@pytest.mark.parametrize("later", [False, True])
def test_a_new_session_of_the_client_waits_for_what_the_old_one_hands_on(
    servers: ServersStores, *, later: bool
) -> None:
    """Its claim takes away all that the old one has."""
    servers.link.away_keys = {OF_NEW}
    if later:
        begins(servers, sessions=[AGAIN], handing_on=[1])
        begins(servers, queue_rows=[row(2)], handed_on=[(1, 2)], deleted_sessions=[1])
    else:
        begins(servers, sessions=[AGAIN], queue_rows=[row(2)], handed_on=[(1, 2)], deleted_sessions=[1])
    claimed: list[bool] = []
    servers.store.when_stored(AGAIN.generation, lambda: claimed.append(True))
    assert (owners(servers), claimed) == ({1}, [])
    servers.link.return_()
    servers.settle()
    assert (owners(servers), claimed) == ({2}, [True])
    assert {entry.row.generation for entry in servers.sessions.load().sessions} == {2, 3}


@pytest.mark.promise("device-9")
def test_a_session_that_hands_on_is_read_to_its_end(servers: ServersStores) -> None:
    """Also behind the first page, while the claim of the next one waits."""
    begins(servers, sessions=[AGAIN], handing_on=[1])
    assert [found.offset for found in servers.queue.page(1, 0, 10)] == [5]
    begins(servers, queue_rows=[row(2)], handed_on=[(1, 2)], deleted_sessions=[1])
    assert servers.queue.page(1, 0, 10) == []
    assert owners(servers) == {2}


def test_two_that_hand_on_to_one_another_do_not_wait_for_ever(servers: ServersStores) -> None:
    servers.link.away = True
    both = [(1, 2), (2, 1)]
    begins(servers, queue_rows=[row(2), replace(row(1), seq=2 * QUEUE_SEQ_STEP, offset=6)], handed_on=both)
    begins(servers, queue_rows=[replace(row(2), seq=2 * QUEUE_SEQ_STEP, offset=7)], handed_on=both[::-1])
    servers.link.return_()
    servers.settle()
    assert not servers.store.waits


@pytest.mark.promise("application-6", "application-11")
def test_a_group_passes_what_is_parked_when_that_is_stored(servers: ServersStores) -> None:
    servers.link.away_keys = {OF_OLD}
    passed = {(7, 0): StoredPositions(0, 5)}
    begins(servers, parked=[PARKED], shared=SharedWrites(positions=passed))
    assert servers.shared.load().positions == {}
    further = {(7, 0): StoredPositions(0, 6)}
    begins(servers, shared=SharedWrites(positions=further))
    assert servers.shared.load().positions == {}, "positions of a group keep their order"
    servers.link.return_()
    servers.settle()
    assert servers.shared.load().positions == further
    assert servers.parked.load() == [PARKED.at]


@pytest.mark.promise("application-11")
def test_what_a_group_has_done_is_taken_from_its_session_afterwards(servers: ServersStores) -> None:
    servers.write(shared=SharedWrites(marks=[SENT]))
    servers.link.away_keys = {OF_GROUP}
    begins(servers, shared=SharedWrites(marks=[replace(SENT, state=QueueState.DONE, record=b"")]))
    key = client_keys("old", "").shared
    assert servers.raw.command(key, "HLEN", key) == 2, "after a crash it is there once more"
    assert told(servers, partial(servers.shared.in_flight, 1)) == [], "but while we live it is done"
    servers.link.return_()
    servers.settle()
    assert servers.raw.command(key, "EXISTS", key) == 0
    assert servers.shared.load().claims == [(7, 0, 4)]


@pytest.mark.promise("application-11")
@pytest.mark.parametrize("replaced", [False, True])
def test_what_is_under_way_goes_with_its_session_when_the_group_knows(
    servers: ServersStores, *, replaced: bool
) -> None:
    servers.write(shared=SharedWrites(marks=[SENT]))
    servers.link.away_keys = {OF_GROUP}
    begins(servers, deleted_sessions=[1], ended_applications=[1], sessions=[AGAIN] if replaced else [])
    key = client_keys("old", "").shared
    assert servers.raw.command(key, "EXISTS", key) == 1
    servers.link.return_()
    servers.settle()
    assert servers.raw.command(key, "EXISTS", key) == 0
    assert servers.shared.load().claims == [(7, 0, 4)]


def test_all_that_is_asked_may_be_repeated(servers: ServersStores) -> None:
    """As after an answer that is lost: with all that was asked for the same keys since."""
    asked = servers.link.asked
    position = ReaderPosition("log", 3, StoredPositions(1, 2))
    servers.write(
        application_marks=[ApplicationMark(1, 4, 9, QueueState.SENT, 44)],
        application_positions={1: position},
        parked=[PARKED],
        shared=SharedWrites(marks=[SENT, replace(SENT, offset=9)], positions={(7, 0): StoredPositions(0, 3)}),
    )
    servers.write(
        application_marks=[ApplicationMark(1, 4, 9, QueueState.RELEASED)],
        shared=SharedWrites(
            marks=[
                replace(SENT, state=QueueState.RELEASED, record=b""),
                replace(SENT, offset=9, state=QueueState.DONE, record=b""),
            ]
        ),
    )
    before = everything(servers)
    assert len(before) == 5
    servers.link.repeat(servers.link.asked - asked)
    assert everything(servers) == before
    assert not servers.link.refused


@pytest.mark.parametrize("most", range(12))
def test_nothing_goes_back_when_only_the_first_of_it_is_repeated(servers: ServersStores, most: int) -> None:
    """As when the broker is killed while it sends again what it had no answer to."""
    asked = servers.link.asked
    at, second = PARKED.at, replace(PARKED, at=replace(PARKED.at, number=2, qos=2))
    servers.write(
        application_positions={1: ReaderPosition("log", 3, StoredPositions(1, 2))},
        application_marks=[ApplicationMark(1, offset, 9, QueueState.SENT, 44) for offset in (4, 5)],
        parked=[PARKED, second],
        shared=SharedWrites(
            positions={(7, 0): StoredPositions(0, 3)},
            marks=[SENT, SharedMark(7, 0, 5, 0, 0, QueueState.DONE)],
        ),
    )
    servers.write(
        parked=[
            ParkedChange(replace(at, stage=ParkedStage.DUE)),
            ParkedChange(replace(second.at, stage=ParkedStage.DELETED)),
        ],
        application_marks=[ApplicationMark(1, 5, 9, QueueState.RELEASED)],
    )
    servers.write(
        application_positions={1: ReaderPosition("log", 4, StoredPositions(1, 5))},
        parked=[ParkedChange(replace(at, stage=ParkedStage.UNDER_WAY, state=QueueState.RELEASED))],
        shared=SharedWrites(
            positions={(7, 0): StoredPositions(0, 4)},
            marks=[replace(SENT, state=QueueState.RELEASED, record=b"")],
        ),
    )
    before = everything(servers)
    assert len(before) == 5
    servers.link.repeat(servers.link.asked - asked, most)
    assert everything(servers) == before
    assert not servers.link.refused


@pytest.mark.parametrize("most", range(4))
def test_a_packet_id_that_was_released_does_not_come_back(servers: ServersStores, most: int) -> None:
    """The client may use it for another message, which is none that is known."""
    asked = servers.link.asked
    servers.write(records=[RECORD, RECORD], receiving=[(1, 7, 0), (1, 8, 1)])
    servers.write(released=[(1, 7)])
    servers.write(records=[RECORD], receiving=[(1, 9, 0)])
    servers.link.repeat(servers.link.asked - asked, most)
    (found,) = [entry for entry in servers.sessions.load().sessions if entry.row.generation == 1]
    assert sorted(found.receiving) == [8, 9]
    assert found.receiving_upto == servers.in_process.end


def test_what_is_another_s_stays_as_it_is(servers: ServersStores) -> None:
    """Another broker has the session and the group by now."""
    servers.raw.command(OF_OLD, "SET", OF_OLD, '{"epoch":1,"generation":50,"x":1}')
    servers.raw.command(OF_GROUP, "SET", OF_GROUP, '{"generation":60,"x":1}')
    servers.write(
        application_marks=[ApplicationMark(1, 4, 9, QueueState.SENT, 44)],
        application_positions={1: ReaderPosition("log", 3, StoredPositions(1, 2))},
        parked=[PARKED],
        shared=SharedWrites(groups=[GROUP], marks=[SENT], positions={(7, 0): StoredPositions(0, 3)}),
    )
    assert everything(servers) == {}
    assert servers.writer_of_state.statistics().fenced == 5


def everything(servers: ServersStores) -> dict[bytes, object]:
    """All that Redis holds of applications, but for the count by which the order of sending is told."""
    found: dict[bytes, object] = {}
    for master in servers.raw.masters:
        for keys in servers.raw.keys(master, "[sg]:[adgpm]:*"):
            for key in keys:
                is_hash = master.type(key) == b"hash"
                found[key] = master.hgetall(key) if is_hash else master.zrange(key, 0, -1)
                if is_hash:
                    found[key].pop(b"last", None)  # type: ignore[attr-defined]
    return found
