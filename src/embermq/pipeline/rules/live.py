"""A rule that runs: the rows of each batch go to its target, each with the number of the message that it comes of.

What that target has had it leaves out; so a driver that is killed goes on from there.
"""

from pyspark.sql import DataFrame, SparkSession

from embermq.pipeline.errors import RuleStuck
from embermq.pipeline.jobs.bulk_log import BulkLog
from embermq.pipeline.jobs.bulk_parts import BulkPart
from embermq.pipeline.log_look import Positions
from embermq.pipeline.places import Places
from embermq.pipeline.rules.care import Care
from embermq.pipeline.rules.door import RuleDoor
from embermq.pipeline.rules.evaluating import Evaluation, MadeRows
from embermq.pipeline.rules.session import RuleSession
from embermq.pipeline.rules.set_aside import ROWS_MAX, SetAside
from embermq.pipeline.rules.settings import RuleSettings, query_of_rule
from embermq.pipeline.rules.targets import BrokerTarget, RuleTarget, numbered
from embermq.pipeline.rules.webhook import WebhookTarget
from embermq.pipeline.schema import PARTITION
from embermq.pipeline.session import jvm_process
from embermq.pipeline.settings import DriverSettings


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
        self._aside = SetAside(places.rules, kind.rule_name)
        self._target = target_of(kind.rule_name, kind.rule, places, self._aside, log)
        self._messages = 0

    def open(self, spark: SparkSession) -> None:
        self._target.open()
        if self._target.next is None:  # first: what comes while its SQL is refused is for it, too
            self.begin_at({PARTITION: self.log.bounds[PARTITION].end})
        self._session.check(self._rule_name, self._rule)

    def positions(self) -> Positions:
        return {} if self._target.next is None else {PARTITION: self._target.next // ROWS_MAX}

    def begin_at(self, begin: Positions) -> None:
        self._target.begin(begin[PARTITION] * ROWS_MAX)

    def counts(self) -> dict[str, int]:
        return {"messages": self._messages, **self._aside.totals}

    def write(self, records: DataFrame) -> int:
        """Returns how many messages were published."""
        before = self._messages
        with self._care.at_work(self._rule_name, self._done):
            try:
                for found in self._evaluation.found(records):
                    self._take(found)
            except RuleStuck as error:  # nothing but its end stops what Java does
                self._care.pause(self._rule_name, str(error))
                end_java(self._session.spark)
                raise
        return self._messages - before

    def moved(self, begin: Positions, end: Positions) -> int:
        self._target.move(end[PARTITION] * ROWS_MAX)
        return max(0, min(self.log.bounds[PARTITION].first, end[PARTITION]) - begin[PARTITION])

    def keep_up(self, now_ms: int) -> None:
        """Nothing is kept."""

    @property
    def _done(self) -> int:
        return self._target.next or 0

    def _rows(self, records: DataFrame) -> DataFrame:
        return self._session.rows(self._rule_name, self._rule, records).where("offset >= 0")

    def _take(self, found: MadeRows) -> None:
        done = self._done
        self._messages += self._target.put([one for one in numbered(found.rows) if one[0] >= done])
        if found.end is None or found.end <= done // ROWS_MAX:
            return  # the batch is done when all of it is; or it has been before
        if found.failure:
            self._aside.add("failed", (found.end - 1) * ROWS_MAX, found.failure)
        self._target.move(found.end * ROWS_MAX)


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


def target_of(name: str, rule: RuleSettings, places: Places, aside: SetAside, log: BulkLog) -> RuleTarget:
    """Where the rows of the rule go."""
    if rule.to == "webhook":
        return WebhookTarget(name, rule, places.rules, aside, log.identity)
    return BrokerTarget(name, rule, RuleDoor(places, name), aside)


def end_java(spark: SparkSession) -> None:
    """The driver ends with it, and is started again."""
    jvm_process(spark).kill()
