"""What can go wrong when the chain is made."""


class ChainError(Exception):
    """The operator's fault: `setting` names something that cannot be used. The text has nothing that is secret."""

    def __init__(self, setting: str, text: str) -> None:
        super().__init__(f"{setting}: {text}")
        self.setting = setting
