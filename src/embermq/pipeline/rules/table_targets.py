"""Rules whose rows are rows of a table, each once: `to = "lake"` is a Delta Lake table, `to = "sql"` one on a server.

`to = "lake"`: the rows of a rule are a Delta Lake table, each once. The rows of a batch are one commit for each
partition of the log, which names the number of the row behind them; then the broker is told how far the rule is. What
dies between the two finds the number in the table.

`to = "sql"`: each row of a rule is a row of a table, once. A piece is one transaction; then the broker is told how
far the rule is. What dies between the two finds the rows by their ids, which are the same whenever a message comes
again.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import Row, SparkSession
from pyspark.sql.types import DateType, StringType, StructField, StructType

from embermq.database.database_url import DatabaseUrl, SqlSettings, parse_url
from embermq.pipeline.errors import RuleError
from embermq.pipeline.jars import lake_jars
from embermq.pipeline.jobs.lake_upkeep import LakeUpkeep
from embermq.pipeline.places import Places
from embermq.pipeline.rules.set_aside import ROWS_MAX, SetAside
from embermq.pipeline.rules.settings import DAY_COLUMN, ID_COLUMN, RuleSettings, query_of_rule
from embermq.pipeline.rules.targets import NumberedRow, RuleDoor, RuleTarget, pieces
from embermq.pipeline.settings import DriverSettings, slot_of_pipeline
from embermq.pipeline.sinks.delta_table import DeltaTable, TableShape
from embermq.pipeline.sinks.held_table import HeldTable, Noted
from embermq.pipeline.sinks.lake import lake_place
from embermq.pipeline.sinks.rule_table import RuleTable
from embermq.pipeline.sinks.sink_file import SinkFile


def id_prefix(rule: str, log_id: int) -> str:
    """What the ids of a rule begin with, of one log."""
    return f"{rule}:{log_id}"


def row_id(prefix: str, partition: int, number: int) -> str:
    """The same whenever the message comes again."""
    return f"{prefix}:{partition}:{number // ROWS_MAX}:{number % ROWS_MAX}"


def columns_of(row: Row) -> tuple[tuple[str, ...], tuple[object, ...]]:
    """Names and values of what the author has selected, times in UTC. Raises ValueError, OverflowError for a time that
    has none."""
    found = row["columns"].asDict()
    return tuple(found), tuple(map(_value, found.values()))


def _value(value: object) -> object:
    """Spark gives times as this machine's, without a zone."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None)
    return bytes(value) if isinstance(value, bytearray) else value


_OWN = (StructField(ID_COLUMN, StringType()), StructField(DAY_COLUMN, DateType()))


class LakeTarget(RuleTarget):
    """See the module."""

    def __init__(
        self,
        name: str,
        rule: RuleSettings,
        door: RuleDoor,
        aside: SetAside,
        *,
        settings: DriverSettings,
        places: Places,
        log_id: Callable[[], int],
        spark: SparkSession,
        columns: Callable[[], StructType],
        run: str,
    ) -> None:
        """`columns` are those of the rows that are put next; `run` is the same for all tables of a session."""
        super().__init__(name, rule, door, aside)
        self._settings = settings
        self._log_id = log_id
        self._log = 0
        self._spark = spark
        self._columns = columns
        self._run = run
        self._is_there = self._is_checked = False
        shape = TableShape(writer=f"embermq-rule;{name}", day=DAY_COLUMN, clustered_by=(DAY_COLUMN,))
        place = rule_table_place(settings, places, name)
        slot = slot_of_pipeline(settings)
        self._held = HeldTable(place, shape, places.rule_table_lock(name), shared=slot is not None)
        self._note = _SyncedCommit(places, name)
        self._upkeep = LakeUpkeep(settings.lake_retention_days, slot)
        self.commits = 0
        """So many this process has made; each adds a file."""

    @property
    def table(self) -> DeltaTable:
        """The table; the target is open."""
        return self._held.table

    def open(self) -> None:
        lake_jars(self._settings)  # says what is missing, and how to get it
        super().open()
        self._log, self._is_checked = self._log_id(), False
        self._held.take(self._spark, self._note.read(), self._run)
        self._is_there = self.table.exists()
        if self._is_there:
            self.note_version()  # what the run before has left is synced, before it is forgotten
        for partition, number in self._written(self.next).items():
            if number > self.next[partition]:
                self.move(partition, number)

    def begin(self, numbers: Mapping[int, int]) -> None:
        written = self._written(numbers)  # by a broker that has lost what it knew of the rule
        super().begin({partition: max(at, written.get(partition, at)) for partition, at in numbers.items()})

    def put(self, partition: int, rows: Sequence[NumberedRow]) -> int:
        given: list[tuple[object, ...]] = []
        prefix = id_prefix(self._name, self._log)
        today = datetime.now(UTC).date()
        for number, row in rows:
            try:
                _, values = columns_of(row)
                given.append((row_id(prefix, partition, number), today, *map(_in_utc, values)))
            except (ValueError, OverflowError) as error:  # in UTC its year is below 1 or above 9999
                self._aside.add("refused", partition, number, str(error))
        if not rows:
            return 0
        end = rows[-1][0] + 1
        if given:
            self._append(given, partition, end)
        self.move(partition, end)
        return len(given)

    def keep_up(self, now_ms: int) -> None:
        if self._is_there:  # to ask the table each second would cost more than all else
            self._upkeep.look(self, now_ms)

    def note_version(self) -> None:
        """The table's commits are on disk, and the file says so."""
        self._note.write(self._held.sync())

    def close(self) -> None:
        """Let another Java write the table."""
        self._held.close()
        self._note.close()

    def _append(self, rows: Sequence[tuple[object, ...]], partition: int, end: int) -> None:
        schema = StructType([*_OWN, *self._columns().fields])
        if not self._is_checked:
            self._held.create(schema)
            self._is_there = self._is_checked = True
            self.note_version()
        frame = self._spark.createDataFrame(rows, schema, verifySchema=False)
        self.table.append(frame, self._log, partition, end)
        self.commits += 1
        self.note_version()

    def _written(self, partitions: Mapping[int, int]) -> dict[int, int]:
        return self.table.positions(self._log, partitions) if self._is_there else {}


