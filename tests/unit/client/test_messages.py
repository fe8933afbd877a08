"""What the client library makes of a delivery, and what it asks for."""

import ast
from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

import embermq_client
from embermq_client import DeadLetter, Message, TopicMessage
from embermq_client.errors import SettleRefused
from embermq_client.message import read_message, read_response
from embermq_client.queue import Queue

STAMPS = [
    ("message-id", "3-1f"),
    ("group-id", "mail"),
    ("delivery-count", "2"),
    ("partition", "7"),
    ("sequence", "31"),
    ("first-delivered-at", "1700000000123"),
]
LETTER = [
    ("dlq-queue", "tasks"),
    ("dlq-group", "mail"),
    ("dlq-reason", "max_retries"),
    ("dlq-attempts", "11"),
    ("dlq-first-delivered-at", "1700000000000"),
    ("dlq-moved-at", "1700000005000"),
    ("dlq-last-error", "no disk"),
    ("dlq-message-id", "1-5"),
]


class Recorder:
    """Stands for the connection: notes what is asked of it."""

    connection = 1

    def __init__(self) -> None:
        self.settled: list[tuple[Any, ...]] = []
        self.published: list[tuple[Any, ...]] = []

    async def settle(
        self, verb: str, messages: Any, *, reason: str = "", delay_s: float | None = None
    ) -> None:
        self.settled.append((verb, [each.id for each in messages], reason, delay_s))

    async def answer(self, message: Any, payload: bytes, properties: Any) -> None:
        raise AssertionError("nobody replies here")

    async def publish(self, topic: str, payload: bytes, user_properties: Any, **others: Any) -> None:
        self.published.append((topic, payload, user_properties, others))


def packet(pairs: list[tuple[str, str]], **others: Any) -> MQTTMessage:
    made = MQTTMessage(1, b"$queue/tasks/mail")
    made.payload = b"body"
    made.properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    made.properties.UserProperty = pairs
    for name, value in others.items():
        setattr(made.properties, name, value)
    return made


def test_a_delivery_as_a_value() -> None:
    own = [("partition-key", "user-7"), ("colour", "red"), ("colour", "blue")]
    said = {"ContentType": "text/plain", "MessageExpiryInterval": 9, "PayloadFormatIndicator": 1}
    message = read_message(packet([*own, *STAMPS], **said), Recorder())
    assert (message.topic, message.expiry_s, message.is_text) == ("$queue/tasks/mail", 9, True)
    assert (message.queue, message.payload, message.id, message.group) == (
        "tasks/mail",
        b"body",
        "3-1f",
        "mail",
    )
    assert (message.delivery_count, message.partition, message.sequence) == (2, 7, 31)
    assert message.first_delivered_at == datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)
    assert message.key == "user-7" and message.properties == tuple(own)
    assert message.content_type == "text/plain"
    assert (message.response_topic, message.correlation, message.dead_letter) == (None, None, None)


def test_a_dead_letter_says_where_it_came_from() -> None:
    letter = read_message(packet([*STAMPS, *LETTER]), Recorder()).dead_letter
    assert letter is not None
    assert (letter.queue, letter.group, letter.reason, letter.attempts) == (
        "tasks",
        "mail",
        "max_retries",
        11,
    )
    assert letter.first_delivered_at is not None
    assert letter.moved_at - letter.first_delivered_at == timedelta(seconds=5)
    assert (letter.last_error, letter.message_id) == ("no disk", "1-5")


def test_one_that_was_never_delivered_has_no_first_delivery() -> None:
    pairs = [(name, "0" if name == "dlq-first-delivered-at" else value) for name, value in LETTER]
    letter = read_message(packet([*STAMPS, *pairs]), Recorder()).dead_letter
    assert letter is not None and letter.first_delivered_at is None


def test_a_request_by_properties_or_by_its_mirror() -> None:
    topic = "$queue/responses/1"
    native = read_message(packet(STAMPS, ResponseTopic=topic, CorrelationData=b"\0\1"), Recorder())
    assert (native.response_topic, native.correlation) == (topic, b"\0\1")
    mirror = [("response-topic", topic), ("correlation-id", "c")]
    mirrored = read_message(packet([*STAMPS, *mirror]), Recorder())
    assert (mirrored.response_topic, mirrored.correlation) == (topic, b"c")
    assert read_response(packet([("correlation-id", "c")]))[0] == b"c"
    assert read_response(packet([("correlation-id", "c")], CorrelationData=b"d"))[0] == b"d"


