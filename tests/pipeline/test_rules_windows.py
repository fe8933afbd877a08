"""Rules over windows of time: each row of a window comes once, of the messages of that window and of late ones."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import deltalake
import pytest
from msgspec.structs import replace
from pyspark.sql import Row, SparkSession
from tests.pipeline.feeding import AT_ONCE, RecordedKafka, WatchedBulk
from tests.pipeline.kafka_topics import LogInKafka
from tests.pipeline.log_writer import LogWriter, record
from tests.pipeline.queries import log_rows
from tests.support.waiting import wait_until

from embermq.app.config import load_configuration
from embermq.formats.log_record import decode_record
from embermq.pipeline.errors import BrokerAway, RuleRefused
from embermq.pipeline.jobs.bulk_log import BulkLog, EmbeddedLog
from embermq.pipeline.jobs.query_job import JobSetup
from embermq.pipeline.log_look import Bounds
from embermq.pipeline.places import Places
from embermq.pipeline.rules import targets
from embermq.pipeline.rules.live import Care, RuleKind
from embermq.pipeline.rules.session import RuleSession
from embermq.pipeline.rules.settings import RuleSettings
from embermq.pipeline.rules.table_targets import LakeTarget
from embermq.pipeline.rules.targets import RuleDoor, RuleTaken
from embermq.pipeline.rules.windows import CATCH_UP_S, SETTLED_S, Window, WindowFile, WindowLog, WindowPart
from embermq.pipeline.turns import Turns

DEADLINE_S = 400
"""Each window is some jobs of Spark, which takes its time for them on a machine that has other things to do."""
BEGIN_S = 1_750_000_020
"""A full minute."""
MEAN = RuleSettings(
    sql="SELECT concat('mean/', topic) AS topic, string(avg(int(payload))) AS payload FROM messages GROUP BY topic",
    every="1m",
)
EXAMPLES = Path(__file__).parents[2] / "examples" / "rules"
Said = list[tuple[str, str]]
pytestmark = pytest.mark.timeout(1_800)


class Door:
    """In the broker's place: what a rule has given, each number once."""

    def __init__(self) -> None:
        self.next: dict[int, int] = {}
        self.taken: list[tuple[int, str, str]] = []
        self.refuses_after = -1
        self.hears_ends = True

    def ask(self, asked: Mapping[str, Any]) -> RuleTaken:
        if begin := asked.get("begin"):
            self.next = dict(begin) | self.next
        for one in asked.get("messages", ()):
            if self.refuses_after == 0:
                raise BrokerAway("nobody is there")
            self.refuses_after -= 1
            if one["number"] >= self.next[0]:
                message = decode_record(one["record"]).message
                self.taken.append((one["number"] >> 16, message.topic, message.payload.decode()))
                self.next[0] = one["number"] + 1
        if asked.get("end", 0):
            if not self.hears_ends:
                raise BrokerAway("nobody is there")
            self.next[0] = max(self.next[0], asked["end"])
        return RuleTaken(next=dict(self.next))

    def said(self, end_s: int) -> Said:
        return [(topic, payload) for at, topic, payload in self.taken if at == end_s]


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Door:
    found = Door()
    monkeypatch.setattr(RuleDoor, "_ask", lambda _, asked: found.ask(asked))
    monkeypatch.setattr(targets, "PIECE", 1)
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now_s = [BEGIN_S]
    monkeypatch.setattr(WindowPart, "_now_s", lambda _: now_s[0])
    return now_s


@contextmanager
def ruling(
    spark: SparkSession, places: Places, rule: RuleSettings, log: LogInKafka | None = None
) -> Iterator[WatchedBulk]:
    """As the driver runs it."""
    stopping, session, care = threading.Event(), RuleSession(spark), Care(places)
    settings = replace(AT_ONCE, rules={"mean": rule}, rule_timeout_s=600)
    kinds, turns = [RuleKind("mean", rule, session, care)], Turns(["windows"])
    with ExitStack() as held:
        real: BulkLog = EmbeddedLog(settings, places, spark)
        if log is not None:
            real = held.enter_context(closing(RecordedKafka(log, settings, spark)))
        setup, view = JobSetup(settings, places), WindowLog(real)
        bulk = WatchedBulk(kinds, setup, view, spark, stopping, turns=turns, turn="windows")
        bulk.start()
        try:
            yield bulk
        finally:
            stopping.set()
            bulk.join()


