"""Rows of a rule in a table of an SQL server: each once, whatever is repeated; times, errors and secrets."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql import Row
from pyspark.sql.types import StructType
from tests.support.rule_door import StandInDoor
from tests.support.sql_server import SqlServer

from embermq.database.database_url import SqlSettings
from embermq.pipeline.errors import BrokerAway, RuleError
from embermq.pipeline.log_look import Bounds
from embermq.pipeline.places import Places
from embermq.pipeline.rules import targets
from embermq.pipeline.rules.live import Care
from embermq.pipeline.rules.set_aside import ROWS_MAX, SetAside, set_aside_of
from embermq.pipeline.rules.settings import RuleSettings, check_rules
from embermq.pipeline.rules.table_targets import SqlTarget
from embermq.pipeline.rules.targets import NumberedRow, RuleTaken
from embermq.pipeline.rules.windows import SETTLED_S, WindowLog, WindowPart
from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.sinks import rule_table

COLUMNS = "ember_id VARCHAR(200) PRIMARY KEY, topic VARCHAR(5) NOT NULL, t DECIMAL(5,2)"
BEGIN_S = 1_750_000_020
"""A full minute."""
LIST = "SELECT ember_id, topic, t FROM hot ORDER BY ember_id"


class LosesAnswers(StandInDoor):
    """The rows are in the table, and the broker is not told."""

    is_away = False

    def take(self, partition: int, messages: Any, end: int) -> RuleTaken:
        if self.is_away:
            raise BrokerAway("the broker does not answer")
        return super().take(partition, messages, end)


def rows(*found: tuple[int, dict[str, object]]) -> list[NumberedRow]:
    return [
        (offset * ROWS_MAX, Row(partition=0, offset=offset, topic="", payload=b"{}", columns=Row(**columns)))
        for offset, columns in found
    ]


def target(tmp_path: Path, url: str, table: str = "hot") -> SqlTarget:
    file = tmp_path / "url"
    file.write_text(url + "\n")
    rule = RuleSettings(sql="SELECT", to="sql", table=table, url_file=str(file))
    check_rules({"hot": rule})
    aside = SetAside(tmp_path / "rules.db", "hot")
    made = SqlTarget("hot", rule, LosesAnswers(tmp_path), aside, log_id=lambda: 77, settings=SqlSettings())
    made.open()
    return made


@pytest.mark.promise("pipeline-2")
def test_each_row_is_there_once_and_what_no_table_can_hold_is_set_aside(
    tmp_path: Path, sql_server: SqlServer, sql_url: str
) -> None:
    database = sql_url.rpartition("/")[2]
    sql_server.execute(f"CREATE TABLE hot ({COLUMNS})", database=database)
    table = target(tmp_path, sql_url)
    table.begin({0: 0})
    first = rows((1, {"topic": "a", "t": Decimal("1.50")}), (2, {"topic": "b", "t": None}))
    table._door.is_away = True  # type: ignore[attr-defined]
    with pytest.raises(BrokerAway):
        table.put(0, first)
    table.close()
    table = target(tmp_path, sql_url)
    assert table.next == {0: 0}, "nobody was told of the rows"
    more = rows(
        (3, {"topic": "too long", "t": None}), (4, {"topic": None, "t": None}), (5, {"topic": "e", "t": 7})
    )
    assert table.put(0, [*first, *more]) == 3
    assert table.next == {0: 5 * ROWS_MAX + 1}
    assert sql_server.execute(LIST, database=database) == [
        ("hot:77:0:1:0", "a", Decimal("1.50")),
        ("hot:77:0:2:0", "b", None),
        ("hot:77:0:5:0", "e", Decimal("7.00")),
    ]
    aside = set_aside_of(tmp_path / "rules.db", "hot", 10)
    assert {(one.offset, one.what) for one in aside} == {(3, "refused"), (4, "refused")}
    table.close()


@pytest.mark.promise("pipeline-2")
def test_each_row_of_a_window_is_there_once_though_it_would_be_another_the_second_time(
    tmp_path: Path, sql_server: SqlServer, sql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of fractions may be, and so in another order. The driver dies behind the first commit of two, before the
    broker is told."""
    database = sql_url.rpartition("/")[2]
    columns = (
        "ember_id VARCHAR(200) PRIMARY KEY, topic VARCHAR(5) NOT NULL, t DECIMAL(5,2), at TIMESTAMP NULL"
    )
    sql_server.execute(f"CREATE TABLE hot ({columns})", database=database)
    (tmp_path / "url").write_text(sql_url)
    rule = RuleSettings(sql="SELECT", to="sql", table="hot", url_file=str(tmp_path / "url"), every="1m")
    check_rules({"hot": rule})
    now_s, at = [BEGIN_S], datetime.fromtimestamp(1_700_000_000)  # noqa: DTZ006  # as Spark gives it
    monkeypatch.setattr(WindowPart, "_now_s", lambda _: now_s[0])
    monkeypatch.setattr(WindowPart, "_records", lambda *_: None)
    monkeypatch.setattr(targets, "PIECE", 1)
    door = LosesAnswers(tmp_path)
    monkeypatch.setattr("embermq.pipeline.rules.live.RuleDoor", lambda *_: door)

    def opened() -> WindowPart:
        session = Mock(columns=lambda *_: StructType())
        kind = Mock(rule_name="hot", rule=rule, session=session, care=Care(Places(tmp_path)))
        log = Mock(bounds={0: Bounds(0, 2)}, since=lambda _: {0: 0}, identity=lambda: 77)
        part = WindowPart(kind, DriverSettings(), Places(tmp_path), WindowLog(log))
        part.open(Mock())
        return part

    def asked(part: WindowPart, end_s: int, *made: tuple[str, str]) -> None:
        rows = [
            Row(
                partition=0,
                offset=end_s,
                chain="",
                topic="",
                payload=t.encode(),
                columns=Row(topic=topic, t=Decimal(t), at=at),
            )
            for topic, t in made
        ]
        part._evaluation = Mock(collected=lambda _: rows)
        assert part.waiting()
        part.write_more(Mock())

    part = opened()
    now_s[0] += 60 + SETTLED_S
    first_s, door.is_away = BEGIN_S + 60, True
    with pytest.raises(BrokerAway):
        asked(part, first_s, ("a", "1.50"), ("b", "1.51"))
    part.close()
    door.is_away = False
    part = opened()
    asked(part, first_s, ("b", "1.49"), ("a", "1.50"))
    assert not part.waiting()
    now_s[0] += 60
    asked(part, first_s + 60, ("z", "2"))
    part.close()
    then = datetime(2023, 11, 14, 22, 13, 20)  # noqa: DTZ001
    found = sql_server.execute("SELECT ember_id, topic, t, at FROM hot ORDER BY ember_id", database=database)
    assert found == [
        (f"hot:77:0:{first_s}:0", "a", Decimal("1.50"), then),
        (f"hot:77:0:{first_s}:1", "b", Decimal("1.51"), then),
        (f"hot:77:0:{first_s + 60}:0", "z", Decimal("2.00"), then),
    ]


