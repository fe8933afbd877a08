"""What becomes of messages that an APPLICATION client does not acknowledge in time, on connections of both kinds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.support.hand_driven import HandDrivenBroker, HandLink, dispatch, numbered
from tests.support.hand_kafka import HandKafka

from embermq.delivery.application import parking
from embermq.delivery.application.settings import ApplicationSettings
from embermq.formats.log_record import decode_record
from embermq.model.client_type import ClientType
from embermq.model.parked_message import ParkedStage
from embermq.mqtt.wire.packets import Disconnect, Puback, Pubcomp, Publish, Pubrec, Pubrel
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.errors import StoreFull

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
TIMEOUT_S = 20
RETRY = ApplicationSettings(max_poll_records=10, retries=2)
SKIP = ApplicationSettings(max_poll_records=10, ack_strategy="skip-all")


Make = Callable[[ApplicationSettings], HandDrivenBroker]


@pytest.fixture(params=["embedded", "kafka"])
def make(request: pytest.FixtureRequest) -> Make:
    """A broker whose application logs are a part of its own, or in a Kafka."""
    kafka = HandKafka() if request.param == "kafka" else None
    return lambda settings: HandDrivenBroker(application=settings, kafka=kafka)


@pytest.fixture
def hand(make: Make) -> HandDrivenBroker:
    return make(RETRY)


def comes(
    hand: HandDrivenBroker, version: ProtocolVersion = V311, *, acknowledges: bool = False, **options: object
) -> HandLink:
    link = hand.keeps(
        "app", client_type=ClientType.APPLICATION, version=version, acknowledges=acknowledges, **options
    )
    if not hand.state.sessions["app"].subscriptions:
        link.subscribes("t")
    return link


def published(hand: HandDrivenBroker, *payloads: bytes, qos: int = 1, first_id: int = 1) -> None:
    hand.connects("p").publishes("t", *payloads, qos=qos, first_id=first_id)
    hand.settle()
    dispatch(hand)


def seen(link: HandLink) -> list[tuple[bytes, bool]]:
    return [(message.payload, message.dup) for message in link.messages]


def waits_till_parked(hand: HandDrivenBroker, settings: ApplicationSettings = RETRY) -> HandLink:
    """Not acknowledging on an MQTT 3 connection."""
    application = comes(hand)
    hand.passes(s=TIMEOUT_S * (settings.retries + 1) + 1)
    return application


def parked(hand: HandDrivenBroker) -> list[tuple[int, ParkedStage]]:
    return [(kept.at.number, ParkedStage(kept.at.stage)) for kept in hand.store.parked.values()]


def floor(hand: HandDrivenBroker) -> int:
    """Below which offset all is settled; all records are for the application."""
    (position,) = hand.store.positions.values()
    return position.positions.committed_offset


@pytest.fixture
def resent_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of MQTT 3 may be sent a packet id again on the same connection."""
    take = HandLink._take

    def again(link: HandLink, packet: object) -> None:
        if isinstance(packet, Publish) and packet.dup:
            assert link.version is not V5 or packet.packet_id not in link.in_flight
            link.in_flight.discard(packet.packet_id)
        take(link, packet)  # type: ignore[arg-type]

    monkeypatch.setattr(HandLink, "_take", again)


pytestmark = pytest.mark.usefixtures("resent_by_hand")


@pytest.mark.promise("application-6")
def test_what_is_late_is_sent_again_on_an_mqtt_3_connection(hand: HandDrivenBroker) -> None:
    application = comes(hand)
    published(hand, *numbered(3))
    published(hand, *numbered(2, 3), qos=2, first_id=9)
    ids = [message.packet_id for message in application.messages]
    application.does(Puback(ids[1]), Pubrec(ids[4]))
    hand.settle()
    application.forgets()
    hand.passes(s=TIMEOUT_S - 1)
    assert application.messages == [], "not before the time is over"
    hand.passes(s=2)
    again = [(message.payload, message.packet_id, message.dup) for message in application.messages]
    assert again == [(b"%04d" % number, ids[number], True) for number in (0, 2, 3)]
    assert [release.packet_id for release in application.all(Pubrel)] == [ids[4]]
    assert hand.state.counters.application_resent == 4
    application.does(*(Puback(ids[number]) for number in (0, 2)), Pubrec(ids[3]), Pubcomp(ids[4]))
    hand.settle()
    application.does(Pubcomp(ids[3]))
    application.forgets()
    hand.passes(s=10 * TIMEOUT_S)
    assert application.messages == []
    assert (floor(hand), hand.store.marks, len(hand.parking)) == (5, {}, 0)


