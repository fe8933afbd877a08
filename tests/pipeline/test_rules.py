"""Rules: what their SQL may say, what comes of messages, and `embermq rules check` and `test`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace
from pyspark.sql import Row, SparkSession
from tests.pipeline.log_writer import NOON_MS, LogWriter, record
from tests.pipeline.queries import log_rows

from embermq.app.config import load_configuration
from embermq.cli.main import main
from embermq.formats.log_record import FIELD_ADDRESSED, FIELD_RULES
from embermq.mqtt.wire.properties import Properties
from embermq.pipeline.errors import RuleRefused
from embermq.pipeline.places import Places
from embermq.pipeline.rules import trying
from embermq.pipeline.rules.evaluating import FAILURES, Evaluation
from embermq.pipeline.rules.session import RuleSession
from embermq.pipeline.rules.settings import RuleSettings
from embermq.pipeline.sinks.lake import Lake
from embermq.pipeline.sources.log_file import BrokerFile
from embermq.pipeline.transforms.archive import lake_rows

HOT = (
    "SELECT concat('alerts/', split(topic, '/')[1]) AS topic, payload FROM messages "
    "WHERE topic LIKE 'sensors/%' AND get_json_object(payload, '$.t') > 80"
)
NO_SELECT = "is not for rules: SELECT … FROM"
EXAMPLES = Path(__file__).parents[2] / "examples" / "rules"
Made = tuple[int, str, bytes]


@pytest.fixture(scope="module")
def rules(spark: SparkSession) -> RuleSession:
    return RuleSession(spark)


@pytest.fixture
def with_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """The command in this process finds Spark that has started already."""

    @contextmanager
    def started(*_: object, **__: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(trying, "batch_session", started)
    return spark


def made(spark: SparkSession, rules: RuleSession, places: Places, rule: RuleSettings) -> list[Made]:
    """What the rule `me` makes of all records of the log."""
    rows = rules.rows("me", rule, log_rows(spark, places, 0, 1_000)).collect()
    return sorted((row["offset"], row["topic"], bytes(row["payload"])) for row in rows)


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT topic, reflect('java.lang.System', 'getenv', 'HOME') AS payload FROM messages", "reflect is none"),
        ("SELECT topic, java_method('a', 'b') AS payload FROM messages", "java_method is none"),
        ("SELECT topic, transform(array(1), x -> try_reflect('a', 'b')) AS payload FROM messages", "try_reflect"),
        ("SELECT topic, system.builtin.reflect('a', 'b') AS payload FROM messages", "reflect is none"),
        ("SELECT topic, payload FROM messages WHERE input_file_name() = 'x'", "input_file_name is none"),
        ("SELECT topic, payload FROM messages LATERAL VIEW reflect('a', 'b') t AS x", "reflect is none"),
        ("SELECT topic, current_user AS payload FROM messages", "current_user"),
        ("SELECT topic, xpath_string(payload, 'a') AS payload FROM messages", "xpath_string is none"),
        ("SELECT * FROM parquet.`/etc`", "parquet.`/etc` is no table of a rule; it reads messages"),
        ("SELECT m.topic, t.value AS payload FROM messages m, text.`/etc/passwd` t", "text.`/etc/passwd` is no"),
        ("SELECT topic, payload FROM others", "others is no table of a rule"),
        ("SELECT topic, (SELECT max(value) FROM text.`/etc/passwd`) AS payload FROM messages", "JOIN a table"),
        ("SELECT topic, payload FROM messages WHERE EXISTS (SELECT 1 FROM csv.`/etc`)", "JOIN a table"),
        ("SELECT topic, payload FROM messages WHERE topic IN (SELECT 1 FROM csv.`/etc`)", "JOIN a table"),
        ("SELECT topic, '${env:HOME}' AS payload FROM messages", "no rule reads"),
        ("DROP TABLE messages", NO_SELECT),
        ("ADD JAR '/x.jar'", NO_SELECT),
        ("CREATE FUNCTION f AS 'x' USING JAR 'y'", NO_SELECT),
        ("INSERT OVERWRITE DIRECTORY '/x' USING csv SELECT * FROM messages", NO_SELECT),
        ("SELECT TRANSFORM(topic) USING 'cat' AS (topic, payload) FROM messages", NO_SELECT),
        ("SELECT topic, payload FROM read_files('/etc')", "a function in FROM " + NO_SELECT),
        ("SELECT topic, string(count(*)) AS payload FROM messages GROUP BY topic", "GROUP BY"),
        ("SELECT DISTINCT topic, payload FROM messages", "DISTINCT"),
        ("SELECT topic, payload FROM (SELECT * FROM messages)", "a SELECT inside FROM"),
        ("SELECT topic FROM messages", "it selects no column payload, it has topic"),
        ("SELECT topic, struct(topic) AS payload FROM messages", "is struct<topic:string>, not a text"),
        ("SELECT topic, paylod AS payload FROM messages", "UNRESOLVED_COLUMN"),
        ("SELEC", "PARSE_SYNTAX_ERROR"),
    ],
)  # fmt: skip
def test_what_a_rule_may_not_say(rules: RuleSession, sql: str, why: str) -> None:
    with pytest.raises(RuleRefused) as refused:
        rules.check("me", RuleSettings(sql=sql))
    assert why in str(refused.value)


def test_nothing_is_done_when_it_is_refused(rules: RuleSession, tmp_path: Path) -> None:
    """A command of Spark is done when it is understood; a path that is not there would be looked up."""
    sql = f"INSERT OVERWRITE DIRECTORY '{tmp_path / 'out'}' USING text VALUES ('x')"
    with pytest.raises(RuleRefused):
        rules.check("me", RuleSettings(sql=sql))
    assert not (tmp_path / "out").exists()
    with pytest.raises(RuleRefused, match="is no table of a rule"):
        rules.check("me", RuleSettings(sql=f"SELECT topic, payload FROM text.`{tmp_path / 'none'}`"))


def test_a_threshold_and_payloads_that_are_none(
    spark: SparkSession, rules: RuleSession, log: LogWriter, places: Places
) -> None:
    payloads = [b'{"t": 90}', b'{"t": 10}', b"\xff\xfe", b"", b'{"t": "x"}', b'{"t": 81.5}', b"[1"]
    log.append([record("sensors/a", payload) for payload in payloads])
    log.append([record("others/a", b'{"t": 90}')])
    log.damage(7, b"\xff" * 40)
    assert made(spark, rules, places, RuleSettings(sql=HOT)) == [
        (0, "alerts/a", b'{"t": 90}'),
        (5, "alerts/a", b'{"t": 81.5}'),
    ]


def test_what_it_selects_besides_is_left(
    spark: SparkSession, rules: RuleSession, log: LogWriter, places: Places
) -> None:
    properties = Properties(user_properties=(("who", "a"), ("who", "b")))
    log.append([record("t", b"\xff\x00", properties=properties)])
    assert made(spark, rules, places, RuleSettings(sql="SELECT * FROM messages")) == [(0, "t", b"\xff\x00")]
    last = "SELECT topic, properties['who'] AS payload FROM messages"
    assert made(spark, rules, places, RuleSettings(sql=last)) == [(0, "t", b"b")]
    queue = RuleSettings(sql="SELECT payload FROM messages", to="queue", queue="work")
    assert made(spark, rules, places, queue) == [(0, "$queue/work", b"\xff\x00")]


def test_a_message_becomes_several_and_a_table_is_joined(
    spark: SparkSession, rules: RuleSession, log: LogWriter, places: Places, tmp_path: Path
) -> None:
    log.append([record("s/a", b"[1,2]"), record("s/b", b"[3]")])
    each = "SELECT topic, x AS payload FROM messages LATERAL VIEW explode(from_json(payload, 'array<string>')) t AS x"
    assert made(spark, rules, places, RuleSettings(sql=each)) == [
        (0, "s/a", b"1"),
        (0, "s/a", b"2"),
        (1, "s/b", b"3"),
    ]
    (tmp_path / "places.csv").write_text("id,place\na,Hall\nb,Yard\n")
    joined = RuleSettings(
        sql="SELECT concat('in/', p.place) AS topic, m.payload FROM messages m "
        "JOIN places p ON p.id = split(m.topic, '/')[1] WHERE p.place <> 'Yard'",
        tables=(f"places={tmp_path / 'places.csv'}",),
    )
    assert made(spark, rules, places, joined) == [(0, "in/Hall", b"[1,2]")]
    missing = RuleSettings(sql=joined.sql, tables=(f"places={tmp_path / 'none.csv'}",))
    with pytest.raises(RuleRefused, match="the table places cannot be read"):
        rules.check("me", missing)


def test_the_examples_run(spark: SparkSession, rules: RuleSession, log: LogWriter, places: Places) -> None:
    reading = b'{"t": 90}'
    log.append([record("sensors/s1", reading), record("sensors/s2", b'{"t": 1}'), record("sensors/s9", b"")])
    log.append(
        [record("batches", b'[{"name": "a", "t": 1.5}, {"name": "b"}]'), record("orders/eu", b'{"id": 7}')]
    )
    examples = load_configuration(config_file=EXAMPLES / "rules.toml").settings.rules
    places_csv = (f"places={EXAMPLES / 'places.csv'}",)
    found = {
        name: made(spark, rules, places, replace(rule, tables=places_csv) if rule.tables else rule)
        for name, rule in examples.items()
        if not rule.every
    }
    assert found.pop("history") == found["readings"]
    assert found.pop("orders")[0][:2] == (4, "$queue/orders")
    assert [(at, json.loads(row)["t"]) for at, _, row in found.pop("readings")[:2]] == [(0, 90.0), (1, 1.0)]
    assert found == {
        "hot": [(0, "alerts/s1", reading)],
        "placed": [(0, "places/Hall", reading), (1, "places/Yard", b'{"t": 1}')],
        "apart": [(3, "readings/a", b'{"name":"a","t":1.5}'), (3, "readings/b", b'{"name":"b"}')],
    }


def test_columns_for_a_table_of_a_database(
    spark: SparkSession, rules: RuleSession, log: LogWriter, places: Places
) -> None:
    log.append([record("s/a", b"7", accepted_ms=NOON_MS)])
    table = RuleSettings(to="sql", table="t", url_file="/u")

    def columns(sql: str) -> Row:
        (row,) = rules.rows("me", replace(table, sql=sql), log_rows(spark, places, 0, 1)).collect()
        assert (row["partition"], row["offset"], row["chain"]) == (0, 0, "")
        found: Row = row["columns"]
        return found

    found = columns(
        "SELECT topic, int(payload) AS n, partition, NOT retain AS yes, accepted_at FROM messages"
    )
    assert found.asDict() | {"accepted_at": None} == {
        "topic": "s/a",
        "n": 7,
        "partition": 0,
        "yes": True,
        "accepted_at": None,
    }
    assert found["accepted_at"].astimezone(UTC) == datetime.fromtimestamp(NOON_MS / 1000, UTC)
    for sql, why in (
        ("SELECT topic, payload AS Topic FROM messages", "two columns have the same name"),
        ("SELECT properties FROM messages", "is map<string,string>; to_json"),
        ("SELECT topic AS `a b` FROM messages", "has no name for a table"),
        ("SELECT topic AS Ember_id FROM messages", "has no name for a table"),
    ):
        with pytest.raises(RuleRefused, match=why):
            rules.check("me", replace(table, sql=sql))


def test_a_rule_does_not_see_what_rules_publish_unless_told_so(
    spark: SparkSession, rules: RuleSession, log: LogWriter, places: Places
) -> None:
    chains = [b"other", b"me", b"other,me"]
    log.append(
        [record("t", b"0"), *(record("t", one, unknown_fields=((FIELD_RULES, one),)) for one in chains)]
    )
    log.append([record("t", b"for one client", unknown_fields=((FIELD_ADDRESSED, b""),))])
    sql = "SELECT topic, payload FROM messages"
    assert [row[0] for row in made(spark, rules, places, RuleSettings(sql=sql))] == [0]
    assert [row[0] for row in made(spark, rules, places, RuleSettings(sql=sql, sees_rules=True))] == [0, 1]


@pytest.mark.in_faults
def test_a_bad_message_is_found_among_the_others(
    spark: SparkSession, rules: RuleSession, log: LogWriter, places: Places
) -> None:
    """It overflows the stack of Java's regular expressions, and of a number there is none."""
    payloads = [b"1", b"ab" * 100_000, b"2", b"x", b"3"]
    log.append([record("t", payload) for payload in payloads])
    sql = "SELECT topic, string(to_number(payload, '9')) AS payload FROM messages WHERE NOT payload RLIKE '(a|b)*c'"
    rule = RuleSettings(sql=sql)
    evaluation = Evaluation(rules.spark, "me", lambda records: rules.rows("me", rule, records), 60)
    found = list(evaluation.found(log_rows(spark, places, 0, 1_000).persist()))
    assert [bytes(row["payload"]) for part in found for row in part.rows] == [b"1", b"2", b"3"]
    failed = {part.end: part.failure for part in found if part.failure}
    assert "StackOverflowError" in failed[2] and "INVALID_FORMAT" in failed[4] and len(failed) == 2
    ends = [part.end or 0 for part in found]
    assert ends == sorted(ends) and ends[-1] == 5
    always = RuleSettings(sql="SELECT topic, url_decode('%z') AS payload FROM messages")
    never = Evaluation(rules.spark, "me", lambda records: rules.rows("me", always, records), 60)
    with pytest.raises(FAILURES, match="CANNOT_DECODE_URL"):  # whatever the message: the fault of none
        list(never.found(log_rows(spark, places, 0, 1)))


