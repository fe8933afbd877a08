"""When messages leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from time import monotonic, monotonic_ns

from embermq_bench.errors import BenchError
from embermq_bench.publisher import Publisher

TICK_S = 0.001
GIVE_UP_S = 0.5


class OpenLoop:
    """Offers messages at a fixed rate, in turn to each publisher, whether or not the broker keeps up.

    Message k is meant to leave k / rate seconds after the start; that time is what latency counts from. The
    timer's grain of 1 ms is therefore part of the latency; reports show it as the send delay.
    """

    def __init__(
        self,
        publishers: Sequence[Publisher],
        rate: float,
        *,
        backlog_messages_max: int,
        on_overrun: Callable[[BenchError], None],
    ) -> None:
        self._publishers = publishers
        self._interval_ns = 1e9 / rate
        self._backlog_messages_max = backlog_messages_max
        self._on_overrun = on_overrun
        self._start_ns = 0
        self._offered = 0
        self._stop_at: int | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin now."""
        for publisher in self._publishers:
            publisher.follow()
        self._start_ns = monotonic_ns()
        self._tick()

    def stop_after(self, messages: int) -> None:
        """Offer this many more over all publishers, then no more."""
        self._stop_at = self._offered + messages

    def stop(self) -> None:
        """Offer nothing more; what was offered is still sent."""
        self._stop_at = self._offered
        if self._timer is not None:
            self._timer.cancel()

    @property
    def is_done(self) -> bool:
        """Whether all was offered and sent."""
        ended = self._stop_at is not None and self._offered >= self._stop_at
        return ended and not any(publisher.backlog for publisher in self._publishers)

    def _tick(self) -> None:
        publishers, interval = self._publishers, self._interval_ns
        due = int((monotonic_ns() - self._start_ns) / interval) + 1
        if self._stop_at is not None:
            due = min(due, self._stop_at)
        count = len(publishers)
        touched: dict[int, Publisher] = {}
        for number in range(self._offered, due):
            place = number % count
            publisher = publishers[place]
            publisher.offer(self._start_ns + int(number * interval))
            touched[place] = publisher
        self._offered = max(self._offered, due)
        for publisher in touched.values():
            publisher.pump()
        if sum(publisher.backlog for publisher in touched.values()) > self._backlog_messages_max:
            self._on_overrun(
                BenchError(
                    f"more than {self._backlog_messages_max} messages wait to be sent: the rate is too high"
                )
            )
        elif self._stop_at is None or self._offered < self._stop_at:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)


class Saturation:
    """Keeps every publisher's window full.

    Acknowledgements open the window. QoS 0 has none, so there the window holds what has not been delivered yet,
    looked at once a tick; what makes no headway for `GIVE_UP_S` is taken for lost and leaves it.
    """

    def __init__(
        self, publishers: Sequence[Publisher], window: int, *, qos: int, arrived: Callable[[], int]
    ) -> None:
        self._publishers = publishers
        self._window = window
        self._unacknowledged = qos == 0
        self._arrived = arrived
        self._turns = cycle(publishers)
        self._given_up = 0
        self._headway = (0, 0.0)
        self._stopped = False

    def start(self) -> None:
        """Begin now."""
        for publisher in self._publishers:
            publisher.saturate(self._window)
        if self._unacknowledged:
            self._headway = (0, monotonic())
            self._tick()
            return
        for publisher in self._publishers:
            publisher.pump()

    def stop_after(self, messages: int) -> None:
        """Send this many more over all publishers, then no more."""
        share, rest = divmod(messages, len(self._publishers))
        for place, publisher in enumerate(self._publishers):
            publisher.stop_after(share + (place < rest))

    def stop(self) -> None:
        """Send nothing more."""
        self._stopped = True
        for publisher in self._publishers:
            publisher.stop_after(0)

    @property
    def is_done(self) -> bool:
        """Whether all was sent."""
        return all(publisher.has_sent_all for publisher in self._publishers)

    def _tick(self) -> None:
        if self._stopped or self.is_done:
            return
        arrived = self._arrived()
        waiting = sum(publisher.sent for publisher in self._publishers) - arrived - self._given_up
        if arrived != self._headway[0]:
            self._headway = (arrived, monotonic())
        elif monotonic() - self._headway[1] > GIVE_UP_S:
            self._given_up += waiting
            waiting = 0
        windows = len(self._publishers) - waiting // self._window
        for publisher in islice(self._turns, max(0, windows)):
            publisher.pump()
        asyncio.get_running_loop().call_later(TICK_S, self._tick)
