"""Shared subscriptions of applications when a partition goes to another member, or the log is another one."""

from __future__ import annotations

import pytest
from tests.support.stand_in_shared import StandInShared
from tests.unit.delivery.test_shared_readers import LOG, Play

from embermq.delivery.sending import BULK_BYTES_MAX
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.packets import Puback, Pubcomp, Publish, Pubrec, Unsubscribe
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.application_logs import FoundLog

pytestmark = pytest.mark.promise("application-11")


@pytest.fixture
def play() -> Play:
    return Play()


def takes_again(play: Play, name: str) -> None:
    """Its socket takes more."""
    play.hand.state.sessions[name].link.paused = False  # type: ignore[union-attr]
    play.hand.delivery.writable(play.hand.state.sessions[name])
    play.hand.settle()


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_not_sent_when_a_partition_goes_takes_no_room(play: Play, qos: int) -> None:
    """The client's socket was full: QoS 1 is the next member's, QoS 2 stays and is sent as soon as it can be."""
    one = play.comes("one", 0, 1, receive_maximum=2, acknowledges=False)
    two = play.comes("two")
    play.publishes("t/0", b"a", qos=qos, dispatches=False)
    one.bulk_bytes = BULK_BYTES_MAX  # QoS 1 does not wait for the store
    play.feeds.dispatch(play.hand.log, play.logs.names)  # the pack is being stored
    one.paused, one.bulk_bytes = True, 0
    play.give("two", 0)
    play.hand.settle()
    assert one.payloads == []
    takes_again(play, "one")
    assert (one.payloads, two.payloads) == (([], [b"a"]) if qos == 1 else ([b"a"], []))
    if qos == 2:
        (message,) = one.messages
        one.does(Pubrec(message.packet_id))
        play.hand.settle()
        one.does(Pubcomp(message.packet_id))
        play.hand.settle()
    play.publishes("t/1", b"b", qos=qos)
    assert one.payloads[-1:] == [b"b"]


def test_what_is_still_being_stored_when_its_partition_goes_is_not_sent_before_not_even_as_late() -> None:
    play = Play(pack_timeout_s=1)
    one = play.comes("one", 0, 1, acknowledges=False, version=ProtocolVersion.V311)
    play.comes("two")
    play.publishes("t/0", b"a", qos=2, dispatches=False)
    play.hand.held = True
    play.feeds.dispatch(play.hand.log, play.logs.names)
    play.hand.settle()
    play.give("two", 0)
    play.hand.passes(s=3)
    assert one.payloads == []
    play.hand.held = False
    play.hand.finish_commit()
    play.hand.settle()
    assert one.payloads == [b"a"] and not one.messages[0].dup


def test_what_was_not_sent_before_unsubscribe_is_not_owed(play: Play) -> None:
    one, two = play.comes("one", 0, 1, receive_maximum=2, acknowledges=False), play.comes("two")
    play.publishes("t/0", b"a", dispatches=False)
    one.bulk_bytes = BULK_BYTES_MAX  # QoS 1 does not wait for the store
    play.feeds.dispatch(play.hand.log, play.logs.names)  # the pack is being stored
    one.paused, one.bulk_bytes = True, 0
    one.does(Unsubscribe(2, ("$share/g/t/#",)))
    play.hand.settle()
    play.give("two", 0, 1)
    takes_again(play, "one")
    assert (one.payloads, two.payloads, play.hand.store.queue) == ([], [b"a"], {})
    assert play.hand.state.sessions["one"].window == {}


def test_a_log_that_was_missing_and_is_there_again_is_read_from_its_beginning(play: Play) -> None:
    """Although it is as long as the one before."""
    one = play.comes("one", 0, 1)
    play.publishes("t/0", b"a")
    play.logs.found = FoundLog({0: 0, 1: 0}, "made again", True)
    play.feeds.logs.clear()
    assert play.hand.state.shared_logs is not None
    play.hand.state.shared_logs.restored(LOG, "made again")
    play.publishes("t/0", b"b")
    play.give("one", 0, 1)
    assert one.payloads == [b"a", b"b"]


