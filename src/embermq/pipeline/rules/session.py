"""A session for rules inside the pipeline's JVM: bad input is null there, not an error, and views are its own.

What the SQL of a rule may say: what is not on a list is refused.

It is looked at twice. As Spark has read it, before any name in it is looked up: a name of a table may be a file, and a
command is done when it is understood. Then as Spark has understood it, when each expression is what it will do.
"""

import threading
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import uuid4

from pyspark.errors import ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from embermq.pipeline.errors import RuleRefused
from embermq.pipeline.rules.rows import HIDDEN, of_stretch, published, rule_messages
from embermq.pipeline.rules.settings import MESSAGES, RuleSettings, Stretch
from embermq.pipeline.schema import record_schema

Java = Any
"""What py4j gives: a plan or an expression of Spark's."""

GROUPS = frozenset(
    {
        "array_funcs",
        "bitwise_funcs",
        "collection_funcs",
        "conditional_funcs",
        "conversion_funcs",
        "datetime_funcs",
        "generator_funcs",
        "hash_funcs",
        "json_funcs",
        "lambda_funcs",
        "map_funcs",
        "math_funcs",
        "predicate_funcs",
        "string_funcs",
        "struct_funcs",
        "url_funcs",
    }
)
"""Of Spark's own functions: those that reckon with their arguments. What is of no such group (`reflect`, `java_method`,
`input_file_name`, `xpath`, `from_protobuf`, `current_user`) may run code, read files, or tell of the machine."""
TRY_FORMS = {
    "element_at": "try_element_at",
    "to_binary": "try_to_binary",
    "to_number": "try_to_number",
    "unbase64": "try_to_binary(…, 'base64')",
    "url_decode": "try_url_decode",
}
"""Functions that fail on what they cannot read, and what is NULL then."""
WINDOWED = frozenset({"session_window", "window", "window_time"})
MANY_GROUPS = GROUPS | {"agg_funcs"}
"""And of rules over windows."""
_READ = frozenset({"Filter", "Generate", "Join", "SubqueryAlias", "UnresolvedRelation"})
"""Below the one SELECT, as read."""
_READ_MANY = _READ | {"Aggregate", "Distinct", "Project", "UnresolvedHaving"}
_UNDERSTOOD = frozenset({"Filter", "Generate", "Join", "Project", "SubqueryAlias", "View"})
_UNDERSTOOD_MANY = _UNDERSTOOD | {"Aggregate", "Deduplicate", "Distinct"}
# fmt: off
_STRUCTURE = frozenset({
    "Add", "Alias", "And", "ArrayTransform", "AttributeReference", "BinaryPad", "BinaryPredicate",
    "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "CaseWhen", "Cast", "Coalesce", "Collate",
    "Concat", "Contains", "CreateNamedStruct", "CurrentDate", "CurrentTimestamp", "DateAdd",
    "DateAddInterval", "DateDiff", "DateSub", "DatetimeSub", "DayOfMonth", "DayOfWeek", "Divide",
    "DivideDTInterval", "DivideYMInterval", "EndsWith", "EqualNullSafe", "EqualTo", "Explode",
    "Extract", "GeneratorOuter", "GetArrayItem", "GetArrayStructFields", "GetMapValue",
    "GetStructField", "GreaterThan", "GreaterThanOrEqual", "Hour", "If", "In", "Inline",
    "IntegralDivide", "IsNotNull", "IsNull", "LambdaFunction", "LessThan", "LessThanOrEqual", "Like",
    "LikeAll", "LikeAny", "Literal", "Lower", "MakeTimestamp", "MakeTimestampFromDateTime", "Mask",
    "Minute", "Month", "Multiply", "MultiplyDTInterval", "MultiplyYMInterval", "NamedLambdaVariable",
    "Not", "NotLikeAll", "NotLikeAny", "Or", "ParseToTimestamp", "PosExplode", "Quarter", "RLike",
    "Remainder", "ResolvedCollation", "RoundCeil", "RoundFloor", "Second", "SecondWithFraction", "Size",
    "StartsWith", "StringLPad", "StringRPad", "Subtract", "SubtractDates", "SubtractTimestamps",
    "TimeAdd", "TimestampAddInterval", "ToBinary", "ToCharacter", "TryMakeTimestampFromDateTime",
    "UnaryMinus", "UnaryPositive", "Upper", "WeekOfYear", "Year",
})
# fmt: on
"""Operators, and what functions on the list turn into."""
_STRUCTURE_MANY = _STRUCTURE | {
    "AggregateExpression", "KnownNullable", "PreciseTimestampConversion", "SessionWindow", "SortOrder",
    "TimeWindow", "TumbleWindow",
}  # fmt: skip
_WORDS = {
    "Aggregate": "GROUP BY and functions over many rows",
    "Distinct": "DISTINCT",
    "GlobalLimit": "LIMIT",
    "Project": "a SELECT inside FROM",
    "Sort": "ORDER BY",
    "Union": "UNION",
    "UnresolvedHaving": "HAVING",
    "UnresolvedHint": "a hint",
    "UnresolvedInlineTable": "VALUES",
    "UnresolvedTableValuedFunction": "a function in FROM",
    "UnresolvedWith": "WITH",
    "Window": "OVER",
}
_BUILDER = "ExpressionBuilder"
_CATALYST = "org.apache.spark.sql.catalyst."
_COLUMN_IN_HAVING = f"{_CATALYST}analysis.TempResolvedColumn"
_LOOKING_UP = Lock()


