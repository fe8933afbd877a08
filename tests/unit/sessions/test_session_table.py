"""Sessions of absent clients: put away when nothing is owed, loaded when they are needed, the same all the while."""

from __future__ import annotations

import gc
import tracemalloc
from itertools import count

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink

from embermq.access.authorization.rule_set import RuleSet
from embermq.access.authorization.rules_file import read_rules
from embermq.model.client_type import ClientType
from embermq.model.session import SessionRow, SubscriptionRow
from embermq.model.session_writes import QUEUE_SEQ_STEP
from embermq.mqtt.wire.packets import Connack, Suback
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.errors import StoreError
from embermq.ports.sessions import StoredSession, StoredState
from embermq.sessions.absent_session import FILTERS_MAX
from embermq.sessions.session import Session
from embermq.sessions.session_table import NOTED_SPARED

DAY_S = 86_400
V311 = ProtocolVersion.V311
BYTES_MAX = 700
"""Memory of the kept session of an absent client with one filter."""


@pytest.fixture
def hand() -> HandDrivenBroker:
    return HandDrivenBroker()


def is_away(hand: HandDrivenBroker, client_id: str = "s") -> bool:
    """Whether the session is there and not loaded."""
    assert client_id in hand.state.sessions
    return client_id not in {session.client_id for session in hand.state.sessions.loaded}


def subscribed(hand: HandDrivenBroker, *filters: str, qos: int = 1, **options: object) -> HandLink:
    """A client "s" that keeps its session."""
    link = hand.keeps("s", **options)
    for topic_filter in filters:
        link.subscribes(topic_filter, qos=qos)
    hand.settle()
    return link


def goes(hand: HandDrivenBroker, link: HandLink) -> None:
    link.drops()
    hand.passes(s=5)


def test_the_session_of_an_absent_client_is_put_away_and_comes_back_the_same(hand: HandDrivenBroker) -> None:
    link = subscribed(hand, "a/b", "c/+", "$share/g/d/#", user="u", certificate="CN=u")
    before = hand.state.sessions["s"]
    goes_row, subscriptions = before.row(), dict(before.subscriptions)
    size, account, seq = before.subscription_bytes, before.account, before.queue_seq_next
    del before
    goes(hand, link)
    assert is_away(hand)
    assert (len(hand.state.sessions), list(hand.state.sessions), len(hand.state.router)) == (1, ["s"], 3)
    assert (hand.state.quotas.kept, hand.state.quotas.filter_bytes) == (1, size)
    again = hand.state.sessions["s"]
    assert again is hand.state.sessions["s"] and not is_away(hand)
    deadline_ms = again.expires_ms
    assert deadline_ms
    assert again.row() == type(goes_row)(
        *("s", goes_row.generation, 1, ClientType.DEVICE, "u", 5, DAY_S, False),
        *(deadline_ms, goes_row.created_ms, "CN=u"),
    )
    assert again.subscriptions == subscriptions
    assert all(found.holder is again for found in subscriptions.values())
    assert (again.subscription_bytes, again.account, again.queue_seq_next) == (size, account, seq)


def test_one_subscription_and_none(hand: HandDrivenBroker) -> None:
    link = subscribed(hand, "a")
    other = hand.keeps("other")
    other.drops()
    goes(hand, link)
    assert is_away(hand) and is_away(hand, "other")
    assert list(hand.state.sessions["s"].subscriptions) == ["a"]
    assert not hand.state.sessions["other"].subscriptions


@pytest.mark.promise("repositories-1")
def test_messages_for_a_session_that_was_put_away(hand: HandDrivenBroker) -> None:
    goes(hand, subscribed(hand, "a/+"))
    publisher = hand.connects("p")
    assert is_away(hand)
    for number in range(3):
        publisher.publishes("a/b", b"%d" % number, qos=1)
    hand.passes(s=5)
    assert hand.state.sessions["s"].queued == 3
    hand.counts_queues()
    back = hand.keeps("s")
    assert back.last(Connack).session_present
    assert back.payloads == [b"0", b"1", b"2"]


@pytest.mark.promise("repositories-1")
def test_places_in_the_queue_go_on_behind_those_before(hand: HandDrivenBroker) -> None:
    """What is done stays known by its place until the floor has passed it."""
    link = subscribed(hand, "a")
    link.drops()
    hand.connects("p").publishes("a", b"0", qos=1)
    hand.settle()
    goes(hand, hand.keeps("s"))
    hand.state.router.forget()
    hand.passes(s=5)
    assert is_away(hand)
    assert hand.state.sessions["s"].queue_seq_next == 2 * QUEUE_SEQ_STEP


