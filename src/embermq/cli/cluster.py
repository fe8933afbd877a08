"""`embermq cluster`: brokers that know of one another."""

from __future__ import annotations

import msgspec

from embermq.admin import operations as ops
from embermq.app.control import ControlClient
from embermq.cli.control import broker_command
from embermq.cli.terminal import Told, group, shown, table
from embermq.ports.membership import ClusterView, NodeView

HEADINGS = ("node", "host", "version", "started", "slots", "epoch", "lease")
NAMES = 5

app = group("The cluster of a broker.")


@broker_command(app, "status")
def status(broker: ControlClient) -> Told:
    """Show the nodes of the broker's cluster. The columns are its slots of the message log, its epoch, and the seconds
    after which it is out unless it is heard of."""
    found = broker.ask(ops.GET_CLUSTER)
    view = msgspec.convert(found, ClusterView)
    where = f"cluster {view.name}, {view.place}" if view.place else "no cluster: cluster.etcd is not set"
    return Told(found, [where, *table([HEADINGS, *map(_cells, view.nodes)], names=NAMES)])


def _cells(node: NodeView) -> tuple[str, ...]:
    about, left_s = node.about, node.lease_left_s
    return (
        shown(about.node),
        shown(about.host),
        shown(about.version),
        f"{about.started[:19]}Z",
        ",".join(map(str, node.slots)) or "-",
        f"{node.epoch}",
        "-" if left_s is None else f"{left_s:.0f} s",
    )