def read_plan(
    spark: SparkSession, sql: str, tables: frozenset[str], hidden: tuple[str, ...], *, over_many: bool = False
) -> Java:
    """The SQL over temporary views `tables`, with the columns `hidden` of one of them at the end. It may be
    `over_many` rows, without such columns. No name has been looked up when it returns. Raises RuleRefused."""
    if "${" in sql:
        raise RuleRefused("${…} stands for a variable of Spark or of the environment, which no rule reads")
    try:
        read = spark._jsparkSession.sessionState().sqlParser().parsePlan(sql)
    except ParseException as error:
        raise RuleRefused(_told(error)) from error
    _check_read(spark, read, tables, over_many)
    if over_many:
        return read
    names = read.projectList()
    attribute = spark._jvm.org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute  # type: ignore[union-attr]
    for name in hidden:
        names = names.appended(attribute.quoted(name))
    return read.copy(names, read.child())


def understood(spark: SparkSession, plan: Java, *, is_known: bool, over_many: bool = False) -> DataFrame:
    """The rows of what `read_plan` gave. Nothing has been read when it returns. What `is_known` has been looked at
    before, over tables of the same columns. Raises RuleRefused."""
    try:
        rows = _object(spark, "classic.Dataset").ofRows(spark._jsparkSession, plan)
    except PySparkException as error:
        raise RuleRefused(_told(error)) from error
    if not is_known:
        _check_understood(spark, rows.queryExecution().analyzed(), over_many)
    return DataFrame(rows, spark)


def adopted(rows: DataFrame, spark: SparkSession) -> DataFrame:
    """The same rows in another session of the same JVM."""
    plan = rows._jdf.queryExecution().analyzed()
    return DataFrame(_object(spark, "classic.Dataset").ofRows(spark._jsparkSession, plan), spark)


def _check_read(spark: SparkSession, plan: Java, tables: frozenset[str], over_many: bool) -> None:
    if _name(plan) not in (_READ_MANY - _READ if over_many else {"Project"}):
        raise _no_node(plan)
    _check_words(spark, plan, over_many)
    for node in _below(plan):
        if _name(node) not in (_READ_MANY if over_many else _READ):
            raise _no_node(node)
        if _name(node) == "UnresolvedRelation":
            parts = [str(part).lower() for part in _items(node.multipartIdentifier())]
            if parts[0] not in tables or len(parts) > 1:
                raise RuleRefused(
                    f"{node.tableName()} is no table of a rule; it reads {', '.join(sorted(tables))}"
                )
        _check_words(spark, node, over_many)


def failing_functions(plan: Java) -> list[str]:
    """Those of `TRY_FORMS` that what `read_plan` gave says."""
    named = {_function(one) for node in [plan, *_below(plan)] for one in _expressions(node)}
    return sorted(named & TRY_FORMS.keys())


def _function(expression: Java) -> str:
    """The name of the function that it calls, "" for none."""
    name = _name(expression)
    if name not in ("UnresolvedFunction", "UnresolvedGenerator"):
        return ""
    named = expression.nameParts() if name == "UnresolvedFunction" else expression.name().nameParts()
    return ".".join(str(part).lower() for part in _items(named))


