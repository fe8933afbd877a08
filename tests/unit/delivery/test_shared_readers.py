"""Shared subscriptions of applications, from logs of their own: groups that a test balances by hand."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink, numbered
from tests.support.stand_in_shared import HandFeeds, HandLogs, HandMember

from embermq.delivery.application.lane import UNMARKED_MAX
from embermq.delivery.application.settings import ApplicationSettings
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.packets import (
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
    Unsubscribe,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.application_logs import FoundLog
from embermq.ports.errors import StoreError

pytestmark = pytest.mark.promise("application-11")
LOG = "p.msg.app.shared.t.mlw"


class Play:
    """A broker, a log of two partitions ("t/0", "t/1"), members by name."""

    def __init__(self, hand: HandDrivenBroker | None = None, **application: object) -> None:
        settings = ApplicationSettings(**application)  # type: ignore[arg-type]
        self.hand = hand or HandDrivenBroker(logs=HandLogs(), feeds=HandFeeds(), application=settings)
        assert self.hand.feeds is not None and self.hand.logs is not None
        self.feeds, self.logs = self.hand.feeds, self.hand.logs
        self.logs.lengths = self.feeds.lengths
        self.publisher = self.hand.connects("p")
        self._next_id = 1

    def comes(self, name: str, *partitions: int, qos: int = 2, **options: object) -> HandLink:
        """An application that is a member of "g", or becomes one, and gets partitions."""
        link = self.hand.keeps(name, client_type=ClientType.APPLICATION, **options)
        if not self.hand.state.sessions[name].subscriptions:
            properties = (
                Properties(subscription_identifiers=(7,)) if link.version is ProtocolVersion.V5 else None
            )
            link.does(Subscribe(1, (Subscription("$share/g/t/#", qos),), properties))
        self.hand.settle()
        if partitions:
            self.give(name, *partitions)
        return link

    def member(self, name: str) -> HandMember:
        (found,) = [
            one
            for one in self.feeds.members
            if one.taker.session.client_id == name  # type: ignore[attr-defined]
        ]
        return found

    def give(self, name: str, *partitions: int) -> None:
        self.feeds.give(self.member(name), *partitions)
        self.hand.settle()

    def publishes(self, topic: str, *payloads: bytes, qos: int = 1, dispatches: bool = True) -> None:
        self.publisher.publishes(topic, *payloads, qos=qos, first_id=self._next_id)
        self._next_id += len(payloads)
        self.hand.settle()
        if dispatches:
            self.dispatch()

    def dispatch(self, *, again: bool = False) -> None:
        self.feeds.dispatch(self.hand.log, self.logs.names, again=again)
        self.hand.settle()

    def crashes(self) -> Play:
        """Another broker on what is stored."""
        self.feeds.members.clear()
        return Play(self.hand.restarted())

    def committed(self, partition: int) -> int:
        """By the group, in store."""
        (found,) = [
            stored.committed_offset
            for (_, number), stored in self.hand.store.shared.positions.items()
            if number == partition
        ]
        return found


@pytest.fixture
def play() -> Play:
    return Play()


def test_members_get_what_their_partitions_have_once_and_in_order(play: Play) -> None:
    one, two = play.comes("one", 0), play.comes("two", 1)
    for qos in (1, 2):
        play.publishes("t/0", *numbered(30, 100 * qos), qos=qos)
        play.publishes("t/1", *numbered(30, 100 * qos), qos=qos)
    for link in (one, two):
        assert link.payloads == numbered(30, 100) + numbered(30, 200)
        assert [message.qos for message in link.messages] == [1] * 30 + [2] * 30
        assert {message.properties for message in link.messages} == {
            Properties(subscription_identifiers=(7,))
        }
    assert {message.topic for message in one.messages} == {"t/0"}
    assert (play.committed(0), play.committed(1)) == (60, 60)
    assert (play.hand.shared.committed(LOG), play.hand.shared.committed("other")) == ([{0: 60, 1: 60}], [])
    assert play.hand.store.shared.marks == {}
    assert play.member("one").committed[0].committed_offset == 60
    assert play.member("one").unreleased == 0


@pytest.mark.parametrize(("qos", "expected"), [(0, [0, 0]), (1, [1, 1]), (2, [1, 2])])
def test_qos_is_the_lesser_one(play: Play, qos: int, expected: list[int]) -> None:
    link = play.comes("one", 0, 1, qos=qos)
    play.publishes("t/0", b"a", qos=1)
    play.publishes("t/0", b"b", qos=2)
    assert [message.qos for message in link.messages] == expected
    play.publishes("t/0", b"c", qos=1)
    play.hand.passes(s=3)
    play.hand.shared.poll()
    play.hand.settle()
    assert play.committed(0) == 3


def test_the_options_are_the_member_s_own(play: Play) -> None:
    link = play.comes("one", 0, 1)
    link.does(
        Subscribe(
            2,
            (Subscription("$share/g/t/#", 1, False, True),),
            Properties(subscription_identifiers=(9,)),
        )
    )
    play.hand.settle()
    play.publisher.publishes("t/0", b"x", qos=2, retain=True)
    play.hand.settle()
    play.dispatch()
    (message,) = link.messages
    assert (message.qos, message.retain, message.properties) == (
        1,
        True,
        Properties(subscription_identifiers=(9,)),
    )


def test_what_was_accepted_before_the_group_is_not_for_it(play: Play) -> None:
    first = play.comes("one", 0, 1)
    play.publishes("t/0", b"early", dispatches=False)
    other = play.hand.keeps("two", client_type=ClientType.APPLICATION)
    other.subscribes("$share/other/t/#")
    play.give("two", 0, 1)
    play.publishes("t/0", b"late")
    assert (first.payloads, other.payloads) == ([b"early", b"late"], [b"late"])


def test_a_group_waits_while_all_its_members_are_away(play: Play) -> None:
    play.comes("one").drops()
    play.publishes("t/0", *numbered(5))
    again = play.crashes()
    again.publishes("t/0", *numbered(5, 5))
    link = again.comes("one", 0, 1)
    assert link.payloads == numbered(10)


def test_qos_1_that_is_not_acknowledged_goes_to_the_next_member(play: Play) -> None:
    one = play.comes("one", 0, acknowledges=False)
    two = play.comes("two", 1)
    play.publishes("t/0", *numbered(4))
    first, second, third, _ = one.messages
    one.does(Puback(first.packet_id), Puback(third.packet_id))
    play.hand.settle()
    one.drops()
    play.give("two", 0)
    assert two.payloads == [second.payload, b"0003"]
    assert play.committed(0) == 4


def test_qos_1_that_is_acknowledged_after_the_partition_has_gone_is_not_sent_again(play: Play) -> None:
    one = play.comes("one", 0, acknowledges=False)
    play.comes("two", 1)
    play.publishes("t/0", *numbered(2))
    play.member("one").taker.revoked(0)
    one.does(*(Puback(message.packet_id) for message in one.messages))
    play.hand.settle()
    again = play.crashes()
    two = again.comes("two", 0, 1)
    assert two.payloads == []


@pytest.mark.parametrize("crash", [False, True], ids=["broker goes on", "kill -9"])
@pytest.mark.parametrize("received", [False, True], ids=["sent", "received"])
def test_qos_2_under_way_stays_with_its_session(play: Play, crash: bool, received: bool) -> None:
    one = play.comes("one", 0, acknowledges=False)
    play.comes("two", 1)
    play.publishes("t/0", b"held", b"free", qos=2)
    held, free = one.messages
    assert len(play.hand.store.shared.marks) == 2
    if received:
        one.does(Pubrec(held.packet_id))
    one.does(Pubrec(free.packet_id))
    play.hand.settle()
    one.does(Pubcomp(free.packet_id))
    play.hand.settle()
    one.drops()
    play.hand.settle()
    play = play.crashes() if crash else play
    two = (
        play.comes("two", 0, 1)
        if crash
        else next(link for link in play.hand.links if link.session and link.session.client_id == "two")
    )
    play.give("two", 0)
    play.publishes("t/0", b"new", qos=2)
    assert two.payloads == [b"new"]
    assert play.committed(0) == 3
    back = play.comes("one")
    if received:
        assert (back.payloads, [packet.packet_id for packet in back.all(Pubrel)]) == ([], [held.packet_id])
    else:
        assert back.last(Publish).payload == b"held"
        assert [(one.packet_id, one.dup) for one in back.messages] == [(held.packet_id, True)]
    assert play.hand.store.shared.marks == {}
    assert play.crashes().comes("one").messages == []


def test_a_rebalance_while_connected_leaves_qos_2_where_it_is(play: Play) -> None:
    one = play.comes("one", 0, 1, acknowledges=False)
    two = play.comes("two")
    play.publishes("t/0", b"a", b"b", qos=2)
    first, second = one.messages
    one.does(Pubrec(first.packet_id))
    play.give("two", 0)
    one.does(Pubcomp(first.packet_id), Pubrec(second.packet_id))
    play.hand.settle()
    one.does(Pubcomp(second.packet_id))
    play.hand.settle()
    assert [packet.packet_id for packet in one.all(Pubrel)] == [first.packet_id, second.packet_id]
    assert two.payloads == []
    play.publishes("t/0", b"c", qos=2)
    assert (two.payloads, one.payloads) == ([b"c"], [b"a", b"b"])
    assert play.committed(0) == 3
    assert play.hand.store.shared.marks == {}


def test_qos_2_under_way_ends_with_its_session(play: Play) -> None:
    """[MQTT-4.8.2-5]"""
    one = play.comes("one", 0, acknowledges=False)
    two = play.comes("two", 1)
    play.publishes("t/0", b"q2", qos=2)
    play.publishes("t/0", b"q1")
    one.leaves(properties=Properties(session_expiry_interval=0))
    play.hand.settle()
    play.give("two", 0)
    assert two.payloads == [b"q1"]
    assert play.hand.store.shared.marks == {}
    again = play.crashes()
    assert again.comes("two", 0, 1).payloads == []


def test_what_the_pipeline_repeats_is_delivered_once(play: Play) -> None:
    one = play.comes("one", 0, 1)
    play.publishes("t/0", *numbered(5), qos=2)
    play.dispatch(again=True)
    assert one.payloads == numbered(5)
    again = play.crashes()
    link = again.comes("one", 0, 1)
    again.dispatch(again=True)
    again.publishes("t/0", b"new", qos=2)
    assert link.payloads == [b"new"]


def test_positions_move_when_the_pipeline_says_how_far_it_is(play: Play) -> None:
    play.comes("one", 0, 1)
    for start in (0, 1_000):
        play.publishes("t/0", *numbered(1_000, start))
    (stored,) = play.hand.store.shared.positions.values()
    assert (stored.base_offset, stored.floors) == (0, ())
    play.logs.end = {(LOG, 0): 2_000, (LOG, 1): 0}
    play.hand.progress.reported = {0: 2_000}
    for _ in range(2):
        play.hand.passes(s=2)
        play.hand.delivery.applications.poll()
        play.hand.settle()
    stored = play.hand.store.shared.positions[next(iter(play.hand.store.shared.groups)), 0]
    assert (stored.committed_offset, stored.floors) == (2_000, ((0, 2_000),))
    assert stored.base_offset > 0
    assert play.logs.trimmed == {(LOG, 0): stored.base_offset}


def test_a_log_is_trimmed_below_what_all_its_groups_need(play: Play) -> None:
    link = play.hand.keeps("away", client_type=ClientType.APPLICATION)
    link.subscribes("$share/other/t/#")
    link.drops()
    play.comes("one", 0, 1)
    for start in (0, 1_000):
        play.publishes("t/0", *numbered(1_000, start))
    play.logs.end = {(LOG, 0): 2_000, (LOG, 1): 0}
    play.hand.progress.reported = {0: 2_000}
    for _ in range(2):
        play.hand.passes(s=2)
        play.hand.delivery.applications.poll()
        play.hand.settle()
    assert play.logs.trimmed == {}


@pytest.mark.promise("application-7")
def test_a_socket_that_takes_nothing_stops_the_feed(play: Play) -> None:
    one = play.comes("one", 0, 1)
    one.paused = True
    play.publishes("t/0", *numbered(5))
    assert (one.payloads, play.member("one").unreleased > 0) == ([], True)
    one.paused = False
    play.hand.delivery.writable(play.hand.state.sessions["one"])
    play.hand.settle()
    assert (one.payloads, play.member("one").unreleased) == (numbered(5), 0)


def test_its_window_is_its_own(play: Play) -> None:
    """One that acknowledges nothing of a shared subscription gets on with its own log, and with other shares."""
    play = Play(max_poll_records=4)
    one = play.comes("one", 0, 1, acknowledges=False)
    play.publishes("t/0", *numbered(10))
    assert one.payloads == numbered(4)
    one.does(Puback(one.messages[1].packet_id))
    play.hand.settle()
    assert one.payloads == numbered(5)


def test_of_a_small_receive_maximum_it_takes_half(play: Play) -> None:
    one = play.comes("one", 0, 1, acknowledges=False, receive_maximum=6)
    play.publishes("t/0", *numbered(10))
    play.publishes("t/1", *numbered(10))
    assert len(one.payloads) == 3


def test_what_was_started_is_finished_after_unsubscribe(play: Play) -> None:
    """[MQTT-3.10.4-3]"""
    one = play.comes("one", 0, 1, acknowledges=False)
    two = play.comes("two")
    play.publishes("t/0", b"q1", qos=1)
    play.publishes("t/0", b"q2", qos=2)
    one.unsubscribes("$share/g/t/#")
    play.give("two", 0, 1)
    assert two.payloads == []
    one.drops()
    again = play.crashes()
    back = again.hand.keeps("one", client_type=ClientType.APPLICATION)
    again.hand.settle()
    assert sorted((one.payload, one.dup) for one in back.messages) == [(b"q1", True), (b"q2", True)]
    again.comes("two", 0, 1)
    again.hand.passes(s=2)
    again.hand.delivery.applications.poll()
    again.hand.settle()
    assert (again.committed(0), again.hand.store.shared.marks) == (2, {})


def test_a_log_that_was_deleted_begins_anew(play: Play) -> None:
    one = play.comes("one", 0, 1)
    play.publishes("t/0", *numbered(5))
    member = play.member("one")
    play.logs.found = FoundLog({0: 0, 1: 0}, "made again", True)
    play.feeds.logs.clear()
    member.taker.gone("it was deleted")
    play.hand.settle()
    assert play.committed(0) == 0
    play.give("one", 0, 1)
    play.publishes("t/0", b"new")
    assert one.payloads == [*numbered(5), b"new"]


def test_a_log_that_cannot_be_read_again_and_again_is_not_joined_without_a_pause(play: Play) -> None:
    one = play.comes("one", 0, 1)
    before = len(play.logs.ensured)
    for _ in range(3):
        for member in list(play.feeds.members):
            member.taker.gone("no consumer can be made")
        play.hand.settle()
    assert len(play.logs.ensured) == before + 1
    play.hand.passes(s=6)
    assert len(play.logs.ensured) == before + 2
    play.give("one", 0, 1)
    play.publishes("t/0", b"new")
    assert one.payloads == [b"new"]


def test_why_a_group_gets_nothing_is_told_once(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody has given its log more partitions: it is not read any more."""
    play.comes("one", 0, 1)
    play.logs.answers = False
    play.member("one").taker.gone("it was deleted")
    caplog.clear()
    for _ in range(3):
        play.logs.answer(StoreError("has 3 partitions, 2 are configured"))
        play.hand.passes(s=6)
    assert [record.message for record in caplog.records] == [
        f"members of shared log {LOG} get nothing, it is tried again: has 3 partitions, 2 are configured"
    ]
    play.logs.answer()
    assert play.member("one").log == LOG


