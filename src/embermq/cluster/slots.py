"""Which slot a client belongs to: the same for all nodes, without asking anybody."""

from hashlib import blake2b


def slot_of(client_id: str, slots: int) -> int:
    """Of a cluster with so many. By rendezvous hashing: one slot more moves only the clients that it gets."""
    if slots == 1:
        return 0
    name = client_id.encode(errors="surrogateescape")
    return max(range(slots), key=lambda slot: blake2b(name, digest_size=8, salt=slot.to_bytes(2)).digest())


def own_id(assigned: str, slot: int, slots: int) -> str:
    """A client id like the one that was to be assigned, and of this slot."""
    number, client_id = 0, assigned
    while slot_of(client_id, slots) != slot:
        number += 1
        client_id = f"{assigned}-{number}"
    return client_id
