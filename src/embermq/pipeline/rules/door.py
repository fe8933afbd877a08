"""The broker that runs, as rules see it: over the control socket."""

import http.client
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from embermq.pipeline.control_socket import asked
from embermq.pipeline.errors import BrokerAway, RuleError
from embermq.pipeline.places import Places

ANSWER_S = 60.0


class RuleTaken(Struct, frozen=True, kw_only=True):
    """What the broker said: see `RuleFeedTaken` of its API."""

    next: dict[int, int]
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

    def begin(self, numbers: Mapping[int, int]) -> RuleTaken:
        """Where a rule begins in partitions of the log of which the broker knows nothing: in all or in none."""
        return self._ask({"begin": numbers})

    def take(self, partition: int, messages: Sequence[tuple[int, bytes]], end: int) -> RuleTaken:
        """What comes of a partition of the log, durable when it returns, all or nothing, or where the log is a store of
        its own a beginning: messages by number, and that all below `end` is done."""
        numbered = [{"number": at, "record": one} for at, one in messages]
        return self._ask({"partition": partition, "end": end, "messages": numbered})

    def _ask(self, asked_for: Mapping[str, object]) -> RuleTaken:
        try:
            status, told = asked(
                self._socket, "POST", self._path, msgspec.json.encode(asked_for), self._timeout_s
            )
        except (OSError, http.client.HTTPException) as error:
            raise BrokerAway(f"{self._socket}: the broker does not answer: {error}") from error
        if status != http.HTTPStatus.OK:
            raise RuleError(f"the broker refuses: {status} {told.decode(errors='replace')}")
        return msgspec.json.decode(told, type=RuleTaken)
