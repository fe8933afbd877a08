"""The one error of this room: rules that cannot be used."""

from embermq.access.authorization.rules import RulePosition


class RulesError(ValueError):
    """What is wrong with a file of rules, and where."""

    def __init__(self, place: RulePosition, text: str) -> None:
        super().__init__(f"{place}: {text}")
        self.place = place
