"""What a node has of other slots, in figures."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from embermq.model.durations import DurationCounts


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
