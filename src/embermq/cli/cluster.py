"""`embermq cluster`: brokers that know of one another."""

from __future__ import annotations

import msgspec

from embermq.admin import operations as ops
from embermq.admin.values import ClusterStatus, NodeStatus
from embermq.app.control import ControlClient
from embermq.cli.control import broker_command
from embermq.cli.terminal import Told, group, shown, table

HEADINGS = (
    *("node", "host", "version", "started", "slots", "stores"),
    *("epoch", "lease", "connections", "sessions", "queues", "lag"),
)
NAMES = 6

app = group("The cluster of a broker.")


@broker_command(app, "status")
def status(broker: ControlClient) -> Told:
    """Show the nodes of the broker's cluster. The columns are its slots of the message log, the stores that it does not
    reach, its epoch, the seconds after which it is out unless it is heard of, and of what it serves the connections,
    sessions, durable queues, and records of its log that the slowest reader has not taken. `?`: it did not answer."""
    found = broker.ask(ops.GET_CLUSTER)
    view = msgspec.convert(found, ClusterStatus)
    where = f"cluster {view.name}, {view.place}" if view.place else "no cluster: cluster.etcd is not set"
    return Told(found, [where, *table([HEADINGS, *map(_cells, view.nodes)], names=NAMES)])


def _cells(node: NodeStatus) -> tuple[str, ...]:
    about, left_s, figures = node.about, node.lease_left_s, node.figures
    unknown = "?" if node.slots else "-"
    counts: tuple[str, ...] = (unknown,) * 4
    if figures is not None:
        counts = tuple(
            map(str, (figures.connections, figures.sessions, figures.queues, figures.lag_messages))
        )
        away = [name for name, told in figures.stores.items() if not told.startswith("ok")]
        unknown = ",".join(away) or "ok"
    return (
        shown(about.node),
        shown(about.host),
        shown(about.version),
        f"{about.started[:19]}Z",
        ",".join(map(str, node.slots)) or "-",
        shown(unknown),
        f"{node.epoch}",
        "-" if left_s is None else f"{left_s:.0f} s",
        *counts,
    )
