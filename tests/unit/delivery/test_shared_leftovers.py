"""What a crash has left with a session of a shared log although it was done: its packet id is another message's."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.support.hand_driven import HandLink
from tests.unit.delivery.test_shared_readers import Play

from embermq.model.session_writes import QueueState
from embermq.mqtt.wire.packets import Publish, Pubrec, Pubrel

pytestmark = pytest.mark.promise("application-11")


def left(play: Play) -> list[tuple[int, int]]:
    """Offset and state of what is stored as under way."""
    marks = play.hand.store.shared.marks.values()
    return sorted((mark.offset, mark.state) for mark in marks if mark.state != QueueState.DONE)


def under_way(play: Play) -> HandLink:
    """One message is, at offset 0."""
    link = play.comes("one", 0, acknowledges=False)
    play.publishes("t/0", b"held", qos=2)
    return link


def test_of_two_with_one_packet_id_the_newer_one_is_under_way() -> None:
    play = Play()
    link = under_way(play)
    play.publishes("t/0", b"newer", qos=2)
    first, second = link.messages
    link.does(Pubrec(first.packet_id))
    play.hand.settle()
    marks = play.hand.store.shared.marks
    (key,) = [key for key, mark in marks.items() if mark.packet_id == first.packet_id]
    marks[key] = replace(marks[key], packet_id=second.packet_id)
    play = play.crashes()
    back = play.comes("one", acknowledges=False)
    assert (back.payloads, back.all(Pubrel)) == ([b"newer"], [])
    assert left(play) == [(1, QueueState.SENT)]


def test_what_is_parked_is_sent_from_there_alone() -> None:
    play = Play()
    link = under_way(play)
    play.hand.settle()
    (message,) = link.messages
    parked = play.hand.state.sessions["one"].window[message.packet_id]
    play.hand.parking.take_up(play.hand.state.sessions["one"], parked)
    play.hand.settle()
    assert left(play) == [(0, QueueState.SENT)]
    play = play.crashes()
    back = play.comes("one", acknowledges=False)
    play.hand.settle()
    play.hand.passes(s=1)
    assert [one.packet_id for one in back.all(Publish)] == [message.packet_id], "once"
    assert left(play) == []