def test_what_is_owed_keeps_the_session_loaded(hand: HandDrivenBroker) -> None:
    subscribed(hand, "a").drops()
    hand.connects("p").publishes("a", b"0", qos=1)
    hand.state.router.forget()
    hand.passes(s=60)
    assert not is_away(hand)
    goes(hand, hand.keeps("s"))
    hand.state.router.forget()
    hand.passes(s=60)
    assert is_away(hand)


def test_a_message_under_way_from_the_client_keeps_the_session_loaded(hand: HandDrivenBroker) -> None:
    link = hand.keeps("s", acknowledges=False)
    link.publishes("a", b"0", qos=2)
    goes(hand, link)
    assert not is_away(hand)


@pytest.mark.promise("repositories-1")
def test_a_session_that_a_remembered_match_holds_is_not_put_away(hand: HandDrivenBroker) -> None:
    """Else the match would go on to name a session that the client does not have any more."""
    link = subscribed(hand, "a")
    publisher = hand.connects("p")
    publisher.publishes("a", b"0", qos=1)
    hand.settle()
    goes(hand, link)
    hand.passes(s=60)
    assert hand.state.router.known("a") is not None
    assert not is_away(hand)
    back = hand.keeps("s")
    publisher.publishes("a", b"1", qos=1)
    hand.settle()
    assert back.payloads == [b"1"]
    goes(hand, back)
    hand.state.router.forget()
    hand.passes(s=5)
    assert is_away(hand)


def test_whoever_holds_a_session_has_the_one_that_counts(hand: HandDrivenBroker) -> None:
    link = subscribed(hand, "a", "b")
    held = hand.state.sessions["s"]
    goes(hand, link)
    hand.passes(s=60)
    assert hand.state.sessions["s"] is held
    assert all(found.holder is held for found in held.subscriptions.values())
    del held
    hand.passes(s=5)
    assert is_away(hand)


