"""What rules change: publishing, subscribing, receiving, retained messages and wills, and changes while it runs."""

from __future__ import annotations

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink, dispatch

from embermq.access.authorization.rule_set import RuleSet
from embermq.access.authorization.rules_file import read_rules
from embermq.access.authorization.settings import AuthorizationSettings
from embermq.formats.log_record import decode_record, iter_frames
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.packets import (
    Connack,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.errors import StoreError
from embermq.sessions.settings import MqttSettings

V5, V311, V31 = ProtocolVersion.V5, ProtocolVersion.V311, ProtocolVersion.V31
APPLICATION = ClientType.APPLICATION


def rules(*lines: str, no_match_allows: bool = False) -> RuleSet:
    """Each line `allow|deny ACTION TOPIC [USER]`."""
    text = ""
    for line in lines:
        word, action, topic, *user = line.split()
        text += f'[[rule]]\n{word} = "{action}"\ntopics = "{topic}"\n' + (
            f'user = "{user[0]}"\n' if user else ""
        )
    return RuleSet(read_rules(text, "r.toml"), no_match_allows=no_match_allows)


def but(*lines: str) -> RuleSet:
    """Everything else is allowed."""
    return rules(*lines, no_match_allows=True)


def under(rule_set: RuleSet, **settings: object) -> HandDrivenBroker:
    return HandDrivenBroker(rules=rule_set, authorization=AuthorizationSettings(**settings))  # type: ignore[arg-type]


def answers(link: HandLink) -> list[tuple[str, int, int]]:
    return [
        (type(packet).__name__, packet.packet_id, packet.reason_code)
        for packet in link.received
        if isinstance(packet, Puback | Pubrec | Pubcomp)
    ]


def counted(hand: HandDrivenBroker) -> tuple[int, int, int]:
    found = hand.state.counters
    return found.publishes_denied, found.subscriptions_denied, found.deliveries_denied


class TestPublish:
    def test_v5_is_told_in_the_order_of_its_messages(self) -> None:
        hand = under(but("deny publish no"))
        listener, publisher = hand.connects("s"), hand.connects("p")
        listener.subscribes("#")
        publisher.does(
            Publish("yes", b"1", 1, 1),
            Publish("no", b"2", 1, 2),
            Publish("no", b"3", 2, 3),
            Publish("no", b"4", 0, 0),
            Publish("yes", b"5", 1, 4),
        )
        hand.settle()
        assert answers(publisher) == [
            ("Puback", 1, 0),
            ("Puback", 2, 0x87),
            ("Pubrec", 3, 0x87),
            ("Puback", 4, 0),
        ]
        assert listener.payloads == [b"1", b"5"]
        assert counted(hand) == (3, 0, 0)
        assert not publisher.closing

    def test_a_denied_message_takes_none_of_the_receive_maximum(self) -> None:
        hand = HandDrivenBroker(rules=but("deny publish no"), mqtt=MqttSettings(receive_maximum=2))
        publisher = hand.connects("p")
        for packet_id in range(1, 8):
            publisher.does(Publish("no", b"", 1 + packet_id % 2, packet_id))
            hand.settle()
        assert [code for _, _, code in answers(publisher)] == [0x87] * 7
        assert publisher.unanswered == 0

    def test_denied_messages_count_for_the_publish_rate(self) -> None:
        """Else a client could send as many of them as it likes."""
        hand = HandDrivenBroker(rules=but("deny publish no"), mqtt=MqttSettings(publish_rate_max=2))
        publisher = hand.connects("p")
        publisher.publishes("no", *[b""] * 100)
        hand.settle()
        codes = [code for _, _, code in answers(publisher)]
        assert 0 < codes.count(0x87) < 100
        assert codes.count(0x97) == 100 - codes.count(0x87)
        assert hand.state.counters.publishes_denied == codes.count(0x87)

    @pytest.mark.parametrize("version", [V31, V311])
    def test_v3_is_acknowledged_and_dropped(self, version: ProtocolVersion) -> None:
        hand = under(but("deny publish no"))
        listener, publisher = hand.connects("s"), hand.connects("p", version=version)
        listener.subscribes("#")
        publisher.does(
            Publish("no", b"1", 1, 1),
            Publish("no", b"2", 2, 2),
            Publish("no", b"3"),
            Publish("yes", b"4", 1, 3),
        )
        hand.settle()
        publisher.does(Pubrel(2))
        hand.settle()
        assert answers(publisher) == [
            ("Puback", 1, 0),
            ("Pubrec", 2, 0),
            ("Puback", 3, 0),
            ("Pubcomp", 2, 0),
        ]
        assert listener.payloads == [b"4"]
        assert counted(hand) == (3, 0, 0)

    def test_a_denied_message_is_answered_also_while_the_store_fails(self) -> None:
        hand = under(but("deny publish no"))
        new, old = hand.connects("new"), hand.connects("old", version=V311)
        hand.failures.append(StoreError("broken"))
        new.does(Publish("yes", b"1", 1, 1), Publish("no", b"2", 1, 2))
        old.does(Publish("no", b"3", 1, 1))
        hand.settle()
        assert answers(new) == [("Puback", 1, 0x83), ("Puback", 2, 0x87)]
        assert answers(old) == [("Puback", 1, 0)]

    def test_a_topic_by_its_alias_is_asked_for_by_its_name(self) -> None:
        hand = under(but("deny publish no"))
        publisher = hand.connects("p")
        publisher.does(
            Publish("no", b"1", 1, 1, properties=Properties(topic_alias=1)),
            Publish("", b"2", 1, 2, properties=Properties(topic_alias=1)),
        )
        hand.settle()
        assert [code for _, _, code in answers(publisher)] == [0x87, 0x87]

    def test_what_was_taken_is_acknowledged_again_when_it_is_denied_by_now(self) -> None:
        hand = under(but())
        publisher = hand.keeps("p")
        publisher.does(Publish("t", b"1", 2, 1))
        hand.settle()
        hand.broker.authorize(but("deny publish t"))
        publisher.does(Publish("t", b"1", 2, 1, dup=True))
        hand.settle()
        publisher.does(Pubrel(1), Publish("t", b"2", 2, 1))
        hand.settle()
        assert answers(publisher) == [
            ("Pubrec", 1, 0x10),
            ("Pubrec", 1, 0),
            ("Pubcomp", 1, 0),
            ("Pubrec", 1, 0x87),
        ]

    def test_a_denied_message_retains_nothing(self) -> None:
        hand = under(but("deny publish no"))
        publisher = hand.connects("p")
        for qos in (0, 1, 2):
            publisher.publishes("no", b"x", qos=qos, retain=True, first_id=qos)
        hand.settle()
        assert len(hand.state.retained) == 0


class TestSubscribe:
    @pytest.mark.parametrize(("version", "code"), [(V5, 0x87), (V311, 0x80), (V31, 1)])
    def test_each_filter_has_its_answer(self, version: ProtocolVersion, code: int) -> None:
        """MQTT 3.1 knows no refusal of a subscription: it is granted, and nothing comes of it."""
        hand = under(rules("allow read yes/#", "allow publish #"))
        listener = hand.connects("s", version=version)
        assert listener.subscribes("yes/a", "no", "#", "yes/#", qos=1) == (1, code, code, 1)
        hand.connects("p").publishes("no", b"x", qos=1)
        hand.settle()
        assert listener.messages == []
        assert len(hand.state.router) == 2
        assert counted(hand) == (0, 2, 0)

    @pytest.mark.parametrize(
        ("asks", "said"),
        [
            ({}, "not allowed to subscribe there"),
            ({"request_problem_information": False}, None),
            ({"maximum_packet_size": 16}, None),
        ],
        ids=["usual", "no problem information", "small packets"],
    )
    def test_the_answer_says_why_to_a_client_that_can_hear_it(
        self, asks: dict[str, int], said: str | None
    ) -> None:
        """[MQTT-3.1.2-29] and [MQTT-3.9.2-1]; which rule it was is nobody's business."""
        hand = under(rules("allow subscribe yes", "deny subscribe secret/#"))
        listener = hand.connects("s", properties=Properties(**asks))  # type: ignore[arg-type]
        assert listener.subscribes("yes") == (2,)
        assert listener.last(Suback).properties is None
        assert listener.subscribes("yes", "secret/plans", "$queue/secret") == (2, 0x87, 0x87)
        properties = listener.last(Suback).properties
        assert (properties.reason_string if properties is not None else None) == said

    def test_a_shared_subscription_is_asked_for_by_its_filter(self) -> None:
        hand = under(rules("allow subscribe yes"))
        listener = hand.connects("s")
        assert listener.subscribes("$share/g/yes", "$share/yes/no") == (2, 0x87)

    def test_a_denied_one_leaves_an_older_one_in_place(self) -> None:
        hand = under(but())
        listener = hand.connects("s")
        listener.subscribes("t")
        hand.broker.authorize(but("deny subscribe t"))
        assert listener.subscribes("t") == (0x87,)
        hand.connects("p").publishes("t", b"x")
        hand.settle()
        assert listener.payloads == [b"x"]


class TestReceive:
    @pytest.mark.parametrize("qos", [0, 1, 2])
    @pytest.mark.parametrize("keeps", [True, False])
    def test_a_wide_subscription_brings_only_what_is_allowed(self, qos: int, keeps: bool) -> None:
        hand = under(but("deny receive secret/#"))
        listener = hand.keeps("s") if keeps else hand.connects("s")
        assert listener.subscribes("#") == (2,)
        publisher = hand.connects("p")
        publisher.releases = True
        publisher.publishes("secret/x", b"1", b"2", qos=qos)
        publisher.publishes("open", b"3", qos=qos, first_id=3)
        hand.settle()
        assert listener.payloads == [b"3"]
        assert counted(hand) == (0, 0, 2)
        if qos == 1:  # nobody is there for it
            assert [code for _, _, code in answers(publisher)] == [0x10, 0x10, 0]

    def test_no_local_is_looked_at_as_well(self) -> None:
        hand = under(but("deny receive t s"))
        one = hand.connects("one", user="s")
        both = hand.connects("both", user="x")
        one.subscribes("t", no_local=True)
        both.subscribes("t", no_local=True)
        both.publishes("t", b"1")
        hand.connects("p").publishes("t", b"2")
        hand.settle()
        assert one.messages == []
        assert both.payloads == [b"2"]
        assert counted(hand) == (0, 0, 2)

    def test_who_may_not_receive_is_not_chosen_in_a_group(self) -> None:
        hand = under(but("deny receive t no"))
        denied, allowed = hand.connects("a", user="no"), hand.connects("b", user="yes")
        for member in (denied, allowed):
            member.subscribes("$share/g/t")
        for qos in (0, 1, 2):
            hand.connects(f"p{qos}").publishes("t", b"1", b"2", qos=qos)
        hand.settle()
        assert denied.messages == []
        assert len(allowed.messages) == 6

    def test_a_group_of_nobody_who_may_is_no_receiver(self) -> None:
        hand = under(but("deny receive t"))
        hand.connects("a").subscribes("$share/g/t")
        publisher = hand.connects("p")
        publisher.publishes("t", b"1")
        hand.settle()
        assert answers(publisher) == [("Puback", 1, 0x10)]

    @pytest.mark.parametrize("qos", [0, 1, 2])
    def test_retained_messages_are_asked_for_one_by_one(self, qos: int) -> None:
        hand = under(but("deny receive secret/#"))
        publisher = hand.connects("p")
        for number, topic in enumerate(("secret/a", "open/a", "secret/b", "open/b")):
            publisher.publishes(topic, topic.encode(), qos=qos, retain=True, first_id=number + 1)
        hand.settle()
        listener = hand.connects("s")
        listener.subscribes("#")
        hand.settle()
        assert sorted(listener.payloads) == [b"open/a", b"open/b"]
        assert counted(hand) == (0, 0, 2)

    def test_an_application_that_may_not_has_no_stamp(self) -> None:
        hand = under(but("deny receive secret/# billing"))
        hand.keeps("a", client_type=APPLICATION, user="billing").subscribes("#")
        hand.keeps("b", client_type=APPLICATION, user="audit").subscribes("#")
        hand.connects("p").publishes("secret/x", b"x")
        hand.settle()
        (batch,) = hand.log.read(0, records_max=10, bytes_max=10_000)
        (record,) = [decode_record(frame) for frame in iter_frames(batch.body)]
        assert [stamp.log for stamp in record.stamps] == ["b"]


class TestWill:
    @pytest.mark.parametrize(("version", "code"), [(V5, 0x87), (V311, 5), (V31, 5)])
    def test_a_denied_will_keeps_its_client_out(self, version: ProtocolVersion, code: int) -> None:
        hand = under(but("deny publish no"))
        link = hand.connects("c", version=version, will=Will("no", b"bye"))
        assert link.last(Connack).reason_code == code
        assert link.ended
        assert "c" not in hand.state.sessions
        assert counted(hand) == (1, 0, 0)

    def test_it_does_not_take_over_the_session_of_the_one_that_is_there(self) -> None:
        hand = under(but("deny publish no"))
        there = hand.connects("c")
        hand.connects("c", will=Will("no", b"bye"))
        assert not there.closing

    def test_it_is_asked_for_again_when_it_goes_out(self) -> None:
        hand = under(but("deny publish x somebody"))
        listener = hand.connects("s")
        listener.subscribes("t")
        denied = hand.connects("a", user="alice", will=Will("t", b"a"))
        allowed = hand.connects("b", user="bob", will=Will("t", b"b"))
        hand.broker.authorize(but("deny publish t alice"))
        denied.drops()
        allowed.drops()
        hand.settle()
        assert listener.payloads == [b"b"]
        assert hand.state.counters.wills_published == 1
        assert counted(hand) == (1, 0, 0)

    @pytest.mark.parametrize("keeps", [True, False])
    def test_after_a_restart_it_is_still_its_clients(self, keeps: bool) -> None:
        hand = under(rules("allow all # alice", "allow all # s"))
        connects = hand.keeps if keeps else hand.connects
        connects("a", user="alice", will=Will("t", b"alice", 1))
        connects("b", user="s", will=Will("t", b"s", 1), certificate="CN=s")
        hand.keeps("s", user="s").subscribes("t")
        hand.state.rules = rules("allow all # s")
        again = hand.restarted()
        again.settle()
        assert again.keeps("s", user="s").payloads == [b"s"]


class TestChange:
    def test_it_holds_for_those_that_are_there(self) -> None:
        hand = under(but())
        listener, publisher = hand.connects("s"), hand.connects("p")
        listener.subscribes("#")
        publisher.publishes("t", b"1")
        hand.settle()
        hand.broker.authorize(but("deny receive t"))
        publisher.publishes("t", b"2")
        hand.settle()
        hand.broker.authorize(but("deny publish t"))
        publisher.publishes("t", b"3")
        hand.settle()
        hand.broker.authorize(but())
        publisher.publishes("t", b"4")
        hand.settle()
        assert listener.payloads == [b"1", b"4"]

    def test_the_same_client_id_as_another_user_starts_with_nothing_remembered(self) -> None:
        """What was decided for one user is not the next one's, neither here nor in what topics have matched."""
        text = '[[rule]]\nallow = "takeover"\n[[rule]]\nallow = "all"\nuser = "trusted"\n'
        text += '[[rule]]\nallow = "read"\nuser = "stranger"\ntopics = "open"\n[[rule]]\nallow = "publish"\n'
        hand = under(RuleSet(read_rules(text, "r"), no_match_allows=False))
        trusted = hand.keeps("c", user="trusted")
        trusted.subscribes("#")
        publisher = hand.connects("p")
        publisher.publishes("secret", b"1")
        hand.settle()
        assert trusted.payloads == [b"1"]
        stranger = hand.keeps("c", user="stranger")
        publisher.publishes("secret", b"2")
        publisher.publishes("open", b"3")
        stranger.publishes("x", b"4")
        hand.settle()
        assert stranger.payloads == [b"3"]
        trusted = hand.keeps("c", user="trusted")
        publisher.publishes("secret", b"5")
        hand.settle()
        assert trusted.payloads == [b"5"]

    def test_the_same_user_with_another_certificate(self) -> None:
        text = '[[rule]]\nallow = "receive"\ncertificate = "CN=new"\n[[rule]]\nallow = ["subscribe", "publish"]\n'
        hand = under(RuleSet(read_rules(text, "r"), no_match_allows=False))
        old = hand.keeps("c", user="u", certificate="CN=old")
        old.subscribes("#")
        publisher = hand.connects("p")
        publisher.publishes("t", b"1")
        hand.settle()
        new = hand.keeps("c", user="u", certificate="CN=new")
        publisher.publishes("t", b"2")
        hand.settle()
        assert (old.payloads, new.payloads) == ([], [b"2"])

    @pytest.mark.parametrize("qos", [1, 2])
    def test_what_is_queued_and_denied_by_now_does_not_arrive(self, qos: int) -> None:
        hand = under(but())
        listener = hand.keeps("s")
        listener.subscribes("#")
        listener.drops()
        publisher = hand.connects("p")
        for number, topic in enumerate(("secret", "open", "secret", "open")):
            publisher.publishes(topic, topic.encode(), qos=qos, first_id=number + 1)
        hand.settle()
        hand.broker.authorize(but("deny receive secret"))
        again = hand.keeps("s")
        assert again.payloads == [b"open", b"open"]
        assert counted(hand) == (0, 0, 2)
        hand.passes(s=1)
        assert hand.state.sessions["s"].queued == 0
        hand.broker.authorize(but())
        assert hand.keeps("s").payloads == []

    @pytest.mark.parametrize("keeps", [True, False])
    def test_what_waits_for_room_and_is_denied_by_now_does_not_arrive(self, keeps: bool) -> None:
        hand = under(but())
        connects = hand.keeps if keeps else hand.connects
        listener = connects("s", receive_maximum=1, acknowledges=False)
        listener.subscribes("#")
        publisher = hand.connects("p")
        for number, topic in enumerate(("open", "secret", "open")):
            publisher.publishes(topic, b"%d" % number, first_id=number + 1)
        hand.settle()
        hand.broker.authorize(but("deny receive secret"))
        listener.acknowledges = True
        listener.does(Puback(listener.messages[0].packet_id))
        hand.settle()
        assert listener.payloads == [b"0", b"2"]

    def test_what_is_in_flight_with_qos_2_ends_without_being_sent_again(self) -> None:
        """The client may have it: PUBREL frees the packet id on its side."""
        hand = under(but())
        listener = hand.keeps("s", acknowledges=False)
        listener.subscribes("#")
        hand.connects("p").publishes("t", b"1", qos=2)
        hand.settle()
        packet_id = listener.messages[0].packet_id
        listener.drops()
        hand.broker.authorize(but("deny receive t"))
        again = hand.keeps("s")
        assert again.messages == []
        assert [packet.packet_id for packet in again.all(Pubrel)] == [packet_id]
        hand.settle()
        assert not hand.state.sessions["s"].window
        assert hand.state.sessions["s"].queued == 0

    @pytest.mark.parametrize("qos", [1, 2])
    def test_what_a_member_may_not_have_any_more_goes_to_another_when_it_leaves(self, qos: int) -> None:
        hand = under(but())
        leaving = hand.keeps("a", user="a", receive_maximum=1, acknowledges=False)
        leaving.subscribes("$share/g/t", identifier=7)
        publisher = hand.connects("p")
        publisher.publishes("t", b"1", b"2", b"3", qos=qos)
        hand.settle()
        other = hand.connects("b", user="b")
        other.subscribes("$share/g/t")
        hand.broker.authorize(but("deny receive t a"))
        leaving.leaves(properties=Properties(session_expiry_interval=0))
        hand.settle()
        assert sorted(other.payloads) == ([b"1", b"2", b"3"] if qos == 1 else [b"2", b"3"])

    def test_what_an_applications_log_holds_and_is_denied_by_now_does_not_arrive(self) -> None:
        hand = under(but())
        application = hand.keeps("a", client_type=APPLICATION)
        application.subscribes("#")
        application.drops()
        publisher = hand.connects("p")
        publisher.publishes("secret", b"1")
        publisher.publishes("open", b"2", first_id=2)
        hand.settle()
        hand.broker.authorize(but("deny receive secret"))
        dispatch(hand)
        back = hand.keeps("a", client_type=APPLICATION)
        hand.settle()
        assert back.payloads == [b"2"]
        assert counted(hand) == (0, 0, 1)

    def test_what_waits_in_the_logs_tail_and_is_denied_by_now_does_not_arrive(self) -> None:
        hand = under(but())
        application = hand.keeps("a", client_type=APPLICATION, receive_maximum=1, acknowledges=False)
        application.subscribes("#")
        publisher = hand.connects("p")
        for packet_id, topic in enumerate(("first", "secret", "open"), 1):
            publisher.publishes(topic, b"%d" % packet_id, first_id=packet_id)
        hand.settle()
        assert application.payloads == [b"1"]
        hand.broker.authorize(but("deny receive secret"))
        application.acknowledges = True
        application.does(Puback(application.messages[0].packet_id))
        hand.settle()
        assert application.payloads == [b"1", b"3"]
        assert counted(hand) == (0, 0, 1)

    def test_a_session_that_is_away_keeps_its_certificate_over_a_restart(self) -> None:
        text = '[[rule]]\nallow = "all"\ncertificate = "CN=gate"\n[[rule]]\nallow = "publish"\n'
        hand = under(RuleSet(read_rules(text, "r"), no_match_allows=False))
        hand.keeps("s", certificate="CN=gate").subscribes("#")
        again = hand.restarted()
        again.connects("p").publishes("t", b"1")
        again.settle()
        assert again.keeps("s", certificate="CN=gate").payloads == [b"1"]

    def test_what_a_crash_left_open_is_dispatched_to_those_who_may(self) -> None:
        hand = under(but())
        for user in ("a", "b"):
            hand.keeps(user, user=user).subscribes("#")
        hand.connects("p").publishes("t", b"1")
        hand.run()  # committed, and not yet in any queue
        hand.state.rules = but("deny receive t a")
        again = hand.restarted()
        assert [again.state.sessions[user].queued for user in ("a", "b")] == [0, 1]
        assert again.keeps("a", user="a").payloads == []
        assert again.keeps("b", user="b").payloads == [b"1"]

    def test_a_subscription_that_waits_for_its_answer(self) -> None:
        """SUBSCRIBE and PUBLISH in one piece, under rules of the same tick."""
        hand = under(rules("allow all t"))
        client = hand.connects("c")
        client.does(Subscribe(1, (Subscription("t", 1, False, False, 0),)), Publish("t", b"1", 1, 1))
        hand.settle()
        assert client.last(Suback).reason_codes == (1,)
        assert client.payloads == [b"1"]


def test_without_rules_nothing_is_asked() -> None:
    hand = HandDrivenBroker()
    link = hand.connects("c", user="u")
    link.subscribes("#")
    link.publishes("t", b"1")
    hand.settle()
    assert hand.state.sessions["c"].permissions is None
    assert link.payloads == [b"1"]
