"""Leases, retries and dead letters, as consumers see them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import run
from tests.support.queue_worker import Taken, Worker, queue_broker, worker

from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion

QUEUES = """
[[queues]]
name = "quick"
performance.delivery_timeout = "300ms"
retry_policy.initial_backoff = "10ms"
[[queues]]
name = "slow"
performance.delivery_timeout = "1s"
retry_policy.initial_backoff = "1h"
retry_policy.max_backoff = "1h"
[[queues]]
name = "extended"
performance.delivery_timeout = "2s"
retry_policy.initial_backoff = "10ms"
[[queues]]
name = "schedule"
retry_policy.initial_backoff = "200ms"
retry_policy.max_backoff = "500ms"
retry_policy.max_retries = 5
[[queues]]
name = "impatient"
retry_policy.max_retries = 2
retry_policy.nack_delay = "immediate"
[[queues]]
name = "crash"
retry_policy.max_retries = 2
[[queues]]
name = "worked"
performance.delivery_timeout = "1s"
retry_policy.initial_backoff = "10ms"
[[queues]]
name = "worked2"
performance.delivery_timeout = "1s"
retry_policy.initial_backoff = "10ms"
[[queues]]
name = "total"
retry_policy.total_timeout = "500ms"
retry_policy.initial_backoff = "100ms"
performance.delivery_timeout = "100ms"
"""
LATE_S = 20.0
"""How much later than its time something may come on a busy machine, at most; too early is never right."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    own = queue_broker(tmp_path_factory.mktemp("leases"), QUEUES)
    own.constants["embermq.edge.connection.WRITE_BUFFER_BYTES_MAX"] = 64_000_000
    with own as running:
        yield running


