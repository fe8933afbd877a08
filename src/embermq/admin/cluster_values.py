"""The cluster as operators see it: its nodes, and what those that serve tell of themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from embermq.ports.membership import NodeView


class NodeFigures(Struct, frozen=True, kw_only=True):
    """A node that serves, as it is now. `connections` are those of its slot's clients, by whichever node they came,
    and of members from other slots; `sessions` and `queues` are its slot's. `lag_messages`: records of its slot's log
    that `lagging` has not taken, the slowest of the pipeline's queries and the nodes of other slots, "" when nobody
    reads. `stores` are the servers that it needs, as `/ready` names them: "ok", or why one cannot be reached."""

    node: str
    connections: int
    sessions: int
    queues: int
    lag_messages: int
    lagging: str
    ready: bool
    stores: Mapping[str, str]


class NodeStatus(NodeView, frozen=True, kw_only=True):
    """`figures` are None of a node that stands by, and of one that does not answer."""

    figures: NodeFigures | None = None


class ClusterStatus(Struct, frozen=True, kw_only=True):
    """See `ClusterView`."""

    name: str
    place: str
    nodes: Sequence[NodeStatus]