@pytest.mark.promise("application-6")
def test_an_mqtt_5_client_is_sent_away_and_gets_it_when_it_returns(hand: HandDrivenBroker) -> None:
    """Every round of the attempts is a connection of its own; then it is parked and nobody has to go."""
    application = comes(hand, V5)
    published(hand, b"x")
    for number in range(RETRY.retries + 1):
        assert seen(application) == [(b"x", number > 0)]
        hand.passes(s=TIMEOUT_S + 1)
        if number < RETRY.retries:
            assert application.last(Disconnect).reason_code == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
            application = comes(hand, V5)
    assert application.all(Disconnect) == [] and not application.closing
    assert hand.state.counters.application_sent_away == RETRY.retries
    assert parked(hand) == [(1, ParkedStage.PARKED)]
    assert floor(hand) == 1


@pytest.mark.promise("application-6")
@pytest.mark.parametrize("version", [V311, V5])
def test_what_is_parked_is_told_and_holds_up_nothing(
    hand: HandDrivenBroker, version: ProtocolVersion
) -> None:
    application = comes(hand, version)
    published(hand, b"x", b"y")
    application.does(Puback(application.messages[1].packet_id))
    for _ in range(RETRY.retries + 1):
        hand.passes(s=TIMEOUT_S + 1)
        if application.closing:
            application = comes(hand, version)
    assert parked(hand) == [(1, ParkedStage.PARKED)]
    (kept,) = hand.store.parked.values()
    assert decode_record(kept.record).message.payload == b"x"
    assert (kept.topic, kept.payload_bytes, kept.attempts, kept.at.qos) == ("t", 1, 3, 1)
    (notice,) = hand.notices
    assert "parked 1 messages that 'app'" in notice
    assert hand.state.counters.application_parked == 1
    assert floor(hand) == 2
    application.acknowledges = True
    published(hand, *numbered(20), first_id=50)
    assert application.payloads[-20:] == numbered(20)
    ids = {message.packet_id for message in application.messages if message.payload != b"x"}
    assert kept.at.packet_id not in ids, "the client may still answer"


@pytest.mark.promise("application-6")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("away", [True, False], ids=["away", "here"])
def test_redriven_messages_come_again_once(
    hand: HandDrivenBroker, version: ProtocolVersion, qos: int, away: bool
) -> None:
    published_by(hand, qos)
    first = waits_till_parked(hand)
    kept = [key.at for key in hand.store.parked.values()]
    assert len(kept) == 3
    session = hand.state.sessions["app"]
    if away or version is V5:
        first.drops()
        hand.settle()
    first.forgets()
    first.acknowledges = True
    assert hand.parking.redrive(session, [2, 7]) == 1
    hand.settle()
    again = comes(hand, version, acknowledges=True) if away or version is V5 else first
    assert [message.payload for message in again.messages] == [b"0001"]
    if qos == 2:
        assert again.messages[0].packet_id == kept[1].packet_id, "else a client that has it takes it twice"
    assert parked(hand) == [(1, ParkedStage.PARKED), (3, ParkedStage.PARKED)]
    assert hand.parking.redrive(session, None) == 2
    hand.settle()
    assert [message.payload for message in again.messages] == [b"0001", b"0000", b"0002"]
    assert parked(hand) == []
    assert hand.state.counters.application_redriven == 3
    assert session.window == {}
    assert not session.reserved