def _check_words(spark: SparkSession, node: Java, over_many: bool) -> None:
    for expression in _expressions(node):
        if function := _function(expression):
            if function in WINDOWED and over_many:
                continue
            if function in WINDOWED:
                raise RuleRefused(f"the function {function} is for rules over windows, which have `every`")
            if function not in _functions(spark, over_many):
                raise RuleRefused(f"the function {function} is none that a rule may use")
        elif _is(spark, expression, "expressions.PlanExpression"):
            raise RuleRefused("a SELECT inside an expression is not for rules; JOIN a table")


def _check_understood(spark: SparkSession, plan: Java, over_many: bool) -> None:
    known = (_STRUCTURE_MANY if over_many else _STRUCTURE) | set(_functions(spark, over_many).values())
    nodes = _UNDERSTOOD_MANY if over_many else _UNDERSTOOD
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        if _name(node) not in nodes:
            raise _no_node(node)
        if _name(node) == "View":
            continue  # what is below was made here
        waiting += _children(node)
        for expression in _expressions(node, spark):
            kind = str(expression.getClass().getName())
            if over_many and kind == _COLUMN_IN_HAVING:
                continue  # and what it stands for comes next
            if not kind.startswith(f"{_CATALYST}expressions.") or _name(expression) not in known:
                raise RuleRefused(f"{_short(expression)} is none that a rule may use ({_name(expression)})")


def _functions(spark: SparkSession, over_many: bool) -> dict[str, str]:
    """Name of each function on the list -> the class of its expression. Rules open side by side: one looks them up."""
    with _LOOKING_UP:
        return _looked_up(spark, MANY_GROUPS if over_many else GROUPS)


@cache
def _looked_up(spark: SparkSession, groups: frozenset[str]) -> dict[str, str]:
    registry = _object(spark, "catalyst.analysis.FunctionRegistry").builtin()
    found: dict[str, str] = {}
    for name in _items(registry.listFunction()):
        info = registry.lookupFunction(name).get()
        if info.getGroup() in groups:
            found[str(name.funcName())] = str(info.getClassName()).rpartition(".")[2].removesuffix(_BUILDER)
    return found


def _object(spark: SparkSession, name: str) -> Java:
    """A Scala object by its name below org.apache.spark.sql."""
    at: Java = spark._jvm.org.apache.spark.sql  # type: ignore[union-attr]
    *packages, last = name.split(".")
    for package in packages:
        at = getattr(at, package)
    return getattr(getattr(at, f"{last}$"), "MODULE$")


def _is(spark: SparkSession, expression: Java, kind: str) -> bool:
    return bool(_class(spark, kind).isInstance(expression))


@cache
def _class(spark: SparkSession, kind: str) -> Java:
    return spark._jvm.java.lang.Class.forName(_CATALYST + kind)  # type: ignore[union-attr]


def _expressions(node: Java, spark: SparkSession | None = None) -> Iterator[Java]:
    """All of a node. With `spark`, of functions that Spark writes in other words what they were given alone."""
    waiting = _items(node.expressions())
    while waiting:
        expression = waiting.pop()
        yield expression
        if spark is not None and _is(spark, expression, "expressions.InheritAnalysisRules"):
            waiting += _items(expression.parameters())
        else:
            waiting += _children(expression)


def _below(plan: Java) -> Iterator[Java]:
    waiting = _children(plan)
    while waiting:
        node = waiting.pop()
        yield node
        waiting += _children(node)


def _children(node: Java) -> list[Java]:
    return _items(node.children())


def _items(sequence: Java) -> list[Java]:
    return [sequence.apply(at) for at in range(sequence.size())]


def _name(node: Java) -> str:
    return str(node.getClass().getName()).rpartition(".")[2]


def _no_node(node: Java) -> RuleRefused:
    words = _WORDS.get(_name(node), _name(node))
    return RuleRefused(f"{words} is not for rules: SELECT … FROM … [JOIN …] [LATERAL VIEW …] [WHERE …]")


def _short(expression: Java) -> str:
    return str(expression.toString())[:80]


def _told(error: PySparkException) -> str:
    """What Spark says of the SQL, without the plan that it adds."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = lines[0] if lines else type(error).__name__
    return told.partition(" SQLSTATE:")[0]


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
