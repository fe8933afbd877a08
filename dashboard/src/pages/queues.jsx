import { useState } from "preact/hooks";
import { API, part, query, useAsked } from "../api.js";
import { bytes, count, counted, duration } from "../format.js";
import { Act, Facts, Field, Head, Pager, Search, State, Table, Time, Waiting, age, usePages, wildcards } from "../parts.jsx";
import { Body } from "./payload.jsx";

const SIZE = 100;
const LETTERS = 50;
const PEEKED = 10;
const at = (name, more = "") => `${API}/queues/${part(name)}${more}`;

export function Queues({ rest }) {
  return rest.length && rest[0] !== "" ? <Queue key={rest[0]} name={rest[0]} /> : <List />;
}

function List() {
  const [match, setMatch] = useState("");
  const pages = usePages({ match });
  const asked = useAsked(`${API}/queues${query({ limit: SIZE, match: wildcards(match), ...pages.after })}`);
  const rows = asked.data ?? [];
  return (
    <>
      <Head title="Durable queues" asked={asked} />
      <div class="filters">
        <Search name="Name" value={match} onChange={setMatch} about="Part of it, or with * and ?" />
      </div>
      <Waiting asked={asked} name="The queues" />
      {asked.data && (
        <>
          <Table
            label="Durable queues"
            rows={rows}
            id={(row) => row.name}
            none={match ? "No queue fits." : "There is no queue yet. One is made by the first message to $queue/NAME."}
            columns={[
              { name: "Name", isMain: true, cell: (row) => <a href={`#/queues/${part(row.name)}`}>{row.name}</a> },
              { name: "Kind", cell: (row) => row.kind },
              { name: "State", cell: (row) => <State of={row.paused ? "paused" : "open"} bad={["paused"]} /> },
              { name: "Depth, messages", isNumber: true, cell: (row) => count(row.depth) },
              { name: "In flight", isNumber: true, cell: (row) => count(row.in_flight) },
              { name: "Waiting for a retry", isNumber: true, cell: (row) => count(row.in_backoff) },
              { name: "Delayed", isNumber: true, cell: (row) => count(row.delayed) },
              { name: "Groups", isNumber: true, cell: (row) => count(row.groups) },
              { name: "Consumers", isNumber: true, cell: (row) => count(row.consumers) },
              { name: "Oldest, since", isNumber: true, cell: (row) => age(row.oldest_age_s) },
            ]}
          />
          <Pager pages={pages} rows={rows} size={SIZE} after={(row) => ({ after: row.name })} what="queue" />
        </>
      )}
    </>
  );
}

function Queue({ name }) {
  const asked = useAsked(at(name));
  const found = asked.data;
  const leave = () => (location.hash = "#/queues");
  return (
    <>
      <p><a href="#/queues">Durable queues</a></p>
      <Head title={name} asked={asked}>
        {found && (
          <>
            <Act
              name={found.stats.paused ? "Resume" : "Pause"}
              method="POST"
              path={at(name, found.stats.paused ? "/resume" : "/pause")}
              done={() => (found.stats.paused ? "The queue delivers again." : "The queue hands out nothing until it is resumed.")}
              after={asked.again}
            />
            <Act
              name="Purge"
              isDanger
              method="POST"
              path={at(name, "/purge")}
              question={`Delete all ${counted(found.stats.messages, "message")} of ${name}, those that consumers hold too? They cannot be brought back.`}
              done={({ messages }) => `Deleted: ${counted(messages, "message")}.`}
              after={asked.again}
            />
            <Act
              name="Delete queue"
              isDanger
              method="DELETE"
              path={at(name)}
              question={`Delete the queue ${name} with its ${counted(found.stats.messages, "message")}, groups and settings?`}
              done={({ messages }) => `The queue ${name} is gone, with ${counted(messages, "message")}.`}
              after={leave}
            />
          </>
        )}
      </Head>
      <Waiting asked={asked} name="The queue" />
      {found && (
        <>
          <Figures stats={found.stats} />
          <Explained name={name} />
          <Groups name={name} groups={found.groups} total={found.stats.groups} again={asked.again} />
          <Consumers name={name} />
          {found.stats.kind !== "dead letters" && <Letters name={name} queue={found.stats.dead_letter_queue} />}
          <Messages name={name} />
          <h2>Settings</h2>
          <pre tabIndex={0} aria-label="Settings as JSON">{JSON.stringify(found.settings, null, 2)}</pre>
        </>
      )}
    </>
  );
}

const total = (counts) => Object.values(counts).reduce((all, each) => all + each, 0);

