"""Rules as the configuration has them: tables `[rules.NAME]`. No Spark in here."""

import re
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct

from embermq.mqtt.topics.errors import TopicError
from embermq.mqtt.topics.names import validate_topic
from embermq.pipeline.errors import PipelineSettingsError
from embermq.queues.errors import NameRefused
from embermq.queues.names import QUEUE_PREFIX, parse_topic, queue_name


class Stretch(Struct, frozen=True):
    """Which messages a rule over windows sees, Unix seconds: those accepted from `begin_s` on and before `end_s`. Those
    before `start_s` it has seen already when it was asked before."""

    begin_s: int
    start_s: int
    end_s: int


class RuleRow(Struct, frozen=True, kw_only=True):
    """A message that a rule would publish, and where in the log the one is that it comes of. `payload` as text."""

    partition: int
    offset: int
    topic: str
    payload: str


class TriedRule(Struct, frozen=True, kw_only=True):
    """`records` that it saw, `messages` that it would have published, and the first of them. `seconds` of both."""

    records: int
    messages: int
    shown: tuple[RuleRow, ...]
    seconds: float


class CheckedRule(Struct, frozen=True, kw_only=True):
    """Why a rule is refused, "" for one that is not, and what its author may want to know."""

    refused: str = ""
    hint: str = ""


class SetAsideMessage(Struct, frozen=True, kw_only=True):
    """A message that a rule could not use (`failed`), or row `row` of it that the broker has not taken (`refused`), by
    partition and offset of the message in the log. `at_ms`: Unix milliseconds."""

    partition: int
    offset: int
    row: int
    what: str
    reason: str
    at_ms: int


RULES_MAX = 32
"""Each has a batch of its own at every read of the log."""
SQL_CHARACTERS_MAX = 16_384
NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
WINDOWS_MAX = 8
"""Rules over windows: each of them reads the log by itself."""
EVERY_S_MIN, OVER_S_MAX = 10, 86_400
OVER_TIMES_MAX = 60
"""So many times a message is read at most: `over` in terms of `every`."""
DURATION = re.compile(r"([1-9][0-9]{0,5})([smh])")
SECONDS = {"s": 1, "m": 60, "h": 3_600}
TABLE = re.compile(r"[a-z][a-z0-9_]{0,31}")
TABLE_KINDS = (".csv", ".json", ".parquet")
SQL_TABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,62}")
ID_COLUMN = "ember_id"
"""In the table of a rule with `to = "sql"` or `"lake"`: which row of which message it is."""
DAY_COLUMN = "ember_date"
"""In the table of a rule with `to = "lake"`: the day (UTC) on which a row came into it."""
QUERY = "rule:"
MESSAGES = "messages"
"""What a rule reads."""


class RuleSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule: what it reads of the messages, and where its rows go."""

    sql: str = ""
    """A SELECT over `messages` with the columns `topic` (for a queue without) and `payload`."""
    to: Literal["mqtt", "queue", "webhook", "sql", "lake"] = "mqtt"
    """`mqtt`: each row is published to its `topic`; `queue`: into the durable queue `queue`; `webhook`: a POST to
    `url` each; `sql`: a row of `table` each; `lake`: a row each of a Delta Lake table that is the rule's own."""
    queue: str = ""
    """The durable queue, for `to = "queue"`."""
    url: str = ""
    """Where to, for `to = "webhook"`: http or https."""
    headers_file: str = ""
    """File with headers of each request, `NAME: VALUE` a line: keys and passwords, for one."""
    content_type: str = "application/json"
    """Of each request."""
    ca_file: str = ""
    """PEM file with the certificates that the webhook's must be signed by; empty: those of the system."""
    table: str = ""
    """Where to, for `to = "sql"`: a table of PostgreSQL, MySQL or MariaDB, `NAME` or `SCHEMA.NAME`."""
    url_file: str = ""
    """File with the URL of its server, `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`, as `stores.static` has it."""
    every: str = ""
    """`10s`, `5m`, `1h`: the SQL is asked once in such a time, over all messages of it. Empty: for each message."""
    over: str = ""
    """The same, of how long a time it sees the messages then; empty: that of `every`."""
    qos: Literal[1, 2] = 1
    """Of the messages that it publishes."""
    tables: tuple[str, ...] = ()
    """Other tables that it reads: `NAME=FILE` each, a file that ends in .csv (with a line of names), .json (an object a
    line) or .parquet."""
    sees_rules: bool = False
    """Whether it sees what other rules have published. It never sees what comes of its own messages."""

    @property
    def topic(self) -> str:
        """Of each message, "" when the rows say it."""
        return QUEUE_PREFIX + queue_name(self.queue) if self.to == "queue" else ""

    @property
    def every_s(self) -> int:
        """0 for a rule that is asked for each message."""
        return seconds(self.every)

    def stretch(self, end_s: int) -> Stretch:
        """What it sees when it is asked at that time."""
        every_s = self.every_s
        return Stretch(end_s - (seconds(self.over) or every_s), end_s - every_s, end_s)

    @property
    def has_columns(self) -> bool:
        """Whether its rows are kept with their columns, rather than as payloads."""
        return self.to in ("sql", "lake")

    @property
    def own_columns(self) -> tuple[str, ...]:
        """Of its table, beside those that it selects."""
        return (ID_COLUMN, DAY_COLUMN) if self.to == "lake" else (ID_COLUMN,)

    @property
    def shown_url(self) -> str:
        """Scheme, host and port of `url`: with many services the path is the secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}" if self.url else ""

    def files(self) -> dict[str, str]:
        """Name of each table -> its file."""
        return {name.strip(): file.strip() for name, _, file in (one.partition("=") for one in self.tables)}


def seconds(duration: str) -> int:
    """0 for what is none."""
    found = DURATION.fullmatch(duration)
    return int(found[1]) * SECONDS[found[2]] if found else 0


def query_of_rule(name: str) -> str:
    """What status calls the rule."""
    return QUERY + name


def check_rules(rules: Mapping[str, RuleSettings]) -> None:
    """Raise PipelineSettingsError, naming the setting, for what no rule can be. Reads no file, and not the SQL."""
    if len(rules) > RULES_MAX:
        raise PipelineSettingsError(f"rules: there are {len(rules)}, {RULES_MAX} are allowed")
    for name, rule in rules.items():
        key = f"rules.{name}"
        if not NAME.fullmatch(name):
            raise PipelineSettingsError(
                f"{key}: the name of a rule has up to 32 characters of a-z, 0-9, _ and -, and begins with a letter"
            )
        if not rule.sql.strip():
            raise PipelineSettingsError(f"{key}.sql: is missing; it is a SELECT over messages")
        if len(rule.sql) > SQL_CHARACTERS_MAX:
            raise PipelineSettingsError(
                f"{key}.sql: has {len(rule.sql)} characters, more than the largest allowed {SQL_CHARACTERS_MAX}"
            )
        _check_target(key, rule)
        _check_tables(key, rule)
        _check_window(key, rule)
    windows = sum(bool(rule.every) for rule in rules.values())
    if windows > WINDOWS_MAX:
        raise PipelineSettingsError(f"rules: {windows} have `every`, {WINDOWS_MAX} may")


def _check_target(key: str, rule: RuleSettings) -> None:
    _check_webhook(key, rule)
    _check_sql(key, rule)
    if rule.to != "queue":
        if rule.queue:
            raise PipelineSettingsError(f'{key}.queue = {rule.queue!r}: is for to = "queue"')
        return
    if not rule.queue:
        raise PipelineSettingsError(f'{key}.queue: to = "queue" needs the name of a durable queue')
    try:
        validate_topic(rule.topic)
        if parse_topic(rule.topic).verb is not None:
            raise PipelineSettingsError(f"{key}.queue = {rule.queue!r}: it names no queue")
    except (TopicError, NameRefused) as error:
        raise PipelineSettingsError(f"{key}.queue = {rule.queue!r}: {error}") from None


def _check_window(key: str, rule: RuleSettings) -> None:
    if not rule.every:
        if rule.over:
            raise PipelineSettingsError(f"{key}.over = {rule.over!r}: is for a rule with `every`")
        return
    longest_s = min(OVER_S_MAX, OVER_TIMES_MAX * rule.every_s)
    for name, least, most in (("every", EVERY_S_MIN, OVER_S_MAX), ("over", rule.every_s, longest_s)):
        given = getattr(rule, name)
        if given and not least <= seconds(given) <= most:
            raise PipelineSettingsError(
                f"{key}.{name} = {given!r}: must be a time such as 30s, 5m or 1h, from {least} s to {most} s"
            )
    if rule.sees_rules:
        raise PipelineSettingsError(
            f"{key}.every: a rule over windows sees no messages of rules (sees_rules)"
        )


def _check_webhook(key: str, rule: RuleSettings) -> None:
    """What is wrong is told without the URL, which may be a secret."""
    if rule.to != "webhook":
        for name in ("url", "headers_file", "ca_file"):
            if getattr(rule, name):
                raise PipelineSettingsError(f'{key}.{name}: is for to = "webhook"')
        return
    if not rule.url:
        raise PipelineSettingsError(f'{key}.url: to = "webhook" needs the URL')
    try:
        parts = urlsplit(rule.url)
        is_right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_right = False
    if not (is_right and rule.url.isascii() and rule.url.isprintable() and " " not in rule.url):
        raise PipelineSettingsError(f"{key}.url: is no http or https URL of printable ASCII")
    if "@" in parts.netloc:
        raise PipelineSettingsError(f"{key}.url: user and password belong into headers_file (Authorization)")
    if not (rule.content_type.isascii() and rule.content_type.isprintable()):
        raise PipelineSettingsError(f"{key}.content_type: is no printable ASCII")


def _check_sql(key: str, rule: RuleSettings) -> None:
    if rule.to != "sql":
        for name in ("table", "url_file"):
            if getattr(rule, name):
                raise PipelineSettingsError(f'{key}.{name}: is for to = "sql"')
        return
    if not SQL_TABLE.fullmatch(rule.table):
        raise PipelineSettingsError(
            f"{key}.table = {rule.table!r}: must be NAME or SCHEMA.NAME, of letters, digits and _"
        )
    if not rule.url_file:
        raise PipelineSettingsError(f'{key}.url_file: to = "sql" needs the file with the URL of the server')


def _check_tables(key: str, rule: RuleSettings) -> None:
    if len(rule.files()) != len(rule.tables):
        raise PipelineSettingsError(f"{key}.tables = {list(rule.tables)}: a table is named twice")
    for name, file in rule.files().items():
        if not TABLE.fullmatch(name) or name == MESSAGES:
            raise PipelineSettingsError(
                f"{key}.tables: {name!r} is no name of a table: up to 32 characters of a-z, 0-9 and _, a letter first, "
                f"and not {MESSAGES}"
            )
        if not file.startswith("/") or not file.endswith(TABLE_KINDS):
            raise PipelineSettingsError(
                f"{key}.tables: {name}={file!r} is not the absolute path of a file that ends in "
                f"{', '.join(TABLE_KINDS)}"
            )