def append(log: LogWriter | LogInKafka, second: int, topic: str, *payloads: bytes) -> None:
    """Accepted so many seconds after BEGIN_S."""
    log.append([record(topic, payload, accepted_ms=(BEGIN_S + second) * 1_000) for payload in payloads])


def wait_for_running(rules: WatchedBulk) -> None:
    wait_until(lambda: rules.report("rule:mean").state == "running", DEADLINE_S, "it runs")


def wait_for_look(rules: WatchedBulk, ends: Mapping[int, int]) -> None:
    """Until it is seen that the log is so long."""
    view = rules._log
    assert isinstance(view, WindowLog)
    real = view.real

    def has_looked() -> bool:
        return all(number in real.bounds and real.bounds[number].end >= end for number, end in ends.items())

    wait_until(has_looked, DEADLINE_S, f"{ends} is seen")


@pytest.mark.promise("pipeline-2")
def test_each_window_is_given_once_and_late_messages_count_in_the_next_one(
    spark: SparkSession, log: LogWriter, places: Places, door: Door, clock: list[int]
) -> None:
    gives_each_window_once(spark, places, door, clock, log=log, kafka=None, ends=lambda: {0: log.end})


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-2")
def test_each_window_is_given_once_of_a_log_in_kafka(
    spark: SparkSession, kafka_log: LogInKafka, places: Places, door: Door, clock: list[int]
) -> None:
    """Of two partitions."""
    gives_each_window_once(spark, places, door, clock, log=kafka_log, kafka=kafka_log, ends=kafka_log.ends)


def gives_each_window_once(
    spark: SparkSession,
    places: Places,
    door: Door,
    clock: list[int],
    *,
    log: LogWriter | LogInKafka,
    kafka: LogInKafka | None,
    ends: Callable[[], Mapping[int, int]],
) -> None:
    first, second, third = (BEGIN_S + 60 * number for number in (1, 2, 3))
    append(log, -1, "s/a", b"100")  # before the rule was seen
    with ruling(spark, places, MEAN, kafka) as rules:
        wait_for_running(rules)
        append(log, 1, "s/a", b"1", b"2")
        append(log, 30, "s/b", b"10")
        append(log, 60, "s/a", b"7")
        wait_for_look(rules, ends())
        door.refuses_after = 1
        clock[0] = first + SETTLED_S
        wait_until(lambda: rules.report("rule:mean").restarts, DEADLINE_S, "nobody takes the second row")
        assert door.said(first) == [("mean/s/a", "1.5")]
    # The driver is gone, and what was given is not reckoned again: there is more of that window by now.
    append(log, 59, "s/c", b"3")
    door.refuses_after = -1
    with ruling(spark, places, MEAN, kafka) as rules:
        wait_until(lambda: door.next[0] > first << 16, DEADLINE_S, "all of the first window")
        wait_for_look(rules, ends())
        clock[0] = third + SETTLED_S
        wait_until(lambda: door.next[0] == (third + 1) << 16, DEADLINE_S, "the third one")
        shown = {str(number): end for number, end in ends().items()}
        wait_until(lambda: rules.report("rule:mean").positions == shown, DEADLINE_S, "it is shown")
    assert door.said(first) == [("mean/s/a", "1.5"), ("mean/s/b", "10.0")]
    assert door.said(second) == [("mean/s/a", "7.0"), ("mean/s/c", "3.0")]
    assert door.said(third) == []


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-2")
def test_each_window_is_in_the_lake_once_though_the_broker_never_heard_of_its_commit(
    spark: SparkSession, log: LogWriter, places: Places, door: Door, clock: list[int]
) -> None:
    rule = replace(
        MEAN, sql=MEAN.sql.replace("string(avg(int(payload))) AS payload", "avg(int(payload)) AS mean")
    )
    first, second = BEGIN_S + 60, BEGIN_S + 120
    with ruling(spark, places, replace(rule, to="lake")) as rules:
        wait_for_running(rules)
        append(log, 1, "s/a", b"1", b"2")
        append(log, 2, "s/b", b"10")
        wait_for_look(rules, {0: log.end})
        door.hears_ends = False
        clock[0] = first + SETTLED_S
        wait_until(lambda: rules.report("rule:mean").restarts, DEADLINE_S, "the broker is away")
    assert door.next[0] < first << 16
    door.hears_ends = True
    append(log, 61, "s/a", b"7")
    with ruling(spark, places, replace(rule, to="lake")) as rules:
        wait_for_running(rules)
        wait_for_look(rules, {0: log.end})
        clock[0] = second + SETTLED_S
        wait_until(lambda: door.next[0] == (second + 1) << 16, DEADLINE_S, "the second one")
    table = deltalake.DeltaTable(str(places.data_dir / "lake-rules" / "mean"))
    rows = [
        (row["ember_id"].split(":")[2:], row["topic"], row["mean"])
        for row in table.to_pyarrow_table().to_pylist()
    ]
    assert sorted(rows) == [
        (["0", str(first), "0"], "mean/s/a", 1.5),
        (["0", str(first), "1"], "mean/s/b", 10.0),
        (["0", str(second), "0"], "mean/s/a", 7.0),
    ]


