"""Ends the lease of a broker whose process has died: another process beside it, which its kernel tells so.

Who does not reach a node knows nothing of it, so only its lease says that it is out. But when a process is no more,
however it ended, what it had open is closed, and nothing else closes it: the end of a pipe is proof.
"""

from __future__ import annotations

import logging
import mmap
import os
import signal
from contextlib import suppress

from embermq.app.cluster_side import open_membership
from embermq.app.config import Settings
from embermq.ports.errors import StoreError
from embermq.ports.membership import NodeLease

LOG = logging.getLogger("embermq")
PIPE = 3
"""The one descriptor that the guard has, beside the three that every process has."""
LEASE_BYTES = 8


class LeaseGuard:
    """Of a broker in a cluster. To be made before there are threads, locks and connections, since it forks; it holds
    nothing of the broker's. Raises StartError when what it needs is not installed."""

    def __init__(self, settings: Settings) -> None:
        open_membership(settings).close()  # loaded now, it is there at once when it is needed
        self._lease = mmap.mmap(-1, LEASE_BYTES)
        """The broker's lease, which all of these processes see."""
        reads, self._writes = os.pipe()
        try:
            is_guard = not os.fork()
        except OSError as error:
            LOG.warning(
                "no process to end this node's lease when it dies: the lease ends by itself: %s", error
            )
            is_guard = False
        if is_guard:
            try:
                _stay(reads)
                _guard(settings, self._lease)
            finally:
                os._exit(0)
        os.close(reads)

    def note(self, lease: NodeLease) -> None:
        """This is the broker's lease from now on."""
        self._lease[:] = lease.id.to_bytes(LEASE_BYTES)


def _stay(reads: int) -> None:
    """Whatever ends the broker does not end this, and nobody waits for anything that it has open."""
    os.setsid()
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for at in range(PIPE):
        os.dup2(nothing, at)
    os.dup2(reads, PIPE)
    os.closerange(PIPE + 1, os.sysconf("SC_OPEN_MAX"))


def _guard(settings: Settings, lease: mmap.mmap) -> None:
    """Two processes: one waits for the broker's end, and the other makes a new one when that is killed. So there is one
    left, whichever of the two somebody kills."""
    is_killed = True
    while is_killed and (guard := os.fork()):
        is_killed = os.WIFSIGNALED(os.waitpid(guard, 0)[1])
    if not is_killed:
        return
    os.read(PIPE, 1)
    if number := int.from_bytes(lease[:]):
        membership = open_membership(settings)
        with suppress(StoreError):  # it ends by itself
            membership.leave(NodeLease(number, 0.0))
