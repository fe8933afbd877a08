"""Slots of a cluster: which one a client, a group or a queue belongs to, the same for all nodes, and their figures."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from msgspec import Struct

from embermq.model.durations import DurationCounts
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


class PeerStatistics(Struct, frozen=True, kw_only=True):
    """Of the node that has `slot`. Of messages of QoS 0: `sent` and `sent_bytes` went to it since this node began to
    serve, `waiting_bytes` it has not read yet. `taken` of its log's messages got a record here, or were delivered
    without one. `away`: how long nothing was heard of a node until the slot had one again that answers; `failovers`
    times it was another one. `given_up`: connections to it that were ended, since it did not answer as it should."""

    slot: int
    is_connected: bool
    sent: int
    sent_bytes: int
    waiting_bytes: int
    taken: int
    round_trips: DurationCounts
    away: DurationCounts
    failovers: int
    given_up: int


class ClusterStatistics(Struct, frozen=True, kw_only=True):
    """Since this node began to serve. Of messages that other slots have taken: `copied` got a record in this node's
    log, `delivered` went to clients without one, `refused` are those that this log does not take. `unsent`: messages of
    QoS 0 that did not go to another node, each node counted. `member_links` are there or being made."""

    copied: int
    delivered: int
    refused: int
    unsent: int
    member_links: int
    peers: Sequence[PeerStatistics] = ()
