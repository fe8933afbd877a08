"""Control topics: what a consumer hears when it settles, and who may do what."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import ConnectionEnded, run
from tests.support.queue_worker import Taken, Worker, queue_broker, worker
from tests.support.waiting import wait_until

from embermq.mqtt.wire.encoder import pubrel
from embermq.mqtt.wire.packets import Puback, Pubcomp, Publish, Pubrec, Will
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion

VERSIONS_3 = [ProtocolVersion.V31, ProtocolVersion.V311]
QUEUES = """
[[queues]]
name = "short"
performance.delivery_timeout = "200ms"
retry_policy.initial_backoff = "1h"
retry_policy.max_backoff = "1h"
[[queues]]
name = "clock"
performance.delivery_timeout = "300ms"
retry_policy.initial_backoff = "0ms"
""" + "".join(
    f"""
[[queues]]
name = "late/{code}"
performance.delivery_timeout = "1500ms"
retry_policy.initial_backoff = "0ms"
"""
    for code in (0x80, 0x99, 0)
)
RULES = """
[[rule]]
allow = ["publish", "create"]
client_id = "maker*"
topics = "$queue/#"
[[rule]]
allow = ["publish"]
client_id = "sender*"
topics = ["$queue/ruled/#", "$queue/unmade/#"]
[[rule]]
allow = ["read"]
client_id = "reader*"
topics = ["$queue/ruled/#", "$queue/unmade/#"]
[[rule]]
allow = ["receive"]
client_id = "holder*"
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with queue_broker(tmp_path_factory.mktemp("settling"), QUEUES) as running:
        yield running


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("rules")
    (folder / "rules.toml").write_text(RULES)
    with queue_broker(folder, "", authorization__rules=folder / "rules.toml") as running:
        yield running


async def consumer(broker: BrokerProcess, client_id: str, topic: str, **wishes: str) -> Worker:
    found = await worker(broker, client_id)
    await found.consumes(topic, **wishes)
    return found


async def answered(
    client: Worker, topic: str, *ids: str, qos: int = 1, packet_id: int = 0
) -> tuple[int, str]:
    """Settle by ids; the answer and its reason string."""
    packet_id = packet_id or client.next_id()
    answer = client.expect(Puback if qos == 1 else Pubrec, packet_id)
    properties = Properties(user_properties=tuple(("message-id", each) for each in ids))
    client.send(Publish(topic, b"", qos, packet_id, False, False, properties))
    packet = await answer
    assert isinstance(packet, Puback | Pubrec)
    text = packet.properties.reason_string if packet.properties is not None else None
    return packet.reason_code, text or ""