def published_by(hand: HandDrivenBroker, qos: int, count: int = 3) -> None:
    comes(hand).drops()
    hand.settle()
    published(hand, *numbered(count), qos=qos)


@pytest.mark.promise("application-6")
def test_a_redriven_message_has_all_its_attempts_again(hand: HandDrivenBroker) -> None:
    """Also while another one, which came before it, is still being sent again."""
    published_by(hand, 1, 2)
    application = waits_till_parked(hand)
    session = hand.state.sessions["app"]
    hand.parking.redrive(session, [2])
    hand.settle()
    hand.passes(s=TIMEOUT_S + 1)
    hand.parking.redrive(session, [1])
    hand.passes(s=2 * TIMEOUT_S)
    assert dict(parked(hand)) == {2: ParkedStage.PARKED, 1: ParkedStage.UNDER_WAY}
    application.forgets()
    hand.parking.redrive(session, [2])
    hand.settle()
    hand.passes(s=TIMEOUT_S + 1)
    assert (b"0001", True) in seen(application)[1:]
    assert dict(parked(hand))[2] == ParkedStage.UNDER_WAY


@pytest.mark.promise("application-6")
def test_what_there_was_no_room_for_is_not_late(hand: HandDrivenBroker) -> None:
    """Five are owed, and the client takes two at a time: only those two have been sent in vain."""
    first = comes(hand, V5)
    published(hand, *numbered(5))
    assert len(first.messages) == 5
    first.drops()
    hand.settle()
    for _ in range(RETRY.retries + 1):
        assert comes(hand, V5, receive_maximum=2).payloads == numbered(2)
        hand.passes(s=TIMEOUT_S + 1)
    assert parked(hand) == [(1, ParkedStage.PARKED), (2, ParkedStage.PARKED)]
    assert comes(hand, V5, receive_maximum=2).payloads == [b"0002", b"0003"]


@pytest.mark.promise("application-6", "application-8")
def test_what_waits_behind_what_is_given_up_is_sent_then(make: Make) -> None:
    """What is owed does not fit into one tick; nothing of it is ever acknowledged."""
    hand = make(RETRY)
    comes(hand).drops()
    hand.settle()
    large = [b"%04d" % number + bytes(150_000) for number in range(5)]
    published(hand, *large)
    comes(hand).drops()
    hand.settle()
    application = comes(hand)
    begun = len(application.messages)
    assert 0 < begun < 5
    for _ in large:
        hand.passes(s=(RETRY.retries + 1) * TIMEOUT_S + 1)
    assert {message.payload for message in application.messages} == set(large)
    assert len(parked(hand)) == 5


@pytest.mark.promise("application-6")
def test_a_live_mqtt_5_client_has_to_come_again_for_it(hand: HandDrivenBroker) -> None:
    """On the connection on which it was given up it must not be sent a second time [MQTT-4.4.0-1]."""
    application = comes(hand, V5)
    published(hand, b"x", qos=2)
    for _ in range(RETRY.retries):
        hand.passes(s=TIMEOUT_S + 1)
        application = comes(hand, V5)
    hand.passes(s=TIMEOUT_S + 1)
    assert parked(hand) == [(1, ParkedStage.PARKED)] and not application.closing
    application.forgets()
    assert hand.parking.redrive(hand.state.sessions["app"], None) == 1
    hand.settle()
    assert application.messages == []
    assert application.last(Disconnect).reason_code == ReasonCode.ADMINISTRATIVE_ACTION
    again = comes(hand, V5, acknowledges=True)
    assert again.payloads == [b"x"]
    assert parked(hand) == []


@pytest.mark.promise("application-6")
@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_late_answer_takes_it_from_the_parking_place(
    hand: HandDrivenBroker, version: ProtocolVersion, qos: int
) -> None:
    """Otherwise a redrive would bring the client what it has."""
    application = comes(hand, version)
    published(hand, b"x", qos=qos)
    for _ in range(RETRY.retries + 1):
        hand.passes(s=TIMEOUT_S + 1)
        if application.closing:
            application = comes(hand, version)
    assert len(parked(hand)) == 1
    packet_id = application.messages[0].packet_id
    if qos == 2:
        application.does(Pubrec(packet_id))
        hand.settle()
        assert application.last(Pubrel).packet_id == packet_id
        application.does(Pubcomp(packet_id))
    else:
        application.does(Puback(packet_id))
    hand.settle()
    assert parked(hand) == []
    assert (len(hand.state.sessions["app"].window), floor(hand)) == (0, 1)
    assert not application.closing


