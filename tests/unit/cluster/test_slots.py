"""Clients are shared out over slots."""

from collections import Counter

from embermq.cluster.slots import own_id, slot_of

IDS = [f"car-{number}" for number in range(6_000)]


def test_clients_are_shared_out_evenly_and_for_good() -> None:
    counts = Counter(slot_of(client_id, 3) for client_id in IDS)
    assert sorted(counts) == [0, 1, 2]
    assert min(counts.values()) > 1_800
    assert [slot_of(client_id, 3) for client_id in ("a", "b", "pump-7", "é", "\udcff")] == [2, 0, 1, 0, 1]
    assert {slot_of(client_id, 1) for client_id in IDS} == {0}


def test_one_slot_more_moves_only_the_clients_that_it_gets() -> None:
    moved = [client_id for client_id in IDS if slot_of(client_id, 3) != slot_of(client_id, 4)]
    assert {slot_of(client_id, 4) for client_id in moved} == {3}
    assert 1_200 < len(moved) < 1_800


def test_an_assigned_id_is_of_the_slot_that_assigns_it() -> None:
    for slot in range(4):
        client_id = own_id("ember-0011223344556677", slot, 4)
        assert client_id.startswith("ember-0011223344556677")
        assert slot_of(client_id, 4) == slot
