"""Where a query goes on in a log in Kafka, whose partitions may have lost records at either end."""

import logging
from collections.abc import Mapping

from embermq.pipeline.errors import LogBehindProgressError
from embermq.pipeline.log_look import Bounds, Positions

log = logging.getLogger(__name__)


def begin_within(
    query: str, topic: str, done: Positions, bounds: Mapping[int, Bounds], *, is_owed: bool = True
) -> dict[int, int]:
    """In each partition behind what is `done`, or at the oldest record that is there. `is_owed`: what was removed
    before it was read is told of. Raises LogBehindProgressError."""
    begin: dict[int, int] = {}
    for partition, found in bounds.items():
        at = done.get(partition, found.first)
        if at > found.end and partition < max(bounds):
            # It has lost its end, and the broker writes into a later one.
            log.warning(
                "%s: partition %d ends at %d, before %d: the messages between are lost",
                query,
                partition,
                found.end,
                at,
            )
            at = found.end
        if at > found.end:
            raise LogBehindProgressError(
                f"{topic}, partition {partition}, ends at {found.end}, before {at}, up to which {query} has already "
                "worked: they are not of the same life"
            )
        if at < found.first and is_owed:
            log.warning(
                "%s: offsets %d to %d of partition %d were removed from the log before they were read",
                query,
                at,
                found.first - 1,
                partition,
            )
        begin[partition] = max(at, found.first)
    return begin