def test_attempts_of_logs_that_are_not_read_any_more_are_forgotten(play: Play) -> None:
    play = Play(pack_timeout_s=1, retries=5)
    one = play.comes("one", 0, 1, acknowledges=False, version=ProtocolVersion.V311)
    before = play.hand.parking.sender.remembered
    one.in_flight = type("Any", (set,), {"__contains__": lambda *_: False})()
    for life in range(3):
        play.publishes("t/0", b"%d" % life)
        play.hand.passes(s=1.5)
        one.does(Unsubscribe(2, ("$share/g/t/#",)))
        play.hand.settle()
        assert play.hand.parking.sender.remembered < before
        one.does(Subscribe(1, (Subscription("$share/g/t/#", 1),)))
        play.hand.settle()
        play.give("one", 0, 1)
    one.drops()
    assert play.hand.parking.sender.remembered == 0


def test_late_messages_are_sent_again_and_parked(play: Play) -> None:
    play = Play(pack_timeout_s=1, retries=1)
    one = play.comes("one", 0, 1, acknowledges=False, version=ProtocolVersion.V311)
    one.in_flight = type("Any", (set,), {"__contains__": lambda *_: False})()
    play.publishes("t/0", b"x")
    play.hand.passes(s=1.5)
    assert [(message.payload, message.dup) for message in one.messages] == [(b"x", False), (b"x", True)]
    play.hand.passes(s=3)
    assert play.hand.state.counters.application_parked == 1
    assert play.committed(0) == 1


