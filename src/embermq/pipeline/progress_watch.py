"""Whether the pipeline gets anything done, whatever its processes say of themselves.

Judged by what the sinks have confirmed: a driver whose threads, JVM or workers have stopped working still says that it
runs.
"""

from collections.abc import Mapping

from msgspec import Struct

from embermq.pipeline.settings import DriverSettings
from embermq.pipeline.status import PipelineStatus, QueryStatus
from embermq.pipeline.turns import TURN_S

DOUBLED_MAX = 4


class _Seen(Struct):
    """One query: where it was when it last got something done, or had nothing to do."""

    position: int
    restarts: int
    since_s: float
    is_starting: bool


class ProgressWatch:
    """Compares each look at the status with the ones before; times are of one monotonic clock.

    Queries start one after the other, so one that is starting has the turns of all besides. Patience doubles with each
    driver that was begun anew in vain: a machine may be that slow, or a batch that large.
    """

    def __init__(self, settings: DriverSettings) -> None:
        self._patience_s = patience_s(settings)
        self._start_s = TURN_S * len(settings.queries)
        self._seen: dict[str, _Seen] = {}
        self._in_vain = 0
        self._stalled = ""
        self._stalled_query = ""

    @property
    def stalled(self) -> str:
        """Which query has got nothing done for too long, in words; "" for none. Holds until it gets something done."""
        return self._stalled

    def begin(self, now_s: float) -> None:
        """A driver begins: it has its time from now on."""
        for seen in self._seen.values():
            seen.since_s = now_s

    def look(self, found: PipelineStatus, now_s: float) -> bool:
        """Whether the driver is to be begun anew."""
        if found.waits_for:  # there is nothing to be done before that comes
            self.begin(now_s)
            return False
        overdue = [query for query in found.queries if self._is_overdue(query, now_s)]
        if not overdue:
            return False
        first = next((query for query in overdue if query.name == "dispatch"), overdue[0])
        lasts_s = now_s - self._seen[first.name].since_s
        self._stalled_query = first.name
        self._stalled = (
            f"{first.name} has got nothing done for {lasts_s:.0f} s, although {first.lag_messages} "
            "records wait"
        )
        self._in_vain += 1
        self.begin(now_s)
        return True

    def _is_overdue(self, query: QueryStatus, now_s: float) -> bool:
        if query.name not in self._patience_s:
            return False
        is_starting = query.state in ("starting", "stopped")  # the driver has it not yet: it is starting, too
        seen = self._seen.setdefault(query.name, _Seen(query.position, query.restarts, now_s, is_starting))
        if query.position != seen.position or not query.lag_messages:
            if query.name == self._stalled_query:
                self._stalled = self._stalled_query = ""
                self._in_vain = 0
            seen.position, seen.since_s = query.position, now_s
        elif seen.is_starting and not is_starting:
            seen.since_s = now_s
        elif query.name != "dispatch" and (
            query.state in ("backoff", "paused") or query.restarts != seen.restarts
        ):
            # It fails and says why, mostly since a database is away, or stands still because it was told to: another
            # driver would only interrupt the others.
            seen.since_s = now_s
        seen.restarts, seen.is_starting = query.restarts, is_starting
        patience_s = self._patience_s[query.name] + (self._start_s if is_starting else 0)
        return now_s - seen.since_s > patience_s * (1 << min(self._in_vain, DOUBLED_MAX))


def patience_s(settings: DriverSettings) -> Mapping[str, float]:
    """Seconds that each query may take from one batch to the next. A statement of the archive that its server has not
    answered ends by itself: another driver would only interrupt the others."""
    bulk_ms = settings.bulk_trigger_ms
    between_ms = {
        "dispatch": max(settings.dispatch_trigger_ms, settings.realtime_batch_s * 1_000),
        "archive": bulk_ms + (settings.archive_timeout_s * 1_000 if settings.message_store else 0),
        "lake": bulk_ms,
        "traffic": bulk_ms,
    }
    return {query: settings.progress_timeout_s + between_ms[query] / 1_000 for query in settings.queries}
