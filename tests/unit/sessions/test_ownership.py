"""A client id belongs to the user who made its session."""

from __future__ import annotations

import logging

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink

from embermq.access.authentication.identity import Identity
from embermq.access.authorization.rule_set import RuleSet
from embermq.access.authorization.rules_file import read_rules
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.packets import Connack, Connect, Disconnect, Will
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion

V5, V311, V31 = ProtocolVersion.V5, ProtocolVersion.V311, ProtocolVersion.V31
REFUSED = {V5: ReasonCode.NOT_AUTHORIZED, V311: 5, V31: 5}
EVERYTHING = '[[rule]]\nallow = "all"\n'
TAKEOVER = '[[rule]]\nallow = "takeover"\nuser = "bob"\nclient_id = "ann-*"\n'


def ruled(text: str) -> HandDrivenBroker:
    return HandDrivenBroker(rules=RuleSet(read_rules(text, "r"), no_match_allows=False))


def code(link: HandLink) -> int:
    return link.last(Connack).reason_code


def with_messages(hand: HandDrivenBroker, *, user: str = "ann") -> None:
    """A kept session for which two messages wait."""
    link = hand.keeps("ann-1", user=user)
    link.subscribes("t")
    link.drops()
    hand.connects("p", user="p").publishes("t", b"1", b"2")
    hand.settle()


@pytest.mark.parametrize("version", [V5, V311, V31])
@pytest.mark.parametrize("clean_start", [True, False])
@pytest.mark.parametrize("user", ["bob", ""])
def test_nobody_else_gets_a_kept_session(version: ProtocolVersion, clean_start: bool, user: str) -> None:
    hand = HandDrivenBroker()
    with_messages(hand)
    hand = hand.restarted()
    bob = hand.connects("ann-1", version=version, clean_start=clean_start, user=user)
    assert code(bob) == REFUSED[version] and bob.ended
    assert hand.state.counters.connects_denied == 1
    ann = hand.keeps("ann-1", user="ann")
    assert ann.payloads == [b"1", b"2"]


def test_nor_cuts_off_who_is_connected_without_one() -> None:
    hand = HandDrivenBroker()
    ann = hand.connects("ann-1", user="ann", will=Will("t", b"gone", 1, False))
    watcher = hand.connects("w", user="w")
    watcher.subscribes("t")
    assert code(hand.connects("ann-1", user="bob")) == ReasonCode.NOT_AUTHORIZED
    assert not ann.ended and watcher.payloads == []
    again = hand.connects("ann-1", user="ann")
    assert code(again) == 0 and ann.last(Disconnect).reason_code == ReasonCode.SESSION_TAKEN_OVER
    again.leaves()
    assert code(hand.connects("ann-1", user="bob")) == 0, "nobody has it now"


def test_a_session_that_is_over_is_nobodys() -> None:
    hand = HandDrivenBroker()
    hand.connects("c", user="ann", expiry_s=60).drops()
    hand.settle()
    hand.state.tick.now_ms += 60_000
    assert code(hand.connects("c", user="bob")) == 0


def test_one_without_a_user_belongs_to_the_first_who_comes(caplog: pytest.LogCaptureFixture) -> None:
    hand = HandDrivenBroker()
    with_messages(hand, user="")
    assert code(hand.keeps("ann-1")) == 0
    with caplog.at_level(logging.INFO, "embermq"):
        assert hand.keeps("ann-1", user="ann").last(Connack).session_present
    assert "the session of client 'ann-1' had no user and belongs to 'ann' from now on" in caplog.messages
    hand = hand.restarted()
    assert code(hand.keeps("ann-1", user="bob")) == ReasonCode.NOT_AUTHORIZED
    assert code(hand.keeps("ann-1")) == ReasonCode.NOT_AUTHORIZED


def test_a_rule_lets_another_user_in_and_it_stays_its_owners() -> None:
    hand = ruled(TAKEOVER + '[[rule]]\ndeny = "receive"\nuser = "bob"\n' + EVERYTHING)
    with_messages(hand)
    assert code(hand.keeps("ann-1", user="eve")) == ReasonCode.NOT_AUTHORIZED
    bob = hand.keeps("ann-1", user="bob")
    assert bob.last(Connack).session_present
    assert bob.payloads == [], "his own rights count while he is connected"
    bob.drops()
    hand.connects("p", user="p").publishes("t", b"3")
    hand.settle()
    ann = hand.keeps("ann-1", user="ann")
    assert ann.last(Connack).session_present and ann.payloads == [b"3"]
    assert code(hand.keeps("other", user="ann")) == 0
    assert code(hand.keeps("other", user="bob")) == ReasonCode.NOT_AUTHORIZED


