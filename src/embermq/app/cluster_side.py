"""This broker's place in its cluster: taken before anything is opened, kept on a thread of its own, given back last.

A cluster has as many slots as nodes may serve, each with stores of its own. A node takes a free one; when there is none
it stands by until there is. Who may write is the stores' to say; here it is decided who should try. So a node whose
lease is over, since etcd was away or the process stood still, serves on and registers again. One whose place another
node has ends as by SIGKILL: its successor has read the stores, which take nothing of it any more.
"""

from __future__ import annotations

import logging
import math
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from threading import Event, Thread
from typing import NoReturn

from embermq import __version__
from embermq.adapters.alone.membership import MembershipAlone
from embermq.app.config import Settings
from embermq.app.errors import StartError, missing
from embermq.app.slots import node_address
from embermq.cluster.settings import ClusterSettings
from embermq.edge.node_tls import NodeTls
from embermq.edge.settings import Address
from embermq.edge.tls import TlsFileError
from embermq.ports.errors import StoreError, StoreUnavailable
from embermq.ports.membership import (
    ClusterView,
    MemberRefused,
    Membership,
    NodeAbout,
    NodeLease,
    NodeView,
)

LOG = logging.getLogger("embermq")
AWAIT_ETCD_S = 30.0
"""How long a start waits for an etcd that does not answer, which may be starting too."""
OVERDUE_S = 2.0
"""How much longer than its lease a start waits for another node to be out: it may be our own last run, killed."""
RETRY_S = 0.2
RENEWALS = 3
"""So often a lease is renewed in its time, when the answers come."""
TRIES = 2
"""Questions that may stay unanswered in the time between two of those."""


def end_at_once(why: str) -> NoReturn:
    """Say so and end. Nothing is closed: other threads do nothing more, and the stores know of a broker that died."""
    try:
        os.write(2, f"embermq: {why}: the broker ends, another one may serve by now\n".encode())
    finally:
        os._exit(1)