@pytest.mark.promise("queues-5", "queues-28")
def test_an_answer_tells_the_outcome(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/outcomes"
        holder = await consumer(broker, "out-1", topic, prefetch="2")
        other = await consumer(broker, "out-2", topic, prefetch="1", consumer_group="another")
        await holder.enqueues(topic, b"1", b"2")
        first, second = await holder.take(2)
        assert await holder.says("ack", first) == (0, "")
        assert await holder.says("ack", first) == (0, "already settled")
        assert await holder.says("nack", first) == (0, "already settled")
        assert await answered(holder, f"{topic}/$ack", "1-ffff") == (0x83, "unknown")
        assert await answered(holder, f"{topic}/$ack", "nonsense") == (0x83, "unknown")
        assert await answered(holder, "$queue/nowhere/$ack", second.id) == (0x83, "unknown")
        assert await other.says("ack", second, group_id="out") == (0x87, "not yours")
        stranger = await worker(broker, "out-3")
        assert await stranger.says("ack", second) == (0x87, "not yours")
        assert await holder.says("reject", second, reason="bad") == (0, "")

    run(scenario())


@pytest.mark.promise("queues-28")
def test_a_batch_answers_with_the_worst_and_how_many_of_each(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/batches"
        client = await consumer(broker, "batch-1", topic)
        await client.enqueues(topic, b"1", b"2", b"3")
        taken = await client.take(3)
        assert await client.says("ack", taken[0], taken[1]) == (0, "2 done")
        answer = await answered(client, f"{topic}/$ack", *(each.id for each in taken), "0-1")
        assert answer == (0x83, "1 done, 2 already settled, 1 unknown")
        too_many = ("1-1",) * 1_001
        code, text = await answered(client, f"{topic}/$ack", *too_many)
        assert code == 0x83 and "1001" in text and "1000" in text

    run(scenario())


@pytest.mark.promise("queues-28")
def test_what_was_under_way_at_an_unsubscribe_may_still_be_acked(broker: BrokerProcess) -> None:
    """Without the group, which the client may never have named; until somebody else has it."""

    async def scenario() -> None:
        topic = "$queue/leaving"
        client = await consumer(broker, "leaving-1", topic)
        await client.enqueues(topic, b"1", b"2")
        first, second = await client.take(2)
        await client.unsubscribe(topic)
        assert await client.says("nack", first) == (0x83, "too late, ignored")
        assert await client.says("ack", first) == (0, "")
        assert await client.says("ack", first) == (0, "already settled")
        heir = await consumer(broker, "leaving-2", topic)
        assert (await heir.next()).id == second.id
        assert await client.says("ack", second) == (0x87, "not yours")
        assert await heir.says("ack", second) == (0, "")

    run(scenario())


@pytest.mark.promise("queues-28")
def test_a_late_ack_of_the_last_holder_counts_and_a_late_nack_does_not(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/short"
        client = await consumer(broker, "late-1", topic)
        clock = await consumer(broker, "clock-1", "$queue/clock")
        await client.enqueues(topic, b"m")
        taken = await client.next()
        await clock.enqueues("$queue/clock", b"tick")
        assert [each.count for each in await clock.take(2)] == [1, 2]  # the other lease is over, too
        assert await client.says("nack", taken) == (0x83, "too late, ignored")
        assert await client.says("reject", taken) == (0x83, "too late, ignored")
        assert await client.says("ack", taken) == (0, "")
        assert await client.says("ack", taken) == (0, "already settled")

    run(scenario())


@pytest.mark.promise("queues-5", "queues-28")
def test_control_messages_of_every_qos_settle(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/verbs"
        client = await consumer(broker, "verbs-1", topic, prefetch="1")
        await client.enqueues(topic, b"1", b"2", b"3")
        taken = await client.next()
        given = Properties(user_properties=(("message-id", taken.id),))
        client.send(Publish(f"{topic}/$ack", b"", 0, 0, False, False, given))
        taken = await client.next()
        received = client.expect(Pubrec, 9)
        given = Properties(user_properties=(("message-id", taken.id),))
        for dup in (False, True):  # the repeat is no second ack
            client.send(Publish(f"{topic}/$ack", b"", 2, 9, False, dup, given))
        assert (await received).reason_code == 0
        completed = client.expect(Pubcomp, 9)
        client.send_bytes(pubrel(9))
        assert (await completed).reason_code == 0
        taken = await client.next()
        answer = await answered(client, f"{topic}/$ack", "7-7", qos=2, packet_id=20)
        assert answer == (0x83, "unknown")  # and the packet id is free again:
        answer = await answered(client, f"{topic}/$ack", taken.id, qos=2, packet_id=20)
        assert answer == (0, "")
        assert await client.says("ack", taken) == (0, "already settled")
        assert len([each for each in client.received if isinstance(each, Pubrec)]) == 4
        assert not [each for each in client.messages if "$ack" in each.topic]

    run(scenario())


@pytest.mark.promise("queues-5")
def test_a_control_message_that_cannot_be_understood_ends_no_connection(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/unclear"
        client = await consumer(broker, "unclear-1", topic)
        await client.enqueues(topic, b"m")
        taken = await client.next()
        for verb, payload, properties, word in (
            ("ack", b"", (), "message-id"),
            ("ack", b"body", (("message-id", taken.id),), "body"),
            ("ack", b"", (("message-id", taken.id), ("delay", "1")), "delay"),
            ("nack", b"", (("message-id", taken.id), ("delay", "soon")), "delay"),
            ("nack", b"", (("message-id", taken.id), ("reason", "a"), ("reason", "b")), "reason"),
        ):
            packet_id = client.next_id()
            answer = client.expect(Puback, packet_id)
            given = Properties(user_properties=properties)
            client.send(Publish(f"{topic}/${verb}", payload, 1, packet_id, False, False, given))
            packet = await answer
            assert packet.reason_code == 0x83 and packet.properties is not None
            assert word in (packet.properties.reason_string or "")
        await client.acks(taken)

    run(scenario())


@pytest.mark.promise("queues-28")
@pytest.mark.parametrize("version", VERSIONS_3)
def test_clients_of_version_3_are_never_sent_away(broker: BrokerProcess, version: ProtocolVersion) -> None:
    async def scenario() -> None:
        client = await worker(broker, f"three{version}", version=version)
        for qos in (0, 1, 2, 1):
            assert await client.publish("$queue/three/$ack", b"", qos=qos) == 0
        await client.ping()

    run(scenario())


@pytest.mark.promise("queues-23", "queues-5")
def test_a_nack_with_a_delay_comes_again_then_and_an_extension_keeps_it(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/nacked"
        client = await consumer(broker, "nacked-1", topic)
        await client.enqueues(topic, b"m")
        taken = await client.next()
        assert await client.says("extend", taken) == (0, "")
        assert await client.says("nack", taken, delay="1h", reason="not now") == (0, "")
        await client.gets_nothing()
        await client.enqueues(topic, b"n")
        again = await client.next()
        assert again.payload == b"n" and again.count == 1
        assert await client.says("nack", again) == (0, "")
        again = await client.next()
        assert (again.payload, again.count) == (b"n", 2)

    run(scenario())


# Rights


@pytest.mark.promise("queues-29")
def test_publishing_and_making_a_queue_are_rights_of_their_own(ruled: BrokerProcess) -> None:
    async def scenario() -> None:
        maker, sender, nobody = [await worker(ruled, name) for name in ("maker-1", "sender-1", "nobody-1")]
        assert await sender.publish("$queue/ruled/a", b"m", qos=1) == 0x87
        assert await sender.publish("$queue/ruled/a", b"m", qos=2) == 0x87
        await sender.publish("$queue/ruled/a", b"m")
        await sender.ping()
        await maker.enqueues("$queue/ruled/a", b"made")
        await sender.enqueues("$queue/ruled/a", b"sent")
        assert await nobody.publish("$queue/ruled/a", b"m", qos=1) == 0x87
        heir = Worker("nobody-2")
        connack = await heir.connect(ruled.port, will=Will("$queue/ruled/a", b"m", 1, False))
        assert connack.reason_code == 0x87
        reader = await worker(ruled, "reader-1")
        assert list((await reader.consumes("$queue/unmade/b")).reason_codes) == [0x87]
        assert list((await nobody.consumes("$queue/ruled/a")).reason_codes) == [0x87]
        assert list((await reader.consumes("$queue/ruled/a")).reason_codes) == [1]
        assert {each.payload for each in await reader.take(2)} == {b"made", b"sent"}
        await reader.gets_nothing()

    run(scenario())


@pytest.mark.promise("queues-29", "queues-4")
def test_a_will_makes_no_queue_without_the_right(ruled: BrokerProcess) -> None:
    async def scenario() -> None:
        for name in ("sender-9", "maker-9"):
            client = Worker(name)
            connack = await client.connect(
                ruled.port, will=Will("$queue/unmade/will", name.encode(), 1, False)
            )
            assert connack.reason_code == 0
            client.abort()
            await client.ended
        reader = await worker(ruled, "reader-9")
        while list((await reader.consumes("$queue/unmade/will")).reason_codes) != [1]:
            await reader.ping()
        assert (await reader.next()).payload == b"maker-9"
        await reader.gets_nothing()

    run(scenario())


@pytest.mark.promise("queues-29")
def test_settling_needs_the_right_to_subscribe(ruled: BrokerProcess) -> None:
    async def scenario() -> None:
        maker, reader = await worker(ruled, "maker-2"), await worker(ruled, "reader-2")
        await maker.enqueues("$queue/ruled/settled", b"m")
        await reader.consumes("$queue/ruled/settled")
        taken = await reader.next()
        code, text = await maker.says("ack", taken)
        assert code == 0x87 and "subscribe" in text
        assert await reader.says("ack", taken) == (0, "")  # which needs no right to publish

    run(scenario())


def ruled_by(broker: BrokerProcess, rules: str) -> None:
    """Rules that hold from now on."""
    told = "rules from"
    before = broker.output().count(told)
    Path(str(broker.settings["authorization.rules"])).write_text(rules)
    os.kill(broker.pid, signal.SIGHUP)
    wait_until(lambda: broker.output().count(told) > before, what=told)


@pytest.mark.promise("queues-29")
@pytest.mark.parametrize("right", ["receive", "subscribe"])
def test_a_right_that_is_taken_away_ends_a_consumer_s_part(ruled: BrokerProcess, right: str) -> None:
    """Its connection stays; what it holds, and what comes, goes to others, and nothing is a dead letter for it."""

    async def scenario() -> None:
        topic = f"$queue/ruled/{right}"
        names = [f"reader-{right}{number}" for number in (1, 2)]
        maker, first, second = [await worker(ruled, name) for name in (f"maker-{right}", *names)]
        await maker.enqueues(topic, b"held")
        await first.consumes(topic, consumer_group="both")
        held = await first.next()
        denied = f'[[rule]]\ndeny = "{right}"\nclient_id = "{names[0]}"\ntopics = "$queue/ruled/#"\n'
        ruled_by(ruled, denied + RULES)
        await maker.enqueues(topic, b"alone")
        await first.gets_nothing()
        await second.consumes(topic, consumer_group="both")
        await maker.enqueues(topic, *(b"%d" % number for number in range(20)))
        again = await second.next()
        assert (again.id, again.count) == (held.id, 2)
        assert (await first.says("ack", held))[0] == 0x87, "another one has it"
        await second.acks(again)
        got = {taken.payload: taken for taken in await second.take(21)}
        assert len(got) == 21 and got[b"alone"].count == 1
        await second.acks(*got.values())
        await first.gets_nothing()
        ruled_by(ruled, RULES)
        await second.unsubscribe(topic)
        await maker.enqueues(topic, b"again")
        assert (await first.next()).payload == b"again", "it is in its group again"

    run(scenario())


@pytest.mark.promise("queues-29")
def test_who_takes_over_a_client_id_holds_nothing(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        topic = "$queue/holders"
        first = await consumer(broker, "hold-1", topic)
        await first.enqueues(topic, b"m")
        taken = await first.next()
        second = await worker(broker, "hold-1")
        with pytest.raises(ConnectionEnded):
            await first.ping()
        assert (await second.says("ack", taken))[0] == 0x87
        assert (await second.says("ack", taken, group_id="hold"))[0] == 0x87
        await second.consumes(topic)
        again: Taken = await second.next()
        assert again.id == taken.id and again.count == 2
        assert await second.says("ack", again) == (0, "")

    run(scenario())


@pytest.mark.promise("queues-6")
def test_names_are_refused_before_rights_are_asked(ruled: BrokerProcess) -> None:
    async def scenario() -> None:
        nobody = await worker(ruled, "nobody-7")
        assert await nobody.publish("$queue/a//b", b"m", qos=1) == 0x90

    run(scenario())


@pytest.mark.promise("queues-27", "queues-28")
@pytest.mark.parametrize("code", [0x80, 0x99])
def test_a_late_error_in_puback_is_not_one_of_a_newer_delivery(broker: BrokerProcess, code: int) -> None:
    async def scenario() -> None:
        topic = f"$queue/late/{code}"
        taker = await worker(broker, f"late{code}-1", acknowledges=False)
        await taker.consumes(topic, ack_mode="puback")
        letters = await worker(broker, "letters-1")
        await letters.consumes(f"$queue/dlq/late/{code}")
        await letters.enqueues(topic, b"m")
        first, second = await taker.take(2)
        assert (second.id, second.count) == (first.id, 2)
        taker.send(Puback(first.packet.packet_id, code))
        await taker.gets_nothing(letters)
        taker.send(Puback(second.packet.packet_id, code))
        if code == 0x99:
            assert (await letters.next()).properties["dlq-attempts"] == "2"
        else:
            assert (await taker.next()).count == 3

    run(scenario())


@pytest.mark.promise("queues-27", "queues-28")
def test_a_late_puback_acks_as_long_as_its_consumer_holds_the_message(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        taker = await worker(broker, "late0-1", acknowledges=False)
        await taker.consumes("$queue/late/0", ack_mode="puback")
        await taker.enqueues("$queue/late/0", b"m")
        first, second = await taker.take(2)
        taker.send(Puback(first.packet.packet_id))
        taker.send(Puback(second.packet.packet_id, 0x80))
        await taker.gets_nothing()
        other = await worker(broker, "late0-2")
        await other.consumes("$queue/late/0")
        taker.abort()
        await other.gets_nothing()

    run(scenario())
