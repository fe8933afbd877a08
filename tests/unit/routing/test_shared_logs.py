"""Logs of shared subscriptions of applications: stamped once a filter, made before SUBACK, ended after the last."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink
from tests.support.stand_in_shared import HandLogs

from embermq.access.authorization.rule_set import RuleSet
from embermq.access.authorization.rules_file import read_rules
from embermq.formats.log_record import Stamp, decode_record, iter_frames
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.packets import Suback, Subscribe, Subscription, Unsuback, Unsubscribe
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.application_logs import FoundLog
from embermq.ports.errors import StoreError, StoreUnavailable
from embermq.sessions.settings import MqttSettings

pytestmark = pytest.mark.promise("application-11")
LOG = "p.msg.app.shared.orders.mlw"


@pytest.fixture
def logs() -> HandLogs:
    return HandLogs()


@pytest.fixture
def hand(logs: HandLogs) -> HandDrivenBroker:
    return HandDrivenBroker(logs=logs)


def an_application(hand: HandDrivenBroker, name: str, **options: object) -> HandLink:
    return hand.keeps(name, client_type=ClientType.APPLICATION, **options)


def subscribing(*filters: str, packet_id: int = 1) -> Subscribe:
    return Subscribe(packet_id, tuple(Subscription(text, 1) for text in filters), None)


def stamps(hand: HandDrivenBroker) -> list[list[Stamp]]:
    batches = hand.log.read(0, records_max=100, bytes_max=1_000_000)
    return [list(decode_record(frame).stamps) for batch in batches for frame in iter_frames(batch.body)]


def publishes(hand: HandDrivenBroker, *, qos: int = 1) -> None:
    hand.connects("p").publishes("orders/1", b"x", qos=qos)
    hand.settle()


def test_a_filter_is_stamped_once_whoever_its_members_are(hand: HandDrivenBroker) -> None:
    first, second = an_application(hand, "one"), an_application(hand, "two")
    first.subscribes("$share/g/orders/#", qos=1, identifier=3)
    second.subscribes("$share/g/orders/#", "$share/other/orders/#", "$share/g/orders/+")
    publishes(hand, qos=2)
    (found,) = stamps(hand)
    assert [(stamp.log, stamp.qos, stamp.subscription_identifiers) for stamp in found] == [
        ("\0orders/#", 2, ()),
        ("\0orders/+", 2, ()),
    ]
    assert found[0].generation != found[1].generation
    assert first.payloads == second.payloads == []
    assert hand.store.queue == {}


def test_one_s_own_subscription_and_the_shared_one_are_two(hand: HandDrivenBroker) -> None:
    an_application(hand, "one").subscribes("$share/g/orders/#", "orders/#")
    publishes(hand)
    (found,) = stamps(hand)
    assert [stamp.log for stamp in found] == ["one", "\0orders/#"]


def test_devices_of_the_same_names_are_a_group_of_their_own(hand: HandDrivenBroker) -> None:
    an_application(hand, "one").subscribes("$share/g/orders/#")
    device = hand.keeps("device")
    device.subscribes("$share/g/orders/#")
    for _ in range(2):
        publishes(hand)
    assert device.payloads == [b"x", b"x"]
    assert [len(found) for found in stamps(hand)] == [1, 1]


def test_a_member_whose_session_is_not_kept_is_served_at_once(hand: HandDrivenBroker, logs: HandLogs) -> None:
    here = hand.connects("one", client_type=ClientType.APPLICATION)
    here.subscribes("$share/g/orders/#")
    publishes(hand)
    assert (here.payloads, logs.ensured, stamps(hand)) == ([b"x"], [], [[]])


def test_qos_0_reaches_one_member_at_once(hand: HandDrivenBroker) -> None:
    first, second = an_application(hand, "one"), an_application(hand, "two")
    for link in (first, second):
        link.subscribes("$share/g/orders/#")
    for _ in range(4):
        publishes(hand, qos=0)
    assert (len(first.payloads), len(second.payloads)) == (2, 2)


def test_the_log_is_there_before_suback(hand: HandDrivenBroker, logs: HandLogs) -> None:
    logs.answers = False
    link = an_application(hand, "one")
    link.does(subscribing("$share/g/orders/#", "plain"))
    hand.settle()
    publishes(hand)
    assert (link.all(Suback), stamps(hand)) == ([], [[]])
    logs.answer()
    hand.settle()
    assert link.last(Suback).reason_codes == (1, 1)
    publishes(hand)
    assert [stamp.log for stamp in stamps(hand)[1]] == ["\0orders/#"]
    assert logs.ensured == [LOG]


def test_what_follows_a_subscribe_that_waits_is_done_after_it(hand: HandDrivenBroker, logs: HandLogs) -> None:
    logs.answers = False
    link = an_application(hand, "one")
    link.does(
        subscribing("$share/g/orders/#"),
        Unsubscribe(2, ("$share/g/orders/#",)),
        subscribing("$share/g/other", packet_id=3),
        subscribing("plain", packet_id=4),
    )
    hand.settle()
    assert link.all(Suback) == []
    logs.answer()
    hand.settle()
    assert [type(packet) for packet in link.received[1:]] == [Suback, Unsuback]
    assert link.last(Unsuback).reason_codes == (ReasonCode.SUCCESS,)
    logs.answer()
    hand.settle()
    assert [packet.packet_id for packet in link.all(Suback)] == [1, 3, 4]
    assert list(hand.state.sessions["one"].subscriptions) == ["$share/g/other", "plain"]
    assert logs.over == [LOG]


@pytest.mark.parametrize("refuses", [True, False], ids=["told", "silent"])
def test_suback_does_not_wait_for_ever(hand: HandDrivenBroker, logs: HandLogs, refuses: bool) -> None:
    logs.answers = False
    link = an_application(hand, "one")
    link.does(subscribing("$share/g/orders/#", "plain"))
    hand.settle()
    if refuses:
        logs.answer(StoreUnavailable("Kafka is away"))
        hand.settle()
    else:
        hand.passes(s=9)
        assert link.all(Suback) == []
        hand.passes(s=2)
    suback = link.last(Suback)
    assert suback.reason_codes == (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, 1)
    assert suback.properties is not None and "'orders/#'" in (suback.properties.reason_string or "")
    logs.answer()
    hand.settle()
    assert logs.over == [LOG]
    assert list(hand.state.sessions["one"].subscriptions) == ["plain"]
    logs.answers = True
    assert link.subscribes("$share/g/orders/#") == (2,)


def test_of_mqtt_3_a_failure_is_0x80(hand: HandDrivenBroker, logs: HandLogs) -> None:
    logs.answers = False
    link = an_application(hand, "one", version=ProtocolVersion.V311)
    link.does(subscribing("$share/g/orders/#"))
    logs.answer(StoreUnavailable("away"))
    hand.settle()
    assert link.last(Suback).reason_codes == (0x80,)


def test_a_filter_that_has_no_log_is_refused_by_name() -> None:
    logs = HandLogs(shared_topic_validation=False)
    hand = HandDrivenBroker(logs=logs)
    link = an_application(hand, "one")
    assert link.subscribes("$share/g/orders.new/#", "$share/g/orders/#") == (
        ReasonCode.TOPIC_FILTER_INVALID,
        2,
    )
    properties = link.last(Suback).properties
    assert properties is not None and "orders.new/#" in (properties.reason_string or "")


def test_a_log_that_is_stored_stays_when_its_filter_would_be_refused(
    hand: HandDrivenBroker, logs: HandLogs
) -> None:
    """What was accepted for it is not thrown away with a setting; as with the logs of clients."""
    an_application(hand, "one").subscribes("$share/g/orders.new/#")
    rows = dict(hand.store.shared.groups)
    logs.strict_names = HandLogs(shared_topic_validation=False).strict_names
    again = hand.restarted()
    again.connects("p").publishes("orders.new/1", b"x", qos=1)
    again.settle()
    assert [stamp.log for stamp in stamps(again)[0]] == ["\0orders.new/#"]
    assert (again.store.shared.groups, logs.over) == (rows, [])
    back = an_application(again, "one")
    assert back.subscribes("$share/g/orders.new/#") == (ReasonCode.TOPIC_FILTER_INVALID,)
    back.unsubscribes("$share/g/orders.new/#")
    assert len(logs.over) == 1


def test_a_link_that_has_gone_meanwhile_leaves_no_log(hand: HandDrivenBroker, logs: HandLogs) -> None:
    logs.answers = False
    link = an_application(hand, "one")
    link.does(subscribing("$share/g/orders/#"))
    hand.settle()
    link.drops()
    logs.answer()
    hand.settle()
    assert logs.over == [LOG]
    assert hand.state.sessions["one"].subscriptions == {}


def test_the_log_ends_with_its_last_subscription(hand: HandDrivenBroker, logs: HandLogs) -> None:
    first, second = an_application(hand, "one"), an_application(hand, "two")
    first.subscribes("$share/g/orders/#", "$share/h/orders/#")
    second.subscribes("$share/g/orders/#")
    first.unsubscribes("$share/g/orders/#", "$share/h/orders/#")
    second.drops()
    hand.passes(s=100)
    publishes(hand)
    assert (len(stamps(hand)[0]), logs.over) == (1, [])
    assert [row.share for row in hand.store.shared.groups.values()] == ["g"]
    hand.passes(s=90_000)
    assert "two" not in hand.state.sessions
    publishes(hand)
    assert (stamps(hand)[1], logs.over) == ([], [LOG])
    assert hand.store.shared.groups == {}


def test_a_log_that_is_wanted_again_at_once_does_not_end(hand: HandDrivenBroker, logs: HandLogs) -> None:
    link = an_application(hand, "one")
    link.subscribes("$share/g/orders/#")
    (before,) = hand.store.shared.groups.values()
    link.does(Unsubscribe(2, ("$share/g/orders/#",)), subscribing("$share/g/orders/#"))
    hand.settle()
    assert logs.over == []
    (after,) = hand.store.shared.groups.values()
    assert after.generation > before.generation


def test_a_restart_knows_the_logs_and_their_generations(hand: HandDrivenBroker, logs: HandLogs) -> None:
    an_application(hand, "one").subscribes("$share/g/orders/#", "$share/h/orders/#")
    publishes(hand)
    rows = dict(hand.store.shared.groups)
    again = hand.restarted()
    publishes(again)
    before, after = stamps(again)
    assert before == after != []
    again.settle()
    assert again.store.shared.groups == rows
    assert logs.ensured == [LOG, LOG]


def test_a_log_that_could_not_be_looked_at_is_asked_for_again(hand: HandDrivenBroker, logs: HandLogs) -> None:
    an_application(hand, "one").subscribes("$share/g/orders/#")
    logs.answers = False
    again = hand.restarted()
    logs.answer(StoreError("away"))
    again.passes(s=6)
    assert [log for log, _, _ in logs.asked] == [LOG]
    logs.answer(FoundLog({0: 5, 1: 7}, "another one"))
    again.settle()
    (row,) = again.store.shared.groups.values()
    assert (row.identity, row.starts) == ("another one", ((0, 0), (1, 0)))


def test_a_group_begins_at_the_end_of_the_log_and_with_what_comes(
    hand: HandDrivenBroker, logs: HandLogs
) -> None:
    publishes(hand)
    logs.found = FoundLog({0: 5, 1: 7}, "one")
    an_application(hand, "one").subscribes("$share/g/orders/#")
    (row,) = hand.store.shared.groups.values()
    assert (row.since, row.starts, row.identity) == (1, ((0, 5), (1, 7)), "one")


def test_what_was_to_be_stored_and_was_not_is_not_older_than_the_group(hand: HandDrivenBroker) -> None:
    link, publisher = an_application(hand, "one"), hand.connects("p")
    publisher.publishes("orders/1", b"x")
    hand.failures = [StoreError("full")]
    link.subscribes("$share/g/orders/#")
    publisher.publishes("orders/1", b"y")
    hand.settle()
    (row,) = hand.store.shared.groups.values()
    assert row.since == 0


def test_who_may_not_subscribe_makes_no_log(logs: HandLogs) -> None:
    text = '[[rule]]\ndeny = "subscribe"\ntopics = "orders/#"\n'
    hand = HandDrivenBroker(logs=logs, rules=RuleSet(read_rules(text, "r.toml"), no_match_allows=True))
    assert an_application(hand, "one").subscribes("$share/g/orders/#") == (ReasonCode.NOT_AUTHORIZED,)
    assert logs.ensured == []


def test_a_log_for_a_subscription_that_cannot_be_goes_again(logs: HandLogs) -> None:
    hand = HandDrivenBroker(logs=logs, mqtt=MqttSettings(subscriptions_max=1))
    link = an_application(hand, "one")
    link.subscribes("plain")
    assert link.subscribes("$share/g/orders/#") == (ReasonCode.QUOTA_EXCEEDED,)
    assert (logs.ensured, logs.over) == ([LOG], [LOG])


def test_a_group_whose_sessions_are_gone_at_the_start_is_over(hand: HandDrivenBroker, logs: HandLogs) -> None:
    """The session store may be another than the one that the groups are in."""
    an_application(hand, "one").subscribes("$share/g/orders/#", "$share/h/orders/#")
    an_application(hand, "two").subscribes("$share/h/orders/#")
    two = hand.state.sessions["two"].generation
    hand.store.subscriptions = {key: row for key, row in hand.store.subscriptions.items() if key[0] == two}
    again = hand.restarted()
    again.settle()
    assert ([row.share for row in again.store.shared.groups.values()], logs.over) == (["h"], [])
    hand.store.subscriptions.clear()
    again = hand.restarted()
    again.settle()
    assert (again.store.shared.groups, logs.over) == ({}, [LOG])


def test_a_log_is_kept_for_a_subscribe_that_waits_for_another_one(
    hand: HandDrivenBroker, logs: HandLogs
) -> None:
    logs.answers = False
    link = an_application(hand, "one")
    link.does(subscribing("$share/g/orders/#", "$share/g/other"))
    logs.answer(count=1)
    hand.settle()
    assert (link.all(Suback), logs.over) == ([], [])
    logs.answer()
    hand.settle()
    assert link.last(Suback).reason_codes == (1, 1)
    assert {row.identity for row in hand.store.shared.groups.values()} == {"made once"}


@pytest.mark.parametrize("stays", [True, False])
def test_a_log_that_is_about_to_be_subscribed_to_does_not_end_with_its_last_group(
    hand: HandDrivenBroker, logs: HandLogs, stays: bool
) -> None:
    first = an_application(hand, "one")
    first.subscribes("$share/g/orders/#")
    logs.answers = False
    second = an_application(hand, "two")
    second.does(subscribing("$share/g/orders/#", "$share/g/other"))
    hand.settle()
    first.does(Unsubscribe(2, ("$share/g/orders/#",)))
    hand.settle()
    publishes(hand)
    assert (stamps(hand), logs.over) == ([[]], [])
    if not stays:
        second.drops()
    logs.answer()
    hand.settle()
    if stays:
        assert second.last(Suback).reason_codes == (1, 1)
        publishes(hand)
        assert [stamp.log for stamp in stamps(hand)[1]] == ["\0orders/#"]
        assert {row.identity for row in hand.store.shared.groups.values()} == {"made once"}
        assert logs.over == []
        second.unsubscribes("$share/g/orders/#", "$share/g/other")
    hand.settle()
    assert sorted(logs.over) == sorted([LOG, "p.msg.app.shared.other"])
    assert hand.state.router.shared_stamps == {}


def test_a_log_keeps_the_partitions_that_it_was_made_with(hand: HandDrivenBroker, logs: HandLogs) -> None:
    logs.found = FoundLog({0: 0, 1: 0, 2: 0}, "made with more")
    an_application(hand, "one").subscribes("$share/g/orders/#")
    logs.answers = False
    again = hand.restarted()
    assert [partitions for _, partitions, _ in logs.asked] == [3]
    assert again.state.shared_logs is not None
    assert [count for count, _ in again.state.shared_logs.wanted().values()] == [3]
