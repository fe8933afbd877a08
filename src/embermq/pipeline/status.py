"""What the pipeline does, read from its files: right even when the driver is down. No Spark in here."""

import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, TypeVar, get_args

import msgspec
from msgspec import Struct

from embermq.model.amounts import counted
from embermq.pipeline.log_look import LogLook
from embermq.pipeline.paused import TOO_FAR, pause_reason, paused_queries
from embermq.pipeline.places import Places
from embermq.pipeline.rules.settings import QUERY
from embermq.pipeline.sources.log_file import LogBounds, LogFile, connect_readonly, is_not_there

NO_APPLICATION = "no application yet"
"""What a pipeline waits for that has application logs to fill and nothing else to do."""
STALE_MS = 10_000
"""A driver that has not written its status for so long does not run."""
CANNOT_READ = "cannot read"
"""How the error of a sink's file begins that is damaged or locked."""

PipelineState = Literal[
    "off", "waiting", "starting", "running", "degraded", "backoff", "failed", "stopped", "down"
]
PIPELINE_STATES: tuple[PipelineState, ...] = get_args(PipelineState)
QueryState = Literal["starting", "running", "backoff", "paused", "stopped", "down"]
QUERY_STATES: tuple[QueryState, ...] = get_args(QueryState)


class QueryReport(Struct, frozen=True, kw_only=True):
    """What the driver says of one query. Times are Unix milliseconds, 0 for never."""

    name: str
    state: QueryState
    mode: str = "microbatch"
    restarts: int = 0
    last_error: str = ""
    last_batch_records: int = 0
    last_batch_ms: int = 0
    last_batch_at_ms: int = 0
    positions: dict[str, int] = {}
    """On Kafka: partition of the log to the next offset."""
    lag_messages: int = 0
    lag_s: float = 0.0
    missing: int = 0
    totals: dict[str, int] = {}
    """On Kafka: what its sink has counted."""


class DriverReport(Struct, frozen=True, kw_only=True):
    """status.json: what the driver says of itself, every second."""

    pid: int
    host: str = ""
    state: Literal["starting", "running", "stopped"]
    started_ms: int
    updated_ms: int
    java: str = ""
    spark: str = ""
    master: str = ""
    queries: tuple[QueryReport, ...] = ()
    kafka: bool = False
    """Whether the log is in Kafka: then its end and the lags are the driver's, as it has seen them last."""
    log_first: int = 0
    log_end: int = 0
    waits_for: str = ""
    """Why it has not started: what Kafka said last."""


class SupervisorReport(Struct, frozen=True, kw_only=True):
    """supervisor.json: what the broker says of the driver, at each change; `off`: that it starts none, and that nothing
    waits for one."""

    state: Literal["off", "stopped", "waiting", "starting", "running", "backoff", "failed"]
    pid: int = 0
    restarts: int = 0
    last_error: str = ""
    stalled: str = ""
    """Which query gets nothing done although records wait, and for how long; "" for none."""
    is_apart: bool = False
    """Whether it is said by `embermq pipeline start`, beside a broker that starts none."""


class QueryStatus(Struct, frozen=True, kw_only=True):
    """One query: what its sink has confirmed, and how far that is behind the log."""

    name: str
    state: QueryState
    mode: str
    position: int
    lag_messages: int
    lag_s: float
    """Age of the oldest record that has not had its effect; 0 when there is none."""
    last_batch_records: int
    last_batch_ms: int
    last_batch_at_ms: int
    last_error: str
    restarts: int
    totals: dict[str, int]
    """Over the life of the sink: records, entries, bytes (of payload), rejected, missing (gone from the log unread),
    late, files."""
    positions: dict[str, int] = {}
    """On Kafka: partition of the log to the next offset; `position` is their sum."""


