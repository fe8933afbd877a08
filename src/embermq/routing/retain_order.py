"""Which of two retained messages of a topic is the newer one, when several nodes take them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from embermq.model.message import Message
from embermq.mqtt.value import replace

KEPT = 100_000
"""Topics that are remembered beside what is retained: those whose message is on its way to the log, or was refused."""
Stamp = tuple[int, int]
"""Accept time in Unix milliseconds, and the slot that accepted it."""


class RetainOrder:
    """The later accept time wins, then the higher slot, then the later place in that slot's log: every node decides
    alike, in whatever order it hears of them. `held` has the stamp of the message that a topic has now, or of the end
    of the one that it had."""

    def __init__(self, slot: int, held: Callable[[str], Stamp | None]) -> None:
        self._slot = slot
        self._held = held
        self._newest: OrderedDict[str, Stamp] = OrderedDict()

    def own(self, message: Message) -> Message:
        """A message that this node takes is newer than all that it knows of, whatever the clocks of others say."""
        known = self._known(message.topic)
        if known is not None and (message.accepted_ms, self._slot) < known:
            message = replace(message, accepted_ms=known[0] + 1)
        self._note(message.topic, (message.accepted_ms, self._slot))
        return message

    def is_newer(self, message: Message, slot: int) -> bool:
        """Whether one that another slot has taken replaces what this node knows of; then it is known."""
        known = self._known(message.topic)
        stamp = message.accepted_ms, slot
        if known is not None and stamp < known:
            return False
        self._note(message.topic, stamp)
        return True

    def _known(self, topic: str) -> Stamp | None:
        found = self._newest.get(topic)
        return self._held(topic) if found is None else found

    def _note(self, topic: str, stamp: Stamp) -> None:
        newest = self._newest
        newest[topic] = stamp
        newest.move_to_end(topic)
        if len(newest) > KEPT:
            newest.popitem(last=False)
