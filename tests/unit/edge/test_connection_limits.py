"""Counting connections: who may stay, who is told why not, who is closed at once."""

from __future__ import annotations

from embermq.edge.connection_limits import TOLD_MAX, Admission, ConnectionSlot, Room, descriptors
from embermq.edge.settings import ClientSettings
from embermq.model.counters import Counters
from embermq.mqtt.wire.reason_codes import ReasonCode


def admission(**settings: int) -> Admission:
    return Admission(ClientSettings(**settings), Counters())  # type: ignore[arg-type]


def arrived(counts: Admission, host: str = "") -> ConnectionSlot:
    place = counts.arrive()
    assert place is not None
    assert counts.locate(place, host)
    return place


def test_one_too_many_is_told_and_the_next_after_one_left_enters() -> None:
    counts = admission(connections_max=2)
    first, _ = arrived(counts), arrived(counts)
    third = arrived(counts)
    assert third.refusal is ReasonCode.SERVER_BUSY
    assert "too many connections" in third.refusal_text
    counts.leave(third)
    assert arrived(counts).refusal is ReasonCode.SERVER_BUSY
    counts.leave(first)
    counts.leave(first)
    assert counts.connections == 1
    assert arrived(counts).refusal is None


def test_an_address_has_its_own_limit() -> None:
    counts = admission(connections_per_address_max=1)
    mine = arrived(counts, "192.0.2.1")
    assert mine.refusal is None
    assert arrived(counts, "192.0.2.2").refusal is None
    assert arrived(counts, "192.0.2.1").refusal is ReasonCode.QUOTA_EXCEEDED
    assert counts.connections == 2
    assert [arrived(counts).refusal for _ in range(3)] == [None] * 3, "a Unix socket has no address"
    counts.leave(mine)
    assert arrived(counts, "192.0.2.1").refusal is None


def test_the_rate_of_new_connections() -> None:
    counts = admission(connect_rate_max=5)
    refusals = [arrived(counts).refusal for _ in range(10)]
    assert refusals[:5] == [None] * 5
    assert set(refusals[6:]) == {ReasonCode.CONNECTION_RATE_EXCEEDED}


def test_clients_that_take_more_descriptors_are_fewer() -> None:
    one, three = (Admission(ClientSettings(), Counters(), files_each=each) for each in (1, 3))
    assert three.connections_max == one.connections_max // 3 > 0
    assert Admission(ClientSettings(connections_max=7), Counters(), files_each=3).connections_max == 7


def test_in_a_flood_most_are_closed_without_a_word() -> None:
    counters = Counters()
    counts = Admission(ClientSettings(connections_max=1), counters)
    places = [counts.arrive() for _ in range(1_000)]
    told = [place for place in places if place is not None]
    assert len(told) == 1 + TOLD_MAX
    assert (counters.refused_connections_max, counters.refused_untold) == (999, 999 - TOLD_MAX)
    for place in told:
        counts.leave(place)
    assert counts.connections == 0


def test_a_flood_from_one_address_as_well() -> None:
    counters = Counters()
    counts = Admission(ClientSettings(connections_per_address_max=1), counters)
    entered = 0
    for _ in range(1_000):
        place = counts.arrive()
        assert place is not None
        entered += counts.locate(place, "2001:db8::1")
    assert entered == 1 + TOLD_MAX
    assert (counters.refused_address_max, counters.refused_untold) == (999, 999 - TOLD_MAX)
    assert counts.connections == 1


def test_the_limit_of_open_files_is_the_limit_of_connections() -> None:
    assert 0 < admission().connections_max < descriptors(1_048_576)


def test_a_listener_may_have_a_limit_of_its_own() -> None:
    counts = admission(connections_max=3, connections_per_address_max=1)
    small, large = Room(1), Room()
    first = counts.arrive(small)
    assert first is not None and first.refusal is None and counts.locate(first, "10.0.0.1")
    assert counts.is_full(small) and not counts.is_full(large)
    second = counts.arrive(small)
    assert second is not None and second.refusal is ReasonCode.SERVER_BUSY
    counts.leave(second)
    same_address = counts.arrive(large)
    assert same_address is not None and counts.locate(same_address, "10.0.0.1")
    assert same_address.refusal is ReasonCode.QUOTA_EXCEEDED
    counts.leave(same_address)
    assert (small.connections, large.connections, counts.connections) == (1, 0, 1)
    counts.leave(first)
    assert (small.connections, counts.connections) == (0, 0)
    again = counts.arrive(small)
    assert again is not None and again.refusal is None
