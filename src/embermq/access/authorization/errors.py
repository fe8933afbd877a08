"""The one error of this room: rules that cannot be used."""

from embermq.access.authorization.rules import Place


class RulesError(ValueError):
    """What is wrong with a file of rules, and where."""

    def __init__(self, place: Place, text: str) -> None:
        super().__init__(f"{place}: {text}")
        self.place = place