def test_an_expired_message_is_passed_over(play: Play) -> None:
    play.comes("one")
    expiring = Properties(message_expiry_interval=1)
    play.publisher.does(Publish("t/0", b"old", 1, 60_001, False, False, expiring))
    play.hand.passes(s=5)
    play.give("one", 0, 1)
    play.dispatch()
    assert play.hand.state.counters.dropped_expired == 1


def test_what_waits_for_a_member_that_loses_its_partition_is_released(play: Play) -> None:
    one = play.comes("one", 0, 1)
    one.paused = True
    play.publishes("t/0", *numbered(5))
    member = play.member("one")
    assert member.unreleased > 0
    del member.read[0]
    member.taker.revoked(0)
    assert member.unreleased == 0


def test_what_is_too_large_for_the_client_takes_no_room_in_its_window(play: Play) -> None:
    play = Play(max_poll_records=2)
    one = play.comes("one", 0, 1, properties=Properties(maximum_packet_size=500))
    play.publishes("t/0", *(b"x" * 1_000 for _ in range(7)), qos=2)
    play.publishes("t/0", b"small", qos=2)
    assert (one.payloads, play.hand.state.counters.dropped_too_large) == ([b"small"], 7)
    assert (play.committed(0), play.hand.store.shared.marks) == (8, {})


