"""Queues of responses: in memory, one consumer, gone soon after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.metrics import metric
from tests.support.mqtt_client import run
from tests.support.queue_worker import Worker, queue_broker, worker
from tests.support.waiting import wait_for

from embermq.mqtt.wire.packets import Puback, Publish, Subscription
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.queues.mqtt.responses import QUEUES_MAX, WAITING_MAX

VERSIONS = list(ProtocolVersion)
pytestmark = pytest.mark.promise("queues-38")
SETTINGS = {
    "queues__disconnect_grace_ms": 100,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with queue_broker(tmp_path_factory.mktemp("responses"), "", **SETTINGS) as running:
        yield running


async def replied(client: Worker, topic: str, payload: bytes) -> tuple[int, str]:
    packet_id = client.next_id()
    answer = client.expect(Puback, packet_id)
    client.send(Publish(topic, payload, 1, packet_id))
    told = await answer
    text = told.properties.reason_string if told.properties is not None else None
    return told.reason_code, text or ""


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_reaches_its_one_consumer(broker: BrokerProcess, version: ProtocolVersion) -> None:
    async def scenario() -> None:
        topic = f"$queue/responses/all{int(version)}"
        asks = await worker(broker, f"asks{version}", version=version)
        answers = await worker(broker, f"answers{version}")
        plain = await worker(broker, f"plain{version}")
        await plain.subscribe(Subscription("#", 1))
        for qos in (2, 1, 0):
            assert list((await asks.consumes(topic, qos)).reason_codes) == [min(qos, 1)]
            for sent in (0, 1, 2):
                assert await answers.publish(topic, b"%d" % sent, qos=sent) == 0
            taken = await asks.take(3)
            assert [each.payload for each in taken] == [b"0", b"1", b"2"]
            assert [each.packet.qos for each in taken] == [0, min(qos, 1), min(qos, 1)]
        other = await worker(broker, f"other{version}")
        answer = await other.consumes(topic)
        assert list(answer.reason_codes) == [0x87] and answer.properties is not None
        assert list((await other.consumes(f"$share/g/{topic}")).reason_codes) == [0x8F]
        await plain.gets_nothing(other)

    run(scenario())


def test_properties_reach_the_consumer_without_reserved_ones(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/responses/properties"
        asks, answers = await worker(broker, "asks-p"), await worker(broker, "answers-p")
        await asks.consumes(topic)
        given = Properties(
            correlation_data=b"\x00\x01",
            content_type="text/plain",
            user_properties=(("message-id", "1-1"), ("a", "1"), ("dlq-reason", "x"), ("a", "2")),
        )
        await answers.publish(topic, b"m", qos=1, retain=True, properties=given)
        taken = await asks.next()
        assert taken.packet.properties == Properties(
            correlation_data=b"\x00\x01",
            content_type="text/plain",
            user_properties=(("a", "1"), ("a", "2")),
        )
        assert not taken.packet.retain

    run(scenario())


def test_a_late_response_is_dropped_and_counted(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        before = late(broker)
        topic = "$queue/responses/late"
        asks, answers = await worker(broker, "asks-late"), await worker(broker, "answers-late")
        code, text = await replied(answers, topic, b"nobody ever asked")
        assert code == 0x10 and text
        await asks.consumes(topic)
        await asks.unsubscribe(topic)
        assert (await replied(answers, topic, b"too late"))[0] == 0x10
        old = await worker(broker, "answers-old", version=ProtocolVersion.V311)
        assert await old.publish(topic, b"too late", qos=1) == 0
        await asks.consumes(topic)
        await asks.gets_nothing()
        assert late(broker) - before == 3

    run(scenario())


@pytest.mark.parametrize("expiry_s", [0, 60])
def test_a_response_waits_for_a_consumer_that_comes_back(broker: BrokerProcess, expiry_s: int) -> None:
    """With the session that it had, or with another one; what it did not acknowledge comes again."""

    async def scenario() -> None:
        topic = f"$queue/responses/back{expiry_s}"
        name = f"asks-back{expiry_s}"
        asks = await worker(broker, name, expiry_s=expiry_s, acknowledges=False)
        answers = await worker(broker, f"answers-back{expiry_s}")
        await asks.consumes(topic)
        assert (await replied(answers, topic, b"1"))[0] == 0
        await asks.next()
        asks.abort()
        await asks.ended
        assert (await replied(answers, topic, b"2"))[0] == 0
        thief = await worker(broker, f"thief{expiry_s}")
        assert list((await thief.consumes(topic)).reason_codes) == [0x87]
        asks = await worker(broker, name, clean_start=False, expiry_s=expiry_s)
        if not expiry_s:
            await asks.consumes(topic)
        assert [each.payload for each in await asks.take(2)] == [b"1", b"2"]
        assert (await replied(answers, topic, b"3"))[0] == 0
        assert (await asks.next()).payload == b"3"

    run(scenario())


@pytest.mark.parametrize("expiry_s", [0, 60])
def test_it_is_gone_after_the_timeout_and_the_grace(broker: BrokerProcess, expiry_s: int) -> None:
    async def scenario() -> None:
        topic = f"$queue/responses/gone{expiry_s}"
        asks = await worker(broker, f"asks-gone{expiry_s}", expiry_s=expiry_s)
        answers = await worker(broker, f"answers-gone{expiry_s}")
        await asks.consumes(topic, timeout="200ms")
        asks.abort()
        await asks.ended
        code = 0
        while not code:
            code, _ = await replied(answers, topic, b"m")
            code = 0 if code == 0x97 else code
        assert code == 0x10
        asks = await worker(broker, f"asks-gone{expiry_s}", clean_start=False, expiry_s=expiry_s)
        await asks.consumes(topic)
        await asks.gets_nothing()

    run(scenario())


def test_what_waits_and_how_many_there_are_is_capped(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        asks = await worker(broker, "asks-cap", acknowledges=False, receive_maximum=1)
        answers = await worker(broker, "answers-cap")
        last = f"cap{QUEUES_MAX}"
        for name, code in [(f"cap{n}", 1) for n in range(QUEUES_MAX)] + [(last, 0x97), ("cap2", 1)]:
            assert list((await asks.consumes(f"$queue/responses/{name}")).reason_codes) == [code]
        await asks.unsubscribe("$queue/responses/cap2")
        assert list((await asks.consumes(f"$queue/responses/{last}")).reason_codes) == [1]
        codes = [
            (await replied(answers, "$queue/responses/cap1", b"%d" % n))[0] for n in range(WAITING_MAX + 2)
        ]
        assert codes == [0] * (WAITING_MAX + 1) + [0x97]  # one is under way, the others wait
        old = await worker(broker, "old-cap", version=ProtocolVersion.V311)
        old.send(Publish("$queue/responses/cap1", b"", 1, 1))
        await old.ended
        assert [each.payload for each in await asks.take(1)] == [b"0"]

    run(scenario())


def test_properties_of_responses_take_room_too(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        asks = await worker(broker, "asks-room", acknowledges=False, receive_maximum=1)
        answers = await worker(broker, "answers-room")
        await asks.consumes("$queue/responses/room")
        notes = tuple((f"note{number}", "x" * 60_000) for number in range(15))
        said = Properties(user_properties=notes, correlation_data=bytes(60_000))
        codes = [
            await answers.publish("$queue/responses/room", b"m", qos=1, properties=said) for _ in range(6)
        ]
        assert codes == [0] * 5 + [
            0x97
        ]  # one is under way; four of a million bytes wait, a fifth is too much

    run(scenario())


def test_a_queue_of_responses_waits_for_its_client_a_day_at_most(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        asks = await worker(broker, "asks-long")
        answer = await asks.consumes("$queue/responses/long", timeout="25h")
        assert list(answer.reason_codes) == [0x83] and answer.properties is not None
        assert "'25h' is longer than a day" in (answer.properties.reason_string or "")
        assert list((await asks.consumes("$queue/responses/long", timeout="24h")).reason_codes) == [1]

    run(scenario())


def test_nothing_of_it_is_stored(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        asks, answers = await worker(broker, "asks-mem"), await worker(broker, "answers-mem")
        await asks.consumes("$queue/responses/memory")
        before = metric(broker, "log_end_offset")
        for _ in range(5):
            assert (await replied(answers, "$queue/responses/memory", b"m"))[0] == 0
        await asks.take(5)
        assert await answers.publish("elsewhere", b"a record", qos=1) == 0x10
        await wait_for(lambda: metric(broker, "log_end_offset") > before, 30, "the record")
        assert metric(broker, "log_end_offset") == before + 1

    run(scenario())


def late(broker: BrokerProcess) -> float:
    return metric(broker, "queue_responses_late")
