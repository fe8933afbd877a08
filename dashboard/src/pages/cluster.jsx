// Nodes of the broker's cluster, as the service knows them that keeps their leases.
import { API, useAsked } from "../api.js";
import { NONE, count, duration } from "../format.js";
import { Facts, Head, State, Table, Time, Waiting } from "../parts.jsx";

const away = (stores) =>
  Object.entries(stores)
    .filter(([, told]) => !told.startsWith("ok"))
    .map(([name, told]) => `${name}: ${told}`)
    .join("; ");

export function Cluster() {
  const asked = useAsked(`${API}/cluster`);
  const here = useAsked(`${API}/broker`, 0).data;
  const found = asked.data;
  return (
    <>
      <Head title="Cluster" asked={asked} />
      <Waiting asked={asked} name="The cluster" />
      {found && (
        <>
          {found.place === "" ? (
            <p class="muted">This broker serves alone: no cluster is set (<code>cluster.etcd</code>).</p>
          ) : (
            <Facts of={[["Cluster", found.name], ["Kept in", found.place], ["Nodes", count(found.nodes.length)]]} />
          )}
          <Table
            label="Nodes"
            rows={found.nodes}
            id={(row) => row.about.node}
            none="No node is registered."
            columns={[
              { name: "Node", isMain: true, cell: (row) => row.about.node + (here?.node === row.about.node ? " (this one)" : "") },
              { name: "State", cell: (row) => <State of={row.slots.length ? "serves" : "stands by"} good={["serves"]} /> },
              { name: "Slots", cell: (row) => row.slots.join(", ") },
              { name: "Stores", cell: (row) => (row.figures ? away(row.figures.stores) || <State of="ok" good={["ok"]} /> : NONE) },
              { name: "Connections", isNumber: true, cell: (row) => (row.figures ? count(row.figures.connections) : NONE) },
              { name: "Sessions", isNumber: true, cell: (row) => (row.figures ? count(row.figures.sessions) : NONE) },
              { name: "Queues", isNumber: true, cell: (row) => (row.figures ? count(row.figures.queues) : NONE) },
              { name: "Lag", isNumber: true, cell: (row) => (row.figures ? count(row.figures.lag_messages) : NONE) },
              { name: "Epoch", isNumber: true, cell: (row) => row.epoch },
              { name: "Lease ends in", isNumber: true, cell: (row) => (row.lease_left_s === null ? "never" : duration(row.lease_left_s)) },
              { name: "Host", cell: (row) => row.about.host },
              { name: "For other nodes", cell: (row) => row.about.listen || NONE },
              { name: "Version", cell: (row) => row.about.version },
              { name: "Started", cell: (row) => <Time of={row.about.started} /> },
            ]}
          />
        </>
      )}
    </>
  );
}