@pytest.mark.promise("queues-21", "queues-3")
def test_a_delivery_says_what_it_is_and_carries_what_was_published(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/told/all"
        taker = await worker(broker, "told-1")
        assert (await taker.consumes(topic, 2)).reason_codes == (2,)
        payload = bytes(range(256))
        given = Properties(
            payload_format_indicator=0,
            content_type="image/png",
            response_topic="answers/here",
            correlation_data=b"\x00\x01",
            message_expiry_interval=100,
            user_properties=(
                ("b", "1"),
                ("a", "ä"),
                ("b", "2"),
                ("message-id", "mine"),
                ("partition-key", "k"),
                ("delivery-count", "7"),
                ("dlq-reason", "none"),
            ),
        )
        assert await taker.publish(topic, payload, qos=2, retain=True, properties=given) == 0
        taken = await taker.next()
        packet, said = taken.packet, taken.packet.properties
        assert said is not None
        assert (packet.topic, packet.payload, packet.qos, packet.retain, packet.dup) == (
            topic,
            payload,
            2,
            False,
            False,
        )
        assert said.user_properties[:4] == (("b", "1"), ("a", "ä"), ("b", "2"), ("partition-key", "k"))
        own = dict(said.user_properties[4:])
        assert own["message-id"] == taken.id != "mine"
        assert (own["group-id"], own["delivery-count"]) == ("told", "1")
        assert own["partition"].isdigit() and own["sequence"] == "1"
        assert abs(int(own["first-delivered-at"]) - time.time() * 1000) < 10_000
        assert "dlq-reason" not in own and len(said.user_properties) == 10
        assert said.message_expiry_interval is not None and 90 <= said.message_expiry_interval <= 100
        kept = (said.payload_format_indicator, said.content_type, said.response_topic, said.correlation_data)
        assert kept == (0, "image/png", "answers/here", b"\x00\x01")

    run(scenario())


@pytest.mark.promise("queues-3", "queues-9")
@pytest.mark.parametrize("version", list(ProtocolVersion))
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_qos_is_that_of_the_publish_but_at_least_1(
    broker: BrokerProcess, version: ProtocolVersion, qos: int
) -> None:
    async def scenario() -> None:
        topic = f"$queue/told/qos{version}{qos}"
        publisher = await worker(broker, "publisher", version=version)
        one, two = await worker(broker, "one-1"), await worker(broker, "two-1")
        await one.consumes(topic, 1)
        await two.consumes(topic, 2)
        await publisher.publish(topic, b"m", qos=qos)
        assert (await one.next()).packet.qos == 1
        assert (await two.next()).packet.qos == max(qos, 1)

    run(scenario())


@pytest.mark.promise("queues-22", "queues-26")
def test_a_lease_that_is_over_brings_the_message_again_to_a_lone_consumer(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        taker = await worker(broker, "lone-1")
        await taker.consumes("$queue/quick")
        began = time.monotonic()
        await taker.enqueues("$queue/quick", b"m")
        first = await taker.next()
        second = await taker.next()
        assert 0.3 <= time.monotonic() - began <= 0.31 + LATE_S
        assert (second.id, second.count, second.packet.dup) == (first.id, 2, False)
        assert second.packet.packet_id != first.packet.packet_id
        assert second.properties["first-delivered-at"] == first.properties["first-delivered-at"]
        assert await taker.says("ack", first) == (0, "")

    run(scenario())


@pytest.mark.promise("queues-22")
def test_extend_begins_the_lease_anew(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        taker = await worker(broker, "extend-1")
        await taker.consumes("$queue/extended")
        await taker.enqueues("$queue/extended", b"m")
        first = await taker.next()
        began = extended = time.monotonic()
        longest_s = 0.0
        while time.monotonic() - began < 2.5 and longest_s < 1.5:
            longest_s = max(longest_s, time.monotonic() - extended)
            extended = time.monotonic()
            assert await taker.says("extend", first) == (0, "")
            await taker.ping()
        assert taker.inbox.empty() or longest_s >= 1.5, "the machine stood still"
        assert (await taker.next()).count == 2
        assert 1.99 <= time.monotonic() - extended <= 2.0 + LATE_S

    run(scenario())


async def nacked_after(taker: Worker, topic: str, **how: str) -> list[float]:
    """Seconds from each nack to the next delivery, until there is none."""
    await taker.enqueues(topic, b"m")
    waited: list[float] = []
    taken = await taker.next()
    for count in range(2, 7):
        began = time.monotonic()
        assert await taker.says("nack", taken, **how) == (0, "")
        taken = await taker.next()
        waited.append(time.monotonic() - began)
        assert taken.count == count
    await taker.says("nack", taken)
    return waited


@pytest.mark.promise("queues-23", "queues-24", "queues-25", "queues-26", "queues-34")
def test_nacks_follow_the_schedule_and_end_in_the_dead_letters(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/schedule"
        taker, reader = await worker(broker, "sched-1"), await worker(broker, "reader-1")
        await taker.consumes(topic)
        await reader.consumes("$queue/dlq/schedule")
        waited = await nacked_after(taker, topic, reason="no such image")
        for seconds, planned in zip(waited, (0.0, 0.2, 0.4, 0.5, 0.5), strict=True):
            assert planned - 0.01 <= seconds <= planned + LATE_S, waited
        letter = await reader.next()
        assert letter.payload == b"m" and letter.packet.topic == "$queue/dlq/schedule"
        told = letter.properties
        assert (told["dlq-queue"], told["dlq-group"], told["dlq-reason"], told["dlq-attempts"]) == (
            "schedule",
            "sched",
            "max_retries",
            "6",
        )
        assert int(told["dlq-first-delivered-at"]) < int(told["dlq-moved-at"]) <= time.time() * 1000
        await taker.gets_nothing()

    run(scenario())


@pytest.mark.promise("queues-23")
def test_a_delay_of_the_consumer_overrides_the_schedule(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        taker = await worker(broker, "delay-1")
        await taker.consumes("$queue/told/delay")
        await taker.enqueues("$queue/told/delay", b"m")
        began = time.monotonic()
        assert await taker.says("nack", await taker.next(), delay="300ms") == (0, "")
        assert (await taker.next()).count == 2
        assert 0.29 <= time.monotonic() - began <= 0.3 + LATE_S

    run(scenario())


@pytest.mark.promise("queues-23", "queues-34")
def test_a_reject_is_a_dead_letter_at_once(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/told/reject"
        taker, reader = await worker(broker, "reject-1"), await worker(broker, "reader-1")
        await taker.consumes(topic)
        await reader.consumes("$queue/dlq/told/reject")
        given = Properties(user_properties=(("k", "v"),), message_expiry_interval=100)
        await taker.publish(topic, b"m", qos=1, properties=given)
        assert await taker.says("reject", await taker.next(), reason="broken") == (0, "")
        letter = await reader.next()
        assert (letter.properties["dlq-reason"], letter.properties["dlq-last-error"]) == (
            "rejected",
            "broken",
        )
        assert letter.properties["k"] == "v" and letter.payload == b"m"
        said = letter.packet.properties
        assert said is not None and said.message_expiry_interval is None, (
            "it is kept longer than it was meant to"
        )
        await reader.acks(letter)
        await taker.gets_nothing(reader)

    run(scenario())


@pytest.mark.promise("queues-25", "queues-34")
def test_max_retries_and_total_timeout_name_themselves(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        reader = await worker(broker, "reader-1")
        taker = await worker(broker, "taker-1")
        for name, reason, attempts in (("impatient", "max_retries", 3), ("total", "timeout", 0)):
            await reader.consumes(f"$queue/dlq/{name}")
            await taker.consumes(f"$queue/{name}")
            began = time.monotonic()
            await taker.enqueues(f"$queue/{name}", b"m")
            for _ in range(attempts):
                await taker.says("nack", await taker.next())
            letter = await reader.next()
            assert letter.properties["dlq-reason"] == reason
            if reason == "timeout":
                assert 0.49 <= time.monotonic() - began <= 0.5 + LATE_S

    run(scenario())


@pytest.mark.promise("queues-22", "queues-19")
def test_what_waits_for_a_slow_socket_has_no_lease_and_is_not_charged(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/slow"
        slow = await worker(broker, "slow-1")
        await slow.consumes(topic, prefetch="32", ack_mode="puback")
        slow.pause_reading()
        publisher = await worker(broker, "publisher")
        body = bytes(900_000)
        await publisher.enqueues(topic, *[body] * 24)
        other = await worker(broker, "watch-1")
        await other.consumes(topic, ack_mode="puback")
        await other.take(24)
        until = time.monotonic() + 2.2
        while time.monotonic() < until:  # longer than two leases
            await other.ping()
        slow.abort()  # much of it waits in the broker, for a socket that has taken a part
        second = await worker(broker, "slow-2")
        await second.consumes(topic, ack_mode="puback")
        fresh: list[Taken] = []
        while len(fresh) < 4:
            taken = await second.next()
            fresh += [taken] if taken.count == 1 else []  # else it was in the socket when that ended
        assert len({taken.id for taken in fresh}) == 4, "they were never in the socket, and are nowhere else"

    run(scenario())


@pytest.mark.promise("queues-19", "queues-25")
def test_a_message_that_crashes_its_consumers_is_buried_alone(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic, acked, crashes = "$queue/crash", set[bytes](), 0
        publisher = await worker(broker, "publisher")
        await publisher.enqueues(topic, *(b"%d" % number for number in range(32)))
        while len(acked) < 31:
            taker = await worker(broker, "crash-1")
            await taker.consumes(topic)
            while len(acked) < 31:
                taken = await taker.next()
                if taken.payload == b"5":
                    crashes += 1
                    taker.abort()
                    break
                await taker.acks(taken)
                acked.add(taken.payload)
        dead = await worker(broker, "mourner-1")
        await dead.consumes("$queue/dlq/crash")
        letter = await dead.next()
        assert (letter.payload, letter.properties["dlq-reason"]) == (b"5", "max_retries")
        assert letter.properties["dlq-last-error"] == "the consumer is gone"
        await dead.gets_nothing()
        assert crashes == 4, "the first one is free, then max_retries is 2"

    run(scenario())


@pytest.mark.promise("queues-22")
@pytest.mark.parametrize("concurrency", ["", "2"])
def test_leases_run_for_what_a_consumer_works_on(broker: BrokerProcess, concurrency: str) -> None:
    async def scenario() -> None:
        topic = "$queue/worked" + concurrency
        taker = await worker(broker, f"worked{concurrency}-1")
        assert (await taker.consumes(topic, concurrency="0")).reason_codes == (0x83,)
        await taker.consumes(topic, concurrency=concurrency)
        await taker.enqueues(topic, *(b"%d" % number for number in range(4)))
        held = await taker.take(4)
        again = await taker.take(2 if concurrency else 1)
        expected = held[: len(again)]
        assert sorted(taken.id for taken in again) == sorted(taken.id for taken in expected)
        assert {taken.count for taken in again} == {2}

    run(scenario())


@pytest.mark.promise("queues-23")
def test_a_fast_nack_is_charged_to_a_delivery_that_counts(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/told/fast"
        taker = await worker(broker, "fast-1")
        await taker.consumes(topic)
        for number in range(20):
            await taker.enqueues(topic, b"%d" % number)
            first = await taker.next()
            assert await taker.says("nack", first) == (0, "")
            again = await taker.next()
            assert (again.id, again.count) == (first.id, 2)
            await taker.acks(again)

    run(scenario())


@pytest.mark.promise("queues-26", "queues-28")
def test_packet_ids_of_queues_and_of_plain_topics_never_meet(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/told/ids"
        both = await worker(broker, "both-1", acknowledges=False, receive_maximum=10)
        await both.consumes(topic)
        await both.consumes("plain/ids")
        publisher = await worker(broker, "publisher")
        for number in range(10):
            await publisher.enqueues(topic, b"q%d" % number)
            await publisher.enqueues("plain/ids", b"p%d" % number)
        got = await both.take(10)
        assert len({taken.packet.packet_id for taken in got}) == 10
        await both.gets_nothing()
        seen = [taken.payload for taken in got]
        while len(seen) < 20:
            packet = got.pop(0).packet
            both.send_bytes(b"\x40\x02" + packet.packet_id.to_bytes(2, "big"))
            got.append(await both.next())
            seen.append(got[-1].payload)
        assert [each for each in seen if each[:1] == b"p"] == [b"p%d" % number for number in range(10)]
        assert sorted(each for each in seen if each[:1] == b"q") == [b"q%d" % number for number in range(10)]

    run(scenario())


@pytest.mark.promise("queues-1", "queues-32")
def test_many_bodies_from_the_store_come_in_order(tmp_path_factory: pytest.TempPathFactory) -> None:
    queues = '[[queues]]\nname = "long"\npartitions = 1\n'
    count = 500
    with queue_broker(tmp_path_factory.mktemp("bodies"), queues) as broker:

        async def enqueued() -> None:
            publisher = await worker(broker, "publisher")
            keeper = await worker(broker, "keeper", acknowledges=False)
            await keeper.consumes(
                "$queue/long", prefetch="1", ack_mode="puback"
            )  # else what one group has is gone
            await publisher.enqueues("$queue/long", *(b"%d" % number for number in range(count)))

        async def taken() -> None:
            takers = {prefetch: await worker(broker, f"taker{prefetch}") for prefetch in ("100", "7")}
            for prefetch, taker in takers.items():
                await taker.consumes("$queue/long", prefetch=prefetch, ack_mode="puback")
            for taker in takers.values():
                got = [one.payload for one in await taker.take(count)]
                assert got == [b"%d" % number for number in range(count)]

        run(enqueued())
        broker.restart()  # nothing of it is in memory then
        run(taken())