LIMITS = "SELECT DISTINCT limits.* FROM messages JOIN limits ON topic = name"


@pytest.mark.in_faults
@pytest.mark.promise("pipeline-2")
def test_columns_of_a_file_may_change_between_a_kill_and_the_restart(
    spark: SparkSession, log: LogWriter, places: Places, door: Door, clock: list[int]
) -> None:
    """Nothing of the window that was written down had been given: it is asked anew, and each value is in its column."""
    file = places.data_dir / "limits.csv"
    file.write_text("name,low,high\ns/a,1,9\n")
    rule = replace(MEAN, sql=LIMITS, to="lake", tables=(f"limits={file}",))
    with ruling(spark, places, rule) as rules:
        wait_for_running(rules)
        append(log, 1, "s/a", b"1", b"2")
        wait_for_look(rules, {0: log.end})
        with pytest.MonkeyPatch.context() as dies:
            dies.setattr(LakeTarget, "_append", Mock(side_effect=BrokerAway("killed")))
            clock[0] = BEGIN_S + 60 + SETTLED_S
            wait_until(
                lambda: rules.report("rule:mean").restarts, DEADLINE_S, "it is written down, not given"
            )
            file.write_text("high,name,unit\n7,s/a,bar\n")
    with ruling(spark, places, rule) as rules:
        wait_until(lambda: door.next.get(0) == (BEGIN_S + 61) << 16, DEADLINE_S, "it is given")
    table = deltalake.DeltaTable(str(places.data_dir / "lake-rules" / "mean")).to_pyarrow_table()
    assert table.drop(["ember_id", "ember_date"]).to_pylist() == [{"high": "7", "name": "s/a", "unit": "bar"}]


def part_in(places: Places) -> WindowPart:
    """No Spark: what it makes of messages is for the test to say."""
    kind, log = (
        Mock(rule_name="mean", rule=MEAN, care=Care(places)),
        Mock(bounds={0: Bounds(0, 2)}, since=lambda _: {0: 0}),
    )
    kind.name = "rule:mean"
    log.identity.return_value = 1
    part = WindowPart(kind, AT_ONCE, places, WindowLog(log))
    part._evaluation = Mock()
    return part


def test_columns_that_were_written_down_are_what_they_were(places: Places) -> None:
    twice = datetime(2025, 10, 26, 0, 30, tzinfo=UTC)  # clocks of Berlin show it again an hour later
    values = {
        "text": "x", "cls": "y", "data": bytearray(b"\xff\x00"), "n": 2**62, "t": 0.1, "inf": float("inf"), "yes": True,
        "sum": Decimal("12345678901234567890.12"), "day": date(1, 1, 1), "at": twice, "long_ago": datetime.min,  # noqa: DTZ901
        "none": None,
    }  # fmt: skip
    row = Row(
        partition=0, offset=60, chain="", topic="", payload=b"{}", columns=Row(*values)(*values.values())
    )
    with closing(WindowFile(places, "mean")) as file:
        file.write(Window(1, 60, {0: 5}, [(60 << 16, row)], "these"))
        found = file.last()
    assert found is not None and found.asked == "these" and found.seen == {0: 5}
    [(number, kept)] = found.rows
    assert number == 60 << 16 and kept["columns"].asDict() == values


