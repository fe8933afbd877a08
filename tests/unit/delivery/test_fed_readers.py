"""Delivery from application logs in a store of their own: repeats, latecomers, crashes, limits, logs that vanish."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink, dispatch, numbered
from tests.support.hand_kafka import ENTRY_BYTES, HandKafka
from tests.support.held_sessions import HeldSessions

from embermq.delivery.application import fed_readers, log_tail
from embermq.delivery.application.fed_readers import FedReaders
from embermq.delivery.application.lane import UNMARKED_MAX
from embermq.delivery.application.settings import ApplicationSettings
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.packets import (
    Connack,
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.ports.tick_store import Stored
from embermq.sessions.settings import MqttSettings

APPLICATION = ClientType.APPLICATION


@pytest.fixture
def kafka() -> HandKafka:
    return HandKafka()


@pytest.fixture
def hand(kafka: HandKafka, monkeypatch: pytest.MonkeyPatch) -> HandDrivenBroker:
    """Tails have no room: what comes is the pipeline's."""
    monkeypatch.setattr(fed_readers, "OVERTAKING_MAX", 50)
    monkeypatch.setattr(log_tail, "BYTES_MAX", 0)
    settings = ApplicationSettings(max_poll_records=10)
    return HandDrivenBroker(application=settings, kafka=kafka)


def comes(hand: HandDrivenBroker, client_id: str = "app", **options: object) -> HandLink:
    application = hand.keeps(client_id, client_type=APPLICATION, **options)
    if not hand.state.sessions[client_id].subscriptions:
        application.subscribes("t/#")
    return application


def publishes(hand: HandDrivenBroker, *payloads: bytes, qos: int = 1, topic: str = "t/1") -> None:
    """Accepted, and not dispatched."""
    publisher = hand.connects("p")
    publisher.releases = True
    publisher.publishes(topic, *payloads, qos=qos)
    hand.settle()
    publisher.leaves()
    assert hand.kafka is not None
    hand.kafka.reads(hand.log)


def committed(hand: HandDrivenBroker, client_id: str = "app") -> int:
    hand.passes(s=3)
    session = hand.state.sessions[client_id]
    return hand.store.positions[session.generation].positions.committed_offset


@pytest.mark.promise("application-3")
@pytest.mark.parametrize("crash", [False, True])
def test_repeats_are_skipped_and_latecomers_are_not(
    hand: HandDrivenBroker, kafka: HandKafka, crash: bool
) -> None:
    application = comes(hand)
    publishes(hand, *numbered(6))
    kafka.carry(0, 1, 4)  # one task of the pipeline was behind when it died
    hand.settle()
    assert application.payloads == [b"0000", b"0001", b"0004"]
    if crash:
        hand = hand.restarted()
        application = comes(hand)
    else:
        application.forgets()
    kafka.carry(*range(6))
    hand.settle()
    assert application.payloads == [b"0002", b"0003", b"0005"]
    assert committed(hand) == 9


@pytest.mark.promise("application-3")
def test_reports_move_the_base_and_the_log_is_trimmed_below_it(
    hand: HandDrivenBroker, kafka: HandKafka
) -> None:
    application = comes(hand)
    publishes(hand, *numbered(10))
    kafka.carry(*range(10))
    hand.settle()
    assert committed(hand) == 10
    topic = kafka.log_of("app")
    assert topic.start == 0
    kafka.report()
    hand.passes(s=4)
    assert topic.start == 10
    hand = hand.restarted()
    application = comes(hand)
    kafka.carry(*range(10))
    publishes(hand, b"new")
    kafka.carry(10)
    hand.settle()
    assert application.payloads == [b"new"]


@pytest.mark.promise("application-3")
def test_what_the_client_has_not_acknowledged_is_not_trimmed(
    hand: HandDrivenBroker, kafka: HandKafka
) -> None:
    application = comes(hand, acknowledges=False)
    publishes(hand, *numbered(10))
    dispatch(hand)
    application.does(*(Puback(message.packet_id) for message in application.messages[:4]))
    hand.settle()
    hand.passes(s=5)
    assert kafka.log_of("app").start <= 4
    hand = hand.restarted()
    assert comes(hand).payloads == numbered(6, 4)


