"""Rules without effect: what is wrong with them, and what they make of past messages."""

import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from embermq.pipeline.batch import batch_session, spark_failures
from embermq.pipeline.errors import RuleError, RuleRefused
from embermq.pipeline.jobs.past_messages import past_messages
from embermq.pipeline.jobs.past_records import accepted_in, has_lake
from embermq.pipeline.jobs.replay_values import ReplayRange
from embermq.pipeline.places import Places
from embermq.pipeline.rules.rows import READ
from embermq.pipeline.rules.session import RuleSession
from embermq.pipeline.rules.settings import CheckedRule, RuleRow, RuleSettings, TriedRule
from embermq.pipeline.settings import DriverSettings, PipelineSettings
from embermq.pipeline.sources.message_log import MessageLogSource
from embermq.pipeline.transforms.batch_values import is_copy


def check_sql(settings: PipelineSettings, rules: Mapping[str, RuleSettings]) -> dict[str, CheckedRule]:
    """What is to be said of each. Raises PipelineError."""
    found: dict[str, CheckedRule] = {}
    with (
        tempfile.TemporaryDirectory(prefix="embermq-") as work,
        batch_session(settings, 1, Path(work)) as spark,
    ):
        session = RuleSession(spark)
        for name, rule in rules.items():
            try:
                found[name] = CheckedRule(hint=session.check(name, rule))
            except RuleRefused as error:
                found[name] = CheckedRule(refused=str(error))
    return found


def _end_s(wanted: ReplayRange) -> int:
    """A rule over windows sees the range as one."""
    return (time.time_ns() // 1_000_000 if wanted.end_ms is None else wanted.end_ms) // 1_000


def try_rule(
    settings: DriverSettings,
    places: Places,
    name: str,
    rule: RuleSettings,
    wanted: ReplayRange,
    *,
    shown: int,
    tasks: int,
) -> TriedRule:
    """What the rule would have published of a range of log and lake. Raises RuleRefused, RuleError, PipelineError."""
    began = time.monotonic()
    with (
        closing(past_messages(settings, places)) as past,
        tempfile.TemporaryDirectory(prefix="embermq-") as work,
    ):
        uses_lake = past.begins_before(wanted) and has_lake(settings, places)
        with (
            spark_failures(lambda reason: RuleError(f"the rule {name} fails: {reason}")),
            batch_session(settings, tasks, Path(work), lake=uses_lake) as spark,
        ):
            spark.dataSource.register(MessageLogSource)
            records = past.in_log(spark, wanted).where(accepted_in(wanted) & ~is_copy()).select(*READ)
            if uses_lake:
                records = past.in_lake(spark, wanted).select(*READ).unionByName(records)
            stretch = rule.stretch(_end_s(wanted)) if rule.every else None
            rows = RuleSession(spark).rows(name, rule, records, stretch)
            first = rows.orderBy("partition", "offset", "topic", "payload").limit(shown).collect()
            messages = rows.count()
            seen = records.where("error IS NULL").count()
    return TriedRule(
        records=seen,
        messages=messages,
        shown=tuple(
            RuleRow(
                partition=row["partition"],
                offset=row["offset"],
                topic=row["topic"],
                payload=bytes(row["payload"]).decode(errors="backslashreplace"),
            )
            for row in first
        ),
        seconds=round(time.monotonic() - began, 3),
    )
