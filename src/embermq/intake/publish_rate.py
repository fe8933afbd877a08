"""How fast clients may publish: each of them, and all together.

A client of MQTT 5 is told that a message was too much, and may send it again. MQTT 3 has no word for that: there every
message is taken, and what was too much has to even out before more is read.
"""

from embermq.model.counters import Counters
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.sessions.link import Link
from embermq.sessions.settings import MqttSettings
from embermq.sessions.token_bucket import TokenBucket


class PublishRate:
    """The rates of all clients; asked for each PUBLISH while one of the limits is set."""

    def __init__(self, settings: MqttSettings, counters: Counters, now_ms: int) -> None:
        self._each = settings.publish_rate_max
        total = settings.publish_rate_total_max
        self._total = TokenBucket(total, now_ms) if total else None
        self._counters = counters

    def admits(self, link: Link, now_ms: int) -> bool:
        """Whether the message is taken. For a client of MQTT 3 it is, and `link.throttle_ms` says how long the client
        is not to be read after it."""
        buckets = [bucket for bucket in (self._total, self._own(link, now_ms)) if bucket is not None]
        if link.version is ProtocolVersion.V5:
            if not all(bucket.has_one(now_ms) for bucket in buckets):
                self._counters.refused_publish_rate += 1
                return False
            for bucket in buckets:
                bucket.take(now_ms)
            return True
        wait_ms = max(bucket.borrow(now_ms) for bucket in buckets)
        if wait_ms:
            link.throttle_ms = wait_ms
        return True

    def _own(self, link: Link, now_ms: int) -> TokenBucket | None:
        if self._each and link.rate is None:
            link.rate = TokenBucket(self._each, now_ms)
        return link.rate


def publish_rate(settings: MqttSettings, counters: Counters, now_ms: int) -> PublishRate | None:
    """None when neither limit is set."""
    if settings.publish_rate_max or settings.publish_rate_total_max:
        return PublishRate(settings, counters, now_ms)
    return None
