"""Which slot a client, a group or a queue belongs to: the same for all nodes, without asking anybody."""

from hashlib import blake2b

from embermq.routing.queue_target import place_of_filter, place_of_queue


def slot_of(client_id: str, slots: int) -> int:
    """Of a cluster with so many. By rendezvous hashing: one slot more moves only the clients that it gets."""
    if slots == 1:
        return 0
    name = client_id.encode(errors="surrogateescape")
    return max(range(slots), key=lambda slot: blake2b(name, digest_size=8, salt=slot.to_bytes(2)).digest())


def slot_of_filter(topic_filter: str, slots: int) -> int:
    """Of a shared subscription, by its group; of one to a queue, by the queue."""
    return slot_of(place_of_filter(topic_filter), slots)


def slot_of_queue(name: str, slots: int) -> int:
    """Dead letters of a queue are in its slot too."""
    return slot_of(place_of_queue(name), slots)


def own_id(assigned: str, slot: int, slots: int) -> str:
    """A client id like the one that was to be assigned, and of this slot."""
    number, client_id = 0, assigned
    while slot_of(client_id, slots) != slot:
        number += 1
        client_id = f"{assigned}-{number}"
    return client_id