def test_what_is_parked_takes_no_room_in_its_window_and_may_be_acknowledged_late(play: Play) -> None:
    play = Play(max_poll_records=2, pack_timeout_s=1, retries=1)
    one = play.comes("one", 0, 1, acknowledges=False, version=ProtocolVersion.V311)
    one.in_flight = type("Any", (set,), {"__contains__": lambda *_: False})()
    play.publishes("t/0", *numbered(6))
    play.hand.passes(s=15)
    assert list(dict.fromkeys(one.payloads)) == numbered(6)
    assert (len(play.hand.parking), play.committed(0)) == (6, 6)
    one.does(*(Puback(packet_id) for packet_id in {message.packet_id for message in one.messages}))
    play.hand.settle()
    assert len(play.hand.parking) == 0


@pytest.mark.promise("application-8")
def test_packet_ids_go_on_after_a_crash(play: Play) -> None:
    one = play.comes("one", 0, 1, acknowledges=False)
    play.publishes("t/0", *numbered(4))
    play.publishes("t/0", b"held", qos=2)
    held = one.messages[-1].packet_id
    one.does(*(Puback(message.packet_id) for message in one.messages[:-1]))
    play.hand.settle()
    again = play.crashes()
    back = again.comes("one", 0, 1)
    again.publishes("t/0", b"new")
    assert [(message.payload, message.packet_id) for message in back.messages] == [
        (b"held", held),
        (b"new", held + UNMARKED_MAX + 1),
    ]


