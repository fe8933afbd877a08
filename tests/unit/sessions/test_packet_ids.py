"""Which packet ids a session gives, and which of two was given later."""

import pytest

from embermq.model.client_type import ClientType
from embermq.model.message import Message
from embermq.model.session import SessionRow
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.sessions.packet_ids import later_id, next_packet_id, reserve_packet_id, take_packet_id
from embermq.sessions.session import PACKET_IDS, Delivery, Session


@pytest.mark.parametrize(
    ("one", "other", "later"),
    [
        pytest.param(0, 7, 7, id="none is known"),
        pytest.param(7, 0, 7, id="no other is known"),
        pytest.param(7, 8, 8, id="the other follows"),
        pytest.param(8, 7, 8, id="the other came before"),
        pytest.param(65_535, 1, 1, id="the sequence has begun again"),
        pytest.param(1, 65_535, 1, id="the first of a new sequence"),
        pytest.param(5, 5, 5, id="the same"),
    ],
)
def test_the_later_of_two(one: int, other: int, later: int) -> None:
    assert later_id(one, other) == later


@pytest.mark.parametrize("step", [1, 2, 3, 16])
def test_slots_give_different_ids_and_all_of_them(step: int) -> None:
    given: list[int] = []
    for rest in range(step):
        row = SessionRow("c", 1, 1, ClientType.DEVICE, "", ProtocolVersion.V5, 0, True, 0, 0)
        session = Session(row, persistent=False)
        session.id_step, session.id_rest = step, rest
        count = len([one for one in range(1, PACKET_IDS + 1) if one % step == rest])
        assert count >= PACKET_IDS // step
        ids = [next_packet_id(session) for _ in range(count)]
        assert next_packet_id(session) == ids[0]
        session.last_packet_id = ids[0] + 1  # of a slot that was alone before
        assert next_packet_id(session) % step == rest
        assert take_packet_id(session, ids[3]) == ids[3]
        assert step == 1 or take_packet_id(session, ids[3] + 1) % step == rest
        given += ids
    assert sorted(given) == list(range(1, PACKET_IDS + 1))


@pytest.mark.parametrize("step", [1, 2, 16])
def test_the_window_has_an_id_for_each_place_whatever_is_reserved(step: int) -> None:
    row = SessionRow("c", 1, 1, ClientType.APPLICATION, "", ProtocolVersion.V311, 60, True, 0, 0)
    session = Session(row, persistent=True)
    session.id_step = step
    session.window_max = session.client_window_max = ids = PACKET_IDS // step
    for count in range(1, ids + 1):
        session.last_packet_id = packet_id = count * step
        message = Message("t", b"", 1, False, "p", 0, 0)
        reserve_packet_id(session, Delivery(message, b"", 0, 1, False, (), packet_id=packet_id))
        assert session.window_max == session.client_window_max == ids - count, (
            "to look for one more would never end"
        )
