"""Members of a shared subscription come, go and unsubscribe, the broker dies at any moment, and each session is on a
server of its own: nothing that was accepted is lost, and QoS 2 reaches one member once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink
from tests.support.split_sessions import SplitSessions

from embermq.mqtt.wire.packets import Connack, Puback, Publish, Pubrec, Pubrel
from embermq.routing.shared_choice import SharedStrategy
from embermq.sessions.settings import MqttSettings

FILTER = "$share/g/t/#"
SCENARIOS = 40
STRATEGIES: tuple[SharedStrategy, ...] = ("round-robin", "sticky-by-topic", "least-waiting")


class Scenario:
    """One of those that a seed stands for."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random = Random(seed)
        self.sessions = SplitSessions(folder / f"{seed}.db", random)
        settings = MqttSettings(shared_strategy=random.choice(STRATEGIES))
        self.hand = HandDrivenBroker(sessions=self.sessions, mqtt=settings)
        self.windows = {f"m{number}": random.choice((1, 2, 5, 20)) for number in range(random.randint(2, 4))}
        self.connections: dict[str, list[HandLink]] = {name: [] for name in self.windows}
        self.here: dict[str, HandLink] = {}
        self.publishers: list[HandLink] = []
        self.said: list[bytes] = []
        for name in self.windows:
            self.connect(name)
            self.rest()
            self.here[name].subscribes(FILTER, qos=2)
            self.rest()

    def connect(self, name: str) -> None:
        link = self.hand.keeps(name, receive_maximum=self.windows[name], settles=False)
        self.here[name] = link
        self.connections[name].append(link)

    def come_or_go(self) -> None:
        name = self.random.choice(list(self.windows))
        if name in self.here:
            self.here.pop(name).drops()
        else:
            self.connect(name)

    def publish(self) -> None:
        if not self.publishers or self.publishers[-1].ended:
            self.publishers.append(self.hand.connects("p", acknowledges=False, settles=False))
        qos = self.random.choice((1, 2))
        topic = f"t/{self.random.randrange(3)}"
        for _ in range(self.random.randint(1, 6)):
            self.said.append(b"%d %d" % (qos, len(self.said)))
            self.publishers[-1].does(Publish(topic, self.said[-1], qos, len(self.said)))

    def crash(self) -> None:
        self.hand = self.hand.restarted()
        self.here.clear()
        for publisher in self.publishers:
            publisher.ended = True

    def store(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            self.sessions.step()

    def pause(self) -> None:
        self.hand.state.tick.now_ms += self.random.choice((10, 60, 200))

    def run(self) -> None:
        things = (self.come_or_go, self.publish, self.crash, self.store, self.pause)
        for _ in range(self.random.randint(20, 120)):
            self.sessions.held = True
            self.random.choices(things, (18, 18, 4, 30, 2))[0]()
            for _ in range(self.random.randint(0, 3)):
                self.hand.run()
        self.rest()
        for name in self.windows:
            if name not in self.here:
                self.connect(name)
        self.rest()

    def rest(self) -> None:
        self.sessions.held = False
        for _ in range(6):
            for _ in range(15):
                self.hand.run()
            self.hand.passes(ms=100)

    def judge(self) -> None:
        accepted = {
            self.said[packet.packet_id - 1]
            for publisher in self.publishers
            for packet in publisher.received
            if isinstance(packet, Puback | Pubrec) and packet.reason_code < 0x80
        }
        got = Counter(payload for links in self.connections.values() for payload in taken(links))
        assert not accepted - got.keys(), "lost"
        assert not [payload for payload, count in got.items() if payload.startswith(b"2") and count > 1], (
            "twice"
        )
        assert all(session.queued == 0 for session in self.hand.state.sessions.loaded)


def taken(links: list[HandLink]) -> list[bytes]:
    """What a client takes for messages: a PUBLISH of QoS 2 once, until its PUBREL, on whatever connection."""
    found: list[bytes] = []
    unreleased: set[int] = set()
    for packet in (packet for link in links for packet in link.received):
        if isinstance(packet, Connack) and not packet.session_present:
            unreleased.clear()
        elif isinstance(packet, Pubrel):
            unreleased.discard(packet.packet_id)
        elif isinstance(packet, Publish) and packet.packet_id not in unreleased:
            found.append(packet.payload)
            if packet.qos == 2:
                unreleased.add(packet.packet_id)
    return found


@pytest.mark.promise("device-14")
def test_nothing_is_lost_and_qos_2_comes_once(seed: int, tmp_path: Path) -> None:
    for number in range(SCENARIOS):
        scenario = Scenario(seed * SCENARIOS + number, tmp_path)
        try:
            scenario.run()
            scenario.judge()
        except AssertionError as error:
            error.add_note(f"in scenario {seed * SCENARIOS + number}")
            raise
        finally:
            scenario.sessions.close()