class ClusterSide:
    """`end` is called with why when another node has this one's place, `leased` with each lease. Raises StartError for
    settings that cannot be, and for certificates that cannot be used: a node that stands by need not find out when it
    takes over."""

    def __init__(
        self,
        settings: Settings,
        *,
        end: Callable[[str], object] = end_at_once,
        clock: Callable[[], float] = time.monotonic,
        leased: Callable[[NodeLease], object] = lambda _: None,
    ) -> None:
        self._is_alone = not settings.cluster.etcd
        slots = settings.cluster.slots
        self._slots = range(slots)
        self._serving: Mapping[int, Address] = {}
        """By slot the nodes that have one, as they were seen last."""
        self._named: Mapping[int, str] = {}
        """The same for operators."""
        self.secret = b""
        """What the nodes of a cluster with several slots have in common."""
        self.slot = 0
        """The one that this node has, or tries to get."""
        self._ttl_s = float(settings.cluster.lease_ttl_s)
        self._end = end
        self._clock = clock
        self._leased = leased
        self._about = NodeAbout(
            node=settings.cluster.node or platform.node(),
            version=__version__,
            started=datetime.now(UTC).isoformat(),
            host=platform.node(),
            slots_of_cluster=slots,
            listen=settings.cluster.advertise or settings.cluster.listen if slots > 1 else "",
        )
        node_tls(settings.cluster)
        self.membership = open_membership(settings)
        self._lease: NodeLease | None = None
        self._is_registered = False
        self._serves = False
        self._stopped = False
        self.standing_by = ""
        """Behind whom, "" while this node serves or does not know."""
        self._answered_from_s = self._refused_from_s = 0.0
        """Since when etcd has answered, and this node's lease was kept, while it stands by; and since when another
        node has had its id."""
        self._has_told = False
        """Whether people know that etcd does not know of this node."""
        self._due = Event()
        self._keeper = Thread(target=self._keep, name="cluster lease", daemon=True)

    def join(self) -> bool:
        """Be a node of this cluster that serves; False when others have all slots: then this one can `stand_by`. Waits
        for one of this one's own id, its last run, to be out, and raises StartError when it stays.

        Behind an outage of etcd it stands by first: a node that serves on has the time of a lease to register again.
        """
        began_s, told, was_away = self._clock(), False, False
        while self._lease is None:
            try:
                if was_away:
                    self._is_behind(self.membership.view().nodes)
                    return False
                self._register()
                self._check_slots(self.membership.view().nodes)
            except MemberRefused as refused:
                if self._is_behind(refused.nodes):
                    return False
                if self._clock() - began_s > self._ttl_s + OVERDUE_S:
                    raise StartError(self._refusal(refused.nodes)) from None
                if not told:
                    LOG.info(
                        "waiting %g s for the node before to be out of the cluster", self._ttl_s + OVERDUE_S
                    )
                told = True
            except StoreUnavailable as error:
                was_away = True
                if self._clock() - began_s > AWAIT_ETCD_S:
                    raise StartError(f"cluster.etcd: {error}") from error
            except StoreError as error:
                raise StartError(f"cluster.etcd: {error}") from error
            if self._lease is None:
                time.sleep(RETRY_S)
        self._begin_to_serve()
        if not self._is_alone:
            self.membership.watch(self._seen)
        return True

    def stand_by(self) -> bool:
        """Be there until the node that serves is out, and take its place: True; False after `stop_waiting`. On a thread
        of the caller's. Raises StartError when another node keeps this one's id.

        An etcd that was away has ended the lease of a node that serves on: so nobody takes its place before etcd has
        answered for the time of a lease, in which that one registers again.
        """
        self.begin_to_stand_by()
        while not self._stopped:
            if self.look_for_place():
                return True
            self._due.wait(self._pause_s())
            self._due.clear()
        return False

    def begin_to_stand_by(self) -> None:
        """Be told of those who are there."""
        self.membership.watch(self._seen)
        self._refused_from_s = self._answered_from_s = self._clock()

    def look_for_place(self) -> bool:
        """Once, and not less often than a lease has to be renewed; see `stand_by`."""
        asked_s = self._clock()
        try:
            if self._takes_place():
                self._begin_to_serve()
                return True
            self._has_told, self._refused_from_s = False, self._clock()
            if self._clock() - asked_s > self._ttl_s / RENEWALS:
                self._answered_from_s = self._clock()
        except MemberRefused as refused:
            if self._clock() - self._refused_from_s > self._ttl_s + OVERDUE_S:
                raise StartError(self._refusal(refused.nodes)) from None
        except StoreError as error:
            if not self._has_told:
                LOG.warning("etcd does not know of this node, which stands by: %s", error)
            self._has_told, self._refused_from_s = True, self._clock()
            self._answered_from_s = self._clock()
        return False

    def _pause_s(self) -> float:
        """Until the lease is to be renewed, or this node may have a slot that is free already."""
        left_s = self._answered_from_s + self._ttl_s - self._clock()
        return min(self._ttl_s / RENEWALS, left_s) if left_s > 0 else self._ttl_s / RENEWALS

    def stop_waiting(self) -> None:
        """End `stand_by` from elsewhere: it returns without a place."""
        self._stopped = True
        self._due.set()

    @property
    def is_stopped(self) -> bool:
        """Whether it was told to stop."""
        return self._stopped

    def _takes_place(self) -> bool:
        """Renew the lease of a node that stands by, and whether nobody serves any more but this one from now on. Raises
        MemberRefused when another node has its id."""
        if self._lease is not None and self.membership.renew(self._lease, self._ttl_s / RENEWALS) <= 0:
            self._lease, self._answered_from_s = None, self._clock()  # it was cut off, or stood still
        if self._lease is None:
            self._lease = self.membership.join(self._about, (), self._ttl_s)
            self._leased(self._lease)
        if self._clock() - self._answered_from_s < self._ttl_s:
            return False
        self._check_slots(self.membership.view().nodes)
        for _ in self._slots:
            try:
                self.membership.claim(self._lease, self._about, (self.slot,))
            except MemberRefused as refused:
                if self._is_behind(refused.nodes):
                    return False
            else:
                return True
        return False

    def _is_behind(self, nodes: Sequence[NodeView]) -> bool:
        """Whether others have all slots; they are told when they are others than before. Else the first free one is
        tried next. Raises StartError."""
        self._check_slots(nodes)
        others = [each for each in nodes if each.about.node != self._about.node]
        serving = {slot: each for each in others for slot in each.slots}
        for slot in self._slots:
            if slot not in serving:
                self.slot = slot
                return False
        whose = ", ".join(dict.fromkeys(_shown(serving[slot].about) for slot in self._slots))
        if whose != self.standing_by:
            self.standing_by = whose
            LOG.info("stands by: node %s serves, this one takes over when it is out", whose)
        return True

    def _check_slots(self, nodes: Sequence[NodeView]) -> None:
        """Clients are shared out by how many slots there are. Raises StartError when another node counts others."""
        for each in nodes:
            if each.about.slots_of_cluster != len(self._slots):
                raise StartError(
                    f"cluster.slots: node {_shown(each.about)} has {each.about.slots_of_cluster}, and this one "
                    f"{len(self._slots)}; all nodes need the same"
                )

    def address_of(self, slot: int) -> Address | None:
        """Of the node that has it, for other nodes; None when nobody has it now."""
        return self._serving.get(slot)

    def name_of(self, slot: int) -> str:
        """Of the node that has it, and its machine, for operators; "" when nobody has it now."""
        return self._named.get(slot, "")

    def _note(self, nodes: Sequence[NodeView]) -> None:
        """How other nodes are reached from now on."""
        if len(self._slots) == 1:
            return
        with suppress(StoreError):  # the next change tells it
            self.secret = self.membership.secret()
        self._named = {
            slot: f"{each.about.node!r} on {each.about.host}" for each in nodes for slot in each.slots
        }
        self._serving = {
            slot: node_address(each.about.listen, f"node {each.about.node!r}")
            for each in nodes
            if each.about.listen
            for slot in each.slots
        }

    def _begin_to_serve(self) -> None:
        if self.standing_by:
            LOG.warning(
                "takes over slot %d: of those that served, one is out: %s", self.slot, self.standing_by
            )
        self.standing_by, self._serves, self._is_registered = "", True, True
        self._has_told = False
        with suppress(StoreError):  # the watch tells it
            self._note(self.membership.view().nodes)
        if not self._is_alone:
            self._keeper.start()

    def _register(self) -> None:
        ttl_s = math.inf if self._is_alone else self._ttl_s
        self._lease = self.membership.join(self._about, (self.slot,), ttl_s)
        self._leased(self._lease)
        self._is_registered = True

    def leave(self) -> None:
        """The stores are closed: another one may begin at once. May be called twice, and without a `join`."""
        self._stopped = True
        self._due.set()
        if self._keeper.is_alive():
            self._keeper.join()
        if self._lease is not None:
            with suppress(StoreError):  # else it ends by itself
                self.membership.leave(self._lease)
        self._lease = None
        self.membership.close()

    def _refusal(self, nodes: Sequence[NodeView]) -> str:
        place = f"cluster.etcd: {self.membership.place}"
        for each in nodes:
            if each.about.node == self._about.node:
                whose = _shown(each.about)
                return f"{place}: has a node {whose}; set cluster.node to a name that no other node has"
        return f"{place}: nodes come and go; start this one again"

    def _keep(self) -> None:
        """Renew the lease until the broker ends, and begin a new one when it is over."""
        pause_s = self._ttl_s / RENEWALS
        while True:
            self._due.wait(pause_s)
            self._due.clear()
            if self._stopped:
                return
            pause_s = self.keep_lease()

    def keep_lease(self) -> float:
        """Renew it once, or begin a new one; returns after how many seconds to do that again."""
        every_s = self._ttl_s / RENEWALS
        try:
            # A connection to an etcd that was away has to be made in that time.
            self._renew(every_s if self._has_told else every_s / TRIES)
        except MemberRefused as refused:
            self._look_at(refused.nodes)
            # Else by this node itself: what was seen is old, or an answer did not come.
            self._is_registered = True
            return RETRY_S
        except StoreError as error:
            if not self._has_told:
                LOG.warning("etcd does not know of this node, which serves on: %s", error)
            self._has_told = True
            return RETRY_S
        self._has_told = False
        return every_s

    def _renew(self, wait_s: float) -> None:
        assert self._lease is not None
        # What is seen meanwhile, that etcd has lost this node, is not to be forgotten: so nothing is set that it was.
        if self._is_registered and self.membership.renew(self._lease, wait_s) <= 0:
            self._is_registered = False
        if not self._is_registered:
            self._register()
            LOG.warning("the lease of this node was over: it has registered again")

    def _seen(self, view: ClusterView) -> None:
        """What there is may have changed since. If nobody has this node's slot, it has: it is asked for anew."""
        self._note(view.nodes)
        if not self._serves:
            self._due.set()
            return
        if not any(self.slot in each.slots for each in view.nodes):
            self._is_registered = False
            self._due.set()
        if self._successor(view.nodes) is not None:
            # It may be from before this node has taken over.
            self._look_at(self.membership.view().nodes)

    def _look_at(self, nodes: Sequence[NodeView]) -> None:
        """End when one of these has this node's place."""
        other = self._successor(nodes)
        if other is not None and not self._stopped:
            self._end(f"cluster: node {_shown(other)} has taken over from {self._about.node!r}")

    def _successor(self, nodes: Sequence[NodeView]) -> NodeAbout | None:
        """Who serves in place of this node, or has its id; None when nobody does."""
        for each in nodes:
            is_in_place = self.slot in each.slots or each.about.node == self._about.node
            if is_in_place and each.about != self._about:
                return each.about
        return None


def _shown(about: NodeAbout) -> str:
    return f"{about.node!r} on {about.host}, EmberMQ {about.version}, started {about.started[:19]}Z"


def node_tls(settings: ClusterSettings) -> NodeTls | None:
    """As the files are now; None when nodes speak without. Raises StartError."""
    if not settings.cert:
        return None
    try:
        return NodeTls(settings.cert, settings.ca)
    except TlsFileError as error:
        raise StartError(f"cluster.{error.name}: {error}") from error


def open_membership(settings: Settings) -> Membership:
    """By `cluster.etcd`. Raises StartError."""
    if not settings.cluster.etcd:
        return MembershipAlone()
    try:
        from embermq.adapters.etcd.membership import EtcdMembership
    except ImportError as error:
        raise StartError(f"cluster.etcd needs {missing(error)}") from error
    from embermq.app.store_addresses import etcd_address

    try:
        return EtcdMembership(etcd_address(settings.cluster.etcd))
    except ValueError as error:
        raise StartError(str(error)) from error
