import { useState } from "preact/hooks";
import { API, part, query, useAsked } from "../api.js";
import { bytes, counted } from "../format.js";
import { Act, Facts, Head, Pager, Search, Table, Time, Waiting, usePages } from "../parts.jsx";
import { Body } from "./payload.jsx";

const SIZE = 200;
const at = (topic) => `${API}/retained/${part(topic)}`;

export function Retained({ rest }) {
  return rest.length && rest[0] !== "" ? <Message key={rest[0]} topic={rest[0]} /> : <List />;
}

function List() {
  const [filter, setFilter] = useState("");
  const pages = usePages({ filter });
  const asked = useAsked(`${API}/retained${query({ filter: filter || "#", limit: SIZE, ...pages.after })}`, 10);
  const rows = asked.data ?? [];
  return (
    <>
      <Head title="Retained messages" asked={asked} />
      <div class="filters">
        <Search name="Topic filter" value={filter} onChange={setFilter} about="With + and #; $SYS/# for the broker's own" />
      </div>
      <Waiting asked={asked} name="Retained messages" />
      {asked.data && (
        <>
          <Tree rows={rows} />
          <Pager pages={pages} rows={rows} size={SIZE} after={(row) => ({ after: row.topic })} what="retained message" />
        </>
      )}
    </>
  );
}

/** Topics by their levels: those of one page. A branch that has one child alone is drawn with it. */
function Tree({ rows }) {
  if (rows.length === 0) {
    return <p class="muted">There are none.</p>;
  }
  const root = { below: new Map(), messages: 0 };
  for (const row of rows) {
    let node = root;
    for (const level of row.topic.split("/")) {
      node.messages += 1;
      node = node.below.get(level) ?? node.below.set(level, { below: new Map(), messages: 0 }).get(level);
    }
    node.messages += 1;
    node.row = row;
  }
  const isOpen = rows.length <= 30;
  return <ul class="tree" aria-label="Topics">{[...root.below].map(([level, node]) => <Branch key={level} level={level} node={node} isOpen={isOpen} />)}</ul>;
}

function Branch({ level, node, isOpen }) {
  let [name, here] = [level, node];
  while (here.below.size === 1 && !here.row) {
    const [[next, below]] = here.below;
    [name, here] = [`${name}/${next}`, below];
  }
  const { row, below, messages } = here;
  const label = row ? (
    <>
      <a class="mono" href={`#/retained/${part(row.topic)}`}>{name || "(empty level)"}</a>{" "}
      <span class="muted">{`${bytes(row.payload_bytes)}, QoS ${row.qos}, `}<Time of={row.published} /></span>
    </>
  ) : (
    <span class="mono">{name || "(empty level)"}</span>
  );
  if (below.size === 0) {
    return <li>{label}</li>;
  }
  return (
    <li>
      {row && <div>{label}</div>}
      <details open={isOpen}>
        <summary>{row ? <span class="mono">{`${name}/…`}</span> : label} <span class="muted">{counted(messages, "message")}</span></summary>
        <ul>{[...below].map(([each, child]) => <Branch key={each} level={each} node={child} isOpen={isOpen} />)}</ul>
      </details>
    </li>
  );
}

function Message({ topic }) {
  const asked = useAsked(at(topic));
  const found = asked.data;
  return (
    <>
      <p><a href="#/retained">Retained messages</a></p>
      <Head title={topic} asked={asked}>
        {found && (
          <Act
            name="Delete"
            isDanger
            method="DELETE"
            path={at(topic)}
            question={`Delete the retained message of ${topic}? Subscribers are sent the empty message that deletes it.`}
            done={() => `The retained message of ${topic} is gone.`}
            after={() => (location.hash = "#/retained")}
          />
        )}
      </Head>
      <Waiting asked={asked} name="The message" />
      {found && (
        <>
          <Facts
            of={[
              ["QoS", found.about.qos],
              ["Size", bytes(found.about.payload_bytes)],
              ["Published", <Time of={found.about.published} />],
              ["Publisher", found.about.publisher || "the broker or an operator"],
              ["Expires", found.about.expires ? <Time of={found.about.expires} /> : "never"],
            ]}
          />
          <h2>Message</h2>
          <Body of={found} properties={found.properties} size={found.about.payload_bytes} />
        </>
      )}
    </>
  );
}