@pytest.mark.promise("application-3")
def test_the_log_is_not_trimmed_up_to_what_is_settled_but_up_to_the_base(
    hand: HandDrivenBroker, kafka: HandKafka
) -> None:
    application = comes(hand, acknowledges=False)
    publishes(hand, *numbered(12))
    kafka.carry(*range(5))
    kafka.report(5)
    hand.settle()
    application.does(*(Puback(message.packet_id) for message in application.messages))
    hand.settle()
    hand.passes(s=1)
    kafka.carry(*range(5, 12))
    hand.settle()
    application.does(*(Puback(message.packet_id) for message in application.messages[5:8]))
    hand.settle()
    hand.passes(s=3)
    assert kafka.log_of("app").start == 5
    hand = hand.restarted()
    application = comes(hand)
    kafka.carry(*range(5, 12))
    hand.settle()
    assert application.payloads == numbered(4, 8)


@pytest.mark.promise("application-3")
def test_a_report_does_not_count_before_what_it_speaks_of_is_settled(
    hand: HandDrivenBroker, kafka: HandKafka
) -> None:
    application = comes(hand, receive_maximum=2, acknowledges=False)
    publishes(hand, *numbered(10))
    kafka.carry(*range(10))
    kafka.report()
    hand.passes(s=4)
    application.does(Puback(application.messages[0].packet_id))
    hand.settle()
    hand = hand.restarted()
    assert comes(hand).payloads == numbered(9, 1)


@pytest.mark.promise("application-7")
def test_what_waits_for_the_socket_is_not_settled(hand: HandDrivenBroker, kafka: HandKafka) -> None:
    application = comes(hand)
    publishes(hand, *numbered(20))
    kafka.carry(*range(5))
    hand.settle()
    link = hand.state.sessions["app"].link
    assert link is not None
    link.paused = True
    kafka.carry(*range(5, 20))
    hand.settle()
    assert committed(hand) == 5
    assert application.payloads == numbered(5)
    hand = hand.restarted()
    assert comes(hand).payloads == numbered(15, 5)


@pytest.mark.promise("application-8")
def test_a_crash_leaves_qos_2_exactly_once(hand: HandDrivenBroker, kafka: HandKafka) -> None:
    application = comes(hand, acknowledges=False)
    publishes(hand, *numbered(4), qos=2)
    kafka.carry(*range(4))
    hand.settle()
    ids = [message.packet_id for message in application.messages]
    application.does(*(Pubrec(packet_id) for packet_id in ids[:3]))
    hand.settle()
    application.does(Pubcomp(ids[1]))
    hand.settle()
    hand = hand.restarted()
    again = comes(hand, acknowledges=False)
    assert [packet.packet_id for packet in again.all(Pubrel)] == [ids[0], ids[2]]
    assert [(message.payload, message.packet_id, message.dup) for message in again.messages] == [
        (b"0003", ids[3], True)
    ]
    kafka.carry(*range(4))
    publishes(hand, b"next", qos=2)
    kafka.carry(4)
    hand.settle()
    assert [(message.payload, message.packet_id) for message in again.messages[1:]] == [
        (b"next", ids[-1] + UNMARKED_MAX + 1)
    ]


@pytest.mark.promise("application-8")
def test_packet_ids_go_on_after_a_crash_with_nothing_under_way(hand: HandDrivenBroker) -> None:
    comes(hand)
    publishes(hand, *numbered(5))
    dispatch(hand)
    assert committed(hand) == 5
    hand = hand.restarted()
    application = comes(hand)
    publishes(hand, b"next")
    dispatch(hand)
    assert [message.packet_id for message in application.messages] == [5 + UNMARKED_MAX + 1]


@pytest.mark.promise("application-7")
def test_a_client_that_takes_nothing_is_not_read_for(hand: HandDrivenBroker, kafka: HandKafka) -> None:
    slow, quick = comes(hand, acknowledges=False), comes(hand, "quick")
    link = hand.state.sessions["app"].link
    assert link is not None
    link.paused = True
    kafka.feeds.unread_bytes_max = 20 * ENTRY_BYTES
    publishes(hand, *numbered(60))
    dispatch(hand)
    assert (slow.messages, quick.payloads) == ([], numbered(60))
    (feed,) = [feed for feed in kafka.feeds.open_feeds if feed.log.endswith(".app")]
    assert feed.next_offset < 30
    link.paused = False
    slow.acknowledges = True
    hand.delivery.writable(hand.state.sessions["app"])
    hand.settle()
    assert slow.payloads == numbered(60)
    assert feed.unread_bytes == 0


