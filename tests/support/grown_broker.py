"""Clients of every kind, before and after their broker has grown from a data directory onto servers."""

from __future__ import annotations

from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import MqttClient
from tests.support.queue_worker import Worker, worker
from tests.support.waiting import wait_for

from embermq.mqtt.wire.encoder import pubrec, pubrel
from embermq.mqtt.wire.packets import Packet, Pubcomp, Publish, Pubrec, Pubrel, Subscription, Will
from embermq.mqtt.wire.properties import Properties

KEPT = Properties(session_expiry_interval=86_400)
DEVICE, APPLICATION, MEMBER, SHARING = "pump", "app1", "member", "app2"
SETTINGS = {"clients.application_ids": "app*", "queues.join_debounce_ms": 0}
STORED = 60
"""Messages that come while a client is away, every third of QoS 2."""
RELEASED_ID = 7
"""Packet id of a QoS 2 message of a publisher that has not said PUBREL."""
JOBS = 6


class Under:
    """What a client had under way when it went: it acknowledges nothing, and PUBREC for the first QoS 2 message."""

    def __init__(self) -> None:
        self.sent: dict[bytes, int] = {}
        """Packet ids by payload, of what is to come again."""
        self.released = 0
        """Of the message whose PUBREL is to come."""


def numbered(first: int, count: int) -> list[tuple[bytes, int]]:
    """Payloads, and the QoS of each."""
    return [(b"%04d" % number, 2 if number % 3 == 0 else 1) for number in range(first, first + count)]


async def entered(broker: BrokerProcess, client_id: str) -> MqttClient:
    client = MqttClient(client_id)
    connack = await client.connect(broker.port, clean_start=False, properties=KEPT)
    assert connack.reason_code == 0, connack
    return client


async def leaves(client: MqttClient) -> None:
    client.close()
    await client.ended


async def publishes(broker: BrokerProcess, topic: str, messages: list[tuple[bytes, int]]) -> None:
    publisher = MqttClient("publisher", keeps=False)
    await publisher.connect(broker.port)
    for payload, qos in messages:
        assert await publisher.publish(topic, payload, qos=qos) < 0x80
    await leaves(publisher)


