"""What a node has of other slots, in figures."""

from __future__ import annotations

from msgspec import Struct


class ClusterStatistics(Struct, frozen=True, kw_only=True):
    """Since this node began to serve. Of messages that other slots have taken: `copied` got a record in this node's
    log, `delivered` went to clients without one, `refused` are those that this log does not take. `unsent`: messages of
    QoS 0 that did not go to another node, each node counted. `member_links` are there or being made."""

    copied: int
    delivered: int
    refused: int
    unsent: int
    member_links: int
