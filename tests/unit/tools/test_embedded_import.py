"""What an embedded broker has, as ticks and records for servers."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from embermq.adapters.sqlite.users import SqliteUsers
from embermq.app.config import Settings
from embermq.app.data_lock import held_data_dir
from embermq.app.embedded import open_embedded
from embermq.app.errors import UserError
from embermq.app.places_noted import note_places
from embermq.formats.log_record import Stamp, decode_record, encode_record, encode_stamps, is_addressed
from embermq.model.application_positions import UNCOUNTED, EarlyMark, ReaderPosition, StoredPositions
from embermq.model.client_type import ClientType
from embermq.model.message import Message
from embermq.model.parked_message import ParkedChange, ParkedMessage, ParkedStage, ParkedState
from embermq.model.session import SessionRow, SubscriptionRow, WillRow
from embermq.model.session_writes import QueueMark, QueueRow, QueueState
from embermq.model.tick_writes import ApplicationMark, TickWrites
from embermq.pipeline.sinks.sink_file import SinkFile
from embermq.ports.errors import StoreError
from embermq.ports.tick_store import Receipt
from embermq.ports.users import User
from embermq.tools.embedded_import import archive, servers
from embermq.tools.embedded_import import source as source_module
from embermq.tools.embedded_import.job import _Import
from embermq.tools.embedded_import.source import Counts, EmbeddedSource, embedded_settings, repair
from embermq.tools.embedded_import.writes import Owed, OwedRecord, ReaderPlaces, shared_groups, ticks_of

STARTS_MAX = 5
ANN, BOB, PUMP, CREW = 1, 2, 3, 4
RESERVED = 100
END = 1 << 46
FAR_MS = 1 << 42
ON_SQL = "postgresql://127.0.0.1:1/a"


def message(text: bytes) -> Message:
    return Message("a/b", text, 2, False, "somebody", 5, 1_700_000_000_000)


def session(generation: int, client_id: str, client_type: ClientType) -> SessionRow:
    return SessionRow(client_id, generation, 4, client_type, "", 5, 0xFFFFFFFF, False, 0, 1)


def stored() -> TickWrites:
    """Three messages for both applications, of which one has the first under way and the second settled, the other one
    the first settled; a device with one message released and one that waits. Two wait for a group that has the first
    application alone, which is owed one of them anyway."""
    stamps = encode_stamps((Stamp("ann", ANN, 1), Stamp("bob", BOB, 2)))
    writes = TickWrites(generation_reserved=RESERVED, dispatcher_floor=3)
    writes.records = [encode_record(message(b"%d" % number), stamps) for number in range(3)]
    writes.session.sessions = [
        session(ANN, "ann", ClientType.APPLICATION),
        session(BOB, "bob", ClientType.APPLICATION),
        session(PUMP, "pump", ClientType.DEVICE),
        session(CREW, "$share/crew/a/#", ClientType.DEVICE),
    ]
    shared = "$share/crew/a/#"  # QoS 1, retain as published
    writes.session.subscriptions.append((ANN, shared, SubscriptionRow(shared, 1 | 8, 6, 0)))
    for name in ("$share/other/a/#", "$share/crew/$queue/jobs", "a/#"):
        writes.session.subscriptions.append((ANN, name, SubscriptionRow(name, 1, 0, 0)))
    writes.application_positions = {
        ANN: ReaderPosition("", 9, StoredPositions(0, 0)),
        BOB: ReaderPosition("", 3, StoredPositions(1, 1)),
    }
    writes.application_marks = [
        ApplicationMark(ANN, 0, 7, QueueState.SENT),
        ApplicationMark(ANN, 1, 8, QueueState.DONE),
    ]
    record = encode_record(message(b"stored"))
    at = (PUMP, 65_536, -1)
    writes.session.queue_rows = [
        QueueRow(*at, 5, QueueState.SENT, 2, FAR_MS, (), record),
        QueueRow(PUMP, 131_072, -1, 0, QueueState.QUEUED, 1, FAR_MS, (), record),
        QueueRow(CREW, 65_536, 2, 0, QueueState.QUEUED, 1, FAR_MS, (), writes.records[2]),
        QueueRow(CREW, 131_072, 3, 0, QueueState.QUEUED, 2 | 4, FAR_MS, (), encode_record(message(b"3"))),
    ]
    writes.session.queue_marks = [QueueMark(*at, QueueState.RELEASED, 5)]
    writes.parked = [
        ParkedMessage(ParkedState(ANN, number, stage, 1, 0, 2), 1, 2, False, (3,), "a/b", 6, record)
        for number, stage in ((1, ParkedStage.PARKED), (2, ParkedStage.PARKED))
    ]
    writes.parked.append(ParkedChange(ParkedState(ANN, 2, ParkedStage.DELETED, 2, 11, 2)))
    return writes


def with_will() -> TickWrites:
    """The broker died with a client whose will both others are to get: one that is away, and an application. That of
    one of them is due later."""
    writes = TickWrites(generation_reserved=RESERVED)
    writes.session.sessions = [
        session(ANN, "ann", ClientType.APPLICATION),
        session(BOB, "bob", ClientType.DEVICE),
        session(PUMP, "pump", ClientType.DEVICE),
    ]
    writes.session.subscriptions = [(one, "a/#", SubscriptionRow("a/#", 1, 0, 0)) for one in (ANN, PUMP)]
    writes.application_positions = {ANN: ReaderPosition("", 0, StoredPositions())}
    will = WillRow("bob", 0, encode_record(message(b"gone")), 0, "", "")
    writes.session.wills = [(BOB, will), (PUMP, replace(will, client_id="pump", delay_s=86_400))]
    return writes


async def store(data_dir: Path, settings: Settings, writes: TickWrites) -> None:
    loop = asyncio.get_running_loop()
    opened = open_embedded(data_dir, settings, loop.call_soon_threadsafe)
    logged: asyncio.Future[Receipt | StoreError] = loop.create_future()
    opened.ticks.submit(writes, logged.set_result)
    assert isinstance(await logged, Receipt)
    opened.close()


async def fill(data_dir: Path, settings: Settings, writes: TickWrites | None = None) -> None:
    await store(data_dir, settings, writes or stored())
    with held_data_dir(data_dir) as lock:
        await repair(data_dir, settings, lock)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[EmbeddedSource]:
    settings = embedded_settings(Settings(), tmp_path)
    asyncio.run(fill(tmp_path, settings))
    with closing(EmbeddedSource(tmp_path, settings, lambda call: call())) as opened:
        yield opened


def owed(source: EmbeddedSource) -> list[OwedRecord]:
    return list(Owed(source.applications()).records(source))


def test_applications_are_owed_what_they_have_not_settled_in_the_same_order_each_time(
    source: EmbeddedSource,
) -> None:
    found = owed(source)
    assert [dict(one.receivers) for one in found] == [{ANN: 1}, {BOB: 2}, {ANN: 1, BOB: 2}, {ANN: 1}]
    records = [decode_record(one.record) for one in found]
    assert [one.message for one in records] == [message(b"%d" % number) for number in range(4)]
    assert all(is_addressed(one) for one in records)
    assert [[stamp.log for stamp in one.stamps] for one in records] == [
        ["ann"],
        ["bob"],
        ["ann", "bob"],
        ["ann"],
    ]
    assert records[3].stamps == (Stamp("ann", ANN, 1, True, (6,)),)
    assert owed(source) == found


def test_what_is_under_way_keeps_its_packet_id_at_its_place_in_the_new_log(source: EmbeddedSource) -> None:
    places = ReaderPlaces(source.applications())
    for number, one in enumerate(owed(source)):
        places.note(one, END + number)
    assert places.positions({ANN: "of ann", BOB: "of bob"}) == {
        ANN: ReaderPosition(
            "of ann", 9, StoredPositions(), served=((END, END + 1),), early={END: EarlyMark(7, 1)}
        ),
        BOB: ReaderPosition("of bob", 3, StoredPositions()),
    }


def test_what_was_received_and_has_lost_its_body_goes_on_with_its_pubrel(source: EmbeddedSource) -> None:
    gone = source.log_end + 5
    ann, bob = sorted(source.applications(), key=lambda one: one.row.generation)
    marks = (
        *bob.reader.marks,
        replace(ann.reader.marks[0], offset=gone, packet_id=12, state=QueueState.RELEASED),
        replace(ann.reader.marks[0], offset=gone + 1, packet_id=13, state=QueueState.SENT),
    )
    bob = replace(bob, owed=bob.owed + array("q", [gone, gone + 1]), reader=replace(bob.reader, marks=marks))
    owed, places = Owed([ann, bob]), ReaderPlaces([ann, bob])
    for number, one in enumerate(owed.records(source)):
        places.note(one, END + number)
    assert owed.lost == 1
    assert places.positions({ANN: "of ann", BOB: "of bob"})[BOB] == ReaderPosition(
        "of bob", 3, StoredPositions(), early={gone: EarlyMark(12, 2, is_released=True)}, settled=UNCOUNTED
    )


def test_rows_become_ticks_with_their_places_and_states(source: EmbeddedSource) -> None:
    ticks = list(ticks_of(source, END))
    sessions = [row.generation for tick in ticks for row in tick.session.sessions]
    assert sorted(sessions) == [ANN, BOB, PUMP]
    rows = [row for tick in ticks for row in tick.session.queue_rows]
    assert [(row.seq, row.packet_id, row.state) for row in rows] == [(65_536, 5, 1), (131_072, 0, 0)]
    marks = [mark for tick in ticks for mark in tick.session.queue_marks]
    assert marks == [QueueMark(PUMP, 65_536, -1, QueueState.RELEASED, 5)]
    parked = [write for tick in ticks for write in tick.parked]
    assert [type(write) for write in parked] == [ParkedMessage, ParkedMessage, ParkedChange]
    assert parked[2] == ParkedChange(ParkedState(ANN, 2, ParkedStage.DELETED, 2, 11, 2))


def test_a_shared_subscription_of_applications_is_a_group_that_nobody_has_had_before(
    source: EmbeddedSource,
) -> None:
    groups = shared_groups(source, END)
    reserved = source.state.generation_reserved
    assert {(one.share, one.topic_filter) for one in groups} == {("crew", "a/#"), ("other", "a/#")}
    assert sorted(one.generation for one in groups) == [reserved, reserved + 1]
    assert {one.log_generation for one in groups} == {reserved}
    assert {one.since for one in groups} == {END}


def test_wills_of_clients_that_died_with_their_broker_are_stored_for_all_who_are_to_get_them(
    tmp_path: Path,
) -> None:
    settings = embedded_settings(Settings(), tmp_path)
    asyncio.run(fill(tmp_path, settings, with_will()))
    with closing(EmbeddedSource(tmp_path, settings, lambda call: call())) as source:
        assert [generation for generation, _ in source.state.wills] == [PUMP]
        assert source.state.dispatcher_floor == source.log_end == 1
        assert {one.row.client_id: one.queued for one in source.sessions()} == {"ann": 0, "bob": 0, "pump": 1}
        assert [dict(one.receivers) for one in owed(source)] == [{ANN: 1}]


def test_a_repair_ends_though_each_start_stores_a_will_that_is_due_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that publishes is followed by another one, which has nothing to publish."""
    settings, starts, repaired = embedded_settings(Settings(), tmp_path), [], source_module._repaired
    asyncio.run(store(tmp_path, settings, with_will()))

    async def counted(*given: Any) -> bool:
        starts.append(await repaired(*given))
        assert len(starts) < STARTS_MAX, "it does not end"
        return starts[-1]

    monkeypatch.setattr(source_module, "_repaired", counted)
    with held_data_dir(tmp_path) as lock:
        asyncio.run(repair(tmp_path, settings, lock))
    assert starts == [True, False]


