"""SUBSCRIBE to a queue: who is in which group, from where on, how much at a time, and what settles."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import run
from tests.support.paho_queue import PahoWorker
from tests.support.queue_worker import Worker, queue_broker, worker

from embermq.mqtt.wire.encoder import pubcomp, pubrec
from embermq.mqtt.wire.packets import Puback, Publish, Pubrel, Subscription
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion

VERSIONS = list(ProtocolVersion)
QUEUES = """
[[queues]]
name = "one"
partitions = 1
[[queues]]
name = "codes"
partitions = 1
retry_policy.nack_delay = "immediate"
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with queue_broker(tmp_path_factory.mktemp("subscribing"), QUEUES) as running:
        yield running


@pytest.mark.promise("queues-13", "queues-7")
def test_the_group_is_that_of_the_property_or_of_the_share_or_of_the_client_id(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/sub/groups"
        by_id = await worker(broker, "billing-1")
        by_property = await worker(broker, "other-2")
        by_share = await worker(broker, "third-3")
        whole_id = await worker(broker, "lonely")
        await by_id.consumes(topic)
        await by_property.consumes(topic, consumer_group="mail")
        await by_share.consumes(f"$share/archive/{topic}")
        await whole_id.consumes(topic)
        await by_id.enqueues(topic, b"m")
        groups = {
            (await each.next()).properties["group-id"] for each in (by_id, by_property, by_share, whole_id)
        }
        assert groups == {"billing", "mail", "archive", "lonely"}
        assert whole_id.messages[0].topic == by_share.messages[0].topic == topic

    run(scenario())


@pytest.mark.promise("queues-13", "queues-27")
@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_queue_does_not_do_is_refused_with_a_reason(
    broker: BrokerProcess, version: ProtocolVersion
) -> None:
    async def scenario() -> None:
        client = await worker(broker, f"refused{version}", version=version)
        is_v5 = version is ProtocolVersion.V5
        for topic_filter, qos, code, word in (
            ("$queue/#", 1, 0x8F, "wildcard"),
            ("$queue/sub/+", 1, 0x8F, "wildcard"),
            ("$queue/sub/$ack", 1, 0x8F, "$ack"),
            ("$queue/sub/refused", 0, 0x83, "QoS 1 or 2"),
            ("$share/g/$queue/sub/refused", 0, 0x83, "QoS 1 or 2"),
        ):
            answer = await client.consumes(topic_filter, qos)
            assert list(answer.reason_codes) == [code if is_v5 else 0x80], topic_filter
            if is_v5:
                assert answer.properties is not None and word in (answer.properties.reason_string or "")
        if is_v5:
            for prefetch, ack_mode, start in (("0", "", ""), ("", "never", ""), ("", "", "there")):
                answer = await client.consumes(
                    "$queue/sub/refused", prefetch=prefetch, ack_mode=ack_mode, start_position=start
                )
                assert list(answer.reason_codes) == [0x83]
        assert await client.subscribe(Subscription("$queue/sub/granted", 2)) == (2,)

    run(scenario())


@pytest.mark.promise("queues-18")
def test_a_group_begins_where_its_first_consumer_says(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/one"
        client = await worker(broker, "starter")
        await client.enqueues(topic, b"1", b"2")
        moment = datetime.fromtimestamp(time.time() + 0.1, UTC)
        between = moment.isoformat(timespec="milliseconds")
        while time.time() < moment.timestamp() + 0.1:  # the broker's dates may be some milliseconds late
            await client.ping()
        await client.enqueues(topic, b"3", b"4")
        to_come = "9999-12-31T23:59:59Z"
        starts = {"earliest": b"1", "latest": b"5", "": b"1", between: b"3", to_come: b"5"}
        workers: list[tuple[Worker, bytes]] = []
        for number, (start, first) in enumerate(starts.items()):
            each = await worker(broker, f"start{number}")
            assert (await each.consumes(topic, start_position=start)).reason_codes == (1,)
            workers.append((each, first))
        third = int((await workers[0][0].take(3))[2].properties["sequence"])
        by_sequence = await worker(broker, "start9")
        await by_sequence.consumes(topic, start_position=str(third))
        workers.append((by_sequence, b"3"))
        again = await worker(broker, "start0-again")
        await again.consumes(topic, start_position="latest")
        await client.enqueues(topic, b"5")
        for each, first in workers[1:]:
            assert (await each.next()).payload == first, each.client_id

    run(scenario())


@pytest.mark.promise("queues-32")
def test_a_consumer_holds_no_more_than_its_prefetch_and_gets_the_rest_as_it_settles(
    broker: BrokerProcess,
) -> None:
    async def scenario() -> None:
        topic = "$queue/sub/prefetch"
        client = await worker(broker, "few")
        await client.enqueues(topic, *(b"%d" % number for number in range(40)))
        for name, wish, receive_maximum, limit in (
            ("a", "3", None, 3),
            ("b", "20", 5, 5),
            ("c", "", None, 32),
        ):
            taker = await worker(broker, name, receive_maximum=receive_maximum)
            await taker.consumes(topic, prefetch=wish)
            got = await taker.take(limit)
            await taker.gets_nothing()
            await taker.acks(got[0])
            assert (await taker.next()).count == 1
            await taker.gets_nothing()

    run(scenario())


@pytest.mark.promise("queues-32")
def test_a_large_prefetch_is_granted_or_suback_says_what_is(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic, many = "$queue/sub/large", 1_500
        for name, receive_maximum, mode, told in (
            ("large-1", None, "explicit", None),
            ("large-2", 1_100, "explicit", "prefetch 1100 is granted of 65535 (Receive Maximum)"),
            (
                "large-3",
                None,
                "puback",
                "prefetch 1024 is granted of 65535 (mqtt.inflight_max: PUBACK settles)",
            ),
        ):
            taker = await worker(broker, name, receive_maximum=receive_maximum)
            suback = await taker.consumes(topic, prefetch="65535", ack_mode=mode)
            assert suback.reason_codes == (1,)
            assert (suback.properties.reason_string if suback.properties is not None else None) == told
        taker = await worker(broker, "many-1")
        await taker.consumes("$queue/sub/many", prefetch="65535")
        for number in range(many):
            packet = Publish("$queue/sub/many", b"%d" % number, 0, 0, False, False, None)
            taker.send(packet)
        assert len({taken.id for taken in await taker.take(many)}) == many, "more than mqtt.inflight_max"

    run(scenario())


@pytest.mark.promise("queues-27")
def test_puback_of_mqtt_5_settles_only_when_that_was_asked_for(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/sub/puback"
        for mode, is_settled in (("explicit", False), ("puback", True)):
            first = await worker(broker, f"{mode}-1")
            await first.consumes(topic, ack_mode=mode)
            await first.enqueues(topic, mode.encode())
            assert (await first.next()).payload == mode.encode()
            await first.ping()  # its PUBACK is there
            first.abort()
            second = await worker(broker, f"{mode}-2")
            await second.consumes(topic, ack_mode=mode)
            if is_settled:
                await second.gets_nothing()
            else:
                taken = await second.next()
                assert (taken.payload, taken.count) == (mode.encode(), 2)
                await second.acks(taken)

    run(scenario())


@pytest.mark.promise("queues-27")
def test_the_reason_code_of_a_puback_acks_nacks_or_rejects(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/codes"
        taker = await worker(broker, "coder", acknowledges=False)
        reader = await worker(broker, "reader")
        await reader.consumes("$queue/dlq/codes")
        await taker.consumes(topic, ack_mode="puback")
        for code in (0x80, 0x83):
            await taker.enqueues(topic, b"%d" % code)
            first = await taker.next()
            taker.send(Puback(first.packet.packet_id, code))
            again = await taker.next()
            assert (again.payload, again.count, again.id) == (first.payload, 2, first.id)
            assert not again.packet.dup
            taker.send(Puback(again.packet.packet_id, 0))
        await taker.enqueues(topic, b"bad")
        taker.send(Puback((await taker.next()).packet.packet_id, 0x99))
        letter = await reader.next()
        assert (letter.payload, letter.properties["dlq-reason"]) == (b"bad", "rejected")
        await taker.gets_nothing(reader)

    run(scenario())


@pytest.mark.promise("queues-27")
def test_of_a_long_reason_in_puback_the_beginning_is_kept(broker: BrokerProcess) -> None:
    """As of one that a control message gives: it stands in memory and on disk, as long as the message does."""

    async def scenario() -> None:
        taker = await worker(broker, "talker", acknowledges=False)
        await taker.consumes("$queue/talk", ack_mode="puback")
        await taker.enqueues("$queue/talk", b"m")
        said = Properties(reason_string="why" * 20_000)
        taker.send(Puback((await taker.next()).packet.packet_id, 0x99, said))
        reader = await worker(broker, "listener")
        await reader.consumes("$queue/dlq/talk")
        assert (await reader.next()).properties["dlq-last-error"] == ("why" * 86)[:256]

    run(scenario())


@pytest.mark.promise("queues-27")
@pytest.mark.parametrize("version", [ProtocolVersion.V31, ProtocolVersion.V311])
def test_mqtt_3_settles_by_puback_and_by_pubcomp(broker: BrokerProcess, version: ProtocolVersion) -> None:
    async def scenario() -> None:
        topic = f"$queue/sub/old{version}"
        first = await worker(broker, "old-1", version=version, acknowledges=False)
        await first.consumes(topic, 2)
        await first.enqueues(topic, b"1", b"2", qos=2)
        one, two = await first.take(2)
        for taken in (one, two):
            released = first.expect(Pubrel, taken.packet.packet_id)
            first.send_bytes(pubrec(taken.packet.packet_id))
            await released
        first.send_bytes(pubcomp(one.packet.packet_id))
        await first.ping()
        first.abort()
        second = await worker(broker, "old-2", version=version)
        await second.consumes(topic, 1)
        again = await second.next()
        assert (again.payload, again.packet.qos) == (b"2", 1), "PUBREC alone has not settled it"
        await second.gets_nothing()
        second.abort()
        third = await worker(broker, "old-3", version=version)
        await third.consumes(topic, 1)
        await third.gets_nothing()

    run(scenario())


@pytest.mark.promise("queues-13", "queues-19")
def test_unsubscribe_leaves_the_group_and_what_is_unsettled_goes_to_others(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/sub/leave"
        first, second = await worker(broker, "leave-1"), await worker(broker, "leave-2")
        await first.consumes(topic)
        await first.enqueues(topic, b"m")
        taken = await first.next()
        await second.consumes(topic)
        assert await first.unsubscribe(topic, topic) == (0, 0x11)
        again = await second.next()
        assert (again.id, again.count) == (taken.id, 2)
        await second.acks(again)
        await first.enqueues(topic, b"n")
        assert (await second.next()).payload == b"n"
        await first.gets_nothing()

    run(scenario())


@pytest.mark.promise("queues-29", "queues-28")
def test_only_the_holder_settles(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/sub/holder"
        first, second = await worker(broker, "hold-1"), await worker(broker, "hold-2")
        await first.consumes(topic)
        await first.enqueues(topic, b"m")
        taken = await first.next()
        assert (await second.says("ack", taken))[0] == 0x87
        await second.consumes(topic)
        for verb in ("ack", "nack", "reject", "extend"):
            assert await second.says(verb, taken) == (0x87, "not yours")
        assert await first.says("ack", taken) == (0, "")
        assert await first.says("ack", taken) == (0, "already settled")

    run(scenario())


@pytest.mark.promise("queues-7")
def test_filters_with_wildcards_never_match_a_queue(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        everything = await worker(broker, "all")
        assert await everything.subscribe(Subscription("#", 1), Subscription("+/sub/plain", 1)) == (1, 1)
        await everything.enqueues("$queue/sub/plain", b"m")
        await everything.gets_nothing()

    run(scenario())


@pytest.mark.promise("queues-13")
def test_a_kept_session_is_a_consumer_again_after_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    with queue_broker(tmp_path_factory.mktemp("restart"), QUEUES) as broker:

        async def before() -> None:
            kept = await worker(broker, "kept-1", expiry_s=600)
            await kept.consumes("$queue/one", consumer_group="g", prefetch="2", ack_mode="puback")
            old = await worker(broker, "old-1", version=ProtocolVersion.V311, clean_start=False)
            await old.consumes("$share/h/$queue/one", 2)
            gone = await worker(broker, "gone-1", expiry_s=600)
            await gone.consumes("$queue/one")
            await gone.unsubscribe("$queue/one")

        async def after() -> None:
            kept = await worker(broker, "kept-1", expiry_s=600, clean_start=False, acknowledges=False)
            old = await worker(broker, "old-1", version=ProtocolVersion.V311, clean_start=False)
            gone = await worker(broker, "gone-1", expiry_s=600, clean_start=False)
            assert kept.connack is not None and kept.connack.session_present
            await kept.enqueues("$queue/one", b"1", b"2", b"3")
            assert [taken.payload for taken in await old.take(3)] == [b"1", b"2", b"3"]
            first, _ = await kept.take(2)
            assert first.properties["group-id"] == "g"
            await kept.gets_nothing(gone)  # the prefetch was kept, too
            kept.send(Puback(first.packet.packet_id))
            assert (await kept.next()).payload == b"3"

        run(before())
        broker.kill()
        broker.start()
        run(after())


@pytest.mark.promise("queues-27", "queues-13")
@pytest.mark.parametrize("version", VERSIONS)
def test_a_foreign_client_consumes_a_queue(broker: BrokerProcess, version: ProtocolVersion) -> None:
    topic = f"$queue/sub/paho{version}"
    with PahoWorker(broker.port, f"paho{version}-1", version) as first:
        first.consume(topic, 1)
        first.enqueue(topic, b"1", b"2")
        assert first.payloads(2) == [b"1", b"2"]
        if version is ProtocolVersion.V5:
            first.settle(topic, "ack")
    with PahoWorker(broker.port, f"paho{version}-2", version) as second:
        second.consume(topic, 2)
        second.enqueue(topic, b"3")
        assert second.payloads(1) == [b"3"]
