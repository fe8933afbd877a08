"""What is left of a broker that is killed ends its lease."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

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


def test_the_lease_that_was_noted_last_is_ended_when_the_whole_group_is_killed(tmp_path: Path) -> None:
    left = tmp_path / "left"
    typed = [sys.executable, "-c", BROKER, str(left)]
    with subprocess.Popen(typed, stdout=subprocess.PIPE, text=True, process_group=0) as broker:
        try:
            assert broker.stdout is not None and broker.stdout.readline() == "ready\n"
            children = Path(f"/proc/{broker.pid}/task/{broker.pid}/children")
            (guard,) = map(int, children.read_text().split())
            wait_until(lambda: os.getsid(guard) == guard, WAIT_S, "it has a session of its own")
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                os.kill(guard, number)
            assert not left.exists()
        finally:
            os.killpg(broker.pid, signal.SIGKILL)
    wait_until(left.exists, WAIT_S, "the lease has ended")
    lease, nothing, *others = left.read_text().split()
    assert (lease, nothing) == ("8", os.devnull)
    assert all(one.startswith("pipe:") for one in others), "it holds what was the broker's"
    wait_until(lambda: not Path(f"/proc/{guard}").exists(), WAIT_S, "it has ended")