function Figures({ stats }) {
  const latency = Object.entries(stats.delivery_latency_s)
    .map(([share, seconds]) => `${Number(share) * 100} % below ${duration(seconds)}`)
    .join(", ");
  return (
    <Facts
      of={[
        ["Depth", counted(stats.depth, "message")],
        ["In flight", counted(stats.in_flight, "message")],
        ["Waiting for a retry", counted(stats.in_backoff, "message")],
        ["Delayed", counted(stats.delayed, "message")],
        ["Oldest", stats.oldest ? <><Time of={stats.oldest} /> ({age(stats.oldest_age_s)} ago)</> : null],
        ["Delivery, last minute", latency || null],
        ["Enqueued", `${count(stats.enqueued)} since the start`],
        ["Acknowledged", `${count(stats.acked)} since the start`],
        ["Failed", `${count(stats.nacked)} by nack, ${count(stats.rejected)} by reject, since the start`],
        ["Dead-lettered", `${count(total(stats.dead_lettered))} since the start`],
        ["Dropped", `${count(total(stats.dropped))} since the start`],
        ["Order", `${stats.ordering}, ${counted(stats.partitions, "partition")}`],
      ]}
    />
  );
}

function Explained({ name }) {
  const asked = useAsked(at(name, "/explain"));
  return (
    <section>
      <h2>Delivery, explained</h2>
      <Waiting asked={asked} name="The explanation" />
      {asked.data && (
        <ul class="explained">
          {asked.data.map(({ group, code, text }) => (
            <li key={`${group} ${code} ${text}`}>{group && <b>{group}: </b>}{text}</li>
          ))}
        </ul>
      )}
    </section>
  );
}

function Groups({ name, groups, total: all, again }) {
  return (
    <section>
      <h2>Consumer groups</h2>
      {all > groups.length && <p class="muted">{`The first ${count(groups.length)} of ${count(all)} by name.`}</p>}
      <Table
        label="Consumer groups"
        rows={groups}
        id={(row) => row.name}
        none="There is no group: nobody has subscribed yet."
        columns={[
          { name: "Group", isMain: true, cell: (row) => row.name },
          { name: "State", cell: (row) => <State of={row.paused ? "paused" : row.consumers ? "open" : "idle"} bad={["paused"]} /> },
          { name: "Lag, messages", isNumber: true, cell: (row) => count(row.lag) },
          { name: "In flight", isNumber: true, cell: (row) => count(row.in_flight) },
          { name: "Waiting for a retry", isNumber: true, cell: (row) => count(row.in_backoff) },
          { name: "Consumers", isNumber: true, cell: (row) => count(row.consumers) },
          { name: "Next retry", cell: (row) => <Time of={row.next_retry} /> },
          { name: "Goes at", cell: (row) => <Time of={row.removed_at} /> },
          {
            name: "Actions",
            cell: (row) => (
              <div class="doing">
                <Act
                  name={row.paused ? "Resume" : "Pause"}
                  method="POST"
                  path={at(name, `/groups/${part(row.name)}/${row.paused ? "resume" : "pause"}`)}
                  done={() => `The group ${row.name} is ${row.paused ? "served again" : "paused"}.`}
                  after={again}
                />
                {row.consumers === 0 && (
                  <Act
                    name="Remove"
                    isDanger
                    method="DELETE"
                    path={at(name, `/groups/${part(row.name)}`)}
                    question={`Remove the group ${row.name}? What only it has not settled, ${counted(row.lag, "message")} at most, is not kept for it any more.`}
                    done={() => `The group ${row.name} is gone.`}
                    after={again}
                  />
                )}
              </div>
            ),
          },
        ]}
      />
    </section>
  );
}

function Consumers({ name }) {
  const pages = usePages({ name });
  const asked = useAsked(at(name, `/consumers${query({ limit: SIZE, ...pages.after })}`));
  const rows = asked.data ?? [];
  return (
    <section>
      <h2>Consumers</h2>
      <Waiting asked={asked} name="The consumers" />
      {asked.data && (
        <>
          <Table
            label="Consumers"
            rows={rows}
            id={(row) => `${row.group}\n${row.client_id}`}
            columns={[
              { name: "Client", isMain: true, cell: (row) => <a href={`#/clients/${part(row.client_id)}`}>{row.client_id}</a> },
              { name: "Group", cell: (row) => row.group },
              { name: "Joined", cell: (row) => <Time of={row.joined} /> },
              { name: "Away until", cell: (row) => <Time of={row.away_until} /> },
              { name: "In flight", isNumber: true, cell: (row) => count(row.in_flight) },
              { name: "Prefetch", isNumber: true, cell: (row) => count(row.prefetch) },
              { name: "Partitions", cell: (row) => (row.partitions === null ? "any" : row.partitions.join(", ")) },
            ]}
          />
          {(rows.length >= SIZE || pages.number > 1) && (
            <Pager pages={pages} rows={rows} size={SIZE} after={(row) => ({ after_group: row.group, after: row.client_id })} what="consumer" />
          )}
        </>
      )}
    </section>
  );
}

