"""The life of a client's log: made before its CONNACK, and so before the first record can match, deleted with the
session. Who may read a log is decided here alone, on the broker's thread; making and deleting is the store's."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from msgspec import Struct

from embermq.formats.application_logs import ApplicationLogNames
from embermq.ports.application_logs import ApplicationLogs, FoundLog, LogSize
from embermq.ports.errors import StoreError
from embermq.sessions.application_sessions import ApplicationSessions
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState
from embermq.sessions.timers import Timer

LOG = logging.getLogger("embermq")
PARTITIONS = 1
RECONCILE_AGAIN_MS = 30_000
"""What a start could not put right is looked at again."""
"""Of a client's own log: one reader reads it, and all of it is in order."""


class WantedLog(Struct, frozen=True):
    """A log that there has to be: of a session, or of consumer groups."""

    partitions: int
    session: Session | None = None
    groups: tuple[str, ...] = ()

    @property
    def reader(self) -> str:
        """Whose log it is, in words for log lines."""
        if self.session is not None:
            return f"client {self.session.client_id!r}"
        return f"group {self.groups[0]}" if self.groups else "a session that ends"

    @property
    def may_have_records(self) -> bool:
        """Before its first SUBSCRIBE nothing was stamped for a client."""
        return self.session is None or bool(self.session.subscriptions)


CommittedFound = Callable[[Mapping[int, int] | StoreError], None]
"""By partition of a log: below these offsets all is settled."""
Committed = Callable[[int, CommittedFound], None]
"""Asked by a session's generation."""
SharedCommitted = Callable[[str], Iterable[Mapping[int, int]]]
"""The same of each group that reads the shared log of this name."""


class LogOverview(Struct, frozen=True):
    """One log as it is now. `client_id` is whose it is, "" for none; `groups` are the shared subscriptions that read
    it; `lag` is how many records are not settled, by the slowest of them, None when nobody reads it. Neither it nor
    `records` is known where there is a `problem`."""

    name: str
    client_id: str
    groups: tuple[str, ...]
    records: int | None
    lag: int | None
    problem: str = ""


