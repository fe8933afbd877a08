"""Whether a message log in Kafka belongs to the data directory of a broker that starts."""

from __future__ import annotations

import pytest

from embermq.adapters.kafka.message_log import FoundLog
from embermq.adapters.kafka.positions import LogPositions
from embermq.app.kafka_log import check_is_ours
from embermq.ports.errors import StoreUnavailable
from embermq.ports.log_state import KnownLog

NOTHING = KnownLog(is_any=False, identity="", end=0, records_end=0, closed_end=-1)
OURS = KnownLog(is_any=True, identity="one", end=40, records_end=40, closed_end=40)
OLDER = KnownLog(is_any=True, identity="", end=40, records_end=40, closed_end=40)


def found(records_end: int) -> FoundLog:
    return FoundLog(LogPositions(records_end, [records_end]), records_end)


@pytest.mark.parametrize(
    ("known", "records_end", "identity"),
    [(NOTHING, 0, "one"), (OURS, 40, "one"), (OURS, 7, "one"), (OURS, 0, "another"), (OLDER, 40, "one")],
)
def test_a_log_that_is_new_or_known_is_taken(known: KnownLog, records_end: int, identity: str) -> None:
    check_is_ours(known, found(records_end), identity, "kafka://here")


@pytest.mark.parametrize(
    ("known", "identity", "why"),
    [
        (NOTHING, "one", "kafka://here: has messages of another broker"),
        (OURS, "another", "topic id another, not one"),
    ],
)
def test_messages_of_somebody_else_are_refused(known: KnownLog, identity: str, why: str) -> None:
    with pytest.raises(StoreUnavailable, match=why):
        check_is_ours(known, found(40), identity, "kafka://here")