class _SyncedCommit:
    """In rules.db: the last commit that is known to be on disk."""

    def __init__(self, places: Places, rule: str) -> None:
        self._file = SinkFile(places.rules, query_of_rule(rule), (__package__ or "", "rule_tables.sql"))
        self._rule = rule

    def read(self) -> Noted:
        sql = "SELECT version, boot, run FROM rule_tables WHERE rule = ?"
        row = self._file.connection.execute(sql, (self._rule,)).fetchone()
        return Noted() if row is None else Noted(*row)

    def write(self, noted: Noted) -> None:
        """Durable when it returns."""
        row = (self._rule, noted.version, noted.boot, noted.run)
        with self._file.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO rule_tables VALUES (?, ?, ?, ?)", row)

    def close(self) -> None:
        self._file.close()


def rule_table_place(settings: DriverSettings, places: Places, rule: str) -> str:
    """Where its table is: beside the lake, since a folder within it would be the lake's own."""
    return f"{lake_place(settings, places).rstrip('/')}-rules/{rule}"


def _in_utc(value: object) -> object:
    """Times that say no zone are UTC here, and this machine's for Spark."""
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


NUMBERS_CHARACTERS = len(":") + 10 + len(":") + 19 + len(":") + 5
"""Of an id at most, behind the rule and the log: partition, offset, row."""


class SqlTarget(RuleTarget):
    """See the module."""

    def __init__(
        self,
        name: str,
        rule: RuleSettings,
        door: RuleDoor,
        aside: SetAside,
        *,
        log_id: Callable[[], int],
        settings: SqlSettings,
    ) -> None:
        super().__init__(name, rule, door, aside)
        self._log_id = log_id
        self._settings = settings
        self._id_prefix = ""
        self._table: RuleTable | None = None

    def open(self) -> None:
        self.close()
        self._id_prefix = id_prefix(self._name, self._log_id())
        super().open()
        self._table = RuleTable(url_in(self._rule.url_file), self._settings, self._rule.table)

    def put(self, partition: int, rows: Sequence[NumberedRow]) -> int:
        table, added = self._table, 0
        assert table is not None, "open comes first"
        if rows:
            table.check(len(self._id_prefix) + NUMBERS_CHARACTERS)
        found = dict(rows)
        for piece in pieces([(number, bytes(row["payload"])) for number, row in rows]):
            numbers = {row_id(self._id_prefix, partition, number): number for number, _ in piece}
            given, refused = [], {}
            for key, number in numbers.items():
                try:
                    given.append((key, *columns_of(found[number])))
                except (ValueError, OverflowError) as error:  # in UTC its year is below 1 or above 9999
                    refused[key] = str(error)
            if given:
                refused |= table.add(given)
            for key, why in refused.items():
                self._aside.add("refused", partition, numbers[key], why)
            self.move(partition, piece[-1][0] + 1)
            added += len(piece) - len(refused)
        return added

    def close(self) -> None:
        if self._table is not None:
            self._table.close()
            self._table = None


def url_in(file: str) -> DatabaseUrl:
    """Of the server. Raises RuleError, without a password."""
    try:
        return parse_url(Path(file).read_text().strip())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no text"
        raise RuleError(f"url_file {file} cannot be read: {reason}") from None
    except ValueError as error:
        raise RuleError(f"url_file {file}: {error}") from None