@pytest.mark.promise("application-4")
def test_only_so_many_overtake_one_that_is_not_acknowledged(hand: HandDrivenBroker, kafka: HandKafka) -> None:
    application = comes(hand, acknowledges=False)
    kafka.feeds.unread_bytes_max = 20 * ENTRY_BYTES
    publishes(hand, *numbered(200))
    dispatch(hand)
    answered = 1
    while answered < len(application.messages):
        answers = [Puback(message.packet_id) for message in application.messages[answered:]]
        answered = len(application.messages)
        application.does(*answers)
        hand.settle()
    assert application.payloads == numbered(50)
    (feed,) = kafka.feeds.open_feeds
    assert feed.next_offset < 100
    application.acknowledges = True
    application.does(Puback(application.messages[0].packet_id))
    hand.settle()
    assert application.payloads == numbered(200)


@pytest.mark.promise("application-2")
def test_records_of_an_earlier_life_are_passed_over(hand: HandDrivenBroker, kafka: HandKafka) -> None:
    comes(hand).drops()
    publishes(hand, *numbered(3))
    hand.connects("app").leaves()
    application = comes(hand)
    publishes(hand, b"new")
    kafka.carry(0, 1, 2, 3)
    hand.settle()
    assert application.payloads == [b"new"]
    assert committed(hand) == 4


def test_a_record_that_cannot_be_understood_is_told_and_passed_over(
    hand: HandDrivenBroker, kafka: HandKafka, caplog: pytest.LogCaptureFixture
) -> None:
    application = comes(hand)
    publishes(hand, *numbered(2))
    kafka.carry(0)
    topic = kafka.log_of("app")
    topic.add(None, None, "header n is missing")
    topic.add(None, kafka.sources[1][1])
    kafka.carry(1)
    hand.settle()
    assert application.payloads == numbered(2)
    assert hand.state.counters.application_unreadable == 2
    assert "msg.app.app, offset 1: skipped, it cannot be decoded: header n is missing" in caplog.text
    assert committed(hand) == 4


def test_a_log_that_vanishes_sends_its_client_away_and_is_made_again(
    hand: HandDrivenBroker, kafka: HandKafka, caplog: pytest.LogCaptureFixture
) -> None:
    application = comes(hand, acknowledges=False)
    publishes(hand, *numbered(3), qos=2)
    kafka.carry(*range(3))
    hand.settle()
    ids = [message.packet_id for message in application.messages]
    application.does(Pubrec(ids[0]))
    hand.settle()
    del kafka.topics[kafka.logs.name("app")]
    hand.settle()
    assert application.last(Disconnect).reason_code == ReasonCode.SERVER_BUSY
    assert "was deleted" in caplog.text
    again = comes(hand)
    assert [packet.packet_id for packet in again.all(Pubrel)] == ids
    assert "is another one than the client was sent from" in caplog.text
    assert again.payloads == numbered(2, 1)
    publishes(hand, *numbered(2, 3))
    kafka.carry(3, 4)
    hand.settle()
    assert again.payloads == numbered(4, 1)
    assert committed(hand) == 2
    assert hand.store.marks == {}
    hand = hand.restarted()
    again = comes(hand)
    assert (again.messages, again.all(Pubrel)) == ([], [])


def test_a_log_that_was_made_again_meanwhile_is_known_by_its_identity(
    hand: HandDrivenBroker, kafka: HandKafka
) -> None:
    application = comes(hand)
    publishes(hand, *numbered(3))
    dispatch(hand)
    assert committed(hand) == 3
    application.drops()
    hand.settle()
    del kafka.topics[kafka.logs.name("app")]
    kafka.find(kafka.logs.name("app"))
    publishes(hand, *numbered(5, 3))
    dispatch(hand)
    assert comes(hand).payloads == numbered(5, 3)


def test_a_log_that_was_made_again_while_it_is_read_is_begun_anew(
    hand: HandDrivenBroker, kafka: HandKafka
) -> None:
    application = comes(hand)
    publishes(hand, *numbered(3))
    dispatch(hand)
    session, readers = hand.state.sessions["app"], hand.applications
    assert isinstance(readers, FedReaders)
    readers.restored(session, kafka.log_of("app").identity)
    assert not application.ended
    readers.restored(session, "another")
    hand.settle()
    assert application.last(Disconnect).reason_code == ReasonCode.SERVER_BUSY


