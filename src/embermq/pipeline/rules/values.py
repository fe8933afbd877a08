"""What is told of rules. No Spark in here."""

from msgspec import Struct


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
