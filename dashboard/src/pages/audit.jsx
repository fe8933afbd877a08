import { useState } from "preact/hooks";
import { API, query, useAsked } from "../api.js";
import { Head, Pager, Search, State, Table, Time, Waiting, usePages } from "../parts.jsx";

const SIZE = 100;

export function Audit() {
  const [by, setBy] = useState("");
  const pages = usePages({ by });
  const asked = useAsked(`${API}/audit${query({ limit: SIZE, by, ...pages.after })}`, 10);
  const rows = asked.data ?? [];
  return (
    <>
      <Head title="Audit trail" asked={asked} />
      <p class="muted">What was changed by the API, by gRPC and by commands, newest first.</p>
      <div class="filters">
        <Search name="By" value={by} onChange={setBy} about="All of it, such as token deploy or user root" />
      </div>
      <Waiting asked={asked} name="The audit trail" />
      {asked.data && (
        <>
          <Table
            label="Changes"
            rows={rows}
            id={(row) => row.id}
            none={by ? "Nobody of this name has changed anything." : "Nothing was changed."}
            columns={[
              { name: "Operation", isMain: true, cell: (row) => row.operation },
              { name: "Time", cell: (row) => <Time of={row.at} /> },
              { name: "By", cell: (row) => row.by },
              { name: "From", cell: (row) => row.peer || row.over },
              { name: "Outcome", cell: (row) => <State of={row.outcome} good={["done"]} bad={[]} /> },
              { name: "Object", isLong: true, cell: (row) => told(row.object) },
            ]}
          />
          <Pager pages={pages} rows={rows} size={SIZE} after={(row) => ({ after: row.id })} what="change" />
        </>
      )}
    </>
  );
}

const told = (object) =>
  Object.entries(object)
    .map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`)
    .join(", ");