@pytest.mark.promise("application-6")
def test_a_late_pubrec_on_another_connection_counts_too(hand: HandDrivenBroker) -> None:
    """The client has got the message when the first connection broke; the id stays its own."""
    published_by(hand, 2, 1)
    first = waits_till_parked(hand)
    packet_id = first.messages[0].packet_id
    first.drops()
    again = comes(hand)
    assert again.messages == []
    again.does(Pubrec(packet_id))
    hand.settle()
    again.drops()
    hand = hand.restarted()
    last = comes(hand, acknowledges=True)
    assert last.messages == []
    assert [release.packet_id for release in last.all(Pubrel)] == [packet_id]
    assert parked(hand) == []


@pytest.mark.promise("application-6")
def test_the_packet_id_of_a_parked_qos_2_message_is_given_to_no_other(hand: HandDrivenBroker) -> None:
    published_by(hand, 2, 1)
    first = waits_till_parked(hand)
    held = first.messages[0].packet_id
    first.drops()
    again = comes(hand, acknowledges=True)
    hand.state.sessions["app"].last_packet_id = held - 1 or 65_535
    published(hand, b"1", b"2", first_id=77)
    assert held not in [message.packet_id for message in again.messages]


@pytest.mark.promise("application-6")
def test_a_pubrel_that_is_never_answered_is_parked_without_its_message(hand: HandDrivenBroker) -> None:
    """The client has the message: redriving it asks for PUBCOMP again, and nothing else."""
    application = comes(hand)
    published(hand, b"x", qos=2)
    packet_id = application.messages[0].packet_id
    application.does(Pubrec(packet_id))
    hand.passes(s=TIMEOUT_S * (RETRY.retries + 1) + 1)
    assert len(application.all(Pubrel)) == 1 + RETRY.retries
    assert parked(hand) == [(1, ParkedStage.PARKED)]
    application.drops()
    hand = hand.restarted()
    again = comes(hand, acknowledges=True)
    assert again.all(Pubrel) == []
    hand.parking.redrive(hand.state.sessions["app"], None)
    hand.settle()
    assert again.messages == []
    assert [release.packet_id for release in again.all(Pubrel)] == [packet_id]
    assert parked(hand) == []


@pytest.mark.promise("application-6")
def test_in_vain_again_is_parked_again(hand: HandDrivenBroker) -> None:
    published_by(hand, 1, 1)
    application = waits_till_parked(hand)
    application.forgets()
    hand.parking.redrive(hand.state.sessions["app"], None)
    hand.settle()
    hand.passes(s=TIMEOUT_S * (RETRY.retries + 1) + 1)
    assert seen(application) == [(b"0000", True)] * (RETRY.retries + 1)
    assert parked(hand) == [(1, ParkedStage.PARKED)]
    assert hand.state.counters.application_parked == 2


