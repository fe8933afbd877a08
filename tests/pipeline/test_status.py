"""Status: right whether the driver runs or not."""

import os
import time

import msgspec
import pytest
from tests.pipeline.log_writer import LogWriter, record

from embermq.cli.main import main
from embermq.pipeline.paused import pause_queries
from embermq.pipeline.places import Places
from embermq.pipeline.sinks.application_logs import ApplicationLogSink
from embermq.pipeline.status import (
    DriverReport,
    QueryReport,
    SupervisorReport,
    note_off,
    read_status,
    write_report,
)


def driver(query: QueryReport, updated_ms: int) -> DriverReport:
    return DriverReport(
        pid=os.getpid(),
        state="running",
        started_ms=updated_ms,
        updated_ms=updated_ms,
        java="17 (path)",
        spark="4.2.1",
        queries=(query,),
    )


def test_nothing_there_yet(places: Places) -> None:
    found = read_status(places.data_dir)
    assert (found.state, found.log_end, found.waiting, found.queries, found.warnings) == (
        "down",
        0,
        0,
        (),
        (),
    )


@pytest.mark.promise("pipeline-5", "pipeline-13")
def test_a_pipeline_that_is_down_says_what_waits_and_for_how_long(log: LogWriter, places: Places) -> None:
    log.append([record()] * 5)
    sink = ApplicationLogSink(places.applications)
    with sink.file.transaction():
        sink.file.move_to(3)
    now_ms = time.time_ns() // 1_000_000 + 60_000
    found = read_status(places.data_dir, now_ms)
    (dispatch,) = found.queries
    assert (dispatch.state, dispatch.position, dispatch.lag_messages) == ("down", 3, 2)
    assert dispatch.lag_s == pytest.approx(60, abs=5)
    assert found.waiting == 2
    assert found.warnings == ("the pipeline is down: application logs wait for 2 records",)


def test_how_long_records_wait_is_not_moved_with_the_clock(log: LogWriter, places: Places) -> None:
    log.append([record()])
    ApplicationLogSink(places.applications)
    step_ms = 9 * 24 * 3_600_000
    places.clock.write_bytes(b'{"broker_ms":0,"offset_ms":%d}' % step_ms)
    now_ms = time.time_ns() // 1_000_000 + step_ms + 60_000
    (dispatch,) = read_status(places.data_dir, now_ms).queries
    assert dispatch.lag_s == pytest.approx(60, abs=30)
    places.clock.write_bytes(b'{"broker_ms":0,"offset_ms":null}')
    (dispatch,) = read_status(places.data_dir, 60_000).queries
    assert dispatch.lag_s == 0


@pytest.mark.promise("pipeline-13")
def test_a_running_driver_is_reported_with_its_queries(log: LogWriter, places: Places) -> None:
    log.append([record()] * 5)
    now_ms = time.time_ns() // 1_000_000
    healthy = QueryReport(
        name="dispatch", state="running", last_batch_records=5, restarts=2, last_error="OSError: x"
    )
    write_report(places.status, driver(healthy, now_ms))
    found = read_status(places.data_dir)
    assert (found.state, found.pid, found.spark) == ("running", os.getpid(), "4.2.1")
    (query,) = found.queries
    assert (query.mode, query.last_batch_records, query.restarts, query.last_error) == (
        "microbatch",
        5,
        2,
        "OSError: x",
    )
    write_report(places.status, driver(msgspec.structs.replace(healthy, state="backoff"), now_ms))
    assert read_status(places.data_dir).state == "degraded"
    assert read_status(places.data_dir, now_ms + 60_000).state == "down", "it has not been heard of"


@pytest.mark.promise("pipeline-14")
def test_a_supervisor_that_gave_up_is_a_state_of_its_own(log: LogWriter, places: Places) -> None:
    log.append([record()])
    write_report(places.supervisor, SupervisorReport(state="failed", restarts=5, last_error="no Java"))
    found = read_status(places.data_dir)
    assert (found.state, found.driver_restarts, found.last_error) == ("failed", 5, "no Java")
    assert found.warnings == ("the pipeline is failed: application logs wait for 1 record",)