def test_a_rule_about_everything_is_none_about_takeovers() -> None:
    hand = ruled(EVERYTHING)
    with_messages(hand)
    assert code(hand.keeps("ann-1", user="bob")) == ReasonCode.NOT_AUTHORIZED


def test_rules_about_client_ids() -> None:
    own = '[[rule]]\nallow = "connect"\nclient_id = ["%u", "%u-*"]\n'
    hand = ruled(own + EVERYTHING)
    for user, client_id, allowed in (
        ("ann", "ann", True),
        ("ann", "ann-1", True),
        ("ann", "anna", False),
        ("bob", "ann-1", False),
        ("*", "ann-1", False),
        ("*", "*-1", True),
        ("", "-1", False),
    ):
        link = hand.connects(client_id, user=user)
        assert (code(link) == 0) is allowed, (user, client_id)
        link.drops()


@pytest.mark.parametrize("connected", [True, False])
def test_an_operator_gives_a_session_to_another_user(connected: bool) -> None:
    hand = HandDrivenBroker()
    with_messages(hand)
    ann = hand.keeps("ann-1", user="ann", acknowledges=False) if connected else None
    told: list[bool] = []
    session = hand.state.sessions["ann-1"]
    assert hand.broker.connecting.give(session, "ann-2025", lambda: told.append(True))
    assert told == []
    hand.settle()
    assert told == [True]
    if ann is not None:
        assert ann.last(Disconnect).reason_code == ReasonCode.NOT_AUTHORIZED
        ann.drops()
    hand = hand.restarted()
    assert code(hand.keeps("ann-1", user="ann")) == ReasonCode.NOT_AUTHORIZED
    heir = hand.keeps("ann-1", user="ann-2025")
    assert heir.last(Connack).session_present and heir.payloads == [b"1", b"2"]


def test_what_is_published_behind_that_is_judged_by_the_new_owners_rights() -> None:
    """The connection of who was sent away may not have ended yet."""
    hand = ruled('[[rule]]\ndeny = "receive"\nuser = "bob"\n' + EVERYTHING)
    hand.keeps("c", user="bob").subscribes("t")
    publisher = hand.connects("p", user="p")
    assert hand.broker.connecting.give(hand.state.sessions["c"], "ann", lambda: None)
    publisher.publishes("t", b"1")
    hand.settle()
    assert hand.keeps("c", user="ann").payloads == [b"1"]


@pytest.mark.parametrize("user", ["ann", "bob"])
def test_who_is_connected_and_may_stay_leaves_its_certificate_for_the_time_without_it(user: str) -> None:
    by_certificate = '[[rule]]\nallow = "read"\ncertificate = "CN=*"\n'
    hand = ruled(TAKEOVER + by_certificate + '[[rule]]\nallow = "publish"\n')
    link = hand.keeps("ann-1", user="ann", certificate="CN=ann")
    link.subscribes("t")
    if user == "bob":
        link = hand.keeps("ann-1", user="bob", certificate="CN=bob")
    assert hand.broker.connecting.give(hand.state.sessions["ann-1"], user, lambda: None)
    link.drops()
    hand.connects("p", user="p").publishes("t", b"1")
    hand.settle()
    assert hand.keeps("ann-1", user=user, certificate="CN=x").payloads == [b"1"]


def test_a_session_that_is_not_kept_cannot_be_given() -> None:
    hand = HandDrivenBroker()
    hand.connects("c", user="ann")
    assert not hand.broker.connecting.give(hand.state.sessions["c"], "bob", lambda: None)


def test_a_client_id_that_the_gate_has_given_counts_whatever_the_client_sends() -> None:
    hand = HandDrivenBroker()
    for sent, told in (("", "ann"), ("mine", None)):
        link = HandLink(hand, V5, None)
        link.inbox = []
        identity = Identity("ann", ClientType.DEVICE, "given-id", client_id="ann")
        hand.broker.connect(link, Connect(sent, V5, True, 0, "ann", b"", None, None), identity)
        hand.settle()
        properties = link.last(Connack).properties
        assert properties is not None and properties.assigned_client_identifier == told
        assert list(hand.state.sessions) == ["ann"]


