"""`to = "sql"`: each row of a rule is a row of a table, once.

A piece is one transaction; then the broker is told how far the rule is. What dies between the two finds the rows by
their ids, which are the same whenever a message comes again.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from embermq.database.database_url import DatabaseUrl, parse_url
from embermq.database.settings import SqlSettings
from embermq.pipeline.errors import RuleError
from embermq.pipeline.rules.door import RuleDoor
from embermq.pipeline.rules.row_ids import columns_of, id_prefix, row_id
from embermq.pipeline.rules.set_aside import SetAside
from embermq.pipeline.rules.settings import RuleSettings
from embermq.pipeline.rules.targets import NumberedRow, RuleTarget, pieces
from embermq.pipeline.sinks.rule_table import RuleTable

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