@pytest.mark.promise("pipeline-13")
def test_a_pipeline_that_nobody_wants_is_off_and_down_as_soon_as_somebody_does(
    log: LogWriter, places: Places
) -> None:
    log.append([record()] * 5)
    ApplicationLogSink(places.applications).file.begin_at(3)
    write_report(places.supervisor, SupervisorReport(state="running"))  # of a broker that was killed
    note_off(places.data_dir, is_off=True)
    found = read_status(places.data_dir)
    assert (found.state, found.waiting, found.warnings) == ("off", 0, ())
    assert [query.state for query in found.queries] == ["stopped"]
    note_off(places.data_dir, is_off=False)
    found = read_status(places.data_dir)
    assert (found.state, found.waiting, found.queries[0].state) == ("down", 2, "down")
    assert found.warnings == ("the pipeline is down: application logs wait for 2 records",)


@pytest.mark.promise("pipeline-13")
def test_a_pipeline_apart_from_the_broker_says_itself_how_it_is_until_it_is_stopped(places: Places) -> None:
    for report, shown in (
        (SupervisorReport(state="running", is_apart=True), "down"),
        (SupervisorReport(state="failed", is_apart=True), "failed"),
        (SupervisorReport(state="stopped", is_apart=True), "off"),
    ):
        write_report(places.supervisor, report)
        note_off(places.data_dir, is_off=True)
        assert read_status(places.data_dir).state == shown


def test_a_driver_of_this_directory_runs_whatever_its_broker_says(places: Places) -> None:
    now_ms = time.time_ns() // 1_000_000
    note_off(places.data_dir, is_off=True)
    write_report(places.status, driver(QueryReport(name="dispatch", state="running"), now_ms))
    assert read_status(places.data_dir, now_ms).state == "running"
    assert read_status(places.data_dir, now_ms + 60_000).state == "off"


@pytest.mark.promise("pipeline-4", "pipeline-5")
def test_rejected_and_missing_records_are_warned_of(places: Places) -> None:
    sink = ApplicationLogSink(places.applications)
    with sink.file.transaction():
        sink.file.count(rejected=2, missing=3)
    warnings = read_status(places.data_dir).warnings
    assert warnings == (
        "dispatch: 3 records gone from the log unread",
        "dispatch: 2 records not understood",
    )


def test_half_a_report_is_no_report(places: Places) -> None:
    places.work.mkdir(parents=True)
    places.status.write_text('{"pid": 1, "sta')
    assert read_status(places.data_dir).state == "down"


@pytest.mark.promise("pipeline-13")
def test_a_damaged_file_of_a_sink_is_told_and_the_others_are_shown(log: LogWriter, places: Places) -> None:
    log.append([record()] * 5)
    ApplicationLogSink(places.applications).file.begin_at(3)
    places.messages.write_bytes(b"no database" * 1_000)
    dispatch, archive = read_status(places.data_dir).queries
    assert (dispatch.position, dispatch.last_error) == (3, "")
    assert archive.last_error == "cannot read messages.db: file is not a database"
    assert f"archive: {archive.last_error}" in read_status(places.data_dir).warnings


@pytest.mark.promise("pipeline-13")
def test_a_paused_query_is_shown_with_the_way_out(
    log: LogWriter, places: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    log.append([record()] * 5)
    now_ms = time.time_ns() // 1_000_000
    write_report(places.status, driver(QueryReport(name="lake", state="running"), now_ms))
    pause_queries(places.data_dir, ["lake"])
    found = read_status(places.data_dir, now_ms)
    assert (found.state, found.queries[0].state) == ("degraded", "paused")
    assert found.warnings == ("lake is paused because it was too far behind: embermq pipeline resume lake",)
    command = ["pipeline", "resume", "lake", "--data-dir", str(places.data_dir)]
    assert main(command) == 0
    assert read_status(places.data_dir, now_ms).queries[0].state == "running"
    assert main(command) != 0
    assert "lake is not paused" in capsys.readouterr().err
