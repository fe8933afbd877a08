"""Delivery from application logs: packs, the sliding window, the floor, resending, what the log no longer has."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink, dispatch, numbered
from tests.support.hand_kafka import HandKafka

from embermq.delivery.application import log_tail
from embermq.delivery.application.lane import UNMARKED_MAX
from embermq.delivery.application.settings import ApplicationSettings
from embermq.formats.log_record import iter_frames
from embermq.model.client_type import ClientType
from embermq.model.session_writes import QueueState
from embermq.mqtt.wire.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel, Subscribe, Subscription
from embermq.mqtt.wire.properties import Properties
from embermq.ports.errors import StoreError

APPLICATION = ClientType.APPLICATION


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> HandDrivenBroker:
    """What comes by the pipeline alone."""
    monkeypatch.setattr(log_tail, "BYTES_MAX", 0)
    return HandDrivenBroker(application=ApplicationSettings(max_poll_records=10))


@pytest.fixture(params=["embedded", "kafka"])
def hand(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> HandDrivenBroker:
    monkeypatch.setattr(log_tail, "BYTES_MAX", 0)
    kafka = HandKafka() if request.param == "kafka" else None
    return HandDrivenBroker(application=ApplicationSettings(max_poll_records=10), kafka=kafka)


def an_application(hand: HandDrivenBroker, **options: object) -> tuple[HandLink, HandLink]:
    application = hand.keeps("app", client_type=APPLICATION, **options)
    if not hand.state.sessions["app"].subscriptions:
        application.does(Subscribe(1, (Subscription("t", 2),), Properties(subscription_identifiers=(7,))))
        hand.settle()
    return hand.connects("p"), application


def floor(hand: HandDrivenBroker) -> int:
    if hand.kafka is not None:
        hand.passes(s=2)
    (position,) = hand.store.positions.values()
    return position.positions.committed_offset


@pytest.mark.promise("application-3", "application-4")
def test_messages_come_from_the_log_once_and_in_order(hand: HandDrivenBroker) -> None:
    publisher, application = an_application(hand)
    publisher.publishes("t", *numbered(25))
    publisher.publishes("t", *numbered(25, 25), qos=2, first_id=100)
    hand.settle()
    assert application.messages == []
    dispatch(hand, until=30)
    assert application.payloads == numbered(30)
    dispatch(hand)
    assert application.payloads == numbered(50)
    assert [message.qos for message in application.messages] == [1] * 25 + [2] * 25
    assert {message.properties for message in application.messages} == {
        Properties(subscription_identifiers=(7,))
    }
    assert floor(hand) == 50
    assert hand.store.marks == {}


@pytest.mark.promise("application-5")
def test_qos_0_is_delivered_at_once(hand: HandDrivenBroker) -> None:
    publisher, application = an_application(hand)
    publisher.publishes("t", b"x", qos=0)
    hand.settle()
    assert application.payloads == [b"x"]


@pytest.mark.promise("application-4")
def test_the_window_slides_and_the_floor_is_the_contiguous_prefix(hand: HandDrivenBroker) -> None:
    publisher, application = an_application(hand, acknowledges=False)
    publisher.publishes("t", *numbered(30))
    hand.settle()
    dispatch(hand)
    sent = [message.packet_id for message in application.messages]
    assert application.payloads == numbered(30)
    for packet_id in sent[1:]:
        application.does(Puback(packet_id))
    hand.settle()
    assert floor(hand) == 0
    assert {mark.state for key, mark in hand.store.marks.items() if key[1] > 0} == {QueueState.DONE}
    application.drops()
    publisher.publishes("t", b"new", first_id=100)
    hand.settle()
    again = hand.keeps("app", client_type=APPLICATION)
    dispatch(hand)
    assert [(message.payload, message.dup) for message in again.messages] == [
        (b"0000", True),
        (b"new", False),
    ]
    assert floor(hand) == 31


@pytest.mark.promise("application-4")
@pytest.mark.parametrize("settled", [b"0002", b"0000"])
def test_one_free_place_is_used_while_the_others_are_not_acknowledged(
    hand: HandDrivenBroker, settled: bytes
) -> None:
    publisher, application = an_application(hand, acknowledges=False, receive_maximum=3)
    publisher.publishes("t", *numbered(6))
    hand.settle()
    dispatch(hand)
    assert application.payloads == numbered(3)
    packet_ids = {message.payload: message.packet_id for message in application.messages}
    application.does(Puback(packet_ids[settled]))
    hand.settle()
    hand.applications.poll()
    hand.settle()
    assert application.payloads == numbered(4)


@pytest.mark.promise("application-8")
@pytest.mark.parametrize("crash", [True, False])
def test_unacknowledged_ones_come_again_with_their_ids(hand: HandDrivenBroker, crash: bool) -> None:
    publisher, application = an_application(hand, acknowledges=False)
    publisher.publishes("t", *numbered(4), qos=1)
    publisher.publishes("t", *numbered(2, 4), qos=2, first_id=50)
    hand.settle()
    dispatch(hand)
    ids = [message.packet_id for message in application.messages]
    application.does(Puback(ids[1]), Pubrec(ids[5]))
    hand.settle()
    if crash:
        hand = hand.restarted()
    else:
        application.drops()
    again = hand.keeps("app", client_type=APPLICATION, acknowledges=False)
    assert [(message.payload, message.packet_id) for message in again.messages] == [
        (b"%04d" % number, ids[number]) for number in (0, 2, 3, 4)
    ]
    assert all(message.dup for message in again.messages)
    assert [packet.packet_id for packet in again.all(Pubrel)] == [ids[5]]
    again.does(*(Puback(ids[number]) for number in (0, 2, 3)), Pubrec(ids[4]), Pubcomp(ids[5]))
    hand.settle()
    again.does(Pubcomp(ids[4]))
    hand.settle()
    assert floor(hand) == 6
    publisher = hand.connects("p2")
    publisher.publishes("t", b"next")
    hand.settle()
    dispatch(hand)
    assert again.messages[-1].packet_id == ids[-1] + 1 + crash * UNMARKED_MAX


@pytest.mark.promise("application-8")
def test_a_smaller_receive_maximum_holds_back_the_resend(hand: HandDrivenBroker) -> None:
    publisher, application = an_application(hand, acknowledges=False)
    publisher.publishes("t", *numbered(25))
    hand.settle()
    dispatch(hand)
    application.drops()
    publisher.publishes("t", *numbered(5, 25), first_id=100)
    hand.settle()
    again = hand.keeps("app", client_type=APPLICATION, receive_maximum=2)
    dispatch(hand)
    hand.passes(s=1)
    assert again.payloads == numbered(30)


@pytest.mark.promise("application-9")
def test_an_expired_message_is_skipped_and_takes_no_id(hand: HandDrivenBroker) -> None:
    publisher, application = an_application(hand)
    for number, interval_s in enumerate((None, 10, 100)):
        expiry = Properties(message_expiry_interval=interval_s)
        publisher.does(Publish("t", b"%d" % number, 1, number + 1, properties=expiry))
    hand.settle()
    hand.passes(s=30)
    dispatch(hand)
    assert [(message.payload, message.packet_id) for message in application.messages] == [
        (b"0", 1),
        (b"2", 2),
    ]
    last = application.messages[-1].properties
    assert last is not None and last.message_expiry_interval == 70
    assert floor(hand) == 3


@pytest.mark.promise("application-2")
def test_a_new_life_under_the_same_id_sees_nothing_of_the_old(hand: HandDrivenBroker) -> None:
    publisher, application = an_application(hand)
    publisher.publishes("t", b"old")
    hand.settle()
    application.drops()
    hand.connects("app").leaves()
    publisher, application = an_application(hand)
    publisher.publishes("t", b"new")
    hand.settle()
    dispatch(hand)
    assert application.payloads == [b"new"]


@pytest.mark.promise("application-4")
def test_an_idle_application_holds_back_no_log(embedded: HandDrivenBroker) -> None:
    publisher, _ = an_application(embedded)
    publisher.publishes("other", *numbered(20))
    embedded.settle()
    embedded.passes(s=5)
    dispatch(embedded)
    embedded.passes(s=5)
    publisher.publishes("other", b"x", first_id=99)
    embedded.settle()
    dispatch(embedded)
    assert floor(embedded) >= 20


@pytest.mark.promise("pipeline-5")
def test_a_record_that_only_the_parking_place_has_is_delivered(embedded: HandDrivenBroker) -> None:
    publisher, application = an_application(embedded)
    publisher.publishes("t", b"1", b"2")
    embedded.settle()
    generation = embedded.state.sessions["app"].generation
    (batch,) = embedded.log.read(0, records_max=9, bytes_max=2**20)
    frames = list(iter_frames(batch.body))
    embedded.bodies.put(generation, [(1, frames[1])], 2)
    embedded.log.trim(2)
    publisher.publishes("t", b"3", first_id=9)
    embedded.settle()
    log = embedded.application_log
    log.entries[generation] = [0, 1, 2]
    log.complete = 3
    embedded.applications.poll()
    embedded.settle()
    assert application.payloads == [b"2", b"3"]
    assert embedded.applications.lost == 1


@pytest.mark.promise("application-11")
def test_shared_and_retained_messages_reach_an_application_too(hand: HandDrivenBroker) -> None:
    publisher = hand.connects("p")
    publisher.publishes("kept", b"retained", retain=True)
    hand.settle()
    application = hand.keeps("app", client_type=APPLICATION)
    application.subscribes("kept", "$share/g/shared", qos=1)
    publisher.publishes("shared", *numbered(3))
    hand.settle()
    assert application.payloads == [b"retained", *numbered(3)]


@pytest.mark.promise("pipeline-5")
@pytest.mark.parametrize("what", ["complete_offset", "read", "get"])
def test_logs_that_cannot_be_read_for_a_while_lose_and_repeat_nothing(
    embedded: HandDrivenBroker, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    publisher, application = an_application(embedded)
    publisher.publishes("t", *numbered(5))
    embedded.settle()
    embedded.log.trim(5)  # so that bodies come from the parking place
    generation = embedded.state.sessions["app"].generation
    (batch,) = embedded.log.read(0, records_max=9, bytes_max=2**20)
    dispatched = list(iter_frames(batch.body))
    embedded.bodies.put(generation, list(enumerate(dispatched)), 5)
    embedded.application_log.entries[generation] = list(range(5))
    publisher.publishes("other", b"x", first_id=90)
    embedded.settle()

    def fails(*_: object, **_options: object) -> None:
        raise StoreError("cannot read it now")

    with monkeypatch.context() as broken:
        broken.setattr(embedded.bodies if what == "get" else embedded.application_log, what, fails)
        embedded.application_log.complete = 5
        for _ in range(3):
            embedded.applications.poll()
            embedded.settle()
        assert application.messages == []
        assert embedded.applications.failing == "cannot read it now"
    embedded.applications.poll()
    embedded.settle()
    assert application.payloads == numbered(5)
    assert (embedded.applications.failing, embedded.applications.lost) == ("", 0)


@pytest.mark.promise("application-8")
def test_who_returns_while_its_log_cannot_be_read_comes_again(
    embedded: HandDrivenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, application = an_application(embedded, acknowledges=False)
    publisher.publishes("t", *numbered(3))
    embedded.settle()
    dispatch(embedded)
    application.drops()
    embedded.settle()

    def fails(*_: object, **_options: object) -> None:
        raise StoreError("cannot read it now")

    with monkeypatch.context() as broken:
        broken.setattr(embedded.log, "read", fails)
        refused = embedded.keeps("app", client_type=APPLICATION)
        assert refused.closing
        assert refused.messages == []
        refused.drops()
        embedded.settle()
    again = embedded.keeps("app", client_type=APPLICATION)
    embedded.settle()
    assert [(message.payload, message.dup) for message in again.messages] == [
        (payload, True) for payload in numbered(3)
    ]
