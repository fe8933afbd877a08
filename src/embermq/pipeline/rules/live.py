"""A rule that runs: the rows of each batch go to the broker, each with the number of the message that it comes of.

The broker keeps the number of the next one together with the messages, all or nothing, and leaves out what it has had.
So the position of a rule is the broker's; a driver that is killed goes on from there.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame, Row, SparkSession

from embermq.formats.log_record import FIELD_RULES, encode_record
from embermq.model.message import Message
from embermq.mqtt.topics.names import SERVED_BYTES_MAX
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.pipeline.errors import RuleError, RuleStuck
from embermq.pipeline.jobs.bulk_log import BulkLog
from embermq.pipeline.jobs.bulk_parts import BulkPart
from embermq.pipeline.log_look import Positions
from embermq.pipeline.places import Places
from embermq.pipeline.rules.care import Care
from embermq.pipeline.rules.door import RuleDoor
from embermq.pipeline.rules.evaluating import Evaluation, MadeRows
from embermq.pipeline.rules.rows import SEPARATOR
from embermq.pipeline.rules.session import RuleSession
from embermq.pipeline.rules.set_aside import ROWS_MAX, SetAside
from embermq.pipeline.rules.settings import RuleSettings, query_of_rule
from embermq.pipeline.schema import PARTITION
from embermq.pipeline.session import jvm_process
from embermq.pipeline.settings import DriverSettings

TOPIC_TOO_LONG = f"a topic of more than {SERVED_BYTES_MAX} bytes"
PIECE = 500
PIECE_BYTES = 512 * 1024
RULE, OF = "rule", "rule-of"
"""User properties of what a rule publishes: its name, and "partition:offset" of the message that it comes of."""

Numbered = tuple[int, bytes]


class RulePart(BulkPart):
    """One rule. It begins with the messages that come after it was first seen."""

    def __init__(self, kind: "RuleKind", settings: DriverSettings, places: Places, log: BulkLog) -> None:
        super().__init__(settings, places, log)
        self.name = kind.name
        self._rule_name = kind.rule_name
        self._rule = kind.rule
        self._session = kind.session
        self._care = kind.care
        self._evaluation = Evaluation(kind.session.spark, kind.rule_name, self._rows, settings.rule_timeout_s)
        self._door = RuleDoor(places, kind.rule_name)
        self._aside = SetAside(places.rules, kind.rule_name)
        self._next: int | None = None
        self._messages = 0

    def open(self, spark: SparkSession) -> None:
        self._next = self._door.look().next
        if self._next is None:  # first: what comes while its SQL is refused is for it, too
            self.begin_at({PARTITION: self.log.bounds[PARTITION].end})
        self._session.check(self._rule_name, self._rule)

    def positions(self) -> Positions:
        return {} if self._next is None else {PARTITION: self._next // ROWS_MAX}

    def begin_at(self, begin: Positions) -> None:
        self._next = self._door.begin(begin[PARTITION] * ROWS_MAX)

    def counts(self) -> dict[str, int]:
        return {"messages": self._messages, **self._aside.totals}

    def write(self, records: DataFrame) -> int:
        """Returns how many messages were published."""
        before = self._messages
        with self._care.at_work(self._rule_name, self._next or 0):
            try:
                for found in self._evaluation.found(records):
                    self._take(found)
            except RuleStuck as error:  # nothing but its end stops what Java does
                self._care.pause(self._rule_name, str(error))
                end_java(self._session.spark)
                raise
        return self._messages - before

    def _rows(self, records: DataFrame) -> DataFrame:
        return self._session.rows(self._rule_name, self._rule, records).where("offset >= 0")

    def _take(self, found: MadeRows) -> None:
        done = self._next or 0
        for piece in pieces([one for one in self._numbered(found.rows) if one[0] >= done]):
            self._publish(piece)
        if found.end is None or found.end <= done // ROWS_MAX:
            return  # the batch is done when all of it is; or it has been before
        if found.failure:
            self._aside.add("failed", (found.end - 1) * ROWS_MAX, found.failure)
        self._next = self._door.take((), found.end * ROWS_MAX).next

    def moved(self, begin: Positions, end: Positions) -> int:
        self._next = self._door.take((), end[PARTITION] * ROWS_MAX).next
        return max(0, min(self.log.bounds[PARTITION].first, end[PARTITION]) - begin[PARTITION])

    def keep_up(self, now_ms: int) -> None:
        """Nothing is kept."""

    def _publish(self, piece: Sequence[Numbered]) -> None:
        """All of it; what the broker can never take is passed over."""
        while piece:
            taken = self._door.take(piece, piece[-1][0] + 1)
            if taken.next is None:
                raise RuleError("the broker has no position of this rule any more")
            self._next = taken.next
            self._messages += sum(number < taken.next for number, _ in piece)
            if not taken.refused:
                return
            if taken.passes or (taken.is_of_queue and self._rule.to == "queue"):
                raise RuleError(f"the broker takes no more for now: {taken.refused}")
            self._aside.add("refused", taken.next, taken.refused)
            piece = [one for one in piece if one[0] > taken.next]

    def _numbered(self, rows: list[Row]) -> list[Numbered]:
        """Records of messages with their numbers, the same ones whenever the same rows are made."""
        found: list[Numbered] = []
        offset, index = -1, 0
        for row in sorted(rows, key=_in_order):
            index = index + 1 if row["offset"] == offset else 0
            offset = row["offset"]
            number = offset * ROWS_MAX + index
            if len(row["topic"].encode(errors="replace")) > SERVED_BYTES_MAX:
                # A record cannot hold it; what the broker refuses for other reasons it says itself.
                if number >= (self._next or 0):
                    self._aside.add("refused", number, TOPIC_TOO_LONG)
                continue
            found.append((number, self._record(row)))
        return found

    def _record(self, row: Row) -> bytes:
        name = self._rule_name
        marks = Properties(user_properties=((RULE, name), (OF, f"{PARTITION}:{row['offset']}")))
        chain = SEPARATOR.join([*filter(None, [row["chain"]]), name]).encode()
        message = Message(
            row["topic"],
            bytes(row["payload"]),
            self._rule.qos,
            False,
            f"{RULE}:{name}",
            ProtocolVersion.V5,
            0,
            0,
            marks,
        )
        return encode_record(message, unknown_fields=((FIELD_RULES, chain),))


class RuleKind:
    """Makes the part of one rule."""

    def __init__(self, name: str, rule: RuleSettings, session: RuleSession, care: Care) -> None:
        self.name = query_of_rule(name)
        self.care = care
        self.rule_name = name
        self.rule = rule
        self.session = session

    def __call__(self, settings: DriverSettings, places: Places, log: BulkLog) -> RulePart:
        return RulePart(self, settings, places, log)


def pieces(numbered: Sequence[Numbered]) -> list[list[Numbered]]:
    """In their order, bounded in messages and bytes."""
    found: list[list[Numbered]] = []
    size = 0
    for one in numbered:
        if not found or len(found[-1]) == PIECE or size + len(one[1]) > PIECE_BYTES:
            found.append([])
            size = 0
        found[-1].append(one)
        size += len(one[1])
    return found


def end_java(spark: SparkSession) -> None:
    """The driver ends with it, and is started again."""
    jvm_process(spark).kill()


def _in_order(row: Row) -> tuple[int, str, bytes]:
    return row["offset"], row["topic"], bytes(row["payload"])