@pytest.mark.promise("application-6")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("step", ["parked", "due", "under way", "acknowledged"])
def test_a_crash_at_each_step_loses_and_doubles_nothing(hand: HandDrivenBroker, qos: int, step: str) -> None:
    """`held` is a tick that the crash takes with it; what the client has seen is what was durable before. What it may
    have seen comes again under the same packet id [MQTT-4.4.0-1]."""
    packet_id = 0
    published_by(hand, qos, 1)
    application = comes(hand, acknowledges=False)
    hand.passes(s=TIMEOUT_S * RETRY.retries + 1)
    if step == "parked":
        hand.held = True
    hand.passes(s=TIMEOUT_S)
    assert len(parked(hand)) == (step != "parked")
    application.drops()
    if step != "parked":
        hand.settle()
        hand.held = step == "due"
        hand.parking.redrive(hand.state.sessions["app"], None)
        hand.settle()
        hand.held = step == "under way"
        if step in ("under way", "acknowledged"):
            last = comes(hand, settles=False)
            hand.settle()
            assert len(last.messages) == (step == "acknowledged")
            hand.held = True
            if step == "acknowledged":
                packet_id = last.messages[0].packet_id
                last.does(Puback(packet_id) if qos == 1 else Pubrec(packet_id))
                hand.settle()
    hand = hand.restarted()
    hand.state.sessions["app"].last_packet_id = 40
    again = comes(hand, acknowledges=True)
    if step == "acknowledged":
        assert again.messages[0].packet_id == packet_id
    if step == "due":
        assert again.messages == []
        assert parked(hand) == [(1, ParkedStage.PARKED)]
        return
    assert seen(again) == [(b"0000", True)]
    assert parked(hand) == []
    assert floor(hand) == 1


@pytest.mark.promise("application-6")
def test_a_full_disk_at_parking_changes_nothing_but_the_time(hand: HandDrivenBroker) -> None:
    published_by(hand, 1, 2)
    comes(hand)
    hand.passes(s=TIMEOUT_S * RETRY.retries + 1)
    hand.failures = [StoreFull("no room")]
    hand.passes(s=TIMEOUT_S)
    hand.settle()
    assert hand.state.counters.commits_failed == 1
    assert [number for number, _ in parked(hand)] == [1, 2]
    assert floor(hand) == 2


@pytest.mark.promise("application-6")
def test_no_more_is_parked_than_may_be(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parking, "PARKED_MAX", 2)
    hand = make(RETRY)
    published_by(hand, 1, 3)
    application = waits_till_parked(hand, RETRY)
    assert len(parked(hand)) == 2
    assert any("it has 2 messages already" in notice for notice in hand.notices)
    application.forgets()
    hand.passes(s=3 * TIMEOUT_S)
    assert set(seen(application)) == {(b"0002", True)}, "it is sent again without end"
    hand.parking.delete(hand.state.sessions["app"], [1])
    hand.passes(s=2 * TIMEOUT_S)
    assert [number for number, _ in parked(hand)] == [2, 3]


@pytest.mark.promise("application-6")
@pytest.mark.parametrize("version", [V311, V5])
def test_skip_all_goes_on_without_them(make: Make, version: ProtocolVersion) -> None:
    hand = make(SKIP)
    application = comes(hand, version)
    published(hand, b"x", b"y")
    ids = [message.packet_id for message in application.messages]
    hand.passes(s=TIMEOUT_S + 1)
    assert (floor(hand), parked(hand), hand.store.marks) == (2, [], {})
    assert hand.state.counters.application_skipped == 2
    assert not application.closing
    application.does(Puback(ids[0]))
    hand.settle()
    application.drops()
    hand.settle()
    assert comes(hand, version).messages == []


@pytest.mark.promise("application-6")
def test_an_mqtt_5_client_whose_window_is_given_up_begins_anew(make: Make) -> None:
    """It can be sent nothing more on that connection [MQTT-3.3.4-9]."""
    hand = make(SKIP)
    application = comes(hand, V5, receive_maximum=2)
    published(hand, *numbered(3))
    assert application.payloads == numbered(2)
    hand.passes(s=TIMEOUT_S + 1)
    assert application.all(Disconnect)
    assert comes(hand, V5, acknowledges=True).payloads == [b"0002"]


@pytest.mark.promise("application-6")
def test_retries_0_parks_nothing(make: Make) -> None:
    hand = make(replace(RETRY, retries=0))
    published_by(hand, 1, 1)
    application = comes(hand)
    hand.passes(s=50 * TIMEOUT_S - 1)
    assert parked(hand) == []
    assert len(application.messages) == 50