def test_times_are_utc_whatever_machine_and_server_say(
    tmp_path: Path, sql_server: SqlServer, sql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = sql_url.rpartition("/")[2]
    columns = (
        "ember_id VARCHAR(200) PRIMARY KEY, at TIMESTAMP(3) NULL, day DATE, f FLOAT, yes BOOLEAN, data {}"
    )
    binary = "BYTEA" if sql_server.scheme == "postgresql" else "BLOB"
    sql_server.execute(f"CREATE TABLE hot ({columns.format(binary)})", database=database)
    table = target(tmp_path, sql_url)
    table.begin({0: 0})
    at = datetime.fromtimestamp(1_700_000_000.5)  # noqa: DTZ006  # as Spark gives it
    values = {"at": at, "day": date(2026, 1, 2), "f": 0.5, "yes": True, "data": bytearray(b"\xff")}
    assert table.put(0, rows((1, values))) == 1
    (found,) = sql_server.execute("SELECT at, day, f, yes, data FROM hot", database=database)
    assert (found[0], found[1], found[2], bool(found[3])) == (
        datetime(2023, 11, 14, 22, 13, 20, 500_000),  # noqa: DTZ001
        date(2026, 1, 2),
        0.5,
        True,
    )
    assert bytes(found[4]) == b"\xff"  # type: ignore[call-overload]
    table.close()


def test_a_value_that_no_table_can_hold_stops_no_rule(
    tmp_path: Path, sql_server: SqlServer, sql_url: str
) -> None:
    """Whoever publishes chooses it."""
    database = sql_url.rpartition("/")[2]
    columns = "ember_id VARCHAR(200) PRIMARY KEY, t DECIMAL(5,2) CHECK (t < 100), at TIMESTAMP NULL"
    sql_server.execute(f"CREATE TABLE hot ({columns})", database=database)
    table = target(tmp_path, sql_url)
    table.begin({0: 0})
    before_all = datetime.min  # noqa: DTZ901  # nothing that UTC has, whatever machine this is
    wanted: list[dict[str, object]] = [
        {"t": 1.5, "at": None},
        {"t": float("inf"), "at": None},
        {"t": 500.0, "at": None},
        {"t": 1.0, "at": before_all},
        {"t": 1.0, "at": "no time"},
        {"t": 2.5, "at": None},
    ]
    assert table.put(0, rows(*enumerate(wanted, 1))) == 2
    assert table.next == {0: 6 * ROWS_MAX + 1}
    assert sql_server.execute("SELECT t FROM hot ORDER BY t", database=database) == [
        (Decimal("1.50"),),
        (Decimal("2.50"),),
    ]
    assert {one.offset for one in set_aside_of(tmp_path / "rules.db", "hot", 10)} == {2, 3, 4, 5}
    table.close()


def test_a_connection_that_did_nothing_for_long_is_opened_anew(
    tmp_path: Path, sql_server: SqlServer, sql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has ended it meanwhile."""
    database = sql_url.rpartition("/")[2]
    sql_server.execute(f"CREATE TABLE hot ({COLUMNS})", database=database)
    table = target(tmp_path, sql_url)
    table.begin({0: 0})
    assert table.put(0, rows((1, {"topic": "a", "t": None}))) == 1
    assert table._table is not None
    table._table._connection.close()
    monkeypatch.setattr(rule_table, "RENEWED_S", -1.0)
    assert table.put(0, rows((2, {"topic": "b", "t": None}))) == 1
    table.close()


def test_a_table_without_a_key_is_refused_and_no_password_is_told(
    tmp_path: Path, sql_server: SqlServer, sql_url: str
) -> None:
    database = sql_url.rpartition("/")[2]
    table = target(tmp_path, sql_url)
    table.begin({0: 0})
    one = rows((1, {"topic": "a"}))
    with pytest.raises(RuleError, match="is not there, or has no column ember_id"):
        table.put(0, one)
    sql_server.execute("CREATE TABLE hot (ember_id VARCHAR(200), topic VARCHAR(5))", database=database)
    with pytest.raises(RuleError, match="is not there, or has no column ember_id"):
        table.put(0, one)
    sql_server.execute("ALTER TABLE hot ADD UNIQUE (ember_id, topic)", database=database)
    with pytest.raises(RuleError, match="is not there, or has no column ember_id"):
        table.put(0, one)
    sql_server.execute("ALTER TABLE hot ADD UNIQUE (ember_id)", database=database)
    assert table.put(0, one) == 1
    table.close()
    wrong = sql_url.replace(sql_url.partition("@")[0].rpartition(":")[2], "s3cret")
    with pytest.raises(RuleError) as refused:
        target(tmp_path, wrong).put(0, one)
    assert "s3cret" not in str(refused.value)


def test_a_column_that_keeps_no_id_as_it_is_is_refused(
    tmp_path: Path, sql_server: SqlServer, sql_url: str
) -> None:
    """Cut or padded, it would not be found again, and its row would be refused as one that is there already."""
    database = sql_url.rpartition("/")[2]
    table = target(tmp_path, sql_url)
    table.begin({0: 0})
    kinds = ["VARCHAR(42)", "INTEGER"]
    kinds += ["CHAR(200)"] if sql_server.scheme == "postgresql" else ["VARBINARY(200)"]
    for kind in kinds:
        sql_server.execute(
            f"CREATE TABLE hot (ember_id {kind} PRIMARY KEY, topic VARCHAR(5))", database=database
        )
        with pytest.raises(RuleError, match=r"ember_id is .*; it has to be VARCHAR of at least 43"):
            table.put(0, rows((1, {"topic": "a"})))
        sql_server.execute("DROP TABLE hot", database=database)
    sql_server.execute(
        "CREATE TABLE hot (ember_id VARCHAR(43) PRIMARY KEY, topic VARCHAR(5))", database=database
    )
    assert table.put(0, rows((1, {"topic": "a"}), (2**63 - 1, {"topic": "b"}))) == 2
    table.close()


def test_a_row_that_the_server_takes_no_statement_for_stops_no_rule(
    tmp_path: Path, sql_server: SqlServer, sql_url: str
) -> None:
    """MySQL and MariaDB end the connection over it; PostgreSQL takes it."""
    database = sql_url.rpartition("/")[2]
    has_limit = sql_server.scheme != "postgresql"
    columns = "ember_id VARCHAR(200) PRIMARY KEY, body {}".format("MEDIUMTEXT" if has_limit else "TEXT")
    sql_server.execute(f"CREATE TABLE hot ({columns})", database=database)
    table = target(tmp_path, sql_url)
    table.begin({0: 0})
    few = "x" * 30_000
    found = rows((1, {"body": few}), (2, {"body": "'" * 40_000}), (3, {"body": few}), (4, {"body": few}))
    if has_limit:
        before = sql_server.execute("SELECT @@GLOBAL.max_allowed_packet")[0][0]
        sql_server.execute("SET GLOBAL max_allowed_packet = 65536")
    try:
        assert table.put(0, found) == (3 if has_limit else 4)
    finally:
        if has_limit:
            sql_server.execute(f"SET GLOBAL max_allowed_packet = {before}")
    assert table.next == {0: 4 * ROWS_MAX + 1}
    aside = set_aside_of(tmp_path / "rules.db", "hot", 10)
    assert [(one.offset, one.what) for one in aside] == ([(2, "refused")] if has_limit else [])
    assert "max_allowed_packet of the server is 65536" in aside[0].reason if has_limit else not aside
    table.close()
