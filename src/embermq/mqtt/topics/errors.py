"""The one error of this room: a topic name or filter that breaks the rules."""

from __future__ import annotations


class TopicError(ValueError):
    """A topic name or topic filter is not valid.

    ``message`` says what is wrong with which value, ``clause`` names the sentence of the specification.
    """

    def __init__(self, message: str, clause: str) -> None:
        super().__init__(f"{message} [{clause}]")
        self.message = message
        self.clause = clause