def test_windows_of_long_ago_are_left_out(places: Places, door: Door, clock: list[int]) -> None:
    """As when the rule was asked for each message before: its number is no time."""
    door.next = {0: 1 << 16}
    with closing(part_in(places)) as part:
        part.open(Mock())
        assert door.next == {0: (BEGIN_S - CATCH_UP_S) << 16}
        assert part._next_end_s() == BEGIN_S - CATCH_UP_S


def test_a_window_that_fails_twice_is_set_aside(
    places: Places, door: Door, clock: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when it is the log's fault."""
    records, nothing = Mock(), Mock()
    records.where.return_value = nothing
    monkeypatch.setattr(WindowPart, "_records", lambda *_: records)
    is_away = True

    def collected(given: object) -> list[Row]:
        if given is records or is_away:
            raise ValueError("no URL")
        return []

    with closing(part_in(places)) as part:
        monkeypatch.setattr(part, "_evaluation", Mock(collected=collected))
        part.open(Mock())
        clock[0] = BEGIN_S + 60 + SETTLED_S
        assert part.waiting()
        for _ in range(3):
            with pytest.raises(ValueError, match="no URL"):
                part.write_more(Mock())
        is_away = False
        with pytest.raises(ValueError, match="no URL"):
            part.write_more(Mock())
        assert part.counts() == {"messages": 0} and part.waiting()
        part.write_more(Mock())
        assert part.counts() == {"messages": 0, "failed": 1} and not part.waiting()
    assert door.next == {0: (BEGIN_S + 61) << 16}


def test_examples_over_windows(spark: SparkSession, log: LogWriter, places: Places) -> None:
    """A mean by sensor, what came before left out, sessions that are over, and who has gone silent."""
    session = RuleSession(spark)
    examples = load_configuration(config_file=EXAMPLES / "rules.toml").settings.rules

    def made(name: str, end_s: int) -> Said:
        rule = examples[name]
        stretch = rule.stretch(BEGIN_S + end_s)
        records = log_rows(spark, places, 0, 1_000)
        seconds = records["accepted_at"].cast("long")
        within = records.where((seconds >= stretch.begin_s) & (seconds < stretch.end_s))
        rows = session.rows(name, rule, within, stretch).collect()
        return sorted((row["topic"], bytes(row["payload"]).decode()) for row in rows)

    for second, payload in ((1, b'{"t": 10}'), (2, b'{"t": 20}'), (3, b"none")):
        append(log, second, "sensors/s1", payload)
    append(log, 4, "changes/door", b"open", b"open")
    append(log, 70, "changes/door", b"open", b"shut")
    append(log, 1_000, "sensors/s2", b'{"t": 5}')
    assert made("means", 60) == [("means/s1", "15.0")]
    assert made("changes", 60) == [("changed/door", "open")]
    assert made("changes", 120) == [("changed/door", "shut")]
    assert made("silent", 360) == [("silent/s1", "s1")]
    assert made("silent", 420) == []
    ((topic, told),) = made("sessions", 360)
    assert (topic, json.loads(told)["messages"]) == ("sessions/car-1", 3)


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT topic, string(count(*)) AS payload FROM parquet.`/etc` GROUP BY topic", "is no table of a rule"),
        ("SELECT topic, max(java_method('a', 'b')) AS payload FROM messages GROUP BY topic", "java_method is none"),
        ("SELECT topic, string(sum(1) OVER ()) AS payload FROM messages", "OVER is not for rules"),
    ],
)  # fmt: skip
def test_what_a_rule_over_windows_may_not_say(spark: SparkSession, sql: str, why: str) -> None:
    with pytest.raises(RuleRefused) as refused:
        RuleSession(spark).check("me", RuleSettings(sql=sql, every="1m"))
    assert why in str(refused.value)
