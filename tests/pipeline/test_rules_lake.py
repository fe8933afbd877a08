"""Rules with `to = "lake"`: each row is in the rule's Delta Lake table once, whoever is killed."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path

import deltalake
import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession
from tests.pipeline.feeding import WatchedBulk
from tests.pipeline.replaying import messages_in
from tests.pipeline.test_processes import jvm_in
from tests.pipeline.test_rules_live import publish, ruling
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_until

from embermq.pipeline.errors import BrokerAway, PipelineSettingsError
from embermq.pipeline.kafka_log import KafkaLog
from embermq.pipeline.places import Places
from embermq.pipeline.rules.live import RulePart
from embermq.pipeline.rules.settings import RuleSettings
from embermq.pipeline.rules.table_targets import LakeTarget
from embermq.pipeline.rules.targets import RuleDoor, RuleTaken
from embermq.pipeline.settings import DriverSettings, check_settings
from embermq.pipeline.status import read_status

MANY = 20
SQL = "SELECT topic, int(payload) AS n, accepted_at FROM messages WHERE topic LIKE 's/%'"
COUNTS = (
    "SELECT count(*) AS n, max(window_end) AS at FROM messages WHERE topic LIKE 's/%' HAVING count(*) > 0"
)
READINGS = RuleSettings(sql=SQL, to="lake")
WIDER = replace(READINGS, sql=SQL.replace("n, ", "n, int(payload) * 2 AS doubled, "))
START_S = 900
"""Until Spark has started, on a machine that has other things to do."""
KILLS = 3


def table_of(places: Places, rule: str = "readings") -> deltalake.DeltaTable:
    return deltalake.DeltaTable(str(places.data_dir / "lake-rules" / rule))


def rows_in(places: Places) -> list[dict[str, object]]:
    """In the order of the messages that they come of; nothing before there is a table."""
    if not deltalake.DeltaTable.is_deltatable(str(places.data_dir / "lake-rules" / "readings")):
        return []
    rows: list[dict[str, object]] = table_of(places).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: offset_of(row["ember_id"]))


def offset_of(ember_id: object) -> int:
    rule, _, partition, offset, row = str(ember_id).split(":")
    assert (rule, partition, row) == ("readings", "0", "0")
    return int(offset)


def inputs(places: Places) -> list[tuple[int, str, object]]:
    return [
        (offset, message.topic, int(message.payload))
        for offset, message in messages_in(places)
        if message.topic.startswith("s/")
    ]


def has_rows(places: Places, many: int) -> bool:
    return len(rows_in(places)) >= many


def counted(places: Places) -> list[int]:
    """By window, what the rule over windows says."""
    if not deltalake.DeltaTable.is_deltatable(str(places.data_dir / "lake-rules" / "counts")):
        return []
    return [row["n"] for row in table_of(places, "counts").to_pyarrow_table().to_pylist()]


def target_in(rules: WatchedBulk) -> LakeTarget:
    part = rules.feed("rule:readings").part
    assert isinstance(part, RulePart) and isinstance(part._target, LakeTarget)
    return part._target


def all_rows(rules: WatchedBulk, places: Places) -> list[tuple[int, object, object]]:
    """When the rule has had all that was sent."""
    end, feed = inputs(places)[-1][0] + 1, rules.feed("rule:readings")
    wait_until(lambda: feed.has_begun and feed.positions.get(0, 0) >= end, START_S, "all of it")
    return [(offset_of(row["ember_id"]), row["topic"], row["n"]) for row in rows_in(places)]


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-2")
@pytest.mark.timeout(1_200)
def test_each_row_is_there_once_though_the_broker_never_heard_of_its_commit(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the driver dies behind a commit. Few of them are made, each costs CPU."""
    asks, told = RuleDoor._ask, [0]

    def is_not_told(door: RuleDoor, asked_for: Mapping[str, object]) -> RuleTaken:
        if "end" in asked_for:
            told[0] += 1
            if told[0] == 1:
                raise BrokerAway("nobody is there")
        return asks(door, asked_for)

    with BrokerProcess(tmp_path / "data") as broker:
        places = Places(broker.data_dir)
        publish(broker, [0])  # nobody's: the rule begins behind it
        with ruling(spark, places, {"readings": READINGS}) as rules:
            feed = rules.feed("rule:readings")
            wait_until(lambda: feed.report().state == "running", START_S, "it runs")
        assert rows_in(places) == [], "there is a table with the first row"
        publish(broker, range(MANY))
        monkeypatch.setattr(RuleDoor, "_ask", is_not_told)
        with ruling(spark, places, {"readings": READINGS}) as rules:
            assert all_rows(rules, places) == inputs(places)[1:]
            assert rules.report("rule:readings").restarts == 1
        broker.kill()
        broker.start()
        publish(broker, range(MANY, 2 * MANY))
        with ruling(spark, places, {"readings": WIDER}) as rules:
            assert all_rows(rules, places) == inputs(places)[1:]
            tomorrow = datetime.now(UTC).date() + timedelta(days=1)
            assert target_in(rules).table.older_than(tomorrow) == 2 * MANY
        found = rows_in(places)
        assert [row["doubled"] for row in found] == [None] * MANY + [2 * n for n in range(MANY, 2 * MANY)]
        now = datetime.now(UTC)
        for row in found:
            assert isinstance(row["accepted_at"], datetime) and isinstance(row["ember_date"], date)
            assert timedelta() <= now - row["accepted_at"] < timedelta(hours=1), "in UTC"
            assert abs(now.date() - row["ember_date"]) <= timedelta(days=1)


