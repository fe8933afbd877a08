"""How long the client of a kept session takes to acknowledge, as TCP measures round trips (RFC 6298).

One message at a time is measured, and only while the client takes longer than the least that everybody is given: a
quick client has none of this and costs nothing.
"""

from msgspec import Struct

from embermq.sessions.session import Delivery

LINGER_MAX_MS = 1_000
"""No delivery is kept from being written for longer than this (`delivery.device.linger`), unless everybody is given
more. A satellite's 600 to 700 ms fit. So much has a start to read again at most, so much may come a second time to
clients that have acknowledged it, and for as long settled messages stay in memory."""
SPREAD_MIN_MS = 50
"""Allowed above the mean, however regular the client has been: ticks and timers are no more exact than that."""


class AckTime(Struct):
    """Of one connection. `linger_ms` is how long its deliveries are kept from being written, at most; 0: no longer than
    everybody's, since it was longer than `LINGER_MAX_MS` or silent. Nobody knows at first."""

    linger_ms: float = LINGER_MAX_MS
    probe: Delivery | None = None
    """What is measured: sent at `sent_ms` of broker time, and not acknowledged yet."""
    sent_ms: int = 0
    mean_ms: float = 0.0
    deviation_ms: float = 0.0

    def watch(self, delivery: Delivery, sent_ms: int) -> None:
        """Measure this one, unless another one is under way. One that was given up is not."""
        if self.probe is None or self.probe.settled:
            self.probe = delivery
            self.sent_ms = sent_ms

    def acknowledged(self, now_ms: int) -> None:
        """The one that is measured was acknowledged."""
        took_ms = now_ms - self.sent_ms
        self.probe = None
        if self.mean_ms:
            self.deviation_ms += (abs(took_ms - self.mean_ms) - self.deviation_ms) / 4
            self.mean_ms += (took_ms - self.mean_ms) / 8
        else:
            self.deviation_ms = took_ms / 2
            self.mean_ms = float(took_ms)
        if self.mean_ms < LINGER_MAX_MS:
            spread_ms = max(SPREAD_MIN_MS, 4 * self.deviation_ms)
            self.linger_ms = min(self.mean_ms + spread_ms, LINGER_MAX_MS)