class PipelineStatus(Struct, frozen=True, kw_only=True):
    """The state of the pipeline as a whole, and of each query."""

    state: PipelineState
    pid: int
    started_ms: int
    updated_ms: int
    java: str
    spark: str
    driver_restarts: int
    last_error: str
    log_end: int
    waiting: int
    """Records that application logs wait for."""
    warnings: tuple[str, ...]
    queries: tuple[QueryStatus, ...]
    host: str = ""
    """Of a driver without the broker's data directory; "" for one of this machine."""
    waits_for: str = ""
    """What has to come before a driver that is `waiting` or `starting` starts; "" for nothing in particular."""


_Report = TypeVar("_Report", bound=Struct)

_FILES: tuple[tuple[str, str], ...] = (
    ("dispatch", "applications"),
    ("archive", "messages"),
    ("lake", "lake_ledger"),
    ("traffic", "traffic"),
)


def write_report(path: Path, report: DriverReport | SupervisorReport) -> None:
    """Replace a report in one step, so that no reader sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(msgspec.json.encode(report))
    fresh.replace(path)


def read_status(data_dir: Path, now_ms: int | None = None, look: LogLook | None = None) -> PipelineStatus:
    """Put together what driver, supervisor and sinks say, and of a log in Kafka what `look` has seen.

    Never raises for files that are not there yet.
    """
    places = Places(data_dir)
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    driver = _read(places.status, DriverReport)
    supervisor = _read(places.supervisor, SupervisorReport)
    alive = driver is not None and driver.state != "stopped" and _is_alive(driver, now_ms)
    host = ""
    if not alive and (elsewhere := _elsewhere(look)) is not None:
        driver, host = elsewhere, elsewhere.host
        alive = driver.state != "stopped" and now_ms - driver.updated_ms <= STALE_MS
    if look is not None:
        bounds = LogBounds(
            sum(one.first for one in look.bounds.values()), sum(one.end for one in look.bounds.values())
        )
        queries = tuple(_looked_at(look, name, driver, alive, now_ms) for name in look.done)
    elif driver is not None and driver.kafka:
        bounds = LogBounds(driver.log_first, driver.log_end)
        queries = tuple(_kafka_status(query, alive) for query in driver.queries)
    else:
        bounds, queries = _read_embedded(places, driver, alive, now_ms)
    paused = paused_queries(data_dir)
    queries = tuple(
        msgspec.structs.replace(query, state="paused") if query.name in paused else query for query in queries
    )
    dispatch = next((query for query in queries if query.name == "dispatch"), None)
    unread = bounds.end - bounds.first if look is None else 0
    waiting = dispatch.lag_messages if dispatch is not None else unread
    state = _state(driver if alive else None, supervisor, queries)
    is_missed = bool(host) and driver is not None and driver.state != "stopped"
    if state == "down" and supervisor and supervisor.state == "off" and not is_missed:
        state = "off"
        queries = tuple(
            msgspec.structs.replace(query, state="stopped") if query.state == "down" else query
            for query in queries
        )
    if state in ("waiting", "off"):
        waiting = 0  # there is no application log
    return PipelineStatus(
        state=state,
        pid=driver.pid if driver and alive else 0,
        host=host if alive else "",
        started_ms=driver.started_ms if driver and alive else 0,
        updated_ms=driver.updated_ms if driver else 0,
        java=driver.java if driver else "",
        spark=driver.spark if driver else "",
        driver_restarts=supervisor.restarts if supervisor else 0,
        last_error=supervisor.last_error if supervisor else "",
        log_end=bounds.end,
        waiting=waiting,
        warnings=_warnings(
            state,
            waiting,
            supervisor.stalled if supervisor else "",
            queries,
            {name: pause_reason(data_dir, name) for name in paused},
        ),
        queries=queries,
        waits_for=NO_APPLICATION if state == "waiting" else driver.waits_for if driver and alive else "",
    )


def note_off(data_dir: Path, *, is_off: bool) -> None:
    """Write down whether nothing waits for the pipeline, for a broker that starts none. One that runs apart says itself
    how it is, until it is stopped."""
    place = Places(data_dir).supervisor
    found = _read(place, SupervisorReport) or SupervisorReport(state="stopped")
    state: Literal["off", "stopped"] = "off" if is_off else "stopped"
    if found.state != state and (found.state == "stopped" or not found.is_apart):
        write_report(place, SupervisorReport(state=state))


def _read_embedded(
    places: Places, driver: DriverReport | None, alive: bool, now_ms: int
) -> tuple[LogBounds, tuple[QueryStatus, ...]]:
    log = LogFile(places.log)
    broker_ms = now_ms - ahead_ms(places)
    try:
        bounds = log.bounds() or LogBounds(0, 0)
        sinks = [
            _read_sink(path, name)
            for name, path in _sink_files(places)
            if path.exists() or (driver and any(q.name == name for q in driver.queries))
        ]
        sinks += [
            _Sink(query.name, query.positions.get("0"), _told_of(query))
            for query in (driver.queries if driver else ())
            if query.name.startswith(QUERY)
        ]
        return bounds, tuple(
            _query_status(sink, log, bounds, driver if alive else None, broker_ms) for sink in sinks
        )
    finally:
        log.close()


def _told_of(query: QueryReport) -> dict[str, int]:
    """What the driver has counted of a query."""
    return query.totals | ({"missing": query.missing} if query.missing else {})


def _looked_at(
    look: LogLook, name: str, driver: DriverReport | None, alive: bool, now_ms: int
) -> QueryStatus:
    """One query on Kafka: what it is doing, from the driver; how far it is, from what it has published."""
    reports = driver.queries if driver is not None else ()
    report = next((query for query in reports if query.name == name), None)
    report = report or QueryReport(name=name, state=_absent(driver if alive else None))
    behind = look.behind(name)
    lag_s = 0.0
    if behind and alive and report.lag_messages:
        lag_s = report.lag_s
    elif behind:  # without a driver, or with one that does not know it yet
        accepted_ms = look.accepted_ms(behind)
        lag_s = 0.0 if accepted_ms is None else max(0, now_ms - accepted_ms) / 1000
    told = msgspec.structs.replace(
        report,
        positions={str(number): offset for number, offset in sorted(look.done[name].items())},
        lag_messages=look.lag(behind),
        lag_s=lag_s,
    )
    return _kafka_status(told, alive)


def _absent(driver: DriverReport | None) -> QueryState:
    """How a query is that the driver says nothing of; None for no driver."""
    if driver is None:
        return "down"
    return "starting" if driver.state == "starting" else "stopped"


def _kafka_status(report: QueryReport, alive: bool) -> QueryStatus:
    """As the driver has told it, also when it has gone since."""
    return QueryStatus(
        name=report.name,
        state=report.state if alive else "down",
        mode=report.mode,
        position=sum(report.positions.values()),
        lag_messages=report.lag_messages,
        lag_s=report.lag_s,
        last_batch_records=report.last_batch_records,
        last_batch_ms=report.last_batch_ms,
        last_batch_at_ms=report.last_batch_at_ms,
        last_error=report.last_error,
        restarts=report.restarts,
        totals=_told_of(report),
        positions=report.positions,
    )


def _sink_files(places: Places) -> Iterator[tuple[str, Path]]:
    """Each query and the file that has its progress. Beside archive.db messages.db is of an earlier time."""
    for name, place in _FILES:
        path: Path = getattr(places, place)
        yield name, places.archive if name == "archive" and places.archive.exists() else path


def ahead_ms(places: Places) -> int:
    """By how much the wall clock is ahead of the broker's time."""
    clock = _read(places.clock, _Clock) or _Clock()
    return clock.offset_ms or 0