function Letters({ name, queue }) {
  const [filter, setFilter] = useState({ group: "", reason: "" });
  const pages = usePages({ name, ...filter });
  const asked = useAsked(queue ? at(name, `/dlq${query({ limit: LETTERS, ...filter, ...pages.after })}`) : null, 10);
  const job = useAsked(queue ? at(name, "/dlq/retry") : null, 5);
  if (!queue) {
    return <section><h2>Dead letters</h2><p class="muted">This queue keeps none.</p></section>;
  }
  const rows = asked.data ?? [];
  const change = (field) => (event) => setFilter({ ...filter, [field]: event.currentTarget.value });
  const again = () => (asked.again(), job.again());
  return (
    <section>
      <h2>Dead letters</h2>
      <p class="muted">In the queue <a href={`#/queues/${part(queue)}`}>{queue}</a></p>
      <div class="filters">
        <Field name="Reason">
          <select value={filter.reason} onChange={change("reason")}>
            <option value="">any</option>
            {["rejected", "max_retries", "timeout", "expired", "overflow"].map((each) => <option key={each}>{each}</option>)}
          </select>
        </Field>
        <Search name="Group" value={filter.group} onChange={(group) => setFilter({ ...filter, group })} about="Its whole name" />
      </div>
      <Waiting asked={asked} name="The dead letters" />
      {job.data && (
        <p>{`A retry in the background ${job.data.running ? "runs" : "has ended"}: ${count(job.data.retried)} of ${count(job.data.matched)} are back, ${count(job.data.rate)} a second.`}</p>
      )}
      {asked.data && (
        <>
          {rows.length > 0 && (
            <Act
              name={filter.group || filter.reason ? "Redrive those of the filter" : "Redrive all"}
              method="POST"
              path={at(name, `/dlq/retry${query(filter)}`)}
              question={`Put dead letters back into ${name}? Those that fit the filter, 100,000 at most, are delivered anew.`}
              done={({ messages, held, orphaned, crowded }) =>
                `${count(messages)} are back in their queues. Left: ${count(held)} held by a consumer, ${count(orphaned)} of queues and ${count(crowded)} of groups that are gone.`
              }
              after={again}
            />
          )}
          <Table
            label="Dead letters"
            rows={rows}
            id={(row) => row.id}
            columns={[
              { name: "Id", isMain: true, cell: (row) => <span class="mono">{row.message_id || row.id}</span> },
              { name: "Reason", cell: (row) => row.reason },
              { name: "Group", cell: (row) => row.group },
              { name: "Deliveries", isNumber: true, cell: (row) => count(row.deliveries) },
              { name: "Last error", cell: (row) => <span class="long">{row.last_error}</span> },
              { name: "Moved", cell: (row) => <Time of={row.moved} /> },
              {
                name: "Actions",
                cell: (row) => (
                  <Act
                    name="Redrive"
                    method="POST"
                    path={at(name, `/dlq/${part(row.id)}/retry`)}
                    done={() => "The dead letter is back in its queue."}
                    after={again}
                  />
                ),
              },
            ]}
          />
          <Pager pages={pages} rows={rows} size={LETTERS} after={(row) => ({ after: row.id })} what="dead letter" />
        </>
      )}
    </section>
  );
}

function Messages({ name }) {
  const [isOpen, setOpen] = useState(false);
  const pages = usePages({ name });
  const asked = useAsked(isOpen ? at(name, `/messages${query({ limit: PEEKED, ...pages.after })}`) : null, 10);
  const rows = asked.data ?? [];
  return (
    <section>
      <h2>Messages</h2>
      {!isOpen && <button onClick={() => setOpen(true)}>Look at messages</button>}
      {isOpen && <Waiting asked={asked} name="Messages" />}
      {asked.data && (
        <>
          {rows.length === 0 && <p class="muted">There are none that may be delivered now.</p>}
          {rows.map(({ about, publisher, payload_bytes, properties, ...body }) => (
            <article key={about.id} class="card message">
              <Facts
                of={[
                  ["Id", <span class="mono">{about.id}</span>],
                  ["Arrived", <Time of={about.arrived} />],
                  ["Publisher", publisher || null],
                  ["Size", bytes(payload_bytes)],
                  about.key !== null && ["Key", about.key],
                  about.expires && ["Expires", <Time of={about.expires} />],
                  ["State", about.states.map(({ group, state, holder }) => `${group}: ${state}${holder && ` by ${holder}`}`).join("; ") || "no group has it"],
                ]}
              />
              <Body of={body} properties={properties} size={payload_bytes} />
              <Act
                name="Delete message"
                isDanger
                method="DELETE"
                path={at(name, `/messages/${part(about.id)}`)}
                question={`Delete the message ${about.id}? It cannot be brought back.`}
                done={() => `The message ${about.id} is gone.`}
                after={asked.again}
              />
            </article>
          ))}
          <Pager pages={pages} rows={rows} size={PEEKED} after={(row) => ({ after: row.about.sequence })} what="message" />
        </>
      )}
    </section>
  );
}

