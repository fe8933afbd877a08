"""A session for rules inside the pipeline's JVM: bad input is null there, not an error, and views are its own."""

import threading
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from embermq.pipeline.errors import RuleRefused
from embermq.pipeline.rules.plans import TRY_FORMS, Java, adopted, failing_functions, read_plan, understood
from embermq.pipeline.rules.rows import HIDDEN, of_stretch, published, rule_messages
from embermq.pipeline.rules.settings import MESSAGES, RuleSettings
from embermq.pipeline.rules.values import Stretch
from embermq.pipeline.schema import record_schema

_OPTIONS = {
    # One payload that is no number would stop a rule for ever.
    "spark.sql.ansi.enabled": "false",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
}


class RuleSession:
    """Understands rules. Threads may share it."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark.newSession()
        self.run = uuid4().hex
        """Who writes tables: the session notes it for all of them."""
        for name, value in _OPTIONS.items():
            self.spark.conf.set(name, value)
        self._naming = threading.Lock()
        self._read: dict[tuple[bool | str, ...], Java] = {}
        """Whether it is over many messages, SQL and names of its tables -> the plan."""
        self._known: set[tuple[str, str]] = set()
        """SQL and columns of its tables that have been looked at."""

    def check(self, name: str, rule: RuleSettings) -> str:
        """Raise RuleRefused for what the rule may not do, or cannot; returns which of its functions fail on messages
        that they cannot read, "" for none."""
        self._rows_of_none(name, rule)
        plan = self._read[bool(rule.every), rule.sql, MESSAGES, *rule.files()]
        named = [f"{TRY_FORMS[one]} instead of {one}" for one in failing_functions(plan)]
        return f"a message that it cannot read is set aside; NULL with {', '.join(named)}" if named else ""

    def columns(self, name: str, rule: RuleSettings) -> StructType:
        """What a rule selects now whose rows are kept with their columns. Raises RuleRefused."""
        return columns_in(self._rows_of_none(name, rule))

    def rows(
        self, name: str, rule: RuleSettings, records: DataFrame, stretch: Stretch | None = None
    ) -> DataFrame:
        """What the rule makes of records of the log; over windows, of all those of a stretch. Raises RuleRefused."""
        tables = {MESSAGES: rule_messages(adopted(records, self.spark), name, rule, stretch)}
        tables |= {table: self._table(table, file) for table, file in rule.files().items()}
        rows = self._understood(rule.sql, tables, over_many=stretch is not None)
        return published(rows if stretch is None else of_stretch(rows, stretch), rule)

    def _rows_of_none(self, name: str, rule: RuleSettings) -> DataFrame:
        records = self.spark.createDataFrame([], record_schema())
        return self.rows(name, rule, records, rule.stretch(0) if rule.every else None)

    def _understood(self, sql: str, tables: Mapping[str, DataFrame], *, over_many: bool) -> DataFrame:
        columns = str({name: rows.schema.simpleString() for name, rows in tables.items()})
        with self._naming:  # a plan keeps what names meant when it was understood
            read = self._read.get((over_many, sql, *tables))
            if read is None:
                hidden = () if over_many else HIDDEN
                read = read_plan(self.spark, sql, frozenset(tables), hidden, over_many=over_many)
                self._read[over_many, sql, *tables] = read
            for table, rows in tables.items():
                rows.createOrReplaceTempView(table)
            try:
                is_known = (sql, columns) in self._known
                found = understood(self.spark, read, is_known=is_known, over_many=over_many)
                self._known.add((sql, columns))
                return found
            finally:
                for table in tables:
                    self.spark.catalog.dropTempView(table)

    def _table(self, name: str, file: str) -> DataFrame:
        kind = Path(file).suffix.removeprefix(".")
        reader = self.spark.read.options(header="true") if kind == "csv" else self.spark.read
        try:
            return reader.format(kind).load(f"file://{file}")
        except PySparkException as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise RuleRefused(f"the table {name} cannot be read: {reason}") from error


def columns_in(rows: DataFrame) -> StructType:
    """With which rows are kept that `RuleSession.rows` has made of such a rule."""
    found = rows.schema["columns"].dataType
    assert isinstance(found, StructType)
    return found