class Clients:
    """Those of one broker."""

    def __init__(self) -> None:
        self.device, self.application = Under(), Under()
        self.job_id = ""

    async def before(self, broker: BrokerProcess) -> None:
        """All but what application logs get from the pipeline, which has to run until `left` is called."""
        for client_id in (DEVICE, APPLICATION):
            client = await entered(broker, client_id)
            await client.subscribe(Subscription(f"{client_id}/#", 2))
            await leaves(client)
        member = await entered(broker, MEMBER)
        await member.subscribe(Subscription("$share/crew/work/#", 1))
        await leaves(member)
        sharing = await entered(broker, SHARING)
        await sharing.subscribe(Subscription("$share/staff/office/#", 2))
        await leaves(sharing)
        heir = await entered(broker, "heir")
        await heir.subscribe(Subscription("last/#", 1))
        await leaves(heir)
        await self._begins_to_receive(broker, DEVICE, self.device)
        await self._begins_to_receive(broker, APPLICATION, self.application)

    async def left(self, broker: BrokerProcess) -> None:
        """What comes while they are away."""
        for client_id in (DEVICE, APPLICATION):
            await publishes(broker, f"{client_id}/x", numbered(4, STORED))
        await publishes(broker, "work/x", numbered(0, 5))
        await publishes(broker, "office/x", numbered(0, 5))
        await self._retains(broker)
        await self._publishes_half(broker)
        await self._works(broker)

    async def killed(self, broker: BrokerProcess) -> None:
        """Together with a client that has left a will for a device."""
        will = Will("last/words", b"gone", 1, False, None)
        await MqttClient("mortal").connect(broker.port, properties=KEPT, will=will)
        broker.kill()

    async def after(self, broker: BrokerProcess) -> None:
        """The same clients get what was owed to them, once and in order, and go on. A pipeline runs."""
        for client_id in (DEVICE, APPLICATION):
            await publishes(broker, f"{client_id}/x", numbered(4 + STORED, 3))
        await self._goes_on(broker, DEVICE, self.device)
        await self._goes_on(broker, APPLICATION, self.application)
        await self._finishes_half(broker)
        sharing = await entered(broker, SHARING)
        await publishes(broker, "office/x", numbered(5, 2))
        await wait_for(lambda: len(sharing.messages) >= 7, 60, "what an application of a group is owed")
        await sharing.ping()
        assert sorted(one.payload for one in sharing.messages) == [one for one, _ in numbered(0, 7)]
        await leaves(sharing)
        member = await entered(broker, MEMBER)
        await wait_for(lambda: len(member.messages) == 5, 60, "what the group was owed")
        assert sorted(one.payload for one in member.messages) == [one for one, _ in numbered(0, 5)]
        await leaves(member)
        await self._works_on(broker)
        heir = await entered(broker, "heir")
        await wait_for(
            lambda: heir.messages, 60, "the will of a client that was connected when its broker died"
        )
        await heir.ping()
        assert [one.payload for one in heir.messages] == [b"gone"]
        await leaves(heir)
        reader = MqttClient("reader")
        await reader.connect(broker.port)
        await reader.subscribe(Subscription("kept/#", 1))
        await wait_for(lambda: len(reader.messages) == 3, 60, "retained messages")
        assert {one.topic: one.payload for one in reader.messages} == {
            f"kept/{n}": b"%d" % n for n in range(3)
        }
        await leaves(reader)

    # One kind each

    async def _begins_to_receive(self, broker: BrokerProcess, client_id: str, under: Under) -> None:
        """The first, of QoS 2, is received and its PUBREL is not answered; three more are not acknowledged."""
        await publishes(broker, f"{client_id}/x", numbered(0, 4))
        client = MqttClient(client_id, acknowledges=False)

        def answer(packet: Packet) -> None:
            if isinstance(packet, Publish) and packet.payload == b"0000":
                client.send_bytes(pubrec(packet.packet_id))
            if isinstance(packet, Pubrel):
                under.released = packet.packet_id

        client.on_packet = answer  # before the first message can come
        await client.connect(broker.port, clean_start=False, properties=KEPT)
        await wait_for(lambda: len(client.messages) == 4 and under.released, 60, "messages, and a PUBREL")
        under.sent = {one.payload: one.packet_id for one in client.messages[1:]}
        await client.ping()
        await leaves(client)

    async def _goes_on(self, broker: BrokerProcess, client_id: str, under: Under) -> None:
        client = MqttClient(client_id)
        releases: list[int] = []
        client.on_packet = lambda packet: (
            releases.append(packet.packet_id) if isinstance(packet, Pubrel) else None
        )
        connack = await client.connect(broker.port, clean_start=False, properties=KEPT)
        assert connack.session_present
        expected = [payload for payload, _ in numbered(1, STORED + 6)]
        await wait_for(lambda: len(client.messages) >= len(expected), 60, f"what {client_id} is owed")
        await client.ping()
        assert [one.payload for one in client.messages] == expected
        ids = {one.payload: one.packet_id for one in client.messages}
        assert ids[b"0003"] == under.sent[b"0003"]  # of QoS 2: it may be known
        await wait_for(lambda: under.released in releases, 60, "PUBREL of what was received before")
        await leaves(client)

    async def _retains(self, broker: BrokerProcess) -> None:
        publisher = MqttClient("retainer")
        will = Will("kept/will", b"gone", 1, True, Properties(will_delay_interval=86_400))
        await publisher.connect(broker.port, properties=KEPT, will=will)
        for number in range(3):
            await publisher.publish(f"kept/{number}", b"%d" % number, qos=1, retain=True)
        publisher.abort()
        await publisher.ended

    async def _publishes_half(self, broker: BrokerProcess) -> None:
        """A QoS 2 message that its publisher does not know to be received."""
        publisher = await entered(broker, "half")
        received = publisher.expect(Pubrec, RELEASED_ID)
        publisher.send(Publish(f"{MEMBER}/half", b"half", 2, RELEASED_ID, False, False))
        await received
        await leaves(publisher)

    async def _finishes_half(self, broker: BrokerProcess) -> None:
        """It is repeated, and not taken for another one."""
        watcher = MqttClient("watcher")
        await watcher.connect(broker.port)
        await watcher.subscribe(Subscription(f"{MEMBER}/half", 2))
        publisher = await entered(broker, "half")
        received = publisher.expect(Pubrec, RELEASED_ID)
        publisher.send(Publish(f"{MEMBER}/half", b"half", 2, RELEASED_ID, False, True))
        await received
        completed = publisher.expect(Pubcomp, RELEASED_ID)
        publisher.send_bytes(pubrel(RELEASED_ID))
        assert (await completed).reason_code == 0
        await publisher.publish(f"{MEMBER}/half", b"next", qos=1)
        await wait_for(lambda: watcher.messages, 60, "the next message")
        assert [one.payload for one in watcher.messages] == [b"next"]
        await leaves(publisher)
        await leaves(watcher)

    async def _works(self, broker: BrokerProcess) -> None:
        """One job is done, one has failed once; one is delayed for long."""
        consumer = await worker(broker, "worker", acknowledges=False, clean_start=False, expiry_s=86_400)
        await consumer.consumes("$queue/jobs", consumer_group="g", prefetch="2")
        sender = await worker(broker, "sender")
        await sender.enqueues("$queue/jobs", *(b"job %d" % number for number in range(JOBS)))
        await sender.enqueues("$queue/jobs", b"later", delay="1d")
        done, under_way = await consumer.take(2)
        await consumer.acks(done)
        # Not to be had again before the broker has ended.
        assert await consumer.says("nack", under_way, delay="20s") == (0, "")
        self.job_id = under_way.id
        await leaves(consumer)
        await leaves(sender)

    async def _works_on(self, broker: BrokerProcess) -> None:
        consumer: Worker = await worker(
            broker, "worker", acknowledges=False, clean_start=False, expiry_s=86_400
        )
        taken = await consumer.take_and_ack(JOBS - 1)
        assert sorted(one.payload for one in taken) == [b"job %d" % number for number in range(1, JOBS)]
        again = next(one for one in taken if one.payload == b"job 1")
        assert (again.id, again.count) == (self.job_id, 2)
        await consumer.gets_nothing()
        await leaves(consumer)
