"""Whether a message log in Kafka belongs to the data directory of a broker that starts."""

from __future__ import annotations

import pytest

from embermq.adapters.kafka.positions import LogPositions
from embermq.app.kafka_log import check_is_ours
from embermq.ports.errors import StoreUnavailable
from embermq.ports.known_log import KnownLog

NOTHING = KnownLog(is_any=False, identity="", end=0, ended_in_order=False)
OURS = KnownLog(is_any=True, identity="one", end=40, ended_in_order=True)


@pytest.mark.parametrize(
    ("known", "end", "identity"),
    [(NOTHING, 0, "one"), (OURS, 40, "one"), (OURS, 7, "one"), (OURS, 0, "another")],
)
def test_a_log_that_is_new_or_known_is_taken(known: KnownLog, end: int, identity: str) -> None:
    check_is_ours(known, LogPositions(end), identity, "kafka://here")


@pytest.mark.parametrize(
    ("known", "identity", "why"),
    [
        (NOTHING, "one", "kafka://here: has messages, and the Redis"),
        (OURS, "another", "topic id another, not one"),
    ],
)
def test_messages_of_somebody_else_are_refused(known: KnownLog, identity: str, why: str) -> None:
    with pytest.raises(StoreUnavailable, match=why):
        check_is_ours(known, LogPositions(40), identity, "kafka://here")
