"""A session for rules inside the pipeline's JVM: bad input is null there, not an error, and views are its own."""

import threading
from collections.abc import Mapping
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from embermq.pipeline.errors import RuleRefused
from embermq.pipeline.rules.plans import adopted, understood
from embermq.pipeline.rules.rows import HIDDEN, published, rule_messages
from embermq.pipeline.rules.settings import MESSAGES, RuleSettings
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
        for name, value in _OPTIONS.items():
            self.spark.conf.set(name, value)
        self._naming = threading.Lock()

    def check(self, name: str, rule: RuleSettings) -> None:
        """Raise RuleRefused for what the rule may not do, or cannot."""
        self.rows(name, rule, self.spark.createDataFrame([], record_schema()))

    def rows(self, name: str, rule: RuleSettings, records: DataFrame) -> DataFrame:
        """What the rule makes of records of the log. Raises RuleRefused."""
        tables = {MESSAGES: rule_messages(adopted(records, self.spark), name, rule)}
        tables |= {table: self._table(table, file) for table, file in rule.files().items()}
        return published(self._understood(rule.sql, tables), rule)

    def _understood(self, sql: str, tables: Mapping[str, DataFrame]) -> DataFrame:
        with self._naming:  # a plan keeps what names meant when it was understood
            for table, rows in tables.items():
                rows.createOrReplaceTempView(table)
            try:
                return understood(self.spark, sql, frozenset(tables), HIDDEN)
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
