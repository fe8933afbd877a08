import { useState } from "preact/hooks";
import { API, part, query, useAsked, useClientEvents } from "../api.js";
import { bytes, clock, count, counted, duration } from "../format.js";
import { Act, Facts, Field, Head, Pager, Search, State, Table, Time, Waiting, usePages, wildcards } from "../parts.jsx";

const SIZE = 100;

export function Clients({ rest }) {
  return rest.length && rest[0] !== "" ? <Client key={rest[0]} id={rest[0]} /> : <List />;
}

const Here = ({ is }) => <State of={is ? "connected" : "away"} />;

function List() {
  const [filter, setFilter] = useState({ match: "", user: "", connected: "", type: "" });
  const pages = usePages(filter);
  const wanted = { ...filter, match: wildcards(filter.match), limit: SIZE, ...pages.after };
  const asked = useAsked(`${API}/clients${query(wanted)}`);
  const rows = asked.data ?? [];
  const set = (name) => (value) => setFilter((old) => ({ ...old, [name]: value }));
  const chosen = (name) => (event) => set(name)(event.currentTarget.value);
  return (
    <>
      <Head title="Clients" asked={asked} />
      <div class="filters">
        <Search name="Client id" value={filter.match} onChange={set("match")} about="Part of it, or with * and ?" />
        <Search name="User" value={filter.user} onChange={set("user")} about="The whole name" />
        <Field name="State">
          <select value={filter.connected} onChange={chosen("connected")}>
            <option value="">any</option>
            <option value="true">connected</option>
            <option value="false">away</option>
          </select>
        </Field>
        <Field name="Type">
          <select value={filter.type} onChange={chosen("type")}>
            <option value="">any</option>
            <option value="device">DEVICE</option>
            <option value="application">APPLICATION</option>
          </select>
        </Field>
      </div>
      <Waiting asked={asked} name="The clients" />
      {asked.data && (
        <>
          <Table
            label="Clients"
            rows={rows}
            id={(row) => row.client_id}
            none="No client fits."
            columns={[
              { name: "Client id", isMain: true, cell: (row) => <a href={`#/clients/${part(row.client_id)}`}>{row.client_id || "(empty)"}</a> },
              { name: "State", cell: (row) => <Here is={row.connected} /> },
              { name: "Type", cell: (row) => row.type },
              { name: "User", cell: (row) => row.connected_as || row.username || "–" },
              { name: "Address", cell: (row) => row.peer || "–" },
              { name: "MQTT", cell: (row) => row.version || "–" },
              { name: "Subscriptions", isNumber: true, cell: (row) => count(row.subscriptions) },
              { name: "Stored, messages", isNumber: true, cell: (row) => count(row.behind ?? row.queued) },
              { name: "In flight", isNumber: true, cell: (row) => count(row.in_flight) },
              { name: "Session since", cell: (row) => <Time of={row.created} /> },
            ]}
          />
          <Pager pages={pages} rows={rows} size={SIZE} after={(row) => ({ after: row.client_id })} what="client" />
        </>
      )}
    </>
  );
}

function Client({ id }) {
  const asked = useAsked(`${API}/clients/${part(id)}`);
  const found = asked.data;
  const leave = () => (location.hash = "#/clients");
  return (
    <>
      <p><a href="#/clients">Clients</a></p>
      <Head title={id} asked={asked}>
        {found?.connection && (
          <Act
            name="Send away"
            method="DELETE"
            path={`${API}/clients/${part(id)}/connection`}
            question={`End the connection of ${id}? It may come back at once; ${found.session.kept ? "its session stays." : "its session ends with it."}`}
            done={() => `The connection of ${id} was ended.`}
            after={asked.again}
          />
        )}
        {found && (
          <Act
            name="End session"
            isDanger
            method="DELETE"
            path={`${API}/clients/${part(id)}`}
            question={`End the session of ${id} and its connection? Its ${counted(found.session.subscriptions, "subscription")} and its stored messages go.`}
            done={() => `The session of ${id} is gone.`}
            after={leave}
          />
        )}
      </Head>
      <Waiting asked={asked} name="The client" />
      {found && <Found client={found} />}
      <Events id={id} />
    </>
  );
}