@pytest.mark.promise("application-6", "application-9")
@pytest.mark.parametrize("qos", [1, 2])
def test_what_expired_in_the_parking_place_is_not_sent(hand: HandDrivenBroker, qos: int) -> None:
    """QoS 2 is [MQTT-4.3.3-7]: its client may hold the packet id, and would take the next message that gets it for a
    repeat of this one."""
    comes(hand).drops()
    hand.settle()
    publisher = hand.connects("p")
    publisher.does(Publish("t", b"x", qos, 1, properties=Properties(message_expiry_interval=300)))
    hand.settle()
    dispatch(hand)
    application = waits_till_parked(hand)
    sent = [(message.packet_id, True) for message in application.messages[:1]]
    application.drops()
    hand.passes(s=600)
    hand.parking.redrive(hand.state.sessions["app"], None)
    again = comes(hand, acknowledges=True)
    assert [(one.packet_id, one.dup) for one in again.messages] == (sent if qos == 2 else [])
    assert (parked(hand), hand.state.counters.dropped_expired) == ([], 2 - qos)


@pytest.mark.promise("application-2", "application-6")
def test_parked_messages_end_with_their_session(hand: HandDrivenBroker) -> None:
    published_by(hand, 1, 2)
    waits_till_parked(hand).drops()
    assert len(hand.parking) == 2
    hand.connects("app").leaves()
    hand.settle()
    assert (len(hand.parking), parked(hand)) == (0, [])


@pytest.mark.promise("application-7")
def test_a_socket_that_takes_nothing_holds_the_rest_of_the_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is dropped; while it waits it is neither late nor sent twice."""
    hand = HandDrivenBroker(application=ApplicationSettings())
    marks: list[tuple[int, int]] = []
    flush = HandLink.flush

    def fills(link: HandLink) -> None:
        """The socket is full after everything that is written."""
        link.paused = link.paused or bool(link.out and marks)
        flush(link)

    monkeypatch.setattr(HandLink, "flush", fills)
    monkeypatch.setattr(HandLink, "set_water_marks", lambda _, *wanted: marks.append(wanted))
    comes(hand).drops()
    marks.clear()
    hand.settle()
    published(hand, *numbered(25))
    narrow = comes(hand)
    for count in (10, 20, 25):
        assert narrow.paused
        hand.passes(s=2 * TIMEOUT_S)
        assert len(narrow.messages) == count
        narrow.paused = False
        hand.state.durable.writable(hand.state.sessions["app"])
        hand.settle()
    assert narrow.payloads == numbered(25)
    assert marks == [(1280 * 1024, 640 * 1024)]
    assert hand.state.counters.application_resent == 0
    hand.passes(s=TIMEOUT_S)
    assert hand.state.counters.application_resent == 25


@pytest.mark.promise("application-10")
@pytest.mark.parametrize(
    ("settings", "pieces"),
    [
        (ApplicationSettings(), [10, 10, 5]),
        (ApplicationSettings(buffered_msg_count=20), [20, 5]),
        (ApplicationSettings(write_and_flush=True), [1] * 25),
    ],
    ids=["default", "20", "each"],
)
def test_flushes(settings: ApplicationSettings, pieces: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    hand = HandDrivenBroker(application=settings)
    comes(hand).drops()
    hand.settle()
    published(hand, *numbered(25))
    flushed: list[int] = []
    flush = HandLink.flush

    def counted(link: HandLink) -> None:
        before = len(link.messages)
        flush(link)
        if len(link.messages) > before:
            flushed.append(len(link.messages) - before)

    monkeypatch.setattr(HandLink, "flush", counted)
    assert comes(hand).payloads == numbered(25)
    assert flushed == pieces


@pytest.mark.promise("application-13")
def test_no_more_a_second_than_the_rate(make: Make) -> None:
    hand = make(ApplicationSettings(replay_rate=10))
    comes(hand).drops()
    hand.settle()
    published(hand, *numbered(100))
    application = comes(hand, acknowledges=True)
    for second in range(9):
        assert 10 * (second + 1) <= len(application.messages) <= 10 * (second + 1) + 1
        hand.passes(s=1)
    hand.passes(s=1)
    assert application.payloads == numbered(100)
