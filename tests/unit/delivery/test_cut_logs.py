"""Application logs that have lost their end: what was under way goes on with its packet ids."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink, dispatch, numbered
from tests.support.hand_kafka import HandKafka
from tests.unit.delivery.test_fed_readers import comes, committed, publishes

from embermq.delivery.application import fed_readers, log_tail, parking
from embermq.delivery.application.marked_records import CutSearch
from embermq.delivery.application.settings import ApplicationSettings
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.packets import Connack, Puback, Pubcomp, Pubrec, Pubrel
from embermq.ports.errors import StoreError, StoreUnavailable

pytestmark = pytest.mark.promise("application-8")


@pytest.fixture
def kafka() -> HandKafka:
    return HandKafka()


@pytest.fixture
def hand(kafka: HandKafka, monkeypatch: pytest.MonkeyPatch) -> HandDrivenBroker:
    """Tails have no room: what comes is the pipeline's."""
    monkeypatch.setattr(parking, "PARKED_MAX", 1)
    monkeypatch.setattr(log_tail, "BYTES_MAX", 0)
    return HandDrivenBroker(application=ApplicationSettings(max_poll_records=10), kafka=kafka)


def sent(hand: HandDrivenBroker, count: int, *, qos: int) -> tuple[HandLink, list[int]]:
    """A client that has got so many and acknowledges none; their packet ids."""
    application = comes(hand, acknowledges=False)
    publishes(hand, *numbered(count), qos=qos)
    dispatch(hand)
    assert application.payloads == numbered(count)
    return application, [message.packet_id for message in application.messages]


def ids(link: HandLink) -> list[tuple[bytes, int, bool]]:
    return [(message.payload, message.packet_id, message.dup) for message in link.messages]


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_under_way_from_the_end_that_is_lost_comes_again_with_its_packet_ids(
    hand: HandDrivenBroker, kafka: HandKafka, qos: int, crash: bool
) -> None:
    """Of six the log has kept three; the second, the fifth, and of QoS 2 the PUBREC of the sixth were answered."""
    application, packet_ids = sent(hand, 6, qos=qos)
    for at in (1, 4):
        application.does(
            *([Puback(packet_ids[at])] if qos == 1 else [Pubrec(packet_ids[at]), Pubcomp(packet_ids[at])])
        )
    if qos == 2:
        application.does(Pubrec(packet_ids[5]))
    hand.settle()
    application.drops()
    hand.settle()
    del kafka.log_of("app").entries[3:]
    if crash:
        hand = hand.restarted()
    again = comes(hand)
    left = [0, 2, 3] if qos == 2 else [0, 2, 3, 5]
    assert ids(again) == [(b"%04d" % at, packet_ids[at], True) for at in left]
    assert len(again.all(Pubrel)) == (len(left) + 1 if qos == 2 else 0)
    assert hand.applications.lost == 0
    publishes(hand, b"new", qos=qos)
    kafka.carry(6)
    hand.settle()
    assert again.payloads[-1] == b"new"
    assert committed(hand) == 4
    assert (hand.store.marks, hand.store.parked) == ({}, {})
    hand = hand.restarted()
    assert comes(hand).messages == []


@pytest.mark.parametrize("qos", [1, 2])
def test_a_crash_after_they_were_taken_up_loses_none(
    hand: HandDrivenBroker, kafka: HandKafka, qos: int
) -> None:
    application, packet_ids = sent(hand, 4, qos=qos)
    application.drops()
    hand.settle()
    del kafka.log_of("app").entries[1:]
    wanted = [(b"%04d" % at, packet_ids[at], True) for at in range(4)]
    assert ids(comes(hand, acknowledges=False)) == wanted
    hand = hand.restarted()
    assert ids(comes(hand, acknowledges=False)) == wanted
    publishes(hand, *numbered(4, 4), qos=qos)  # the log gets longer than it was
    dispatch(hand)
    hand = hand.restarted()
    again = comes(hand)
    assert sorted(again.payloads) == numbered(8)
    assert [one for one in ids(again) if one in wanted] == wanted


