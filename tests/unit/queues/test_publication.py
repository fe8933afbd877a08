"""User properties of publishers, of deliveries and of control messages."""

import pytest

from embermq.model.queue_rows import Attempts, DeadLetter
from embermq.mqtt.wire.properties import (
    Properties,
    PropertyPlace,
    decode_properties,
    encode_message_properties,
)
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.queues.errors import PropertyRefused
from embermq.queues.names import Verb
from embermq.queues.publication import (
    Publication,
    Stamps,
    encode_stamps,
    parse_time,
    read_publication,
    without_reserved,
)
from embermq.queues.settling import (
    Outcome,
    SettleAnswer,
    SettleRequest,
    answer,
    message_id_of,
    read_request,
    sequence_of,
)

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("properties", "publication"),
    [
        ((), Publication()),
        ((("colour", "red"), ("colour", "blue")), Publication()),
        ((("partition-key", "k"), ("dedup-id", "d")), Publication("k", "d")),
        ((("partition-key", ""),), Publication("")),
        ((("delay", "30"),), Publication(visible_ms=NOW_MS + 30_000)),
        ((("delay", "2m"),), Publication(visible_ms=NOW_MS + 120_000)),
        ((("delay", "0"),), Publication()),
        ((("deliver-at", "1700000001000"),), Publication(visible_ms=1_700_000_001_000)),
        ((("deliver-at", "2023-11-14T22:14:00Z"),), Publication(visible_ms=1_700_000_040_000)),
        ((("deliver-at", "2023-11-14T23:14:00+01:00"),), Publication(visible_ms=1_700_000_040_000)),
        ((("deliver-at", "2020-01-01T00:00:00Z"),), Publication()),
    ],
)
def test_what_a_publisher_asks(properties: tuple[tuple[str, str], ...], publication: Publication) -> None:
    assert read_publication(properties, NOW_MS) == publication


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        ((("partition-key", "a"), ("partition-key", "b")), "partition-key stands there more than once"),
        ((("partition-key", "k" * 1_025),), "partition-key has 1025 bytes, the limit is 1024"),
        ((("dedup-id", "ü" * 513),), "dedup-id has 1026 bytes, the limit is 1024"),
        ((("delay", "soon"),), "user property delay: 'soon' is no duration"),
        ((("delay", "-5"),), "user property delay: '-5' is no duration"),
        ((("deliver-at", "2030-01-31 12:00"),), "user property deliver-at: '2030-01-31 12:00' is neither"),
        ((("deliver-at", "999999999999999"),), "deliver-at is more than ten years away"),
        ((("delay", "5"), ("deliver-at", "5")), "delay and deliver-at exclude one another"),
    ],
)
def test_what_cannot_be_understood_is_refused(properties: tuple[tuple[str, str], ...], told: str) -> None:
    with pytest.raises(PropertyRefused) as refused:
        read_publication(properties, NOW_MS)
    assert told in refused.value.message


def test_a_time_far_outside_the_calendar_is_refused() -> None:
    with pytest.raises(ValueError, match="neither Unix milliseconds"):
        parse_time("1" * 400)


def test_reserved_properties_are_the_brokers_and_all_others_stay() -> None:
    sent = (
        ("a", "1"),
        ("message-id", "forged"),
        ("partition-key", "k"),
        ("dlq-reason", "forged"),
        ("a", "2"),
        ("delivery-count", "9"),
    )
    letter = DeadLetter("tasks", "g", "rejected", "3-7", Attempts(2, 2, 2, 1, 40, "broken"), 90)
    stamps = encode_stamps(Stamps("5-1", "h", 1, 4, 1, 95, letter))
    block = encode_message_properties(Properties(user_properties=without_reserved(sent)), stamps)
    properties, _ = decode_properties(block, 0, PropertyPlace.PUBLISH)
    assert properties is not None
    assert properties.user_properties == (
        ("a", "1"),
        ("partition-key", "k"),
        ("a", "2"),
        ("message-id", "5-1"),
        ("group-id", "h"),
        ("delivery-count", "1"),
        ("partition", "4"),
        ("sequence", "1"),
        ("first-delivered-at", "95"),
        ("dlq-queue", "tasks"),
        ("dlq-group", "g"),
        ("dlq-reason", "rejected"),
        ("dlq-attempts", "2"),
        ("dlq-first-delivered-at", "40"),
        ("dlq-moved-at", "90"),
        ("dlq-last-error", "broken"),
        ("dlq-message-id", "3-7"),
    )


def test_a_control_message() -> None:
    asked = (
        ("message-id", "1-1"),
        ("message-id", "1-2"),
        ("group-id", "g"),
        ("reason", "r" * 300),
        ("delay", "30s"),
    )
    assert read_request(Verb.NACK, asked) == SettleRequest(Verb.NACK, ("1-1", "1-2"), "g", "r" * 256, 30_000)
    for properties, told in (
        ((), "$ack needs a user property message-id"),
        ((("message-id", "1-1"), ("delay", "3")), "delay belongs to $nack, not to $ack"),
        ((("message-id", "1-1"), ("reason", "a"), ("reason", "b")), "reason stands there more than once"),
        ((("message-id", "1-1"),) * 1_001, "1001 message ids at once, the limit is 1000"),
    ):
        with pytest.raises(PropertyRefused) as refused:
            read_request(Verb.ACK, properties)
        assert told in refused.value.message


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([Outcome.DONE], SettleAnswer(ReasonCode.SUCCESS, "")),
        ([Outcome.ALREADY_SETTLED], SettleAnswer(ReasonCode.SUCCESS, "already settled")),
        ([Outcome.LATE], SettleAnswer(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "too late, ignored")),
        ([Outcome.UNKNOWN], SettleAnswer(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "unknown")),
        ([Outcome.NOT_YOURS], SettleAnswer(ReasonCode.NOT_AUTHORIZED, "not yours")),
        ([Outcome.DONE, Outcome.DONE], SettleAnswer(ReasonCode.SUCCESS, "2 done")),
        (
            [Outcome.NOT_YOURS, Outcome.DONE, Outcome.UNKNOWN, Outcome.DONE],
            SettleAnswer(ReasonCode.NOT_AUTHORIZED, "2 done, 1 unknown, 1 not yours"),
        ),
    ],
)
def test_a_batch_hears_of_the_worst(outcomes: list[Outcome], expected: SettleAnswer) -> None:
    assert answer(outcomes) == expected


def test_message_ids() -> None:
    assert message_id_of(10, 255) == "a-ff"
    assert sequence_of(10, "a-ff") == 255
    for foreign in ("b-ff", "a-FF", "a-0ff", "a-", "-", "", "a-+f", "a- f", "a-f_f", "x" * 50, "a-ff-1"):
        assert sequence_of(10, foreign) == -1
