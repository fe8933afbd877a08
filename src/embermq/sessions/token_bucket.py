"""A rate: so many a second, with what was not used saved up to one second's worth."""

ONE = 1_000
"""A token, in thousandths: so many come in a millisecond as `rate` says, without rounding."""


class TokenBucket:
    """Starts full. `rate` is tokens a second, and also how many are saved at most. Times are milliseconds; a clock that
    steps back gives and takes nothing."""

    __slots__ = ("_at_ms", "_left", "_rate")

    def __init__(self, rate: int, now_ms: int) -> None:
        self._rate = rate
        self._left = rate * ONE
        self._at_ms = now_ms

    def _fill(self, now_ms: int) -> None:
        passed_ms = now_ms - self._at_ms
        if passed_ms:
            self._at_ms = now_ms
            if passed_ms > 0:
                self._left = min(self._rate * ONE, self._left + passed_ms * self._rate)

    def has_one(self, now_ms: int) -> bool:
        """Whether one may be taken."""
        self._fill(now_ms)
        return self._left >= ONE

    def take(self, now_ms: int) -> bool:
        """Take one; False, and nothing is taken, when there is none."""
        if not self.has_one(now_ms):
            return False
        self._left -= ONE
        return True

    def whole(self, now_ms: int) -> int:
        """How many whole tokens may be taken now."""
        self._fill(now_ms)
        return max(0, self._left // ONE)

    def take_many(self, count: int, now_ms: int) -> None:
        """Take so many, even when there are fewer."""
        self._fill(now_ms)
        self._left -= count * ONE

    def wait_ms(self, count: int, now_ms: int) -> int:
        """How long until so many may be taken; at least 1."""
        self._fill(now_ms)
        return max(1, -((self._left - count * ONE) // self._rate))

    def borrow(self, now_ms: int) -> int:
        """Take one even when there is none; returns the milliseconds until what was borrowed has come back, 0 when
        there was one."""
        self._fill(now_ms)
        self._left -= ONE
        return max(0, -(self._left // self._rate))
