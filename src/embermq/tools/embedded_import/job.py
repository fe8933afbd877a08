"""The import from its checks to the comparison at its end."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from filecmp import cmp
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from embermq.adapters.sqlite.users import SqliteUsers
from embermq.app.config import Settings
from embermq.app.data_lock import DataLock, held_data_dir
from embermq.app.embedded import DATABASE
from embermq.app.errors import OptionError, UserError
from embermq.app.places_noted import FILE_NAME as PLACES
from embermq.app.places_noted import check_profile, note_places, noted_places
from embermq.app.settings import SQLITE
from embermq.app.static_store import FILE_NAME as USERS
from embermq.app.static_store import open_users
from embermq.formats.kafka_record import KafkaEncoder, kafka_bytes, record_bytes_max
from embermq.intake.replaying import RULE
from embermq.pipeline.places import Places
from embermq.ports.errors import StoreError
from embermq.ports.users import User
from embermq.tools.backup import WHOLE_FILES
from embermq.tools.embedded_import import archive
from embermq.tools.embedded_import.source import (
    Counts,
    EmbeddedSource,
    Fingerprint,
    embedded_settings,
    repair,
)
from embermq.tools.embedded_import.writes import (
    Owed,
    OwedRecord,
    ReaderPlaces,
    positions_tick,
    shared_groups,
    ticks_of,
)

if TYPE_CHECKING:
    from embermq.tools.embedded_import.servers import NewLog, NewState

ARCHIVE, RULES = "archive", "rules"
LEFT = (ARCHIVE, "lake", RULES)
"""Kinds that stay where they are, when that is said."""
Progress = Callable[[int, int], None]
"""Told how many sessions, queues and messages are done, and how many there are."""


class EmbeddedImport(Struct, frozen=True):
    """What an import did, or would do: `there` is None for what only would be."""

    counts: Counts
    there: Counts | None
    lost: int
    """Messages of application logs that nobody has any more."""
    left: tuple[str, ...]
    kept: tuple[str, ...] = ()
    """Files that the new directory has with another content: those stay."""

    @property
    def differs(self) -> tuple[str, ...]:
        """Kinds of which not as many are there as were."""
        if self.there is None:
            return ()
        return tuple(kind for kind, count in self.counts.items() if self.there[kind] != count)


def import_embedded(
    source_dir: Path, settings: Settings, *, left: Collection[str], dry_run: bool, progress: Progress
) -> EmbeddedImport:
    """Raises OptionError, UserError, StartError for what cannot be, StoreError for stores that do not answer, or of
    which not all came over."""
    _check(source_dir, settings, left)
    target_dir = Path(settings.data_dir)
    with held_data_dir(source_dir) as lock, held_data_dir(target_dir):
        job = _Import(source_dir, target_dir, settings, frozenset(left), progress)
        return asyncio.run(job.run(lock, dry_run=dry_run))


def _note_places(source_dir: Path, settings: Settings) -> None:
    """Where its data is from now on; its accounts are where they were. Raises StoreError."""
    static = noted_places(source_dir).static or SQLITE
    wanted = replace(settings, stores=replace(settings.stores, static=static))
    note_places(source_dir, wanted)
    if noted_places(source_dir).log != wanted.stores.shown().log:
        raise StoreError(
            f"{source_dir / PLACES} cannot be written: two brokers would have the same sessions, or none"
        )


def _check_servers(settings: Settings) -> None:
    if settings.stores.log == SQLITE:
        raise OptionError(
            "stores.log and stores.session: name the Kafka and the Redis that get the data, with the --config or --set "
            "of the broker that is to run on them"
        )


def _check(source_dir: Path, settings: Settings, left: Collection[str]) -> None:
    target_dir = Path(settings.data_dir)
    if unknown := set(left) - set(LEFT):
        raise OptionError(f"--leave {min(unknown)}: one of {', '.join(LEFT)}")
    _check_servers(settings)
    if settings.cluster.slots > 1:
        raise OptionError(
            f"cluster.slots: {settings.cluster.slots}; an import goes into a cluster with one slot"
        )
    if not (source_dir / DATABASE).is_file():
        raise UserError(f"{source_dir} is not the data directory of an embedded broker: it has no {DATABASE}")
    if target_dir.resolve() == source_dir.resolve():
        raise OptionError(
            f"--data-dir: {target_dir} is the one that is imported; the broker on servers gets another one"
        )
    check_profile(target_dir, settings)


class _Import:
    def __init__(
        self, source_dir: Path, target_dir: Path, settings: Settings, left: frozenset[str], progress: Progress
    ) -> None:
        self._source_dir = source_dir
        self._target_dir = target_dir
        self._settings = settings
        self._left = left
        self._progress = progress
        self._done = 0
        self._seen = Fingerprint()
        self._records = 0
        """What applications are owed, as records of the new log."""

    async def run(self, lock: DataLock, *, dry_run: bool) -> EmbeddedImport:
        # The clients of the servers are not in every installation.
        from embermq.tools.embedded_import.servers import begun_import, check_empty

        settings = embedded_settings(self._settings, self._source_dir)
        # One that has begun is of what is there: what only time has made of it since is for the new broker to see.
        if begun_import(self._settings) is None:
            noted = noted_places(self._source_dir)
            if noted.is_on_servers:
                raise UserError(
                    f"{self._source_dir} was imported into {noted.log} and {noted.session}: start the broker on them. "
                    f"To import it into others, remove {self._source_dir / PLACES}"
                )
            check_empty(self._settings)
            await repair(self._source_dir, settings, lock)
        source = EmbeddedSource(self._source_dir, settings, asyncio.get_running_loop().call_soon_threadsafe)
        with closing(source):
            self._check_kinds(source)
            owed = Owed(source.applications())
            counts = self._count(source, owed)
            kept = tuple(name for name in self._files() if self._is_kept(name))
            there = None if dry_run else await self._carry(source, owed, counts)
        return EmbeddedImport(counts, there, owed.lost, tuple(sorted(self._left)), kept)

    # Before anything is written

    def _check_kinds(self, source: EmbeddedSource) -> None:
        """Raises UserError for what is there and cannot be carried over."""
        places = Places(self._source_dir)
        in_files = self._settings.stores.static == SQLITE
        late = archive.behind(self._source_dir, source.log_end) if self._archived() and in_files else 0
        found = {
            "archive, which is in files and not in stores.static": self._archived() and not in_files,
            f"archive, which lacks {late} records of the log: let the pipeline come to its end": late > 0,
            "archive, which is on a server under the name of its log": places.archive.is_file(),
            "lake": places.lake.is_dir() or places.lake_ledger.is_file(),
            "rules": any(replay.startswith(RULE) for replay in source.state.replays),
        }
        for what in (one for one, is_there in found.items() if is_there):
            kind = what.partition(",")[0]
            if kind not in self._left:
                raise UserError(
                    f"{self._source_dir} has what is not carried over: {what}. It stays there, and can be read with "
                    f"--data-dir, when you say --leave {kind}"
                )
        static = noted_places(self._source_dir).static
        if static not in ("", SQLITE, self._settings.stores.shown().static):
            raise UserError(f"stores.static: the accounts of {self._source_dir} are in {static}; name it")

    def _archived(self) -> int:
        return 0 if ARCHIVE in self._left else archive.archived(self._source_dir)

    def _count(self, source: EmbeddedSource, owed: Owed) -> Counts:
        """Reads all that is there once. Raises UserError for messages that Kafka would not take."""
        counts = Counts({"accounts": len(self._accounts()), "archived messages": self._archived()})
        state = source.state
        self._seen.add(source.log_end)
        for one in source.sessions():
            self._seen.add(one)
            counts.add("sessions")
            counts.add("subscriptions", len(one.subscriptions))
            counts.add("packet ids of incoming QoS 2 messages", len(one.receiving))
            counts.add("messages stored for clients", one.queued)
        self._seen.add([state.wills, [(row.topic, row.offset) for row in source.retained()], source.parked()])
        counts.add("wills", len(state.wills))
        counts.add("replays", len(state.replays) - self._rules(source))
        counts.add("retained messages", len(source.retained()))
        counts.add("parked messages", len(source.parked()))
        counts.add("shared subscriptions of applications", len(shared_groups(source, 0)))
        for queue in source.queues():
            self._seen.add([queue.row, queue.groups, queue.delayed, [*queue.marks.items()]])
            counts.add("queues")
            counts.add("groups of queues", len(queue.groups))
            for entry in queue.entries:
                self._seen.add((entry.sequence, entry.offset))
                counts.add("messages in queues")
            counts.add("delayed messages", len(queue.delayed))
            counts.add("messages that groups have tried", len(queue.marks))
        counts.add("messages of application logs", self._count_owed(source, owed))
        return counts

    def _rules(self, source: EmbeddedSource) -> int:
        return sum(replay.startswith(RULE) for replay in source.state.replays)

    def _count_owed(self, source: EmbeddedSource, owed: Owed) -> int:
        """How many messages applications are owed."""
        largest, encoder = record_bytes_max(self._settings.mqtt.packet_bytes_max), KafkaEncoder()
        count = self._records = 0
        self._seen.add([one.reader for one in owed.applications])
        for one in owed.records(source):
            self._seen.add((one.offset, [*one.receivers]))
            self._records += 1
            size = kafka_bytes(encoder.encode(one.record))
            if size > largest:
                raise UserError(
                    f"the message at offset {one.offset} takes {size} bytes as a record of Kafka, and the log takes "
                    f"{largest}: set mqtt.packet_bytes_max ({self._settings.mqtt.packet_bytes_max}) to what the "
                    "embedded broker has"
                )
            count += len(one.receivers)
        return count

    def _accounts(self) -> list[User]:
        """Those that are in the directory."""
        if not (self._source_dir / USERS).is_file():
            return []
        with closing(SqliteUsers(self._source_dir / USERS)) as users:
            return users.all()

    # What is written

    async def _carry(self, source: EmbeddedSource, owed: Owed, counts: Counts) -> Counts:
        from embermq.tools.embedded_import.servers import ImportNote, NewLog, NewState, position_at

        post = asyncio.get_running_loop().call_soon_threadsafe
        total = sum(counts.values())
        state = NewState(self._settings, post)
        try:
            state.begin(ImportNote(source.identity, self._seen.value))
            log = NewLog(self._settings, post)
            try:
                there = Counts()
                if counts["archived messages"]:
                    told = partial(self._tell, total)
                    there.add(
                        "archived messages", archive.carry_archive(self._source_dir, self._target_dir, told)
                    )
                places = ReaderPlaces(owed.applications)
                there.add(
                    "messages of application logs",
                    await self._append(log, owed.records(source), places, total),
                )
                end = position_at(self._records)
                await self._store(state, source, end, total)
                clients = [(one.row.generation, one.row.client_id) for one in owed.applications]
                identities = await log.make_logs(clients)
                await state.store(positions_tick(places.positions(identities)), end)
                await state.settle()
                groups = len(shared_groups(source, end))
                generations = source.state.generation_reserved + groups
                state.note_end(end, generations, source.next_queue_generation())
                found = Counts({**state.count(), **{kind: n for kind, n in there.items() if n}})
                self._compare({**counts, "accounts": 0}, found)
                # Last, so that a run that goes on does not find what accounts were when one before was broken off.
                found["accounts"] = self._carry_accounts()
                self._compare(counts, found)
                self._finish(state, log)
            finally:
                log.close()
        finally:
            await state.close()
        self._progress(total, total)
        return found

    def _compare(self, counts: Mapping[str, int], found: Counts) -> None:
        differing = [
            f"{found[kind]} of {count} {kind}" for kind, count in counts.items() if found[kind] != count
        ]
        if differing:
            raise StoreError(
                f"not all came over: {', '.join(differing)} are there. No broker starts on it: delete its keys in "
                "Redis (FLUSHDB, unless others are there), and begin anew with another kafka.prefix and without "
                f"{self._target_dir}"
            )

    def _finish(self, state: NewState, log: NewLog) -> None:
        self._copy_files()
        _note_places(self._source_dir, self._settings)
        state.finish(log.identity)

    async def _append(self, log: NewLog, owed: Iterator[OwedRecord], places: ReaderPlaces, total: int) -> int:
        """Behind what a run before has appended. Returns how many messages for applications there are."""
        from embermq.tools.embedded_import.servers import APPENDED_AT_ONCE, APPENDED_BYTES, position_at

        there = log.records
        batch: list[bytes] = []
        number = count = size = 0
        for number, one in enumerate(owed, 1):
            count += len(one.receivers)
            places.note(one, position_at(number - 1))
            if number <= there:
                continue
            batch.append(one.record)
            size += len(one.record)
            if len(batch) == APPENDED_AT_ONCE or size >= APPENDED_BYTES:
                await log.append(batch)
                batch, size = [], 0
        if batch:
            await log.append(batch)
        if log.records != number:
            raise StoreError(f"the message log has {log.records} records instead of {number}")
        self._tell(total, count)
        return count

    async def _store(self, state: NewState, source: EmbeddedSource, end: int, total: int) -> None:
        for writes in ticks_of(source, end):
            if RULES in self._left:
                writes.replays = {one: n for one, n in writes.replays.items() if not one.startswith(RULE)}
            await state.store(writes, end)
            session, queues = writes.session, writes.queues
            done = len(session.sessions) + len(session.queue_rows) + len(session.retained)
            self._tell(total, done + len(session.subscriptions) + len(queues.entries) + len(queues.delayed))
        await state.settle()

    def _tell(self, total: int, more: int) -> None:
        self._done += more
        self._progress(min(self._done, total), total)

    def _carry_accounts(self) -> int:
        """Returns how many of the directory's are there."""
        accounts = self._accounts()
        if not accounts:
            return 0
        with closing(open_users(self._settings)) as users:
            users.import_all(accounts, replace=False)
            there = {user.name: user for user in users.all()}
        return sum(one.name in there for one in accounts)

    def _files(self) -> list[str]:
        """Tokens, bans, secrets, the clock and the trail: what a backup copies whole."""
        return [name for name in WHOLE_FILES if name != PLACES and (self._source_dir / name).is_file()]

    def _is_kept(self, name: str) -> bool:
        """Whether the new directory has another one, which no import has copied there."""
        target = self._target_dir / name
        return target.exists() and not cmp(self._source_dir / name, target, shallow=False)

    def _copy_files(self) -> None:
        for name in self._files():
            target = self._target_dir / name
            if not target.exists():
                fresh = target.with_name(f"{name}.new")
                shutil.copy2(self._source_dir / name, fresh)
                fresh.replace(target)