@pytest.mark.promise("application-8")
def test_a_packet_id_given_long_after_the_session_s_place_is_not_given_again(play: Play) -> None:
    """The client may answer late what a crash forgot: a new message must not have the same packet id."""
    one = play.comes("one", 0, qos=1)
    for hundred in range(13):
        play.publishes("t/0", *(b"%d" % (hundred * 100 + number) for number in range(100)))
    given = [message.packet_id for message in one.messages]
    assert len(given) > UNMARKED_MAX
    again = play.crashes()
    back = again.comes("one", 0, qos=1, acknowledges=False)
    again.publishes("t/0", *numbered(5))
    assert back.messages
    assert not {message.packet_id for message in back.messages} & set(given)


@pytest.mark.promise("application-6")
@pytest.mark.parametrize("strategy", ["retry-all", "skip-all"])
def test_qos_2_of_an_earlier_connection_is_sent_again_and_parked_like_any_other(strategy: str) -> None:
    play = Play(pack_timeout_s=1, retries=1, ack_strategy=strategy)
    one = play.comes("one", 0, 1, acknowledges=False, version=ProtocolVersion.V311)
    play.publishes("t/0", b"a", b"b", qos=2)
    play.publishes("t/1", b"c", qos=2)
    one.does(Pubrec(one.messages[1].packet_id))
    play.hand.settle()
    one.drops()
    one = play.comes("one", acknowledges=False, version=ProtocolVersion.V311)
    one.in_flight = type("Any", (set,), {"__contains__": lambda *_: False})()
    assert one.payloads == [b"a", b"c"]
    play.hand.passes(s=1.5)
    if strategy == "skip-all":
        assert (one.payloads, len(play.hand.parking)) == ([b"a", b"c"], 0)
        assert play.hand.state.counters.application_skipped == 3
        return
    assert one.payloads == [b"a", b"c", b"a", b"c"]
    assert len([packet for packet in one.received if isinstance(packet, Pubrel)]) == 2
    play.hand.passes(s=10)
    assert (one.payloads, len(play.hand.parking)) == ([b"a", b"c"] * 2, 3)
    play.give("one", 0, 1)
    play.publishes("t/0", b"d", qos=2)
    assert one.payloads[4:] == [b"d"]
    one.drops()
    assert play.hand.parking.sender.remembered == 0


