"""The broker that runs, as rules see it: over the control socket."""

import http.client
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from embermq.pipeline.control_socket import asked
from embermq.pipeline.errors import BrokerAway, RuleError
from embermq.pipeline.places import Places

ANSWER_S = 60.0


class RuleTaken(Struct, frozen=True, kw_only=True):
    """What the broker said: see `RuleFeedTaken` of its API."""

    next: int | None
    refused: str = ""
    passes: bool = False
    is_of_queue: bool = False


class RuleDoor:
    """One rule of it."""

    def __init__(self, places: Places, rule: str, timeout_s: float = ANSWER_S) -> None:
        self._socket = places.control
        self._path = f"/api/v1/rule-feeds/{rule}"
        self._timeout_s = timeout_s

    def look(self) -> RuleTaken:
        """How far it is. Raises BrokerAway, RuleError."""
        return self._ask({})

    def begin(self, number: int) -> int | None:
        """Where a rule begins that the broker knows nothing of; returns where it is."""
        return self._ask({"begin": number}).next

    def take(self, messages: Sequence[tuple[int, bytes]], end: int) -> RuleTaken:
        """One transaction, durable when it returns: messages by number, and that all below `end` is done."""
        return self._ask({"end": end, "messages": [{"number": at, "record": one} for at, one in messages]})

    def _ask(self, asked_for: dict[str, object]) -> RuleTaken:
        try:
            status, told = asked(
                self._socket, "POST", self._path, msgspec.json.encode(asked_for), self._timeout_s
            )
        except (OSError, http.client.HTTPException) as error:
            raise BrokerAway(f"{self._socket}: the broker does not answer: {error}") from error
        if status != http.HTTPStatus.OK:
            raise RuleError(f"the broker refuses: {status} {told.decode(errors='replace')}")
        return msgspec.json.decode(told, type=RuleTaken)
