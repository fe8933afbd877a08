"""The topics below $SYS: names, values, averages, who gets them and what they never touch."""

from __future__ import annotations

from math import exp

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink
from tests.unit.cluster.test_members import enters

from embermq.intake.system_topics import SESSIONS_STEP
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.packets import Subscribe, Subscription, Will
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.sessions.settings import MqttSettings

ROOT = "$SYS/broker/"


@pytest.fixture
def hand() -> HandDrivenBroker:
    hand = HandDrivenBroker()
    hand.broker.system.begin("1.2.3")
    hand.settle()
    return hand


def told(link: HandLink) -> dict[str, str]:
    """The newest value of each topic."""
    return {message.topic.removeprefix(ROOT): message.payload.decode() for message in link.messages}


def test_a_new_subscription_finds_them_all(hand: HandDrivenBroker) -> None:
    watcher = hand.connects("w")
    watcher.subscribes("$SYS/#")
    values = told(watcher)
    assert values["version"] == "embermq version 1.2.3"
    assert values["uptime"] == "0 seconds"
    assert values["clients/connected"] == "0"
    assert values["load/bytes/received/15min"] == "0.00"
    assert len(values) == len(watcher.messages) == 2 + 9 + 27 + 12
    assert {(message.qos, message.retain) for message in watcher.messages} == {(0, True)}


@pytest.mark.parametrize("topic_filter", ["#", "+/broker/uptime", "+/#"])
def test_wildcards_in_front_do_not_match_them(hand: HandDrivenBroker, topic_filter: str) -> None:
    watcher = hand.connects("w")
    watcher.subscribes(topic_filter)
    hand.passes(s=30)
    assert watcher.messages == []


@pytest.mark.parametrize("as_published", [False, True])
def test_what_has_changed_is_published_at_the_interval(hand: HandDrivenBroker, as_published: bool) -> None:
    watcher = hand.connects("w")
    watcher.subscribes("$SYS/broker/uptime", "$SYS/broker/version", retain_as_published=as_published)
    watcher.forgets()
    hand.passes(s=9)
    assert watcher.messages == []
    hand.passes(s=11)
    assert [(m.payload, m.retain) for m in watcher.messages] == [
        (b"10 seconds", as_published),
        (b"20 seconds", as_published),
    ]


def test_nothing_is_stored_and_no_application_log_is_named(hand: HandDrivenBroker) -> None:
    kept, application = hand.keeps("k"), hand.keeps("a", client_type=ClientType.APPLICATION)
    for link in (kept, application):
        link.subscribes("$SYS/#")
    log_end, commits = hand.state.log_end, hand.state.counters.commits
    hand.passes(s=60)
    for link in (kept, application):
        assert told(link)["uptime"] == "60 seconds"
        link.drops()
    hand.passes(s=60)
    assert (hand.state.log_end, hand.store.retained, hand.store.queue) == (log_end, {}, {})
    assert hand.state.counters.commits <= commits + 2  # the sessions that went
    again = hand.restarted()
    assert len(again.state.system) == 0


def test_counts(hand: HandDrivenBroker) -> None:
    watcher, publisher = hand.connects("w"), hand.connects("p")
    away = hand.connects("away", expiry_s=30)
    away.subscribes("t/#", "$share/g/s")
    away.drops()
    watcher.subscribes("t/#", "$SYS/#", qos=1)
    publisher.publishes("t/1", b"12345", b"123", qos=1)
    publisher.publishes("t/2", b"12", qos=0, retain=True)
    publisher.publishes("$SYS/x", b"12", qos=0)
    hand.passes(s=10)
    values = told(watcher)
    assert {name: values[name] for name in values if name.startswith("clients/")} == {
        "clients/total": "3",
        "clients/connected": "2",
        "clients/active": "2",
        "clients/disconnected": "1",
        "clients/inactive": "1",
        "clients/maximum": "2",
        "clients/expired": "0",
    }
    assert values["subscriptions/count"] == "4"
    assert values["shared_subscriptions/count"] == "1"
    assert values["retained messages/count"] == "1"
    assert values["messages/stored"] == values["store/messages/count"] == "3"
    assert (values["publish/messages/received"], values["publish/bytes/received"]) == ("3", "10")
    hand.passes(s=30)
    assert told(watcher)["clients/expired"] == "1"
    assert told(watcher)["clients/total"] == "2"