@pytest.mark.parametrize(("verb", "reason"), [("use_server", 0x9C), ("moved_to", 0x9D)])
def test_a_rule_sends_clients_elsewhere(verb: str, reason: int) -> None:
    hand = ruled(
        '[[rule]]\nallow = "connect"\nuser = "operator"\n[[rule]]\ndeny = "connect"\nclient_id = "bad-*"\n'
        f'[[rule]]\n{verb} = "b.example:8883"\nclient_id = ["%u-*", "bad-*"]\n'
        '[[rule]]\nallow = "connect"\n' + EVERYTHING
    )
    sent = hand.connects("ann-1", user="ann")
    said = sent.last(Connack)
    assert (said.reason_code, said.properties and said.properties.server_reference) == (
        reason,
        "b.example:8883",
    )
    assert sent.ended and not hand.state.sessions
    assert code(hand.connects("ann-1", user="ann", version=V311)) == 3
    assert hand.state.counters.connects_sent_elsewhere == 2
    assert code(hand.connects("operator-1", user="operator")) == 0, "the first rule that is about it decides"
    assert code(hand.connects("bad-1", user="bad")) == ReasonCode.NOT_AUTHORIZED
    assert code(hand.connects("other", user="ann")) == 0


def test_a_rule_that_sends_some_elsewhere_keeps_nobody_out() -> None:
    hand = ruled('[[rule]]\nuse_server = "b:1883"\nuser = "ann"\n')
    assert code(hand.connects("c", user="bob")) == 0


def identity(username: str = "ann", *, expires_ms: int = 0, version: int = 0) -> Identity:
    return Identity(username, ClientType.DEVICE, "x", expires_ms, version)


def enters(hand: HandDrivenBroker, link: HandLink, who: Identity) -> None:
    hand.broker.connecting.credentials.hold(link, who)


def test_a_proof_that_ends_ends_its_connection() -> None:
    hand = HandDrivenBroker()
    link = hand.connects("c")
    enters(hand, link, identity(expires_ms=hand.now_ms + 5_000))
    hand.passes(ms=4_999)
    assert link in hand.links
    hand.passes(ms=1)
    assert link.last(Disconnect).reason_code == ReasonCode.NOT_AUTHORIZED
    assert link.ended
    assert hand.state.counters.credentials_expired == 1


def test_mqtt_3_is_just_closed() -> None:
    hand = HandDrivenBroker()
    link = hand.connects("c", version=ProtocolVersion.V311)
    enters(hand, link, identity(expires_ms=hand.now_ms + 5_000))
    hand.passes(ms=5_000)
    assert link.ended
    assert link.all(Disconnect) == []


def test_a_newer_proof_takes_the_place_of_the_older() -> None:
    hand = HandDrivenBroker()
    link = hand.connects("c")
    enters(hand, link, identity(expires_ms=hand.now_ms + 5_000))
    enters(hand, link, identity(expires_ms=hand.now_ms + 60_000))
    hand.passes(ms=59_999)
    assert link in hand.links
    hand.passes(ms=1)
    assert link.ended


def test_a_connection_that_ends_leaves_no_timer() -> None:
    hand = HandDrivenBroker()
    before = len(hand.state.timers)
    link = hand.connects("c")
    enters(hand, link, identity(expires_ms=hand.now_ms + 86_400_000))
    link.leaves()
    hand.settle()
    assert len(hand.state.timers) == before


def test_only_who_is_unwelcome_is_expelled() -> None:
    hand = HandDrivenBroker()
    links = {name: hand.connects(name) for name in ("ann", "bob")}
    for name, link in links.items():
        enters(hand, link, identity(name))
    kept = hand.keeps("away")
    enters(hand, kept, identity("ann"))
    kept.drops()
    hand.settle()
    assert hand.broker.connecting.credentials.expel(lambda who: who.username == "ann") == 1
    hand.settle()
    assert links["ann"].last(Disconnect).reason_code == ReasonCode.NOT_AUTHORIZED
    assert not links["bob"].ended
    assert hand.state.counters.credentials_withdrawn == 1
    assert "away" in hand.state.sessions
