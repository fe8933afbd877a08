"""What becomes of messages that a client does not acknowledge in time: decided here, done by the reader.

`retry-all` sends them again. On a live connection only MQTT 3 allows that; an MQTT 5 client is sent away and gets them
when it returns [MQTT-4.4.0-1]. A message that was sent again `retries` times, in vain, is parked: kept aside for an
operator, so that it holds up nothing any more and is not lost. `skip-all` goes on without them.

Packs are timed, not messages: what was sent together is late together, and packs that follow one another quickly are
one. Attempts are counted for each message and
outlive the connection, or an MQTT 5 client would be sent away for ever.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from enum import Enum

from msgspec import Struct

JOINED_SHARE = 20
"""Packs that begin within this share of the timeout are timed together, by the last of them."""


class AckStrategy(Enum):
    """What to do with messages that are not acknowledged in time, as in the settings."""

    RETRY_ALL = "retry-all"
    SKIP_ALL = "skip-all"


class OverdueStep(Enum):
    """What is to be done about the messages of a `OverdueVerdict`."""

    RESEND = "resend"
    """Now, with DUP; a PUBREL where the client has sent PUBREC."""
    DISCONNECT = "disconnect"
    """They are resent when the client returns."""
    SKIP = "skip"
    """They are settled. Their packet ids stay taken until the client answers or goes [MQTT-2.2.1-4]."""


class OverdueVerdict(Struct, frozen=True):
    """About offsets of a log: what to do with `overdue`, and which to park instead."""

    step: OverdueStep
    overdue: tuple[int, ...]
    parked: tuple[int, ...] = ()


class _Pack(Struct):
    """Up to `last`; `begun_ms` and `sent_ms` are when its first and its last message were sent."""

    last: int
    begun_ms: int
    sent_ms: int


class ResendCounts:
    """How often each unacknowledged message of a session was sent in vain. Outlives connections."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def count(self, offset: int) -> int:
        """One more; returns how many there have been."""
        self._counts[offset] = count = self._counts.get(offset, 0) + 1
        return count

    def forget(self, offset: int) -> None:
        """Begin again with this one."""
        self._counts.pop(offset, None)

    def forget_below(self, floor: int) -> None:
        """What is settled needs no count; nothing happens while there is none."""
        if self._counts:
            self._counts = {offset: count for offset, count in self._counts.items() if offset >= floor}


class Overdue:
    """Finds the messages of one log and connection that are not acknowledged in time. Times are milliseconds;
    `retries` 0 is no limit."""

    def __init__(
        self,
        attempts: ResendCounts,
        *,
        strategy: AckStrategy,
        timeout_ms: int,
        retries: int,
        may_resend: bool,
    ) -> None:
        self._attempts = attempts
        self._strategy = strategy
        self._timeout_ms = timeout_ms
        self._retries = retries
        self._may_resend = may_resend
        self._packs: list[_Pack] = []
        """By `last`."""

    def sent(self, last: int, now_ms: int) -> None:
        """A pack is on its way, up to this offset; what a connection begins with, to be resent, is one."""
        packs = self._packs
        if (
            packs
            and packs[-1].last <= last
            and now_ms - packs[-1].begun_ms < self._timeout_ms // JOINED_SHARE
        ):
            packs[-1].last = last
            packs[-1].sent_ms = now_ms
        else:
            insort(packs, _Pack(last, now_ms, now_ms), key=_last)

    def postpone(self, now_ms: int) -> None:
        """The client could not be reached: everything has its time from now on."""
        for pack in self._packs:
            pack.begun_ms = pack.sent_ms = now_ms

    def due_ms(self, floor: int) -> int:
        """When to look next; everything below the floor is settled. 0 when nothing is on its way."""
        self._attempts.forget_below(floor)
        self._packs = [pack for pack in self._packs if pack.last >= floor]
        return min((pack.sent_ms for pack in self._packs), default=-self._timeout_ms) + self._timeout_ms

    def look(self, now_ms: int, unsettled: Iterable[int]) -> list[OverdueVerdict]:
        """What is due now. `unsettled` are the offsets that were sent and are not acknowledged, in order."""
        waiting = sorted(unsettled)
        verdicts: list[OverdueVerdict] = []
        packs, self._packs = self._packs, []
        begin = -1
        for pack in packs:
            of_pack = tuple(waiting[bisect_right(waiting, begin) : bisect_right(waiting, pack.last)])
            begin = pack.last
            if now_ms - pack.sent_ms < self._timeout_ms:
                self._packs.append(pack)
            elif of_pack:
                verdict = self._judge(of_pack)
                verdicts.append(verdict)
                if verdict.step is OverdueStep.RESEND and verdict.overdue:
                    self._packs.append(_Pack(verdict.overdue[-1], now_ms, now_ms))
        return verdicts

    def _judge(self, overdue: tuple[int, ...]) -> OverdueVerdict:
        if self._strategy is AckStrategy.SKIP_ALL:
            return OverdueVerdict(OverdueStep.SKIP, overdue)
        counts = {offset: self._attempts.count(offset) for offset in overdue}
        parked = tuple(offset for offset, count in counts.items() if 0 < self._retries < count)
        again = tuple(offset for offset in overdue if offset not in parked)
        step = OverdueStep.RESEND if self._may_resend or not again else OverdueStep.DISCONNECT
        return OverdueVerdict(step, again, parked)


def _last(pack: _Pack) -> int:
    return pack.last