function Events({ id }) {
  const heard = useClientEvents(id);
  return (
    <>
      <h2>Events</h2>
      {heard.error && <p class="notice bad" role="alert">{`Events cannot be heard: ${heard.error.message}.`}</p>}
      <Table
        label="Events"
        rows={heard.rows}
        id={(row) => row.key}
        none={heard.since ? `Nothing has happened since ${clock(heard.since)}. What was before is in the log.` : "Loading…"}
        columns={[
          { name: "Time", cell: (row) => <Time of={row.time} /> },
          { name: "Event", isMain: true, cell: (row) => row.event },
          { name: "Reason", cell: (row) => row.reason || "–" },
          { name: "User", cell: (row) => row.user || "–" },
          { name: "Address", cell: (row) => row.peer || "–" },
          { name: "Topic", cell: (row) => (row.topic ? <span class="mono">{row.topic}</span> : "–") },
        ]}
      />
    </>
  );
}

function Found({ client: { session, connection, subscriptions, queues, unacknowledged } }) {
  return (
    <>
      <h2>Session</h2>
      <Facts
        of={[
          ["State", <Here is={session.connected} />],
          ["Type", session.type],
          ["Belongs to", session.username || "no user"],
          ["Since", <Time of={session.created} />],
          ["Kept", session.kept ? `for ${session.expiry_interval_s >= 4_294_967_295 ? "ever" : duration(session.expiry_interval_s)} after the connection` : "no"],
          session.expires && ["Expires", <Time of={session.expires} />],
          ["Stored", counted(session.behind ?? session.queued, "message")],
          ["Waiting in memory", counted(session.waiting, "message")],
          ["In flight", counted(session.in_flight, "message")],
          ["QoS 2 from it, not released", counted(session.receiving, "message")],
        ]}
      />
      <h2>Connection</h2>
      {connection ? (
        <Facts
          of={[
            ["Address", connection.peer],
            ["Listener", connection.listener],
            ["MQTT", connection.version],
            ["User", connection.username || "none"],
            ["Since", <Time of={connection.connected} />],
            ["Last heard", `${duration(connection.silent_s)} ago`],
            ["Keep-alive", connection.keep_alive_s ? duration(connection.keep_alive_s) : "none"],
            ["Receive maximum", counted(connection.window_max, "message")],
            ["Packets at most", bytes(connection.packet_bytes_max)],
            ["From it, not answered yet", counted(connection.unanswered, "message")],
            ["Waiting for its socket", bytes(connection.unsent_bytes)],
          ]}
        />
      ) : (
        <p class="muted">The client is away.</p>
      )}
      <h2>Subscriptions</h2>
      {session.subscriptions > subscriptions.length && (
        <p class="muted">{`The first ${count(subscriptions.length)} of ${count(session.subscriptions)} by filter.`}</p>
      )}
      <Table
        label="Subscriptions"
        rows={subscriptions}
        id={(row) => row.topic_filter}
        columns={[
          { name: "Filter", isMain: true, cell: (row) => <span class="mono">{row.topic_filter}</span> },
          { name: "QoS", isNumber: true, cell: (row) => row.qos },
          { name: "No local", cell: (row) => (row.no_local ? "yes" : "no") },
          { name: "Retain as published", cell: (row) => (row.retain_as_published ? "yes" : "no") },
          { name: "Retain handling", isNumber: true, cell: (row) => row.retain_handling },
          { name: "Identifier", isNumber: true, cell: (row) => row.identifier || "–" },
        ]}
      />
      {queues.length > 0 && (
        <>
          <h2>Durable queues</h2>
          <ul>{queues.map((name) => <li key={name}><a href={`#/queues/${part(name.replace(/^\$queue\//, ""))}`}>{name}</a></li>)}</ul>
        </>
      )}
      {unacknowledged.length > 0 && (
        <>
          <h2>Not acknowledged yet</h2>
          <Table
            label="Not acknowledged yet"
            rows={unacknowledged}
            id={(row) => `${row.topic} ${row.partition} ${row.offset}`}
            columns={[
              { name: "Topic", isMain: true, cell: (row) => <span class="mono">{row.topic}</span> },
              { name: "Messages", isNumber: true, cell: (row) => count(row.messages) },
              { name: "Oldest, partition", isNumber: true, cell: (row) => row.partition },
              { name: "Oldest, offset", isNumber: true, cell: (row) => count(row.offset) },
            ]}
          />
        </>
      )}
    </>
  );
}
