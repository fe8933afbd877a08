"""What clients of a broker may rely on, checked while a run goes on and at its end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from msgspec import Struct
from tests.simulation.clients import Broken, Sent, SimulatedClient

from embermq.mqtt.topics.names import SHARE_PREFIX
from embermq.mqtt.wire.packets import Publish
from embermq.mqtt.wire.reason_codes import ReasonCode

SUCCESS_BELOW = 0x80
QUEUE = "$queue/"


class Published(Struct):
    """A message, from when it was first sent."""

    publisher: str
    topic: str
    number: int
    qos: int
    sent_s: float
    retain: bool = False
    sends: int = 1
    """How often it was sent."""
    is_acknowledged: bool = False
    is_refused: bool = False


class Connection(Struct):
    """One connection of a client with a will."""

    is_open: bool = False
    wanted_before: bool = False
    """Whether somebody had subscribed to wills when it began."""
    end: str = ""
    """"politely", "roughly", or "" while it lasts."""


class Oracle:
    """`now_s` is the time of the simulation. `is_direct`: there is one connection between a client and who sends to
    it, so that nothing is on its way any more when that one has said so."""

    def __init__(self, *, is_direct: bool) -> None:
        self.now_s = 0.0
        self._is_direct = is_direct
        self.messages: dict[bytes, Published] = {}
        self.subscriptions: dict[tuple[str, str], tuple[int, float]] = {}
        """Client and filter -> QoS, and since when."""
        self.got: dict[str, Counter[bytes]] = defaultdict(Counter)
        self.last: dict[tuple[str, str, str, int], int] = {}
        self.wills: dict[bytes, Connection] = {}
        self.present: set[str] = set()
        self.retained: dict[tuple[str, str, int], int] = {}
        """By topic, publisher and QoS the last number that was acknowledged."""
        self.settling: dict[tuple[str, bytes], str] = {}
        self.offers: dict[str, bytes] = {}
        """Message id -> payload."""
        self.ids: dict[bytes, set[str]] = defaultdict(set)
        """The other way round: one that is repeated with QoS 1 may be two messages."""
        self.settled: dict[str, float] = {}
        self.repeated: set[str] = set()
        """Ids of messages whose `$ack` was sent again."""
        self.unsure: set[bytes] = set()
        """Payloads of those that may be settled: the first `$ack` counted, the second came from no consumer then."""
        self.counts: dict[str, int] = defaultdict(int)
        """Message id -> the highest delivery count that anybody has seen."""
        self.count = 0

    # Connections

    def begins(self, client: SimulatedClient) -> None:
        if client.has_will:
            wanted = any(topic_filter == "wills/#" for _, topic_filter in self.subscriptions)
            self.wills[_will(client)] = Connection(wanted_before=wanted)

    def entered(self, client: SimulatedClient, *, is_present: bool) -> None:
        if is_present and not client.is_kept:
            raise Broken(f"{client.name} has a session that should have ended")
        if client.is_kept and client.name in self.present and not is_present:
            raise Broken(f"the session of {client.name} is gone")
        if is_present and client.asks == 1:
            raise Broken(f"{client.name} comes for the first time and is told that it has a session")
        self.present.add(client.name)
        if client.has_will:
            self.wills[_will(client)].is_open = True

    def ended(self, client: SimulatedClient, *, politely: bool) -> None:
        """Whatever it was that ended it."""
        if client.has_will:
            self.wills[_will(client)].end = "politely" if politely else "roughly"

    def refused(self, client: SimulatedClient, code: int) -> None:
        """Its CONNECT."""

    def subscribed(self, client: SimulatedClient, topic_filter: str, qos: int) -> None:
        self.subscriptions[client.name, topic_filter] = qos, self.now_s

    def unsubscribes(self, client: SimulatedClient, topic_filter: str) -> None:
        """It asks for that, or its session has ended: nothing is owed to it from now on."""
        self.subscriptions.pop((client.name, topic_filter), None)
        if topic_filter == "wills/#":
            for will in self.wills.values():
                will.wanted_before = False

    # Publishers

    def sends(self, client: SimulatedClient, sent: Sent) -> None:
        packet = sent.packet
        if packet.payload:
            self.count += 1
            self.messages[packet.payload] = Published(
                client.name,
                packet.topic,
                int(packet.payload.rsplit(b":", 1)[1]),
                packet.qos,
                self.now_s,
                packet.retain,
            )

    def sends_again(self, sent: Sent) -> None:
        """Behind a new connection."""
        if sent.packet.payload:
            self.messages[sent.packet.payload].sends += 1
        else:
            self.repeated.add(_message_id(sent.packet))

    def answered(self, client: SimulatedClient, sent: Sent, code: int) -> None:
        packet = sent.packet
        if not packet.payload:
            message_id = _message_id(packet)
            if packet.topic.endswith("/$ack") and code == 0:
                self.settled[message_id] = self.now_s
            elif code == ReasonCode.NOT_AUTHORIZED and message_id in self.repeated:
                self.unsure.add(self.offers[message_id])
            return
        message = self.messages[packet.payload]
        if code >= SUCCESS_BELOW:
            message.is_refused = True
            return
        message.is_acknowledged = True
        if packet.retain:
            self.retained[message.topic, message.publisher, message.qos] = message.number

    # Subscribers

    def delivered(self, client: SimulatedClient, packet: Publish) -> None:
        payload = packet.payload
        if packet.topic.startswith("wills/"):
            self.got[client.name][payload] += 1
            if self.got[client.name][payload] > 1:
                raise Broken(f"{client.name} got the will {payload!r} twice")
            if payload not in self.wills:
                raise Broken(f"{client.name} got the will {payload!r}, which nobody has left")
            return
        message = self.messages.get(payload)
        if message is None or message.topic != packet.topic:
            raise Broken(f"{client.name} got {payload!r} on {packet.topic}, where nobody has published it")
        whose = self.shared_name(client) or client.name
        got = self.got[whose]
        got[payload] += 1
        if not client.is_kept:  # each connection has a session of its own
            return
        if packet.qos == 2 and got[payload] > 1:
            raise Broken(f"{whose} got {payload!r} of QoS 2 {got[payload]} times")
        if whose is not client.name or packet.retain:
            return
        if got[payload] == 1:
            key = (client.name, message.publisher, message.topic, message.qos)
            before = self.last.get(key, -1)
            if message.number < before:
                raise Broken(f"{client.name} got {payload!r} behind number {before}")
            self.last[key] = message.number

    def shared_name(self, client: SimulatedClient) -> str:
        """Of the group whose member it is, "" for none."""
        return next((name for name, _ in client.filters if name.startswith(SHARE_PREFIX)), "")

    def offered(self, client: SimulatedClient, packet: Publish, message_id: str, count: int) -> None:
        """A message of a queue, for the `count`th time. What was on its way when it was settled, over more than one
        connection, has a lower count than the delivery that was settled, or the same."""
        if message_id in self.settled and (self._is_direct or count > self.counts[message_id]):
            raise Broken(
                f"{client.name} is offered {packet.payload!r}, which was settled at {self.settled[message_id]:.3f}"
            )
        self.counts[message_id] = max(count, self.counts[message_id])
        message = self.messages.get(packet.payload)
        if message is None or message.topic != packet.topic:
            raise Broken(
                f"{client.name} is offered {packet.payload!r} on {packet.topic}, where nobody has published it"
            )
        known = self.offers.setdefault(message_id, packet.payload)
        if known != packet.payload:
            raise Broken(f"message {message_id} was {known!r} and is {packet.payload!r}")
        ids = self.ids[packet.payload]
        ids.add(message_id)
        if len(ids) > (1 if message.qos == 2 else message.sends):
            raise Broken(
                f"{packet.payload!r} of QoS {message.qos}, sent {message.sends} times, is {sorted(ids)}"
            )

    # The end

    def missing(self, clients: list[SimulatedClient]) -> Iterator[str]:
        """What is owed and has not come yet."""
        for client in clients:
            for topic_filter, _ in client.filters:
                since = self.subscriptions.get((client.name, topic_filter))
                if since is None:
                    yield f"{client.name} could not subscribe to {topic_filter}"
                elif topic_filter.startswith(QUEUE):
                    yield from self._unsettled(topic_filter)
                elif topic_filter == "wills/#":
                    yield from self._wills(client)
                else:
                    yield from self._missing(client, topic_filter, since[1])

    def _missing(self, client: SimulatedClient, topic_filter: str, since_s: float) -> Iterator[str]:
        whose = self.shared_name(client) or client.name
        plain = topic_filter.split("/", 2)[2] if topic_filter.startswith(SHARE_PREFIX) else topic_filter
        got, beginning = self.got[whose], plain.removesuffix("#")
        for payload, message in self.messages.items():
            if (
                payload not in got
                and message.is_acknowledged
                and message.sent_s > since_s
                and message.topic.startswith(beginning)
            ):
                yield f"{whose} lacks {payload!r}"

    def check_retained(self, found: dict[str, dict[str, bytes]]) -> None:
        """`found`: what clients of different nodes are given by topic. It is the same, and nothing older than what its
        publisher was told, with the same QoS: what is repeated with QoS 1 is a message once more."""
        first, *others = found.items()
        for name, by_topic in others:
            if by_topic != first[1]:
                raise Broken(f"retained is {first[1]} for {first[0]}, and {by_topic} for {name}")
        for topic, _, _ in self.retained:
            if topic not in first[1]:
                raise Broken(f"nothing is retained on {topic}")
        for topic, payload in first[1].items():
            message = self.messages[payload]
            newest = self.retained.get((topic, message.publisher, message.qos), 0)
            if message.number < newest:
                raise Broken(f"{payload!r} is retained on {topic}, and {newest} was acknowledged since")

    def _wills(self, client: SimulatedClient) -> Iterator[str]:
        got = self.got[client.name]
        for payload, one in self.wills.items():
            if one.is_open and one.wanted_before and one.end == "roughly" and payload not in got:
                yield f"{client.name} lacks the will {payload!r}"

    def _unsettled(self, topic: str) -> Iterator[str]:
        settled = self.unsure | {self.offers[one] for one in self.settled if one in self.offers}
        for payload, message in self.messages.items():
            if message.topic == topic and message.is_acknowledged and payload not in settled:
                yield f"{payload!r} of {topic} was not settled"


def _message_id(packet: Publish) -> str:
    """Which one a control message is about."""
    assert packet.properties is not None, "it says so"
    return dict(packet.properties.user_properties)["message-id"]


def _will(client: SimulatedClient) -> bytes:
    return f"will:{client.name}:{client.connects}".encode()