class LogLifecycle(ApplicationSessions):
    """Of one broker. Sessions that are stored keep their logs whatever the validations of names say now: those are
    asked for at CONNECT."""

    def __init__(self, state: BrokerState, logs: ApplicationLogs, names: ApplicationLogNames) -> None:
        self._state = state
        self._logs = logs
        self._names = names
        self._leaving: Counter[str] = Counter()
        """Logs of sessions that are over, as long as their end is not durable: after a crash they would be back."""
        self._again: Timer | None = None
        self.committed: Committed = _nothing_settled
        self.shared_committed: SharedCommitted = _no_groups
        self.restored: Callable[[Session, str], None] = _nobody_reads
        """Told of a session whose log was missing, and of the identity of the one that is there now: its client may be
        reading the one before."""

    def name(self, session: Session) -> str:
        """The log of an APPLICATION session."""
        return self._names.client_log(session.client_id)

    def recall(self, session: Session, then: Callable[[FoundLog], None]) -> None:
        """The session is stored, its client waits to be let in. `then` is called once the log can be read and written;
        when it cannot be had, not at all: whoever waits gives up."""
        self._logs.ensure(self.name(session), PARTITIONS, partial(self._found, session, then))

    def _found(
        self, session: Session, then: Callable[[FoundLog], None], found: FoundLog | StoreError
    ) -> None:
        if isinstance(found, FoundLog):
            then(found)
        else:
            LOG.error(
                "client %r is refused, its application log is not available: %s", session.client_id, found
            )

    def ended(self, session: Session) -> None:
        self._leaving[self.name(session)] += 1

    def deleted(self, session: Session) -> None:
        log = self.name(session)
        self._leaving[log] -= 1
        if not self._leaving[log]:
            del self._leaving[log]
        again = self._state.sessions.get(session.client_id)
        if log not in self._leaving and not (again is not None and again.is_application):
            self._logs.ended(log)

    def wanted(self) -> dict[str, WantedLog]:
        """Every log that somebody reads."""
        found = {
            self.name(session): WantedLog(PARTITIONS, session)
            for session in self._state.sessions.loaded
            if session.is_application
        }
        shared = self._state.shared_logs
        if shared is not None:
            for log, (partitions, groups) in shared.wanted().items():
                found[log] = WantedLog(partitions, None, groups)
        return found

    def _wanted(self, log: str) -> WantedLog | None:
        """The same of one, asked for each log that goes: most names tell whose it is."""
        client_id = self._names.plain_client(log)
        if client_id is None:
            return self.wanted().get(log)
        session = self._state.sessions.get(client_id)
        return WantedLog(PARTITIONS, session) if session is not None and session.is_application else None

    def reconcile(self, *, may_delete: bool) -> None:
        """After a start: what a crash left is put right. `may_delete`: what nobody reads goes; else it is only told."""
        self._logs.listed(partial(self._reconcile, may_delete))

    def _reconcile(self, may_delete: bool, there: Collection[str] | StoreError) -> None:
        if isinstance(there, StoreError):
            LOG.error(
                "which application logs there are is not known, those of ended sessions stay until it is: %s",
                there,
            )
            self._reconcile_again(may_delete)
            return
        wanted = self.wanted()
        for log, one in wanted.items():
            if log not in there:
                self._logs.ensure(log, one.partitions, partial(self._reconciled, may_delete, log, one))
        left = [log for log in there if log not in wanted and log not in self._leaving]
        if left and not may_delete:
            LOG.warning(
                "there are %d application logs that no session of this data directory reads, %s the first: they stay, "
                "since this broker did not make them; embermq sessions logs shows and cleans them",
                len(left),
                left[0],
            )
            return
        for log in left:
            self._logs.ended(log)

    def _reconciled(self, may_delete: bool, log: str, one: WantedLog, found: FoundLog | StoreError) -> None:
        self._remade(log, one, found)
        if isinstance(found, StoreError):
            self._reconcile_again(may_delete)

    def _reconcile_again(self, may_delete: bool) -> None:
        """In a while, however many logs it could not be done for."""
        self._state.timers.cancel(self._again)
        due_ms = self._state.tick.now_ms + RECONCILE_AGAIN_MS
        self._again = self._state.timers.at(due_ms, partial(self.reconcile, may_delete=may_delete))

    def _remade(self, log: str, one: WantedLog, found: FoundLog | StoreError) -> None:
        if isinstance(found, StoreError):
            LOG.error("application log %s of %s is missing and cannot be made: %s", log, one.reader, found)
        elif found.is_new and not one.may_have_records:
            LOG.info("application log %s of %s is made", log, one.reader)
        elif found.is_new:
            LOG.error(
                "application log %s of %s was missing and is there again, empty: what it held and was not read is lost",
                log,
                one.reader,
            )

    def restore(self, log: str, then: Callable[[int | StoreError | None], None]) -> None:
        """The pipeline has a record for a log that is not there. `then` gets None when it is there again; otherwise the
        newest generation there has been: nobody with a generation up to it will ever read this log. Where one log is
        missing others may be: all that are wanted are made again together."""
        if self._wanted(log) is None and log not in self._leaving:
            then(self._state.generation_next - 1)
        else:
            self._logs.listed(partial(self._restore, log, then))

    def _restore(
        self,
        log: str,
        then: Callable[[int | StoreError | None], None],
        there: Collection[str] | StoreError,
    ) -> None:
        if isinstance(there, StoreError):
            then(there)
            return
        wanted = self.wanted()
        if log in self._leaving:
            wanted.setdefault(log, WantedLog(PARTITIONS))
        known = set(there) - {log}
        missing = {name: one for name, one in wanted.items() if name not in known}
        for name, one in missing.items():
            answer = then if name == log else _nobody_asks
            self._logs.ensure(name, one.partitions, partial(self._restored, name, one, answer))
        if log not in missing:  # its session has ended meanwhile
            then(self._state.generation_next - 1)

    def _restored(
        self,
        log: str,
        one: WantedLog,
        then: Callable[[int | StoreError | None], None],
        found: FoundLog | StoreError,
    ) -> None:
        if isinstance(found, StoreError):
            then(found)
            return
        self._remade(log, one, found)
        if one.session is not None:
            self.restored(one.session, found.identity)
        elif self._state.shared_logs is not None:
            self._state.shared_logs.restored(log, found.identity)
        then(None)

    def overview(self, then: Callable[[list[LogOverview] | StoreError], None]) -> None:
        """Every log there is, in the order of their names."""
        self._logs.sizes(partial(self._overview, then))

    def _overview(
        self, then: Callable[[list[LogOverview] | StoreError], None], sizes: list[LogSize] | StoreError
    ) -> None:
        if isinstance(sizes, StoreError):
            then(sizes)
            return
        wanted = self.wanted()
        asked = {size.name: self._reader_of(size, wanted) for size in sizes}
        left = {log: session for log, session in asked.items() if session is not None}
        settled: dict[str, Mapping[int, int]] = {}
        failed: list[StoreError] = []

        def found(log: str, answer: Mapping[int, int] | StoreError) -> None:
            del left[log]
            if isinstance(answer, StoreError):
                failed.append(answer)
            else:
                settled[log] = answer
            if not left:
                tell()

        def tell() -> None:
            views = [self._overview_of(size, wanted.get(size.name), settled) for size in sizes]
            then(failed[0] if failed else views)

        if not left:
            tell()
        for log, session in list(left.items()):
            self.committed(session.generation, partial(found, log))

    def _reader_of(self, size: LogSize, wanted: Mapping[str, WantedLog]) -> Session | None:
        one = wanted.get(size.name)
        return one.session if one is not None and not size.problem else None

    def _overview_of(
        self, size: LogSize, wanted: WantedLog | None, settled: Mapping[str, Mapping[int, int]]
    ) -> LogOverview:
        if size.problem:
            session = wanted.session if wanted is not None else None
            groups = wanted.groups if wanted is not None else ()
            client_id = session.client_id if session is not None else ""
            return LogOverview(size.name, client_id, groups, None, None, size.problem)
        if wanted is None:
            return LogOverview(size.name, "", (), size.records, None)
        if wanted.session is None:
            lag = max(map(size.lag, self.shared_committed(size.name)), default=size.records)
            return LogOverview(size.name, "", wanted.groups, size.records, lag)
        lag = size.lag(settled.get(size.name, {}))
        return LogOverview(size.name, wanted.session.client_id, (), size.records, lag)

    def clean(self, logs: Collection[str], then: Callable[[list[str] | StoreError], None]) -> None:
        """Delete those of these logs that nobody reads; `then` gets their names."""
        wanted = self.wanted()
        unread = [
            log
            for log in logs
            if self._names.is_application_log(log) and log not in wanted and log not in self._leaving
        ]
        self._logs.delete(unread, lambda problem: then(unread if problem is None else problem))


def _nobody_asks(_answer: int | StoreError | None) -> None:
    return


def _nobody_reads(_session: Session, _identity: str) -> None:
    return


def _no_groups(_log: str) -> tuple[Mapping[int, int], ...]:
    return ()


def _nothing_settled(_generation: int, then: CommittedFound) -> None:
    then({})
