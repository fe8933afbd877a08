"""What the pipeline's status shows, of a pipeline that runs and has done nothing."""

from __future__ import annotations

from msgspec.structs import replace

from embermq.pipeline.status import PipelineStatus, QueryStatus


def query_status(name: str, **changes: object) -> QueryStatus:
    found = QueryStatus(
        name=name,
        state="running",
        mode="microbatch",
        position=0,
        lag_messages=0,
        lag_s=0.0,
        last_batch_records=0,
        last_batch_ms=0,
        last_batch_at_ms=0,
        last_error="",
        restarts=0,
        totals={},
    )
    return replace(found, **changes)


def pipeline_status(*queries: QueryStatus, **changes: object) -> PipelineStatus:
    found = PipelineStatus(
        state="running",
        pid=1,
        started_ms=0,
        updated_ms=0,
        java="",
        spark="",
        driver_restarts=0,
        last_error="",
        log_end=0,
        waiting=0,
        warnings=(),
        queries=queries,
    )
    return replace(found, **changes)
