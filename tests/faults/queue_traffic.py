"""Producers and consumers of a durable queue that go on over any number of broken connections, and what they know.

A producer repeats what was not answered, in order, with its dedup-id. Consumers ack, nack and reject, hold messages
and drop their connection, so that the group is rebalanced all the time. What is said and what is answered is told
apart: only an answer is a promise.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from random import Random

from tests.faults.traffic import Place, ReturningClient
from tests.support.mqtt_client import MqttClient

from embermq.mqtt.wire.encoder import puback
from embermq.mqtt.wire.packets import Connack, Packet, Puback, Publish, Suback, Subscribe, Subscription
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion

V5 = ProtocolVersion.V5
QUEUE = "kill"
TOPIC = f"$queue/{QUEUE}"
WORKERS = "workers"
BACKLOG_MAX = 40
"""Messages that are enqueued and not settled: a test is to end soon after its producers."""
HOLD_S = 0.1
AGAIN_S = 0.2
UNREACHABLE = 0x83
"""The slot of the queue has no node now."""

Item = tuple[str, int]
"""A message: its key, and its number in the key."""


def payload_of(item: Item) -> bytes:
    return f"{item[0]} {item[1]}".encode()


def item_of(payload: bytes) -> Item:
    key, number = payload.decode().split()
    return key, int(number)


class Ledger:
    """What all clients of a run have said and heard of the group of workers."""

    def __init__(self) -> None:
        self.published: set[Item] = set()
        """With an answer."""
        self.acked: set[Item] = set()
        """With an answer; `perhaps` without."""
        self.perhaps: set[Item] = set()
        self.rejected: set[Item] = set()
        self.audited: set[Item] = set()
        """What the other group got."""
        self.letters: Counter[Item] = Counter()
        self.faults: list[str] = []
        self._ids: dict[Item, str] = {}
        self._settled: dict[str, set[int]] = defaultdict(set)
        """Numbers by key of which an ack or a reject was said: what comes behind them may come."""
        self._whole: dict[str, int] = defaultdict(int)

    @property
    def backlog(self) -> int:
        return len(self.published) - sum(map(len, self._settled.values()))

    def delivered(self, item: Item, message_id: str) -> None:
        """To a worker."""
        key, number = item
        if item in self.acked:
            self.faults.append(f"{item} comes again after its ack was answered")
        if self._ids.setdefault(item, message_id) != message_id:
            self.faults.append(f"{item} is there as {self._ids[item]} and as {message_id}")
        while self._whole[key] in self._settled[key]:
            self._whole[key] += 1
        if number > self._whole[key]:
            self.faults.append(f"{item} comes before {self._whole[key]} of its key is settled")

    def said(self, verb: str, item: Item) -> None:
        if verb in ("ack", "reject"):
            self._settled[item[0]].add(item[1])

    def answered(self, verb: str, item: Item, packet: Puback) -> None:
        """An ack or a reject that comes too late is refused, and its message comes again."""
        if verb == "ack" and packet.reason_code == 0:
            self.acked.add(item)
        elif verb == "reject" and packet.reason_code == 0:
            self.rejected.add(item)

    def unanswered(self, verb: str, item: Item) -> None:
        """The connection has ended first."""
        if verb == "ack":
            self.perhaps.add(item)

    def judge(self) -> None:
        """When the queue and its dead letters are empty, and everything published is answered."""
        letters = set(self.letters)
        assert not self.faults, self.faults[:5]
        lost = self.published - self.acked - self.perhaps - letters
        assert not lost, f"{len(lost)} lost: {sorted(lost)[:5]}"
        assert not letters & self.acked, "in the dead letters, and in the queue"
        assert [item for item, count in self.letters.items() if count > 1] == [], "twice in the dead letters"
        assert self.rejected <= letters | self.acked | self.perhaps, "a reject that was answered is gone"
        assert not self.published - self.audited, "lost for the other group"


class Producer(ReturningClient):
    """Of some keys, each key in order, a few messages at a time."""

    def __init__(
        self, place: Place, client_id: str, ledger: Ledger, keys: list[str], *, window: int = 8
    ) -> None:
        super().__init__(place, client_id, V5)
        self.finishing = False
        self._ledger = ledger
        self._keys = keys
        self._window = window
        self._numbers = dict.fromkeys(keys, 0)
        self._waiting: dict[int, Item] = {}
        self._packet_id = 0

    @property
    def is_done(self) -> bool:
        return self.finishing and not self._waiting

    async def entered(self, client: MqttClient, properties: Properties | None) -> None:
        for packet_id, item in self._waiting.items():
            self._send(client, packet_id, item, again=True)
        self.fill()

    def fill(self) -> None:
        """Send more, when there may be more."""
        client = self.client
        while (
            client is not None
            and not self.finishing
            and len(self._waiting) < self._window
            and self._ledger.backlog < BACKLOG_MAX
        ):
            self._packet_id = self._packet_id % 60_000 + 1
            key = self._keys[self._packet_id % len(self._keys)]
            self._waiting[self._packet_id] = (key, self._numbers[key])
            self._numbers[key] += 1
            self._send(client, self._packet_id, self._waiting[self._packet_id], again=False)

    def _send(self, client: MqttClient, packet_id: int, item: Item, *, again: bool) -> None:
        payload = payload_of(item)
        given = (("partition-key", item[0]), ("dedup-id", payload.decode()))
        client.send(Publish(TOPIC, payload, 1, packet_id, False, again, Properties(user_properties=given)))

    def take(self, client: MqttClient, packet: Packet) -> None:
        if isinstance(packet, Puback):
            assert packet.reason_code == 0, packet
            self._ledger.published.add(self._waiting.pop(packet.packet_id))
            self.fill()


class Consumer(ReturningClient):
    """A worker that does as it likes, until it is `finishing`; then it acks. One that `is_patient` asks again for a
    queue that cannot be reached."""

    is_patient = False

    def __init__(self, place: Place, client_id: str, ledger: Ledger, random: Random) -> None:
        super().__init__(place, client_id, V5)
        self.finishing = False
        self._ledger = ledger
        self._random = random
        self._settling: dict[int, tuple[str, Item]] = {}
        self._packet_id = 0

    @property
    def is_answered(self) -> bool:
        """Whether it waits for no answer to an ack, a nack or a reject."""
        return not self._settling

    async def entered(self, client: MqttClient, properties: Properties | None) -> None:
        """A kept session is in its group again by itself; the first time, and now and then, it subscribes."""
        if self.connections == 1 or self._random.random() < 0.3:
            await _subscribe(client, TOPIC, WORKERS, "explicit", "6", is_patient=self.is_patient)

    def take(self, client: MqttClient, packet: Packet) -> None:
        if isinstance(packet, Connack):
            for verb, item in self._settling.values():
                self._ledger.unanswered(verb, item)
            self._settling.clear()
        elif isinstance(packet, Puback) and packet.packet_id in self._settling:
            self._ledger.answered(*self._settling.pop(packet.packet_id), packet)
        elif isinstance(packet, Publish):
            message_id = dict(_properties(packet))["message-id"]
            item = item_of(packet.payload)
            self._ledger.delivered(item, message_id)
            chance = 0.0 if self.finishing else self._random.random()
            if (
                chance < 0.995
            ):  # else it is given back when the connection has ended, and not when its lease has
                client.send_bytes(puback(packet.packet_id))
            if chance > 0.99:  # it hangs, and goes with all that it holds
                asyncio.get_running_loop().call_later(self._random.uniform(0.0, HOLD_S), client.abort)
            else:
                self._settle(client, item, message_id, chance)

    def _settle(self, client: MqttClient, item: Item, message_id: str, chance: float) -> None:
        verb = "ack" if chance < 0.8 else "nack" if chance < 0.9 else "reject"
        self._packet_id = self._packet_id % 60_000 + 1
        self._settling[self._packet_id] = (verb, item)
        self._ledger.said(verb, item)
        given = Properties(user_properties=(("message-id", message_id), ("group-id", WORKERS)))
        client.send(Publish(f"{TOPIC}/${verb}", b"", 1, self._packet_id, False, False, given))


class Reader(ReturningClient):
    """Reads a queue in a group of its own, and acks by PUBACK, `behind` messages later: others have settled by then."""

    is_patient = False

    def __init__(
        self, place: Place, client_id: str, topic: str, seen: set[Item] | Counter[Item], *, behind: int = 0
    ) -> None:
        super().__init__(place, client_id, V5)
        self._topic = topic
        self._seen = seen
        self._behind = behind
        self._held: deque[int] = deque()
        self.is_subscribed = False

    async def entered(self, client: MqttClient, properties: Properties | None) -> None:
        if not self.is_subscribed:
            prefetch = str(self._behind + 50)
            await _subscribe(
                client, self._topic, self.client_id, "puback", prefetch, is_patient=self.is_patient
            )
            self.is_subscribed = True

    def finish(self) -> None:
        """Everything that is held, and what comes."""
        self._behind = 0
        if self.client is not None:
            self._settle(self.client)

    def _settle(self, client: MqttClient) -> None:
        while len(self._held) > self._behind:
            client.send_bytes(puback(self._held.popleft()))

    def take(self, client: MqttClient, packet: Packet) -> None:
        if isinstance(packet, Connack):
            self._held.clear()
        elif isinstance(packet, Publish):
            item = item_of(packet.payload)
            if isinstance(self._seen, Counter):
                self._seen[item] += 1
            else:
                self._seen.add(item)
            self._held.append(packet.packet_id)
            self._settle(client)


async def _subscribe(
    client: MqttClient, topic: str, group: str, mode: str, prefetch: str, *, is_patient: bool
) -> None:
    given = (("consumer-group", group), ("ack-mode", mode), ("prefetch", prefetch))
    while True:
        packet_id = client.next_id()
        answer = client.expect(Suback, packet_id)
        client.send(Subscribe(packet_id, (Subscription(topic, 1),), Properties(user_properties=given)))
        codes = list((await answer).reason_codes)
        if codes == [1]:
            return
        assert is_patient and codes == [UNREACHABLE], codes
        await asyncio.sleep(AGAIN_S)


def _properties(packet: Publish) -> tuple[tuple[str, str], ...]:
    return packet.properties.user_properties if packet.properties is not None else ()
