"""Which nodes there are, and which of them should write what: registrations that last as long as their node's lease."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from embermq.ports.errors import StoreError


class NodeAbout(Struct, frozen=True, kw_only=True):
    """What a node says of itself when it joins; times are ISO 8601 in UTC."""

    node: str
    version: str
    started: str
    host: str
    slots_of_cluster: int = 1
    """How many it believes there are; all nodes have to say the same."""
    listen: str = ""
    """`host:port` for other nodes."""


class NodeView(Struct, frozen=True, kw_only=True):
    """A node as the others see it. `epoch` is higher than that of every registration before it. `lease_left_s` is None
    for one whose lease does not end."""

    about: NodeAbout
    epoch: int
    lease_left_s: float | None
    slots: Sequence[int]


class ClusterView(Struct, frozen=True, kw_only=True):
    """All nodes that are there, by id. `place` is where that was asked, without credentials; "" in this process."""

    name: str
    place: str
    nodes: Sequence[NodeView]


class NodeLease(Struct, frozen=True):
    """The lease by which a node keeps its place: it is lost when it was not renewed for `ttl_s`."""

    id: int
    ttl_s: float


class MemberRefused(StoreError):
    """Another one has the node's id, or one of the slots. `nodes` are those that are there."""

    def __init__(self, nodes: Sequence[NodeView]) -> None:
        super().__init__("another node has the id or the slot")
        self.nodes = nodes


class SharedTexts(ABC):
    """Texts by key that all nodes of a cluster have in common, a few megabytes at most. Calls wait as those of
    `Membership` do, and raise StoreUnavailable: what was asked for may have been done. May be called from several
    threads."""

    @abstractmethod
    def put(self, key: str, text: bytes, lasts_s: int) -> bool:
        """Have this one in place of one before, for that time at least and not much longer; 0: until it is deleted.
        False, and nothing is done, when another process has changed it since this one was told of it."""

    @abstractmethod
    def delete(self, key: str) -> bool:
        """Have none, if there is one; False likewise."""

    @abstractmethod
    def watch(self, changed: Callable[[Mapping[str, bytes]], None]) -> None:
        """Have this called with all that there are, before this returns, and with all after every change, as
        `Membership.watch` does; before `put` or `delete` returns, of what it has found or made. One call at a time, on
        any thread, never with what was there before what was told last."""


class Membership(ABC):
    """Of one cluster. Every call but `close` may wait for the service, for a time that the adapter limits, and raises
    StoreUnavailable when it has not answered by then: what was asked for may have been done. May be called from several
    threads.

    A lease that is not renewed for its time to live ends, with all that its node has: not before that time has passed
    since the service took the last renewal, by its own clock.
    """

    name: str
    place: str

    @abstractmethod
    def join(self, about: NodeAbout, slots: Sequence[int], ttl_s: float) -> NodeLease:
        """Register a node and give it these slots, all or nothing. The lease may be longer than was asked for. Raises
        MemberRefused when anybody has its id or one of them."""

    @abstractmethod
    def claim(self, lease: NodeLease, about: NodeAbout, slots: Sequence[int]) -> None:
        """Give these slots to a node that has registered by this lease, all or nothing. Raises MemberRefused when
        another one has one of them, or the lease has ended."""

    @abstractmethod
    def renew(self, lease: NodeLease, timeout_s: float) -> float:
        """Seconds until the lease ends, from when the service was asked; 0 when it has ended, which stays so."""

    @abstractmethod
    def leave(self, lease: NodeLease) -> None:
        """End a lease, if it has not ended."""

    @abstractmethod
    def view(self) -> ClusterView:
        """Who is there, with all that was done before this was called."""

    @abstractmethod
    def watch(self, changed: Callable[[ClusterView], None]) -> None:
        """Have this called with what there is, and with what there is after every change; several changes may be told
        as one. On a thread of the adapter's, one call at a time, until `close`. While the service does not answer
        nothing is told."""

    @abstractmethod
    def secret(self) -> bytes:
        """A random text that nodes of the cluster have in common, made by the first that asks; "" in this process."""

    @abstractmethod
    def texts(self, kind: str) -> SharedTexts | None:
        """Those of one kind; None in this process, whose broker shares nothing."""

    @abstractmethod
    def close(self) -> None:
        """Forget the service. Leases stay until they end. May be called twice."""