def test_a_date_that_python_has_not_is_the_fault_of_its_message(
    spark: SparkSession, rules: RuleSession, log: LogWriter, places: Places
) -> None:
    log.append([record("t", payload) for payload in (b"2026-01-02", b"+12345-01-01", b"2026-01-03")])
    rule = RuleSettings(sql="SELECT date(payload) AS day FROM messages", to="sql", table="t", url_file="/u")
    evaluation = Evaluation(rules.spark, "me", lambda records: rules.rows("me", rule, records), 60)
    found = list(evaluation.found(log_rows(spark, places, 0, 1_000).persist()))
    days = [row["columns"]["day"] for part in found for row in part.rows]
    assert days == [date(2026, 1, 2), date(2026, 1, 3)]
    assert [part.end for part in found if part.failure] == [2]


def test_a_rule_is_tried_on_the_lake_and_the_log(
    with_spark: SparkSession,
    log: LogWriter,
    places: Places,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Messages 0 to 4 are in the lake alone, the others in the log."""
    for number in range(10):
        log.append([record("sensors/a", b'{"t": %d}' % (76 + number), accepted_ms=NOON_MS + number * 1_000)])
    file, lake = BrokerFile(places.broker), Lake(str(places.lake), places)
    lake.open(with_spark, file.log_identity())
    lake.write(lake_rows(log_rows(with_spark, places, 0, 7)))
    lake.close()
    file.close()
    log.trim_below(5)
    config = tmp_path / "ember.toml"
    config.write_text(f'[rules.hot]\nsql = "{HOT}"\n[rules.bad]\nsql = "SELECT reflect(1) FROM messages"\n')
    with config.open("a") as more:
        more.write('[rules.url]\nsql = "SELECT topic, url_decode(payload) AS payload FROM messages"\n')

    def ran(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["rules", *words, "--config", str(config), "--data-dir", str(places.data_dir), "--json"])
        return code, "".join(capsys.readouterr())

    code, told = ran("test", "hot", "--from", "earliest", "--limit", "2")
    found = json.loads(told)
    assert (code, found["records"], found["messages"]) == (0, 10, 5)
    assert [(row["offset"], row["topic"], row["payload"]) for row in found["shown"]] == [
        (5, "alerts/a", '{"t": 81}'),
        (6, "alerts/a", '{"t": 82}'),
    ]
    code, told = ran("test", "hot", "--from", "4", "--to", "7")
    assert (code, json.loads(told)["records"], json.loads(told)["messages"]) == (0, 3, 2)
    code, told = ran("check")
    found = {row["name"]: row["refused"] for row in json.loads(told)}
    assert json.loads(told)[-1]["hint"].endswith("NULL with try_url_decode instead of url_decode")
    assert (code, found["hot"], "reflect is none" in found["bad"]) == (3, "", True)
    code, told = ran("test", "bad", "--from", "0")
    assert (code, "rules.bad.sql: the function reflect is none" in told) == (1, True)
    code, told = ran("test", "none", "--from", "0")
    assert (code, "there is no rule none; there are bad, hot, url" in told) == (1, True)