class _Clock(Struct, frozen=True):
    """clock.json: what the wall clock is ahead of the broker's time; None while it is not set."""

    offset_ms: int | None = None


class _Sink(Struct, frozen=True):
    """What a sink's file says; `position` is None before its first batch, `problem` why it cannot be read."""

    name: str
    position: int | None
    totals: dict[str, int]
    problem: str = ""


def _query_status(
    sink: _Sink, log: LogFile, bounds: LogBounds, driver: DriverReport | None, broker_ms: int
) -> QueryStatus:
    """`broker_ms` is the broker's time, which is what commits are stamped with."""
    report = next((query for query in driver.queries if query.name == sink.name), None) if driver else None
    report = report or QueryReport(name=sink.name, state=_absent(driver))
    position = bounds.first if sink.position is None else sink.position
    lag = max(0, bounds.end - position)
    committed_ms = log.committed_ms(position) if lag else None
    return QueryStatus(
        name=sink.name,
        state=report.state,
        mode=report.mode,
        position=position,
        lag_messages=lag,
        lag_s=0.0 if committed_ms is None else max(0, broker_ms - committed_ms) / 1000,
        last_batch_records=report.last_batch_records,
        last_batch_ms=report.last_batch_ms,
        last_batch_at_ms=report.last_batch_at_ms,
        last_error=report.last_error or sink.problem,
        restarts=report.restarts,
        totals=sink.totals,
    )


