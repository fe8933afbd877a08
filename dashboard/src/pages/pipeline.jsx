import { API, useAsked } from "../api.js";
import { bytes, count, counted, duration } from "../format.js";
import { Facts, Head, State, Table, Time, Waiting } from "../parts.jsx";

const words = (totals) => Object.entries(totals).map(([name, value]) => `${name} ${name === "bytes" ? bytes(value) : count(value)}`).join(", ");

export function Pipeline() {
  const asked = useAsked(`${API}/pipeline`);
  const found = asked.data;
  return (
    <>
      <Head title="Pipeline" asked={asked} />
      <Waiting asked={asked} name="The pipeline" />
      {found && (
        <>
          {found.state === "off" && <p class="notice">The broker starts no pipeline (--no-pipeline, or pipeline.enabled = false), and nothing waits for one.</p>}
          {found.warnings.map((text) => <p key={text} class="notice">{text}</p>)}
          {found.last_error && <p class="notice bad">{found.last_error}</p>}
          <Facts
            of={[
              ["State", <State of={found.state} />],
              found.waits_for && ["Waits for", found.waits_for],
              ["Started", <Time of={found.started_ms} />],
              ["Last report", <Time of={found.updated_ms} />],
              ["Log's end", `offset ${count(found.log_end)}`],
              ["Application logs wait for", counted(found.waiting, "record")],
              ["Restarts of the driver", count(found.driver_restarts)],
              found.spark && ["Spark", found.spark],
              found.java && ["Java", found.java],
              found.host && ["Host", found.host],
            ]}
          />
          <h2>Queries</h2>
          <Table
            label="Queries"
            rows={found.queries}
            id={(row) => row.name}
            none="No query runs."
            columns={[
              { name: "Query", isMain: true, cell: (row) => row.name },
              { name: "State", cell: (row) => <State of={row.state} /> },
              { name: "Position, offset", isNumber: true, cell: (row) => count(row.position) },
              { name: "Behind, records", isNumber: true, cell: (row) => count(row.lag_messages) },
              { name: "Behind, time", isNumber: true, cell: (row) => duration(row.lag_s) },
              { name: "Last batch, records", isNumber: true, cell: (row) => count(row.last_batch_records) },
              { name: "It took", isNumber: true, cell: (row) => duration(row.last_batch_ms / 1000) },
              { name: "At", cell: (row) => <Time of={row.last_batch_at_ms} /> },
              { name: "Rejected, records", isNumber: true, cell: (row) => count(row.totals.rejected ?? 0) },
              { name: "Missing, records", isNumber: true, cell: (row) => count(row.totals.missing ?? 0) },
              { name: "Restarts", isNumber: true, cell: (row) => count(row.restarts) },
              { name: "All its time", cell: (row) => <span class="long">{words(row.totals)}</span> },
              { name: "Last error", cell: (row) => <span class="long">{row.last_error || "–"}</span> },
            ]}
          />
          {found.log && (
            <>
              <h2>Message log</h2>
              <Facts
                of={[
                  ["Offsets", `${count(found.log.start_offset)} to ${count(found.log.end_offset)}`],
                  ["Bodies", bytes(found.log.body_bytes)],
                  ["Kept for readers at most", bytes(found.log.pin_limit_bytes)],
                  ["Bodies kept aside", bytes(found.log.parked_bytes)],
                ]}
              />
              <Table
                label="Readers of the message log"
                rows={found.log.pins}
                id={(row) => `${row.name} ${row.partition}`}
                columns={[
                  { name: "Reader", isMain: true, cell: (row) => row.name },
                  { name: "Partition", isNumber: true, cell: (row) => row.partition },
                  { name: "Next offset", isNumber: true, cell: (row) => count(row.next_offset) },
                  { name: "Behind, records", isNumber: true, cell: (row) => count(row.behind) },
                ]}
              />
            </>
          )}
        </>
      )}
    </>
  );
}