def test_access_rules_hold_for_wills_that_the_repair_publishes(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text('[[rule]]\ndeny = "publish"\ntopics = "a/b"\n')
    rules = replace(Settings().authorization, rules=str(tmp_path / "rules.toml"))
    settings = embedded_settings(replace(Settings(), authorization=rules), tmp_path)
    asyncio.run(fill(tmp_path, settings, with_will()))
    with closing(EmbeddedSource(tmp_path, settings, lambda call: call())) as source:
        assert (len(source.state.wills), source.log_end) == (1, 0)


def test_an_import_that_has_begun_goes_on_with_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, source_dir = Settings(), tmp_path / "old"
    source_dir.mkdir()
    asyncio.run(store(source_dir, embedded_settings(settings, source_dir), with_will()))
    monkeypatch.setattr(servers, "begun_import", lambda _settings: servers.ImportNote(1, 1))
    job = _Import(source_dir, tmp_path / "new", settings, frozenset(), lambda _done, _total: None)
    with held_data_dir(source_dir) as lock:
        found = asyncio.run(job.run(lock, dry_run=True))
    assert found.counts["wills"] == 2


class Servers:
    """Kafka and Redis that take all; `seen` has what files there were at each step."""

    records = 0
    identity = "new"

    def __init__(self, source_dir: Path, target_dir: Path) -> None:
        self.seen: dict[str, set[str]] = {}
        self._files = (source_dir / "places.json", target_dir / "users.db", target_dir / "api-tokens.json")

    def _note(self, step: str) -> None:
        self.seen[step] = {path.name for path in self._files if path.exists()}

    def begin(self, _note: object) -> None:
        pass

    async def store(self, _writes: object, _end: int) -> None:
        pass

    async def settle(self) -> None:
        pass

    def note_end(self, _end: int, _generations: int, _queues: int) -> None:
        pass

    async def make_logs(self, _clients: object) -> dict[int, str]:
        return {}

    def count(self) -> Counts:
        self._note("count")
        return Counts()

    def finish(self, _identity: str) -> None:
        self._note("finish")

    def close(self) -> None:
        pass


class State(Servers):
    async def close(self) -> None:  # type: ignore[override]
        pass


def test_accounts_and_files_come_when_all_else_was_compared_and_before_a_broker_may_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    stores = replace(Settings().stores, log="kafka://127.0.0.1:1", session="redis://127.0.0.1:1")
    settings = replace(Settings(), stores=stores, data_dir=str(new))
    asyncio.run(store(old, embedded_settings(settings, old), TickWrites()))
    with closing(SqliteUsers(old / "users.db")) as users:
        users.import_all([User("ann", "no hash", ClientType.DEVICE, False, 1)], replace=False)
    for directory, name, text in (
        (old, "api-tokens.json", "old"),
        (old, "bans.json", "old"),
        (new, "bans.json", "new"),
        (old, "clock.json", "same"),
        (new, "clock.json", "same"),
    ):
        (directory / name).write_text(text)
    state, log = State(old, new), Servers(old, new)
    monkeypatch.setattr(servers, "begun_import", lambda _settings: servers.ImportNote(1, 1))
    monkeypatch.setattr(servers, "NewState", lambda _settings, _post: state)
    monkeypatch.setattr(servers, "NewLog", lambda _settings, _post: log)
    job = _Import(old, new, settings, frozenset(), lambda _done, _total: None)
    with held_data_dir(old) as lock:
        found = asyncio.run(job.run(lock, dry_run=False))
    assert found.counts["accounts"] == 1
    assert found.kept == ("bans.json",)
    assert state.seen == {"count": set(), "finish": {"places.json", "users.db", "api-tokens.json"}}


def test_accounts_on_another_server_than_the_new_brokers_are_refused_by_name(
    tmp_path: Path, source: EmbeddedSource
) -> None:
    def stores(static: str) -> Settings:
        return replace(Settings(), stores=replace(Settings().stores, static=static))

    note_places(tmp_path, stores("postgresql://u@a.example/one"))

    def check(static: str) -> None:
        job = _Import(tmp_path, tmp_path / "new", stores(static), frozenset(), lambda _done, _total: None)
        job._check_kinds(source)

    check("postgresql://u@a.example/one")
    for other in ("sqlite", "postgresql://u@b.example/one"):
        with pytest.raises(UserError, match=r"are in postgresql://u@a\.example/one"):
            check(other)


def test_an_archive_that_has_let_go_of_messages_since_they_were_copied_is_all_there(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    with closing(SinkFile(old / "messages.db", "archive", ("embermq.formats", "messages.sql"))) as file:
        with file.transaction() as connection:
            connection.executemany(
                'INSERT INTO message ("offset", topic, accepted_ms, qos, retain, publisher, version, payload)'
                " VALUES (?, 'a/b', 1, 1, 0, 'somebody', 5, x'01')",
                [(offset,) for offset in range(5)],
            )
        assert archive.carry_archive(old, new, lambda _copied: None) == archive.archived(old) == 5
        with file.transaction() as connection:
            connection.execute('DELETE FROM message WHERE "offset" < 2')
    assert archive.carry_archive(old, new, lambda _copied: None) == archive.archived(old) == 3