def test_what_the_message_log_does_not_have_any_more_is_counted(
    hand: HandDrivenBroker, kafka: HandKafka, caplog: pytest.LogCaptureFixture
) -> None:
    application, packet_ids = sent(hand, 4, qos=2)
    application.drops()
    hand.settle()
    del kafka.log_of("app").entries[1:]
    kafka.records.trimmed = {2}
    again = comes(hand)
    assert ids(again) == [(b"%04d" % at, packet_ids[at], True) for at in (0, 1, 3)]
    assert hand.applications.lost == 1
    assert "had 3 messages under way that embermq.msg.app.app has lost: 2 go on, 1 are lost" in caplog.text


def test_repeats_of_what_was_taken_up_are_known(hand: HandDrivenBroker, kafka: HandKafka) -> None:
    """Also of what the client had, and of what was settled out of its turn."""
    application, packet_ids = sent(hand, 5, qos=2)
    application.does(Pubrec(packet_ids[3]), Pubrec(packet_ids[4]), Pubcomp(packet_ids[4]))
    hand.settle()
    application.drops()
    hand.settle()
    del kafka.log_of("app").entries[1:]
    again = comes(hand)
    kafka.carry(*range(5))
    hand.settle()
    assert again.payloads == numbered(3)


@pytest.mark.parametrize("read_through", [0, 5_000])
@pytest.mark.parametrize("count", [4, 8])
def test_a_log_that_has_others_in_their_place_is_known_by_them(
    hand: HandDrivenBroker, kafka: HandKafka, count: int, read_through: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cut and has grown while the client was away, past its end or not."""
    monkeypatch.setattr(fed_readers, "READ_THROUGH", read_through)
    application, packet_ids = sent(hand, count, qos=2)
    application.drops()
    hand.settle()
    del kafka.log_of("app").entries[2:]
    publishes(hand, *numbered(5, count), qos=2)
    dispatch(hand)
    again = comes(hand)
    assert ids(again)[:count] == [(b"%04d" % at, packet_ids[at], True) for at in range(count)]
    hand.settle()
    assert again.payloads == numbered(count + 5)
    assert committed(hand) == 7


def test_a_client_is_not_let_in_while_nobody_knows(
    hand: HandDrivenBroker, kafka: HandKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    application, _ = sent(hand, 2, qos=1)
    application.drops()
    hand.settle()
    kafka.log_of("app").entries.clear()
    answers: list[StoreError] = []

    def refuses(_positions: object, then: object) -> None:
        answers.append(StoreUnavailable("away"))
        kafka.post(lambda: then(answers[-1]))  # type: ignore[operator]

    with monkeypatch.context() as patched:
        patched.setattr(kafka.records, "fetch", refuses)
        waiting = hand.keeps("app", client_type=ClientType.APPLICATION)
        assert (len(answers), waiting.all(Connack)) == (1, [])
        waiting.drops()
        hand.settle()
    assert comes(hand).payloads == numbered(2)


def test_a_client_that_comes_twice_meanwhile_gets_what_was_lost_once(
    hand: HandDrivenBroker, kafka: HandKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is decided for its first connection is not in store yet when the second one is to be let in."""
    application, packet_ids = sent(hand, 4, qos=2)
    application.drops()
    hand.settle()
    del kafka.log_of("app").entries[1:]
    answers: list[Callable[[], None]] = []
    fetch = kafka.records.fetch
    with monkeypatch.context() as patched:
        patched.setattr(kafka.records, "fetch", lambda *asked: answers.append(lambda: fetch(*asked)))
        hand.keeps("app", client_type=ClientType.APPLICATION)
    (answer,) = answers
    hand.held = True
    second = hand.keeps("app", client_type=ClientType.APPLICATION, settles=False)
    hand.run()
    answer()
    kafka.run()
    assert hand.state.tick.writes.parked
    hand.finish_commit()
    kafka.run()
    hand.held = False
    hand.settle()
    assert ids(second) == [(b"%04d" % at, packet_ids[at], True) for at in range(4)]


def test_what_comes_late_from_the_message_log_is_there_when_the_client_comes_again(
    hand: HandDrivenBroker, kafka: HandKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while it is on its way; it is asked for once, and not kept for ever."""
    application, packet_ids = sent(hand, 4, qos=1)
    application.drops()
    hand.settle()
    del kafka.log_of("app").entries[1:]
    asked: list[Callable[[], None]] = []
    fetch = kafka.records.fetch
    monkeypatch.setattr(kafka.records, "fetch", lambda *args: asked.append(lambda: fetch(*args)))
    for _ in range(2):
        hand.keeps("app", client_type=ClientType.APPLICATION).drops()
        hand.settle()
    assert len(asked) == 1
    asked[0]()
    hand.settle()
    hand.passes(s=61)
    hand.keeps("app", client_type=ClientType.APPLICATION).drops()
    hand.settle()
    assert len(asked) == 2
    asked[1]()
    hand.settle()
    assert ids(comes(hand)) == [(b"%04d" % at, packet_ids[at], True) for at in range(4)]
    assert len(asked) == 2


def test_repeats_of_what_was_taken_up_are_known_on_later_connections(
    hand: HandDrivenBroker, kafka: HandKafka
) -> None:
    application, _ = sent(hand, 4, qos=2)
    application.drops()
    hand.settle()
    del kafka.log_of("app").entries[1:]
    comes(hand, acknowledges=False).drops()
    hand.settle()
    again = comes(hand)
    kafka.carry(*range(4))
    hand.settle()
    assert again.payloads == numbered(4)


@pytest.mark.parametrize("read_through", [0, 5_000])
@pytest.mark.parametrize("released", [False, True])
def test_what_was_settled_out_of_its_turn_hides_nothing_in_a_log_that_has_grown_again(
    hand: HandDrivenBroker,
    kafka: HandKafka,
    released: bool,
    read_through: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor does what the client has and waits for PUBREL of."""
    monkeypatch.setattr(fed_readers, "READ_THROUGH", read_through)
    application, packet_ids = sent(hand, 5, qos=2)
    application.does(*(Pubrec(packet_ids[at]) for at in range(0 if released else 1, 4)))
    application.does(*(Pubcomp(packet_ids[at]) for at in (1, 2, 3)))
    if released:
        application.does(Pubrec(packet_ids[4]))
    hand.settle()
    application.drops()
    hand.settle()
    del kafka.log_of("app").entries[0 if released else 1 :]
    publishes(hand, *numbered(6, 5), qos=2)
    dispatch(hand)
    again = comes(hand)
    assert again.payloads == ([] if released else [b"0000", b"0004"]) + numbered(6, 5)
    assert committed(hand) == (6 if released else 7)


@pytest.mark.parametrize("kept", [None, 0, 1, 40, 98, 99])
def test_a_long_log_is_looked_at_in_few_places(
    hand: HandDrivenBroker, kafka: HandKafka, kept: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message is not acknowledged, many behind it are; `kept` of them are left, None for all."""
    monkeypatch.setattr(fed_readers, "READ_THROUGH", 50)
    application, packet_ids = sent(hand, 1, qos=2)
    application.acknowledges = application.releases = True
    publishes(hand, *numbered(99, 1), qos=1)
    dispatch(hand)
    application.drops()
    hand.settle()
    if kept is not None:
        del kafka.log_of("app").entries[kept:]
        publishes(hand, *numbered(100, 100), qos=1)
        dispatch(hand)
    looked: list[CutSearch] = []
    look = CutSearch._look

    def looks(search: CutSearch, at: int) -> None:
        looked.append(search)
        look(search, at)

    monkeypatch.setattr(CutSearch, "_look", looks)
    again = comes(hand)
    hand.settle()
    assert ids(again)[0] == (b"0000", packet_ids[0], True)
    assert again.payloads[1:] == ([] if kept is None else numbered(100, 100))
    assert 1 <= len(looked) <= 8


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("kept", [0, 1])
def test_packet_ids_of_what_is_lost_are_not_the_next_that_are_given(
    hand: HandDrivenBroker, kafka: HandKafka, kept: int, restarts: bool
) -> None:
    """The client may have it, and would take a new message for it."""
    application, packet_ids = sent(hand, 4, qos=2)
    application.drops()
    hand.settle()
    del kafka.log_of("app").entries[kept:]
    hand = hand.restarted()
    kafka.records.trimmed = {1, 2, 3}
    if restarts:
        comes(hand).drops()
        hand.settle()
        hand = hand.restarted()
    again = comes(hand)
    publishes(hand, b"new", qos=2)
    dispatch(hand)
    (new,) = [message for message in again.messages if message.payload == b"new"]
    assert new.packet_id not in packet_ids
