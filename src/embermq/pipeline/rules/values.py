"""What is found when a rule is tried. No Spark in here."""

from msgspec import Struct


class RuleRow(Struct, frozen=True, kw_only=True):
    """A message that a rule would publish, and the offset of the one that it comes of. `payload` as text."""

    offset: int
    topic: str
    payload: str


class TriedRule(Struct, frozen=True, kw_only=True):
    """`records` that it saw, `messages` that it would have published, and the first of them. `seconds` of both."""

    records: int
    messages: int
    shown: tuple[RuleRow, ...]
    seconds: float