def test_averages_are_exponential(hand: HandDrivenBroker) -> None:
    watcher, publisher = hand.connects("w"), hand.connects("p")
    watcher.subscribes("$SYS/broker/load/publish/received/#")
    expected = {"1min": 0.0, "5min": 0.0, "15min": 0.0}
    for published in (100, 0, 50, 0, 0):
        publisher.publishes("t", *([b""] * published), qos=0)
        hand.passes(s=10)
        for period, period_s in (("1min", 60), ("5min", 300), ("15min", 900)):
            a_minute = published * 6
            expected[period] = a_minute + exp(-10 / period_s) * (expected[period] - a_minute)
        assert told(watcher) == {
            f"load/publish/received/{period}": f"{value:.2f}" for period, value in expected.items()
        }


def test_shared_subscriptions_take_turns(hand: HandDrivenBroker) -> None:
    members = [hand.connects("m1"), hand.connects("m2")]
    for member in members:
        member.subscribes("$share/g/$SYS/broker/uptime")
    hand.passes(s=40)
    assert sorted(message.payload for member in members for message in member.messages) == [
        b"10 seconds",
        b"20 seconds",
        b"30 seconds",
        b"40 seconds",
    ]
    assert [len(member.messages) for member in members] == [2, 2]


def test_what_the_broker_publishes_there_opens_nothing_to_others(hand: HandDrivenBroker) -> None:
    watcher, publisher = hand.connects("w"), hand.connects("p")
    watcher.subscribes("$SYS/#")
    hand.passes(s=20)
    watcher.forgets()
    publisher.publishes("$SYS/broker/uptime", b"never", qos=0, retain=True)
    hand.connects("x", will=Will("$SYS/broker/uptime", b"never", 0, False), settles=False)
    hand.settle()
    assert watcher.messages == []


def test_0_switches_them_off() -> None:
    hand = HandDrivenBroker(mqtt=MqttSettings(sys_interval_s=0))
    hand.broker.system.begin("1")
    watcher = hand.connects("w")
    assert watcher.subscribes("$SYS/#") == (2,)
    hand.passes(s=100)
    assert watcher.messages == []
    assert not hand.state.timers.next_ms


def test_very_many_sessions_are_counted_over_several_ticks(hand: HandDrivenBroker) -> None:
    watcher = hand.connects("w", version=ProtocolVersion.V311)
    watcher.does(Subscribe(1, (Subscription("$SYS/broker/clients/+", 0),)))
    for number in range(SESSIONS_STEP + 10):
        hand.connects(f"c{number}", settles=False)
    hand.settle()
    hand.passes(s=10)
    assert told(watcher)["clients/total"] == "0"
    hand.passes(ms=1)
    assert told(watcher)["clients/total"] == str(SESSIONS_STEP + 11)


@pytest.mark.promise("cluster-25")
def test_of_a_cluster_there_are_sums_over_the_nodes_that_are_reached() -> None:
    hand = HandDrivenBroker()
    others: list[dict[str, int] | None] = [{"clients/connected": 3, "publish/messages/received": 40}, None]
    system = hand.broker.system
    system.others = lambda: others
    system.begin("1.2.3")
    watcher = hand.connects("w")
    enters(hand, "$member/7/of-another-node")
    watcher.subscribes("$SYS/cluster/#")
    hand.connects("p").publishes("a", b"x")
    hand.passes(s=10)
    values = {message.topic: message.payload.decode() for message in watcher.messages}
    assert len(values) == 2 + 6
    found = {name.removeprefix("$SYS/cluster/"): value for name, value in values.items()}
    assert (found["slots"], found["slots/reached"]) == ("3", "2")
    assert found["clients/connected"] == "5", "a client is counted at its own node"
    assert found["publish/messages/received"] == "41"
    assert system.figures["clients/connected"] == 2
    others[:] = [None, None]
    watcher.forgets()
    hand.passes(s=10)
    told_now = {message.topic: message.payload for message in watcher.messages}
    assert told_now["$SYS/cluster/slots/reached"] == b"1"
    assert told_now["$SYS/cluster/clients/connected"] == b"2"


def test_a_broker_without_other_nodes_has_no_topics_of_a_cluster(hand: HandDrivenBroker) -> None:
    watcher = hand.connects("w")
    watcher.subscribes("$SYS/cluster/#")
    hand.passes(s=30)
    assert watcher.messages == []