@pytest.mark.promise("pipeline-2")
@pytest.mark.timeout(1_200)
def test_columns_of_a_file_may_change_while_a_rule_runs(spark: SparkSession, tmp_path: Path) -> None:
    """Each value is in the column of its name. A column keeps its type: with another the rule waits, and says so."""
    file = tmp_path / "limits.json"
    sql = "SELECT limits.*, topic, int(payload) AS n FROM messages JOIN limits ON topic = name"
    rule = RuleSettings(sql=sql, to="lake", tables=(f"limits={file}",))

    def fill(**given: object) -> None:
        """In the place of what is there, at once: a batch reads one or the other."""
        new = file.with_suffix(".new")
        new.write_text(json.dumps({"name": "s/0", **given}))
        new.replace(file)

    fill(low=1, high=9)
    with BrokerProcess(tmp_path / "data") as broker:
        places = Places(broker.data_dir)
        with ruling(spark, places, {"readings": rule}) as rules:
            feed = rules.feed("rule:readings")
            wait_until(lambda: feed.report().state == "running", START_S, "it runs")
            publish(broker, [0])
            wait_until(partial(has_rows, places, 1), START_S, "the first row")
            fill(unit="bar", high=7)
            publish(broker, [1])
            wait_until(partial(has_rows, places, 2), START_S, "the second row")
            fill(high="seven")
            publish(broker, [2])
            wait_until(lambda: "high" in feed.report().last_error, START_S, "the type is another one")
            fill(high=8)
            wait_until(partial(has_rows, places, 3), START_S, "the third row")
    wanted: list[dict[str, object]] = [
        {"name": "s/0", "low": 1, "high": 9, "unit": None, "n": 0},
        {"name": "s/0", "low": None, "high": 7, "unit": "bar", "n": 1},
        {"name": "s/0", "low": None, "high": 8, "unit": None, "n": 2},
    ]
    assert [{name: row[name] for name in wanted[0]} for row in rows_in(places)] == wanted


def test_what_a_remote_master_cannot_reach_is_refused() -> None:
    remote = DriverSettings(
        master="k8s://x",
        queries=("dispatch",),
        rules={"readings": READINGS},
        kafka=KafkaLog(bootstrap="127.0.0.1:1"),
    )
    with pytest.raises(PipelineSettingsError, match=r"rules\.readings writes a table in a folder"):
        check_settings(remote)
    check_settings(replace(remote, lake_dir="s3a://lakes/all"))
    with pytest.raises(PipelineSettingsError, match="need a PATH behind the bucket"):
        check_settings(replace(remote, lake_dir="s3a://lakes/"))


@pytest.mark.in_faults
@pytest.mark.long_rounds
@pytest.mark.timeout(5_400)
@pytest.mark.promise("pipeline-2")
def test_each_row_is_there_once_whoever_is_killed(tmp_path: Path, seed: int) -> None:
    """kill -9 of the driver, of its Java and of the broker at random moments, while messages come; one rule is over
    windows."""
    chance = random.Random(seed)
    config = tmp_path / "ember.toml"
    config.write_text(
        f'[rules.readings]\nsql = "{SQL}"\nto = "lake"\n[rules.counts]\nsql = "{COUNTS}"\nto = "lake"\nevery = "10s"\n'
    )
    settings = {"pipeline.queries": "dispatch"}
    words = ["--config", str(config)]
    with BrokerProcess(tmp_path / "data", pipeline=True, settings=settings, arguments=words) as broker:
        places = Places(broker.data_dir)

        def is_running() -> bool:
            rules = [one for one in read_status(broker.data_dir).queries if one.name.startswith("rule:")]
            return len(rules) == 2 and all(one.state == "running" for one in rules)

        sent = 0
        for _ in range(KILLS):
            wait_until(is_running, START_S, "it runs")
            before = len(rows_in(places))
            for _ in range(5):
                publish(broker, range(sent, sent + MANY))
                sent += MANY
            wanted = before + chance.randrange(1, 3 * MANY)
            wait_until(partial(has_rows, places, wanted), START_S, "some rows", poll_s=0.05)
            who = chance.choice(["driver", "java", "broker"])
            pid = read_status(broker.data_dir).pid
            if who == "broker":
                broker.kill()
                broker.start()
            else:
                os.kill(pid if who == "driver" else jvm_in(pid), signal.SIGKILL)
            wait_until(lambda: read_status(broker.data_dir).pid not in (0, pid), START_S, "another driver")  # noqa: B023
        wait_until(partial(has_rows, places, sent), START_S, "all rows")
        found = [(offset_of(row["ember_id"]), row["topic"], row["n"]) for row in rows_in(places)]
        assert found == inputs(places)
        wait_until(lambda: sum(counted(places)) >= sent, START_S, "all windows")
        assert sum(counted(places)) == sent, "each message in one window, and each window once"