@pytest.mark.parametrize("name", [name for name, _ in STAMPS])
def test_a_delivery_of_another_broker_is_told(name: str) -> None:
    with pytest.raises(ValueError, match=f"without {name}"):
        read_message(packet([pair for pair in STAMPS if pair[0] != name]), Recorder())


async def settle_everything(message: embermq_client.Message) -> None:
    await message.ack()
    await message.nack("busy", delay_s=1.5)
    await message.reject("bad")
    await message.extend()


def run(awaitable: Any) -> None:
    import asyncio

    asyncio.run(awaitable)


def test_each_word_of_a_consumer() -> None:
    recorder = Recorder()
    run(settle_everything(read_message(packet(STAMPS), recorder)))
    ids = ["3-1f"]
    assert recorder.settled == [
        ("$ack", ids, "", None),
        ("$nack", ids, "busy", 1.5),
        ("$reject", ids, "bad", None),
        ("$extend", ids, "", None),
    ]


def test_many_are_settled_in_batches_of_one_group() -> None:
    recorder = Recorder()
    queue = Queue(recorder, "tasks/mail")  # type: ignore[arg-type]
    others = [("group-id", "audit") if name == "group-id" else (name, value) for name, value in STAMPS]
    mail = [read_message(packet(STAMPS), recorder)] * 501
    run(queue.ack(*mail, read_message(packet(others), recorder)))
    assert [len(ids) for _, ids, _, _ in recorder.settled] == [500, 1, 1]
    with pytest.raises(ValueError, match="of queue tasks/mail, not of other"):
        run(Queue(recorder, "other").ack(*mail))  # type: ignore[arg-type]


def test_what_a_publisher_asks_for() -> None:
    recorder = Recorder()
    queue = Queue(recorder, "tasks/mail")  # type: ignore[arg-type]
    east = timezone(timedelta(hours=2))
    run(queue.publish("ä", key="k", dedup_id="d", delay_s=0.25, expiry_s=9, properties=(("a", "b"),)))
    run(queue.publish(b"", deliver_at=datetime(2030, 1, 1, 2, tzinfo=east)))
    assert recorder.published == [
        (
            "$queue/tasks/mail",
            "ä".encode(),
            (("a", "b"), ("partition-key", "k"), ("dedup-id", "d"), ("delay", "0.250")),
            {"MessageExpiryInterval": 9},
        ),
        ("$queue/tasks/mail", b"", (("deliver-at", "1893456000000"),), {}),
    ]
    with pytest.raises(ValueError, match="no time zone"):
        run(queue.publish(b"", deliver_at=datetime(2030, 1, 1)))  # noqa: DTZ001 - this is what is refused
    with pytest.raises(ValueError, match="0 or more"):
        run(queue.publish(b"", delay_s=-1))


def test_refusals_tell_code_and_reason() -> None:
    assert (
        str(SettleRefused("$ack of 1-2", 0x87, "not yours")) == "$ack of 1-2: refused with 0x87 (not yours)"
    )


@pytest.mark.parametrize("kind", [Message, DeadLetter, TopicMessage])
def test_each_attribute_is_described(kind: type[Any]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "python-client.md").read_text()
    heading = {Message: "## Message", DeadLetter: "## DeadLetter", TopicMessage: "## Plain topics"}[kind]
    section = page.partition(heading)[2].partition("\n## ")[0]
    described = {
        name
        for line in section.splitlines()
        if line.startswith("|")
        for name in line.split("|")[1].split("`")[1::2]
    }
    properties = {
        name for each in kind.__mro__ for name, one in vars(each).items() if isinstance(one, property)
    }
    assert described == {part.name for part in fields(kind) if not part.name.startswith("_")} | properties


def test_passwords_are_not_shown() -> None:
    client = embermq_client.Client(username="u", password="hidden")
    assert "hidden" not in repr(vars(client))


def test_the_library_knows_nothing_of_the_broker() -> None:
    folder = Path(embermq_client.__file__).parent
    imported = {
        name.partition(".")[0]
        for source in folder.glob("*.py")
        for node in ast.walk(ast.parse(source.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert "embermq" not in imported and {"paho", "embermq_client"} <= imported
