"""The time that consumers of a queue have: it stands still while nothing that they settle could be taken [queues-22].

A consumer that works one message after the other waits for the answer to its ack, so in an outage of the message log or
of the store its leases would end though it has done its work. Whether a settlement is taken is found out by going its
way: somebody asks every now and then, and the answer comes when that of a settlement would. Until it comes the clock
goes on for `PATIENCE_MS`, no further; what passes then is time that no consumer had. Nothing need be known of stores,
of their servers or of why an answer is late.
"""

NEVER_MS = 2**62
"""Nobody asks: the clock goes like broker time."""
PATIENCE_MS = 2_000
"""An answer that takes no longer is none that is missed."""
AGAIN_MS = 500
"""While it stands still, what is over by broker time is looked at so often."""


class ConsumerClock:
    """That of one queue. Its moments are behind broker time by all that did not count."""

    __slots__ = ("_answered_ms", "_is_asked", "_looked_ms", "_stood_ms")

    def __init__(self) -> None:
        self._answered_ms = NEVER_MS
        """Until then settlements were taken, in broker time."""
        self._stood_ms = 0
        self._looked_ms = 0
        self._is_asked = False

    def at(self, broker_ms: int) -> int:
        """Milliseconds that it shows at this broker time."""
        self._looked_ms = broker_ms
        return min(broker_ms, self._answered_ms + PATIENCE_MS) - self._stood_ms

    def stands_ms(self) -> int:
        """For how long it has stood still, when somebody looked at it last; 0 while it goes."""
        return max(0, self._looked_ms - self._answered_ms - PATIENCE_MS)

    def until_ms(self, moment_ms: int) -> int:
        """When it will show a moment, in broker time, if it goes on now."""
        return moment_ms + self._stood_ms + self.stands_ms()

    def due_ms(self, moment_ms: int) -> int:
        """When to look whether it has reached a moment."""
        due_ms = self.until_ms(moment_ms)
        return max(due_ms, self._looked_ms + AGAIN_MS) if self.stands_ms() else due_ms

    def untaken_since_ms(self, broker_ms: int) -> int:
        """Since when nothing has said that settlements are taken, in broker time, if it stands still now; else 0."""
        return self._answered_ms if broker_ms > self._answered_ms + PATIENCE_MS else 0

    def runs(self, broker_ms: int) -> None:
        """Somebody's time runs. From the first call on it goes no further than `PATIENCE_MS` without an answer."""
        if self._answered_ms == NEVER_MS:
            self._answered_ms = broker_ms

    def ask(self, broker_ms: int) -> bool:
        """Whether to find out if a settlement of now is taken, and to call `answered` then. False while that is being
        found out."""
        self.runs(broker_ms)
        if self._is_asked:
            return False
        self._is_asked = True
        return True

    def answered(self, broker_ms: int) -> None:
        """It is taken, and what came before."""
        self._is_asked = False
        if self._answered_ms != NEVER_MS:
            self._stood_ms += max(0, broker_ms - self._answered_ms - PATIENCE_MS)
            self._answered_ms = broker_ms

    def rest(self) -> None:
        """Nobody's time runs: nothing need be found out."""
        self._answered_ms = NEVER_MS