def test_every_member_begins_anew_when_its_log_does(play: Play) -> None:
    """What the one before had under way is not taken for what stands at the same offsets now."""
    one, two = play.comes("one", 0, acknowledges=False), play.comes("two", 1, acknowledges=False)
    play.publishes("t/0", b"a", b"b", qos=2)
    play.publishes("t/1", b"c", b"d", qos=1)
    play.logs.found = FoundLog({0: 0, 1: 0}, "made again", True)
    play.feeds.logs.clear()
    play.member("one").taker.gone("it was deleted")
    play.hand.settle()
    assert [member.read for member in play.feeds.members] == [{}, {}]
    for link in (one, two):
        for message in link.messages:
            link.does(Pubrec(message.packet_id) if message.qos == 2 else Puback(message.packet_id))
    play.hand.settle()
    for message in one.messages:
        one.does(Pubcomp(message.packet_id))
    play.hand.settle()
    play.give("one", 0)
    play.give("two", 1)
    play.publishes("t/0", b"e", b"f", qos=2)
    play.publishes("t/1", b"g", b"h", qos=1)
    assert (one.payloads, two.payloads) == ([b"a", b"b", b"e", b"f"], [b"c", b"d", b"g", b"h"])


@pytest.mark.parametrize("crash", [False, True])
def test_a_shared_log_that_has_lost_its_end_goes_on_there(
    play: Play, crash: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A Kafka that has lost its power: partition 0 has lost two of four records, partition 1 none."""
    one = play.comes("one", 0, 1, acknowledges=False)
    play.publishes("t/0", *(b"a%d" % number for number in range(4)), qos=1)
    play.publishes("t/1", b"b0", b"b1", b"b2", qos=2)
    for message in one.messages:
        if message.payload in (b"b0", b"b2"):
            one.does(Pubrec(message.packet_id), Pubcomp(message.packet_id))
        elif message.topic == "t/0":
            one.does(Puback(message.packet_id))
    play.hand.settle()
    assert (play.committed(0), play.committed(1)) == (4, 1)
    del play.feeds.logs[LOG][0][2:]
    if crash:
        one.drops()
        play = play.crashes()
        one = play.comes("one")
        assert one.payloads == [b"b1"]
    else:
        one.forgets()
        play.member("one").taker.gone("partition 0 ends at 2, 4 was to be read")
        play.hand.settle()
    assert f"the shared log {LOG} has lost its end" in caplog.text
    play.give("one", 0, 1)
    play.publishes("t/0", b"a4", b"a5", b"a6")
    play.publishes("t/1", b"b3")
    assert [payload for payload in one.payloads if payload != b"b1"] == [b"a4", b"a5", b"a6", b"b3"]
    (row,) = play.hand.store.shared.groups.values()
    assert row.identity == "made once"


@pytest.mark.parametrize("crash", [False, True])
def test_what_stands_before_the_end_that_a_shared_log_has_lost_is_delivered_once(
    play: Play, crash: bool
) -> None:
    """Of a0 to a5 it keeps four: a0 and a2 are settled, a1 and a3 are not."""
    one = play.comes("one", 0, 1, acknowledges=False)
    play.publishes("t/0", b"a0", qos=2)
    play.publishes("t/0", b"a1", qos=1)
    play.publishes("t/0", b"a2", qos=2)
    play.publishes("t/0", b"a3", qos=1)
    play.publishes("t/0", b"a4", b"a5", qos=2)
    for message in one.messages:
        if message.qos == 2:
            one.does(Pubrec(message.packet_id), Pubcomp(message.packet_id))
    play.hand.settle()
    assert play.committed(0) == 1
    del play.feeds.logs[LOG][0][4:]
    if crash:
        one.drops()
        play = play.crashes()
        one = play.comes("one")
    else:
        one.forgets()
        play.member("one").taker.gone("partition 0 ends at 4, 6 was to be read")
        play.hand.settle()
    play = play.crashes()  # what is settled stands beside the group as it is now
    one = play.comes("one", 0, 1, acknowledges=True)
    assert one.payloads == [b"a1", b"a3"]
    play.publishes("t/0", b"a6", qos=2)
    play.dispatch(again=True)  # repeats are known by what the log has
    assert one.payloads == [b"a1", b"a3", b"a6", b"a4", b"a5"]


def test_what_another_member_has_under_way_from_the_end_that_is_lost_hides_nothing(play: Play) -> None:
    one, two = play.comes("one", 0, acknowledges=False), play.comes("two", 1, acknowledges=False)
    play.publishes("t/0", b"a0", b"a1")
    play.publishes("t/1", b"b0", b"b1", b"b2", b"b3", qos=2)
    del play.feeds.logs[LOG][0][1:]
    del play.feeds.logs[LOG][1][1:]
    play.member("one").taker.gone("partition 0 ends at 1, 2 was to be read")
    play.hand.settle()
    for link in (one, two):
        link.forgets()
    play.give("one", 0, 1)
    play.publishes("t/1", b"b4", b"b5", b"b6", b"b7", qos=2)
    assert one.payloads == [b"a0", b"b4", b"b5", b"b6", b"b7"], "b0 is the other one's"


@pytest.mark.parametrize(("acknowledged", "crash"), [(False, False), (True, False), (False, True)])
def test_qos_1_that_was_sent_from_the_end_that_is_lost_is_owed_and_hides_nothing(
    play: Play, acknowledged: bool, crash: bool
) -> None:
    one = play.comes("one", 0, 1, acknowledges=False)
    play.publishes("t/0", b"a0", b"a1", b"a2")
    sent = one.messages
    del play.feeds.logs[LOG][0][1:]
    play.member("one").taker.gone("partition 0 ends at 1, 3 was to be read")
    play.hand.settle()
    if acknowledged:
        one.does(*(Puback(message.packet_id) for message in sent))
        play.hand.settle()
    if crash:
        play = play.crashes()
    else:
        one.drops()
        play.hand.settle()
    one = play.comes("one", 0, 1)
    play.publishes("t/0", b"a3", b"a4")
    owed = [] if acknowledged else [(message.payload, message.packet_id) for message in sent[1:]]
    assert [(message.payload, message.packet_id) for message in one.messages if message.dup] == owed
    assert [message.payload for message in one.messages if not message.dup] == [b"a0", b"a3", b"a4"]


def test_what_is_under_way_from_a_log_before_stays_beside_what_the_new_one_has(play: Play) -> None:
    one = play.comes("one", 0, 1, acknowledges=False)
    play.publishes("t/0", b"a", qos=2)
    one.drops()
    play.logs.found = FoundLog({0: 0, 1: 0}, "made again", True)
    play.feeds.logs.clear()
    again = play.crashes()
    two = again.comes("two", 0, 1)
    again.publishes("t/0", b"b", qos=2)
    assert two.payloads == [b"b"]
    back = again.comes("one")
    assert back.payloads == [b"a"]
    assert back.last(Publish).dup


@pytest.mark.parametrize("is_told", [True, False])
def test_a_group_whose_row_is_lost_goes_on_where_it_was(
    play: Play, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Sessions are in another store: theirs outlive the loss of this one. Kafka may have forgotten the group."""
    one = play.comes("one", 0, 1)
    play.publishes("t/0", b"a0", b"a1")
    play.publishes("t/1", b"b0")
    one.drops()
    play.hand.settle()
    play.publishes("t/0", b"a2")
    play.publishes("t/1", b"b1")
    play.hand.store.shared = StandInShared()
    if not is_told:
        play.feeds.told.clear()
    play = play.crashes()
    play.publishes("t/0", b"a3")
    one = play.comes("one", 0)
    trimmed = dict(play.logs.trimmed)
    play.hand.passes(s=3)
    play.hand.shared.poll()
    play.hand.settle()
    assert play.logs.trimmed == trimmed, "nothing is known of partition 1"
    play.give("one", 1)
    had = [] if is_told else [b"a0", b"a1", b"b0"]
    assert sorted(one.payloads) == sorted([*had, b"a2", b"a3", b"b1"])
    assert "how far it had come is not known here" in caplog.text
    play = play.crashes()
    one = play.comes("one", 0, 1)
    play.publishes("t/0", b"a4")
    assert one.payloads == [b"a4"]
    play.hand.passes(s=3)
    play.hand.shared.poll()
    play.hand.settle()
    assert play.hand.shared.committed(LOG) == [{0: 5, 1: 2}]


def test_a_log_is_not_trimmed_behind_a_group_of_which_nothing_is_known(play: Play) -> None:
    play.comes("one", 0, 1).drops()
    play.publishes("t/0", b"a0", b"a1")
    play.hand.store.shared = StandInShared()
    play = play.crashes()
    other = play.hand.keeps("other", client_type=ClientType.APPLICATION)
    other.subscribes("$share/h/t/#")
    play.hand.passes(s=3)
    play.hand.shared.poll()
    play.hand.settle()
    assert play.logs.trimmed == {}
    assert play.comes("one", 0, 1).payloads == [b"a0", b"a1"]