@pytest.mark.promise("application-6")
@pytest.mark.parametrize("version", [ProtocolVersion.V311, ProtocolVersion.V5])
def test_qos_2_whose_partition_has_gone_is_late_like_any_other(version: ProtocolVersion) -> None:
    play = Play(pack_timeout_s=1, retries=1)
    one = play.comes("one", 0, 1, acknowledges=False, version=version)
    one.in_flight = type("Any", (set,), {"__contains__": lambda *_: False})()
    two = play.comes("two")
    play.publishes("t/0", b"a", b"b", qos=2)
    play.give("two", 0)
    play.publishes("t/0", b"c", qos=2)
    assert (one.payloads, two.payloads) == ([b"a", b"b"], [b"c"])
    play.hand.passes(s=1.5)
    if version is ProtocolVersion.V5:  # [MQTT-4.4.0-1]
        assert one.ended and play.hand.state.counters.application_sent_away == 1
        return
    assert [(message.payload, message.dup) for message in one.messages[2:]] == [(b"a", True), (b"b", True)]
    play.hand.passes(s=3)
    assert (len(play.hand.parking), play.hand.store.shared.marks) == (2, {})
    one.drops()
    two.drops()
    assert play.hand.parking.sender.remembered == 0


@pytest.mark.promise("application-6")
def test_qos_2_of_an_earlier_connection_ends_an_mqtt_5_client_and_is_parked_in_the_end(play: Play) -> None:
    play = Play(pack_timeout_s=1, retries=2)
    play.comes("one", 0, 1, acknowledges=False)
    play.publishes("t/0", b"a", qos=2)
    for _ in range(5):
        play.hand.passes(s=1.5)
        play.comes("one", acknowledges=False)
    assert (len(play.hand.parking), play.hand.state.counters.application_sent_away) == (1, 3)