def test_records_that_somebody_deleted_are_counted(hand: HandDrivenBroker, kafka: HandKafka) -> None:
    comes(hand).drops()
    publishes(hand, *numbered(9))
    kafka.carry(*range(9))
    kafka.logs.trim({(kafka.logs.name("app"), 0): 4})
    assert comes(hand).payloads == numbered(5, 4)
    assert hand.applications.lost == 4


def test_a_log_that_has_lost_its_tail_goes_on_at_its_end(
    hand: HandDrivenBroker, kafka: HandKafka, caplog: pytest.LogCaptureFixture
) -> None:
    application = comes(hand, acknowledges=False)
    publishes(hand, *numbered(5))
    dispatch(hand)
    application.drops()
    hand.settle()
    kafka.records.trimmed = {2, 3, 4}
    del kafka.log_of("app").entries[2:]
    again = comes(hand)
    assert again.payloads == numbered(2)
    assert hand.applications.lost == 3
    assert "ends at 2, the client was sent what stood before 5" in caplog.text
    publishes(hand, b"new")
    kafka.carry(5)
    hand.settle()
    assert again.payloads == [*numbered(2), b"new"]


def test_repeats_of_what_a_log_has_kept_are_known_when_it_has_lost_its_tail(
    hand: HandDrivenBroker, kafka: HandKafka
) -> None:
    application = comes(hand)
    publishes(hand, *numbered(5), qos=2)
    dispatch(hand)
    assert application.payloads == numbered(5)
    application.drops()
    hand.settle()
    del kafka.log_of("app").entries[2:]
    again = comes(hand)
    kafka.carry(0, 1)
    publishes(hand, b"new", qos=2)
    kafka.carry(5)
    hand.settle()
    assert again.payloads == [b"new"]


@pytest.mark.promise("application-2")
def test_what_a_retention_has_deleted_unread_is_counted(hand: HandDrivenBroker, kafka: HandKafka) -> None:
    application = comes(hand, acknowledges=False)
    publishes(hand, *numbered(3))
    dispatch(hand)
    application.does(Puback(application.messages[0].packet_id))
    application.drops()
    hand.settle()
    publishes(hand, *numbered(7)[3:])
    dispatch(hand)
    topic = kafka.log_of("app")
    topic.start = 5
    del topic.entries[:5]
    again = comes(hand)
    hand.settle()
    assert again.payloads == numbered(7)[5:]
    assert hand.applications.lost == 4, "two that were sent and two that were not, none of those settled"


@pytest.mark.promise("application-8")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_is_let_in_when_a_retention_has_emptied_its_log(
    hand: HandDrivenBroker, kafka: HandKafka, qos: int
) -> None:
    application = comes(hand, acknowledges=False)
    publishes(hand, *numbered(3), qos=qos)
    dispatch(hand)
    application.drops()
    hand.settle()
    topic = kafka.log_of("app")
    topic.start = topic.end
    topic.entries.clear()
    again = comes(hand)
    assert len(again.all(Connack)) == 1
    assert hand.applications.lost == 3
    publishes(hand, *numbered(1, 3))
    dispatch(hand)
    assert again.payloads == numbered(1, 3)
    assert hand.applications.lost == 3


@pytest.mark.promise("application-3")
@pytest.mark.parametrize("crash", [False, True])
def test_what_waits_from_a_message_log_that_was_lost_hides_nothing_of_the_next_one(
    hand: HandDrivenBroker, kafka: HandKafka, crash: bool
) -> None:
    """Records of both have the same offsets, in other partitions."""
    comes(hand).leaves()
    publishes(hand, *numbered(3))
    kafka.carry(0, 1, 2, 1)
    kafka.begins_another_log()
    hand = hand.restarted()
    if not crash:
        application = comes(hand)
        assert application.payloads == numbered(3)
    publishes(hand, *numbered(4, 3))
    kafka.carry(3, 4, 4, 2, 5, 6)
    if crash:
        hand = hand.restarted()
        application = comes(hand)
    hand.settle()
    assert application.payloads == numbered(7)
    kafka.report()
    assert committed(hand) == kafka.log_of("app").end
    kafka.carry(5)
    hand.settle()
    assert application.payloads == numbered(7)


