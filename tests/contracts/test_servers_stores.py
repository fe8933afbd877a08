"""Records first, then state that is never given up: what the stores of the servers profile promise together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.contracts.servers_stores import ServersStores
from tests.contracts.simulated_stores import open_servers
from tests.contracts.stores import tick_writes

from embermq.adapters.redis.floor_marks import ReadMarks
from embermq.adapters.redis.log_notes import RedisLogNotes
from embermq.model.client_type import ClientType
from embermq.model.position import position_of
from embermq.model.session import SessionRow
from embermq.ports.errors import StoreError
from embermq.ports.known_log import KnownLog
from embermq.ports.tick_store import EVERYBODY, Receipt

ANN = SessionRow("ann", 1, 1, ClientType.DEVICE, "", 5, 60, True, 0, 0)
BOB = msgspec.structs.replace(ANN, client_id="bob", generation=2)


@pytest.fixture(params=["redis", "simulated"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServersStores]:
    """A log in this process before a Redis."""
    opened = open_servers(request, tmp_path)
    yield opened
    opened.close()


def clients(servers: ServersStores) -> set[str]:
    return {entry.row.client_id for entry in servers.sessions.load().sessions}


def test_a_tick_is_answered_by_the_log_while_its_state_waits(servers: ServersStores) -> None:
    servers.link.away = True
    answers = servers.submit(tick_writes(records=[b"a", b"b"], sessions=[ANN]))
    assert not answers
    servers.settle()
    assert answers == [Receipt(0, 2, whole=False)]
    told: list[str] = []
    servers.store.when_stored(ANN.generation, lambda: told.append("ann"))
    servers.store.when_stored(BOB.generation, lambda: told.append("bob"))
    servers.store.when_stored(EVERYBODY, lambda: told.append("all"))
    assert told == ["bob"]
    assert servers.store.waits and clients(servers) == set()
    servers.link.return_()
    servers.settle()
    assert sorted(told) == ["all", "ann", "bob"]
    assert clients(servers) == {"ann"}


def test_a_tick_without_records_is_answered_while_the_store_is_away(servers: ServersStores) -> None:
    servers.link.away = servers.in_process.away = True
    answers = servers.submit(tick_writes(sessions=[ANN]))
    assert not answers, "answered before the call has returned"
    servers.settle()
    assert answers == [Receipt(0, 0, whole=False)]
    servers.link.return_()


def test_what_the_log_refuses_leaves_no_state(servers: ServersStores) -> None:
    servers.in_process.refusal = StoreError("too large")
    answers = servers.submit(tick_writes(records=[b"a"], sessions=[ANN]))
    servers.settle()
    assert isinstance(answers[0], StoreError)
    assert not servers.store.busy and not servers.store.waits
    assert clients(servers) == set()


def test_no_record_is_logged_before_its_generation_is_reserved(servers: ServersStores) -> None:
    servers.link.away = True
    servers.state.new_generation()
    answers = servers.submit(
        tick_writes(records=[b"a"], generation_reserved=servers.state.generations_reserved)
    )
    servers.settle()
    assert not answers and servers.in_process.end == 0
    servers.link.return_()
    servers.settle()
    assert answers == [Receipt(0, 1, whole=False)]


def test_new_clients_are_served_by_the_log_while_generations_are_left(servers: ServersStores) -> None:
    servers.state.new_generation()
    servers.write(generation_reserved=servers.state.generations_reserved)
    servers.link.away = True
    servers.state.new_generation()
    answers = servers.submit(tick_writes(records=[b"a"]))
    servers.settle()
    assert answers == [Receipt(0, 1, whole=False)]
    servers.link.return_()


def test_the_floor_moves_when_all_before_it_is_stored(servers: ServersStores) -> None:
    servers.link.away = True
    servers.submit(tick_writes(records=[b"a", b"b"], sessions=[ANN]))
    servers.settle()
    servers.submit(tick_writes(dispatcher_floor=2))
    servers.answer()
    assert servers.servers.dispatcher_floor == 0
    servers.link.return_()
    servers.settle()
    for _ in range(2):  # marks are set, then seen to have settled
        servers.store.settle()
        servers.settle()
    assert servers.servers.dispatcher_floor == 2


def test_how_far_replays_are_is_kept_and_never_goes_back(servers: ServersStores) -> None:
    large = 2**62
    servers.write(replays={"a": 9, "rule/r": large})
    assert servers.sessions.load().replays == {"a": 9, "rule/r": large}
    servers.write(replays={"a": 10, "rule/r": large - 1, "b": 1})
    assert servers.sessions.load().replays == {"a": 10, "rule/r": large, "b": 1}
    servers.raw.command("embermq:replays", "HSET", "embermq:replays", "b", "broken")
    with pytest.raises(StoreError, match="embermq:replays"):
        servers.sessions.load()


def known(servers: ServersStores) -> KnownLog:
    return RedisLogNotes(servers.raw, "redis").known()


def test_nothing_is_known_to_a_redis_that_nobody_has_used(servers: ServersStores) -> None:
    assert known(servers) == KnownLog(is_any=False, identity="", end=0, ended_in_order=False)


def test_a_log_that_is_adopted_is_owed_from_there_on(servers: ServersStores) -> None:
    RedisLogNotes(servers.raw, "redis").begin(7)
    assert not known(servers).is_any, "a crash in between leaves nothing that would be taken for more"
    RedisLogNotes(servers.raw, "redis").open("a log")
    assert known(servers) == KnownLog(is_any=True, identity="a log", end=7, ended_in_order=False)
    marks = ReadMarks(servers.raw)
    assert (marks.oldest, marks.newest) == (7, 7)


def test_what_is_known_of_the_log_is_not_far_behind_it(servers: ServersStores) -> None:
    RedisLogNotes(servers.raw, "redis").open("a log")
    servers.write(records=[b"r"])
    assert known(servers) == KnownLog(is_any=True, identity="a log", end=1, ended_in_order=False)
    servers.write(records=[b"r"] * 999)
    assert known(servers).end == 1
    servers.write(records=[b"r"])
    assert known(servers).end == 1_001
    servers.write(records=[b"r"])
    servers.state.tick.now_ms += 1_000
    servers.answer()
    assert known(servers).end == 1_002, "also while nothing more comes"


def test_the_next_start_knows_by_which_time_things_are_due(servers: ServersStores) -> None:
    """By that of the node before: its own clock may be behind, and what is due would wait."""
    RedisLogNotes(servers.raw, "redis").open("a log")
    servers.state.tick.now_ms = 5_000
    servers.write(records=[b"r"])
    assert known(servers).time_ms == 5_000
    servers.state.tick.now_ms += 1_000
    servers.answer()
    assert known(servers).time_ms == 5_000, "nothing has got a time since"
    servers.write(dispatcher_floor=1)
    servers.state.tick.now_ms += 1_000
    servers.write(deleted_sessions=[7])
    servers.answer()
    assert known(servers).time_ms == 7_000, "with records and without"
    servers.state.tick.now_ms = 3_000
    servers.servers.finish()
    servers.settle()
    assert known(servers).time_ms == 7_000


def test_the_next_start_knows_of_an_end_in_order(servers: ServersStores) -> None:
    RedisLogNotes(servers.raw, "redis").open("a log")
    servers.write(records=[b"a", b"b"], dispatcher_floor=1)
    servers.write(generation_reserved=50)
    servers.servers.hurry()
    servers.servers.finish()
    servers.settle()
    expected = KnownLog(is_any=True, identity="a log", end=2, ended_in_order=True, generations=50)
    assert known(servers) == expected
    assert ReadMarks(servers.raw).newest == 1
    RedisLogNotes(servers.raw, "redis").open("a log")
    assert not known(servers).ended_in_order


def test_a_tick_that_the_log_has_not_answered_is_no_end_in_order(servers: ServersStores) -> None:
    RedisLogNotes(servers.raw, "redis").open("a log")
    servers.in_process.away = True
    servers.submit(tick_writes(records=[b"a"]))
    servers.servers.finish()
    servers.settle()
    assert known(servers) == KnownLog(is_any=True, identity="a log", end=0, ended_in_order=False)


def test_a_log_that_has_lost_its_end_goes_on_elsewhere(servers: ServersStores) -> None:
    RedisLogNotes(servers.raw, "redis").open("a log")
    servers.write(records=[b"a"])
    servers.in_process.lost_end_at = position_of(1, 0)
    servers.servers.finish()
    servers.settle()
    assert known(servers).end == position_of(1, 0)
    assert not known(servers).ended_in_order


def test_data_of_another_program_is_refused(servers: ServersStores) -> None:
    servers.raw.command("s:ol:{x}", "SET", "s:ol:{x}", "1")
    with pytest.raises(StoreError, match="EmberMQ cannot place"):
        known(servers)


@pytest.mark.parametrize("key", ["s:w:{ann}", "t:r:{t}", "g:s:{all/t}", "q:s:{work}"])
def test_a_redis_that_has_kept_some_data_alone_is_no_unused_one(servers: ServersStores, key: str) -> None:
    servers.raw.command(key, "SET", key, "{}")
    with pytest.raises(StoreError, match="but no embermq:schema"):
        known(servers)


def test_a_master_that_was_emptied_is_refused_unless_its_loss_is_accepted(servers: ServersStores) -> None:
    notes = RedisLogNotes(servers.raw, "redis")
    notes.begin(7)
    notes.open("a log")
    notes.check_whole(accept_loss=False)
    servers.raw.command("embermq:floor", "DEL", "embermq:floor")
    with pytest.raises(StoreError, match=r"'embermq:floor': the server .* was emptied"):
        notes.check_whole(accept_loss=False)
    notes.check_whole(accept_loss=True)
    notes.check_whole(accept_loss=False)


def test_data_of_a_cluster_is_refused_to_who_is_not_in_it(servers: ServersStores) -> None:
    notes = RedisLogNotes(servers.raw, "redis")
    notes.open("a log")
    notes.check_cluster(known(servers), "cars")
    notes.open("a log", "cars")
    notes.check_cluster(known(servers), "cars")
    with pytest.raises(StoreError, match=r"'cars'.* in no cluster.* redis-cli HDEL embermq:log cluster"):
        notes.check_cluster(known(servers), "")
    with pytest.raises(StoreError, match="is of cluster 'buses'"):
        notes.check_cluster(known(servers), "buses")
    servers.raw.command("embermq:log", "HDEL", "embermq:log", "cluster")
    notes.check_cluster(known(servers), "")
    servers.raw.command("x", "FLUSHALL")
    servers.writer_of_state.put_anew("a log", 3, 1, "cars")
    servers.settle()
    assert known(servers).cluster == "cars"


def test_who_comes_for_a_session_hears_of_it_after_its_loss_is_known(servers: ServersStores) -> None:
    servers.notes.begin(0)
    servers.write(sessions=[ANN])
    told: list[str] = []
    servers.writer_of_state.watch(lambda is_lost: told.append(f"lost {is_lost('s:ol:{ann}')}"))
    servers.raw.command("x", "FLUSHALL")
    servers.submit(tick_writes(sessions=[ANN]))
    servers.store.when_stored(ANN.generation, lambda: told.append("stored"))
    servers.settle()
    assert told == ["lost True", "stored"]


def test_a_deleted_session_is_no_emptied_redis(servers: ServersStores) -> None:
    servers.notes.begin(0)
    servers.write(sessions=[ANN])
    servers.writer_of_state.watch(lambda _: pytest.fail("nothing else is gone"))
    servers.raw.command("s:ol:{ann}", "DEL", "s:ol:{ann}")
    servers.write(sessions=[ANN])
    assert "'ann'" in servers.writer_of_state.estranged


def test_a_tick_begins_when_memory_has_been_read(servers: ServersStores) -> None:
    servers.link.away = True
    servers.submit(tick_writes(sessions=[ANN]))
    told: list[str] = []
    servers.servers.when_quiet(lambda: told.append("quiet"))
    servers.settle()
    assert servers.store.busy and not told, "something is on its way"
    servers.link.return_()
    servers.store.when_stored(ANN.generation, lambda: told.append("stored"))
    servers.settle()
    assert told == ["stored", "quiet"] and not servers.store.busy