def _read_sink(path: Path, reader: str) -> _Sink:
    connection = connect_readonly(path)
    if connection is None:
        return _Sink(reader, None, {})
    try:
        position = connection.execute(
            "SELECT next_offset FROM progress WHERE reader = ?", (reader,)
        ).fetchall()
        totals = connection.execute("SELECT what, total FROM counted WHERE reader = ?", (reader,)).fetchall()
    except sqlite3.Error as error:
        problem = "" if is_not_there(error) else f"{CANNOT_READ} {path.name}: {error}"
        return _Sink(reader, None, {}, problem)
    finally:
        connection.close()
    return _Sink(reader, int(position[0][0]) if position else None, dict(totals))


def _state(
    driver: DriverReport | None, supervisor: SupervisorReport | None, queries: tuple[QueryStatus, ...]
) -> PipelineState:
    if supervisor and supervisor.state == "failed":
        return "failed"
    if driver is None and supervisor and supervisor.state == "waiting":
        return "waiting"
    if driver is None or (supervisor and supervisor.stalled):
        return "down"
    if driver.state == "running" and any(query.state in ("backoff", "paused") for query in queries):
        return "degraded"
    return driver.state


def _warnings(
    state: PipelineState,
    waiting: int,
    stalled: str,
    queries: tuple[QueryStatus, ...],
    paused: Mapping[str, str],
) -> tuple[str, ...]:
    """`paused`: why each is."""
    found: list[str] = []
    if state in ("down", "failed") and waiting:
        found.append(f"the pipeline is {state}: application logs wait for {counted(waiting, 'record')}")
    if stalled:
        found.append(stalled)
    for query in queries:
        missing = query.totals.get("missing", 0)
        if missing:
            found.append(f"{query.name}: {counted(missing, 'record')} gone from the log unread")
        rejected = query.totals.get("rejected", 0)
        if rejected:
            found.append(f"{query.name}: {counted(rejected, 'record')} not understood")
        if query.state == "paused":
            found.append(
                f"{query.name} is paused because {paused.get(query.name, TOO_FAR)}: "
                f"embermq pipeline resume {query.name}"
            )
        failed = query.totals.get("failed", 0) + query.totals.get("refused", 0)
        if failed and query.name.startswith(QUERY):
            name = query.name.removeprefix(QUERY)
            found.append(f"{query.name}: {counted(failed, 'message')} set aside: embermq rules errors {name}")
        if query.state == "backoff" or query.last_error.startswith(CANNOT_READ):
            found.append(f"{query.name}: {query.last_error}")
    return tuple(found)


def _elsewhere(look: LogLook | None) -> DriverReport | None:
    """What a driver elsewhere has said; `updated_ms` by the clock of this machine."""
    if look is None or look.report is None:
        return None
    try:
        told = msgspec.json.decode(look.report.value, type=DriverReport)
    except msgspec.DecodeError:
        return None
    return msgspec.structs.replace(told, updated_ms=look.report.at_ms)


def _is_alive(driver: DriverReport, now_ms: int) -> bool:
    if now_ms - driver.updated_ms > STALE_MS:
        return False
    try:
        # The name, in parentheses, may hold anything; after it comes the state. A zombie does not run.
        state = Path(f"/proc/{driver.pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


def _read(path: Path, kind: type[_Report]) -> _Report | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
