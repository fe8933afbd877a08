"""What a message costs the brokers of a cluster, by how many slots it has: `python -m benchmarks.cluster 1 2 3`.

Starts etcd, Redis, Kafka and a node for each slot on loopback, and runs the load `p2p` with kept sessions against one
of the nodes: so all clients of other slots are handed on. CPU is that of all brokers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from string import ascii_lowercase
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
# Packages that were installed have modules of the same names, which would be found instead of these.
for name in ("tests", "examples"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [str(ROOT / name)]

from examples.cluster.stack import running_servers  # noqa: E402

BENCH = Path(sys.executable).parent / "embermq-bench"
DRAIN_S = 120


def main() -> None:
    """Print a line for each number of slots."""
    words = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    words.add_argument("slots", type=int, nargs="+", help="from 1 to 16")
    words.add_argument("--pairs", type=int, default=30)
    words.add_argument("--rate", type=float, default=600.0, help="messages a second")
    words.add_argument("--duration", type=float, default=20.0, help="seconds")
    asked = words.parse_args()
    print("slots  messages in and out a CPU second of all brokers  p50 ms  p99 ms  lost")
    for slots in asked.slots:
        told = measured(slots, asked)
        delivery = told["delivery"]
        assert isinstance(delivery, dict)
        cost, lost = told["messages_per_cpu_s"], told["lost"]
        print(f"{slots:5}  {cost:48,.0f}  {delivery['p50_ms']:6.0f}  {delivery['p99_ms']:6.0f}  {lost:4}")


def measured(slots: int, asked: argparse.Namespace) -> dict[str, object]:
    """What the load generator reports."""
    with running_servers(slots, ascii_lowercase[:slots]) as nodes:
        for node in nodes:
            node.start()
        command = [BENCH, "p2p", "--persistent", "--json", "--port", nodes[0].port, "--drain", DRAIN_S]
        load = ["--pairs", asked.pairs, "--rate", asked.rate, "--duration", asked.duration]
        brokers = ",".join(f"{node.name}={node.pid}" for node in nodes)
        typed = [str(word) for word in (*command, *load, "--pid", brokers)]
        done = subprocess.run(typed, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr or done.stdout)
        found: dict[str, object] = json.loads(done.stdout)
        return found


if __name__ == "__main__":
    main()