def test_what_is_held_for_long_is_looked_at_seldom(
    hand: HandDrivenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Remembered matches hold tens of thousands: a broker at rest would have no rest."""
    link = subscribed(hand, "a")
    held, sessions, looks = hand.state.sessions["s"], hand.state.sessions, list[str]()
    put_away = sessions.put_away

    def look(client_id: str) -> bool:
        looks.append(client_id)
        return put_away(client_id)

    monkeypatch.setattr(sessions, "put_away", look)
    link.drops()
    hand.passes(s=60)
    assert hand.state.sessions["s"] is held
    assert 2 <= len(looks) <= 13
    other = hand.keeps("other")
    other.drops()
    hand.passes(s=2)
    assert is_away(hand, "other"), "it had to wait for those that are held"


@pytest.mark.parametrize("filters", [FILTERS_MAX, FILTERS_MAX + 1])
def test_a_session_with_very_many_filters_stays_loaded(hand: HandDrivenBroker, filters: int) -> None:
    """To load it and put it away again would take long, each time."""
    goes(hand, subscribed(hand, *(f"a/{number}" for number in range(filters))))
    assert is_away(hand) is (filters == FILTERS_MAX)
    hand.state.sessions.get("s")
    again = hand.restarted()
    assert is_away(again) is (filters == FILTERS_MAX)
    again.passes(s=DAY_S)
    assert "s" not in again.state.sessions and not again.store.sessions


def test_a_session_that_somebody_holds_at_the_start_ends_at_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Session] = []

    def hold(session: Session) -> bool:
        held.append(session)
        return True

    monkeypatch.setattr("embermq.intake.broker.is_idle", hold)
    hand = restored(2, expires_ms=HandDrivenBroker().now_ms + 600_000)
    assert list(hand.state.sessions.loaded) == held
    del held[0]
    hand.passes(s=10)
    assert list(hand.state.sessions.loaded) == held
    hand.passes(s=600)
    assert not hand.state.sessions and held[0].dead


@pytest.mark.parametrize("expiry_s", [1, 59, 90, 3_600, 40 * DAY_S])
def test_a_session_that_was_put_away_ends_at_its_time(hand: HandDrivenBroker, expiry_s: int) -> None:
    link = hand.connects("s", clean_start=False, expiry_s=expiry_s)
    link.subscribes("a")
    link.drops()
    hand.passes(s=expiry_s - 1)
    assert "s" in hand.state.sessions
    hand.passes(s=1)
    assert "s" not in hand.state.sessions
    assert (hand.state.counters.sessions_expired, len(hand.state.router), hand.state.quotas.kept) == (1, 0, 0)
    assert not hand.store.sessions and not hand.store.subscriptions
    hand.passes(s=5)
    assert len(hand.state.timers) == 0


def test_one_that_came_back_does_not_end_at_the_time_of_before(hand: HandDrivenBroker) -> None:
    link = hand.connects("s", clean_start=False, expiry_s=3_600)
    goes(hand, link)
    assert is_away(hand)
    hand.passes(s=1_800)
    goes(hand, hand.connects("s", clean_start=False, expiry_s=3_600))
    assert is_away(hand)
    hand.passes(s=3_500)
    assert is_away(hand) or "s" in hand.state.sessions
    hand.passes(s=100)
    assert "s" not in hand.state.sessions


def test_sessions_that_come_and_go_leave_nothing_behind(hand: HandDrivenBroker) -> None:
    for _ in range(2 * NOTED_SPARED):
        hand.keeps("s").drops()
        hand.passes(s=3)
    assert is_away(hand)
    noted = sum(map(len, hand.state.sessions._ends.values()))
    assert noted == hand.state.sessions._noted <= NOTED_SPARED + 2
    hand.passes(s=DAY_S)
    assert "s" not in hand.state.sessions
    assert not hand.state.sessions._ends and hand.state.sessions._noted == 0


def test_very_many_end_in_the_same_minute() -> None:
    hand = restored(2_500, expires_ms=HandDrivenBroker().now_ms + 600_000)
    assert not hand.state.sessions.loaded
    hand.passes(s=601)
    assert not hand.state.sessions
    assert hand.state.counters.sessions_expired == 2_500


def test_rules_that_change_meanwhile_hold_for_it() -> None:
    hand = HandDrivenBroker(rules=RuleSet(read_rules(_rules("a"), "r"), no_match_allows=True))
    goes(hand, subscribed(hand, "#"))
    assert is_away(hand)
    hand.broker.authorize(RuleSet(read_rules(_rules("b"), "r"), no_match_allows=True))
    publisher = hand.connects("p")
    publisher.publishes("a", b"a", qos=1)
    publisher.publishes("b", b"b", qos=1)
    hand.settle()
    assert hand.state.sessions["s"].queued == 1
    assert hand.keeps("s").payloads == [b"a"]


def _rules(denied: str) -> str:
    return f'[[rule]]\ndeny = "receive"\ntopics = ["{denied}"]\n'


def test_it_belongs_to_its_user_still(hand: HandDrivenBroker) -> None:
    goes(hand, subscribed(hand, "a", user="owner"))
    assert is_away(hand)
    assert hand.keeps("s", user="another").last(Connack).reason_code == 0x87
    assert hand.keeps("s", user="owner").last(Connack).session_present


def test_an_operator_gives_and_ends_it(hand: HandDrivenBroker) -> None:
    goes(hand, subscribed(hand, "a", user="owner"))
    done: list[int] = []
    assert hand.broker.connecting.give(hand.state.sessions["s"], "new", lambda: done.append(1))
    hand.passes(s=5)
    assert is_away(hand) and done == [1]
    assert (hand.store.sessions[1].username, hand.state.sessions["s"].username) == ("new", "new")
    hand.broker.connecting.remove(hand.state.sessions["s"], lambda: done.append(2))
    hand.passes(s=5)
    assert done == [1, 2] and not hand.state.sessions and not hand.store.sessions
    assert hand.state.quotas._accounts == {}


def test_it_is_a_member_of_its_shared_subscriptions_still(hand: HandDrivenBroker) -> None:
    goes(hand, subscribed(hand, "$share/g/a"))
    assert is_away(hand)
    hand.connects("p").publishes("a", b"0", qos=1)
    hand.settle()
    assert hand.keeps("s").payloads == [b"0"]


def test_no_local_holds_for_it(hand: HandDrivenBroker) -> None:
    link = hand.keeps("s")
    link.subscribes("a", no_local=True)
    goes(hand, link)
    goes(hand, hand.keeps("s", user="", will=None))
    publisher = hand.keeps("s")
    publisher.publishes("a", b"0", qos=1)
    hand.settle()
    assert publisher.payloads == []


def test_a_subscription_does_not_outrun_the_log_because_it_was_put_away(hand: HandDrivenBroker) -> None:
    """It counted on records of a tick that could not be stored."""
    link = subscribed(hand, "a")
    publisher = hand.connects("p")
    hand.failures = [StoreError("full")]
    publisher.publishes("x", b"0", qos=1)
    link.subscribes("b", qos=1)
    link.drops()
    hand.passes(s=10)
    assert hand.state.sessions["s"].subscriptions["b"].since_offset <= hand.state.log_end
    assert hand.store.subscriptions[1, "b"].since_offset <= hand.state.log_end


@pytest.mark.promise("repositories-1")
def test_what_is_restored_is_loaded_when_it_is_needed(hand: HandDrivenBroker) -> None:
    goes(hand, subscribed(hand, "a", version=V311))
    owed = hand.keeps("owed")
    owed.subscribes("b", qos=1)
    owed.drops()
    hand.connects("p").publishes("b", b"0", qos=1)
    hand.settle()
    hand.keeps("app", client_type=ClientType.APPLICATION).subscribes("c", qos=1)
    hand.keeps("here").subscribes("d", qos=1)
    hand.settle()
    again = hand.restarted()
    assert {session.client_id for session in again.state.sessions.loaded} == {"owed", "app"}
    assert sorted(again.state.sessions) == ["app", "here", "owed", "s"]
    assert not again.store.sessions[4].connected or again.state.tick.session_writes.sessions
    again.connects("p").publishes("a", b"1", qos=1)
    again.settle()
    assert again.keeps("s").payloads == [b"1"]
    assert again.keeps("owed").payloads == [b"0"]
    assert again.keeps("here").last(Connack).session_present


def test_it_subscribes_anew_after_it_was_put_away(hand: HandDrivenBroker) -> None:
    goes(hand, subscribed(hand, "a"))
    back = hand.keeps("s")
    back.subscribes("a", qos=0)
    hand.settle()
    assert back.last(Suback).reason_codes == (0,)
    assert len(hand.state.router) == 1
    hand.connects("p").publishes("a", b"0", qos=1)
    hand.settle()
    assert [message.qos for message in back.messages] == [0]
    back.unsubscribes("a")
    hand.settle()
    assert len(hand.state.router) == 0 and hand.state.quotas.filter_bytes == 0


def test_an_older_session_of_the_same_client_is_dropped_at_the_start() -> None:
    hand = HandDrivenBroker()
    rows = [SessionRow("s", generation, 1, ClientType.DEVICE, "", 5, 60, True, 0, 1) for generation in (9, 7)]
    filters = [SubscriptionRow("new", 1, 0, 0)], [SubscriptionRow("old", 1, 0, 0)]
    stored = [
        StoredSession(row, tuple(own), (), QUEUE_SEQ_STEP, 0, 0)
        for row, own in zip(rows, filters, strict=True)
    ]
    hand.broker.restore(StoredState(stored, generation_reserved=10), [])
    assert hand.state.tick.session_writes.deleted_sessions == [7]
    assert list(hand.state.sessions["s"].subscriptions) == ["new"]
    assert hand.state.sessions["s"].generation == 9


@pytest.mark.parametrize(
    "topic_filter", ["devices/{:07d}/commands", "devices/{:07d}/commands/#", "devices/+/news"]
)
def test_the_session_of_an_absent_client_takes_few_bytes(topic_filter: str) -> None:
    sessions = 5_000
    restored(10, topic_filter=topic_filter)
    gc.collect()
    tracemalloc.start()
    hand = restored(sessions, topic_filter=topic_filter)
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(hand.state.router) == len(hand.state.sessions) == sessions
    assert not any(isinstance(found, Session) for found in hand.state.sessions.loaded)
    assert taken / sessions < BYTES_MAX


def restored(
    sessions: int, *, topic_filter: str = "devices/{:07d}", expires_ms: int = 1 << 42
) -> HandDrivenBroker:
    """A broker that has started with kept sessions, of which none is loaded."""
    hand = HandDrivenBroker()
    stored = (
        StoredSession(
            SessionRow(
                f"device-{number:07d}",
                number,
                1,
                ClientType.DEVICE,
                "user",
                5,
                DAY_S,
                False,
                expires_ms,
                number,
            ),
            (SubscriptionRow(topic_filter.format(number), 1, 0, 1_000 + number),),
            (),
            QUEUE_SEQ_STEP,
            0,
            0,
        )
        for number in count(sessions, -1)
        if number
    )
    hand.broker.restore(
        StoredState([next(stored) for _ in range(sessions)], generation_reserved=sessions + 1), []
    )
    return hand
