"""This broker's place in its cluster: taken before anything is opened, kept on a thread of its own, given back last.

A cluster has one slot so far, so one node at a time. A node whose lease may have ended ends as by SIGKILL, before it
says anything more: to close in order would be to write into what may be another's.
"""

from __future__ import annotations

import logging
import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from threading import Event, Thread
from typing import NoReturn

from embermq import __version__
from embermq.adapters.alone.membership import MembershipAlone
from embermq.app.config import Settings
from embermq.app.errors import StartError
from embermq.app.extras import missing
from embermq.cluster.kept_lease import KeptLease
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
SLOT = 0
"""The one there is."""
AWAIT_ETCD_S = 30.0
"""How long a start waits for an etcd that does not answer, which may be starting too."""
OVERDUE_S = 2.0
"""How much longer than its lease a start waits for another node to be out: it may be our own last run, killed."""
RETRY_S = 0.2


def end_at_once(why: str) -> NoReturn:
    """Say so and end. Nothing is closed: other threads do nothing more, and the stores know of a broker that died."""
    try:
        os.write(2, f"embermq: {why}: the broker ends, another one may serve by now\n".encode())
    finally:
        os._exit(1)


def since_boot_s() -> float:
    """A clock that goes on while the process is stopped, and while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ClusterSide:
    """`check`, which costs next to nothing, returns when this node may answer its clients, and does not return when its
    lease may have ended; None where no lease ends. Raises StartError for settings that cannot be."""

    def __init__(
        self,
        settings: Settings,
        *,
        end: Callable[[str], object] = end_at_once,
        clock: Callable[[], float] = since_boot_s,
    ) -> None:
        self._ttl_s = float(settings.cluster.lease_ttl_s) if settings.cluster.etcd else math.inf
        self._end = end
        self._clock = clock
        self._about = NodeAbout(
            node=settings.cluster.node or platform.node(),
            version=__version__,
            started=datetime.now(UTC).isoformat(),
            host=platform.node(),
        )
        self.membership = _membership(settings)
        self._lease: NodeLease | None = None
        self._kept = KeptLease(0.0, math.inf)
        self._stopped = Event()
        self._keeper = Thread(target=self._keep, name="cluster lease", daemon=True)
        self.check = self._check if settings.cluster.etcd else None

    def join(self) -> None:
        """Be the node of this cluster. Waits for one that is not renewed to be out, and raises StartError for one that
        stays."""
        began_s, told = self._clock(), False
        while self._lease is None:
            asked_s = self._clock()
            try:
                lease = self.membership.join(self._about, (SLOT,), self._ttl_s)
                self._kept = KeptLease(asked_s, lease.ttl_s)
                if self._kept.is_certain(self._clock()):
                    self._lease = lease
                else:  # the answer came too late to be of use
                    self.membership.leave(lease)
            except MemberRefused as refused:
                if self._clock() - began_s > self._ttl_s + OVERDUE_S:
                    raise StartError(self._refusal(refused.nodes)) from None
                if not told:
                    LOG.info(
                        "waiting %g s for the node before to be out of the cluster", self._ttl_s + OVERDUE_S
                    )
                told = True
            except StoreUnavailable as error:
                if self._clock() - began_s > AWAIT_ETCD_S:
                    raise StartError(f"cluster.etcd: {error}") from error
            except StoreError as error:
                raise StartError(f"cluster.etcd: {error}") from error
            if self._lease is None:
                time.sleep(RETRY_S)
        if self.check is not None:
            self._keeper.start()
            self.membership.watch(self._seen)

    def leave(self) -> None:
        """The stores are closed: another one may begin at once. May be called twice, and without a `join`."""
        self._stopped.set()
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
            about = each.about
            whose = f"{about.node!r} on {about.host}, EmberMQ {about.version}, started {about.started[:19]}Z"
            if SLOT in each.slots:
                return (
                    f"{place}: is served by node {whose}. Only one node of a cluster can run so far: stop that one, or "
                    "name another cluster behind the '/', with a Kafka prefix and a Redis of its own"
                )
            if about.node == self._about.node:
                return f"{place}: has a node {whose}; set cluster.node to a name that no other node has"
        return f"{place}: nodes come and go; start this one again"

    def _check(self) -> None:
        if not self._kept.is_certain(self._clock()):
            self._out()

    def _out(self) -> None:
        if not self._stopped.is_set():
            self._end(
                f"cluster: the lease of node {self._about.node!r} may have ended, etcd was not heard of in time"
            )

    def _keep(self) -> None:
        """Renew the lease until the broker ends."""
        kept, lease = self._kept, self._lease
        assert lease is not None
        pause_s = 0.0
        while not self._stopped.wait(max(pause_s, kept.due_s - self._clock())):
            asked_s = self._clock()
            if not kept.is_certain(asked_s):
                self._out()
                return
            try:
                left_s = self.membership.renew(lease, max(0.001, kept.timeout_s(asked_s)))
            except StoreError as error:
                if not pause_s:
                    LOG.warning("the lease of this node is not renewed: %s", error)
                pause_s = RETRY_S
                continue
            pause_s = 0.0
            kept.renewed(asked_s, left_s)
            if left_s <= 0 and not self._stopped.is_set():
                self._end(f"cluster: the lease of node {self._about.node!r} has ended")
                return

    def _seen(self, view: ClusterView) -> None:
        """What an operator has deleted is not ours any more, though the lease goes on."""
        is_there = any(each.about == self._about and SLOT in each.slots for each in view.nodes)
        if not is_there and not self._stopped.is_set():
            self._end(f"cluster: node {self._about.node!r} was taken out of {self.membership.place}")


def _membership(settings: Settings) -> Membership:
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