@pytest.mark.promise("application-8")
def test_a_connect_waits_for_kafka_and_gives_up(kafka: HandKafka) -> None:
    hand = HandDrivenBroker(mqtt=MqttSettings(), kafka=kafka)
    hand.state.connect_wait_ms = 5_000
    application = comes(hand, acknowledges=False)
    publishes(hand, *numbered(2))
    dispatch(hand)
    application.drops()
    hand.settle()
    kafka.away = True
    waiting = hand.keeps("app", client_type=APPLICATION)
    hand.passes(s=4)
    assert waiting.received == []
    hand.passes(s=2)
    assert waiting.last(Connack).reason_code == ReasonCode.SERVER_UNAVAILABLE
    other = hand.keeps("app", client_type=APPLICATION)
    kafka.away = False
    hand.settle()
    assert [(message.payload, message.dup) for message in other.messages] == [
        (payload, True) for payload in numbered(2)
    ]
    assert len(kafka.feeds.open_feeds) == 1


def test_who_leaves_while_its_messages_are_read_again_leaves_nothing_behind(
    hand: HandDrivenBroker, kafka: HandKafka
) -> None:
    application = comes(hand, acknowledges=False)
    publishes(hand, *numbered(30))
    dispatch(hand)
    application.drops()
    hand.settle()
    kafka.feeds.unread_bytes_max = 0
    waiting = hand.keeps("app", client_type=APPLICATION)
    assert waiting.received == [] and len(kafka.feeds.open_feeds) == 1
    waiting.drops()
    hand.settle()
    assert kafka.feeds.open_feeds == []
    kafka.feeds.unread_bytes_max = 2**20
    assert [message.dup for message in comes(hand).messages] == [True] * 30
    assert isinstance(hand.applications, FedReaders)
    assert len(hand.applications) == 1


def test_a_taken_over_client_is_read_for_once(hand: HandDrivenBroker, kafka: HandKafka) -> None:
    first = comes(hand, acknowledges=False)
    publishes(hand, *numbered(3))
    dispatch(hand)
    second = comes(hand)
    assert first.ended
    assert [message.payload for message in second.messages] == numbered(3)
    assert len(kafka.feeds.open_feeds) == 1
    assert committed(hand) == 3


def test_what_expired_on_the_way_is_passed(hand: HandDrivenBroker, kafka: HandKafka) -> None:
    application = comes(hand)
    publisher = hand.connects("p")
    publisher.does(Publish("t/1", b"old", 1, 1, properties=Properties(message_expiry_interval=1)))
    hand.settle()
    publishes(hand, b"new")
    hand.passes(s=5)
    dispatch(hand)
    assert [(message.payload, message.packet_id) for message in application.messages] == [(b"new", 1)]
    assert committed(hand) == 2


def test_nothing_is_logged_when_all_is_well(hand: HandDrivenBroker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    comes(hand)
    publishes(hand, *numbered(3))
    dispatch(hand)
    comes(hand.restarted())
    assert caplog.text == ""


@pytest.mark.promise("application-8")
def test_a_pack_waits_for_what_is_stored_of_its_session_and_of_no_other(kafka: HandKafka) -> None:
    sessions = HeldSessions(Path(":memory:"))
    hand = HandDrivenBroker(sessions=sessions, kafka=kafka)
    assert isinstance(hand.applications, FedReaders)
    hand.applications.log_end.bytes_max = 0
    slow, other = comes(hand, "slow"), comes(hand, "other")
    publishes(hand, b"message", qos=2)
    sessions.held = True
    asked: set[int] = set()
    when_stored = hand.ticks.when_stored

    def asks(generation: int, call: Stored) -> None:
        asked.add(generation)
        when_stored(generation, call)

    hand.ticks.when_stored = asks  # type: ignore[method-assign]
    kafka.carry(0)
    hand.settle()
    assert (slow.payloads, other.payloads) == ([], [])
    assert asked == {hand.state.sessions[name].generation for name in ("slow", "other")}
    sessions.held = False
    hand.settle()
    assert (slow.payloads, other.payloads) == ([b"message"], [b"message"])
    sessions.close()
