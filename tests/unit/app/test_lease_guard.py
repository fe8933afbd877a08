"""What is left of a broker that is killed ends its lease."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.waiting import wait_until

WAIT_S = 60.0
BROKER = """
import os, signal, sys
from pathlib import Path
from embermq.app import lease_guard
from embermq.ports.membership import NodeLease

class Etcd:
    def leave(self, lease):
        left = Path(sys.argv[1])
        held = {os.readlink(f"/proc/self/fd/{at}") for at in range(64) if os.path.lexists(f"/proc/self/fd/{at}")}
        left.with_suffix(".new").write_text(" ".join([str(lease.id), *sorted(held)]))
        left.with_suffix(".new").rename(left)

    def close(self):
        pass

lease_guard.open_membership = lambda settings: Etcd()
held = open(sys.executable)
guard = lease_guard.LeaseGuard(None)
for number in (7, 8):
    guard.note(NodeLease(number, 5.0))
print("ready", flush=True)
signal.pause()
"""


def children(of: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{of}/task/{of}/children").read_text().split()]


def is_there(process: int) -> bool:
    """And is no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("killed", ["none", "the one that makes it", "the guard", "the guard, twice"])
def test_the_lease_that_was_noted_last_is_ended_when_the_whole_group_is_killed(
    tmp_path: Path, killed: str
) -> None:
    left = tmp_path / "left"
    typed = [sys.executable, "-c", BROKER, str(left)]
    with subprocess.Popen(typed, stdout=subprocess.PIPE, text=True, process_group=0) as broker:
        try:
            assert broker.stdout is not None and broker.stdout.readline() == "ready\n"
            (maker,) = children(broker.pid)
            wait_until(lambda: children(maker), WAIT_S, "there are both")
            (guard,) = children(maker)
            assert (os.getsid(maker), os.getsid(guard)) == (maker, maker), "a session of their own"
            for one in (maker, guard):
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    os.kill(one, number)
            if killed == "the one that makes it":
                os.kill(maker, signal.SIGKILL)
            for _ in range(killed.count("guard") + killed.count("twice")):
                before = guard
                os.kill(guard, signal.SIGKILL)
                wait_until(lambda: children(maker) not in ([], [before]), WAIT_S, "there is another")  # noqa: B023
                (guard,) = children(maker)
            assert not left.exists()
        finally:
            os.killpg(broker.pid, signal.SIGKILL)
    wait_until(left.exists, WAIT_S, "the lease has ended")
    lease, nothing, *others = left.read_text().split()
    assert (lease, nothing) == ("8", os.devnull)
    assert all(one.startswith("pipe:") for one in others), "it holds what was the broker's"
    wait_until(lambda: not is_there(guard) and not is_there(maker), WAIT_S, "they have ended")
