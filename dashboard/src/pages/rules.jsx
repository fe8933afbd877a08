import { useState } from "preact/hooks";
import { API, ask, useAsked } from "../api.js";
import { Field, Head, State, Table, Waiting } from "../parts.jsx";

const Answer = ({ is }) => <State of={is ? "allow" : "deny"} good={["allow"]} bad={["deny"]} />;

export function Rules() {
  const asked = useAsked(`${API}/rules`, 10);
  const found = asked.data;
  return (
    <>
      <Head title="Access rules" asked={asked} />
      <Waiting asked={asked} name="The rules" />
      <Tester />
      {found && (
        <section>
          <h2>In the order in which they are asked</h2>
          {found.files.length === 0 ? (
            <p class="muted">There is no file of rules: every client may do everything.</p>
          ) : (
            <p class="muted">{`From ${found.files.join(", ")}. The first that matches decides; where none does, the answer is ${found.no_match_allows ? "allow" : "deny"}.`}</p>
          )}
          {found.files.length > 0 && <Table
            label="Rules"
            rows={found.rules.map((rule, index) => ({ ...rule, index }))}
            id={(row) => row.index}
            columns={[
              { name: "Rule", isMain: true, cell: (row) => <span class="long">{row.told}</span> },
              { name: "Answer", cell: (row) => <Answer is={row.allow} /> },
              { name: "Actions", cell: (row) => row.actions.join(", ") },
              { name: "Topics", isLong: true, cell: (row) => <span class="mono">{row.topic_regex ?? row.topics?.join(", ") ?? "any"}</span> },
              { name: "Place", isLong: true, cell: (row) => row.place },
            ]}
          />}
        </section>
      )}
    </>
  );
}

/** Whether a client may do something, and by which rule. */
function Tester() {
  const [asked, setAsked] = useState({ action: "publish", topic: "", user: "", client_id: "" });
  const [told, setTold] = useState(null);
  const set = (name) => (event) => {
    setAsked({ ...asked, [name]: event.currentTarget.value });
    setTold(null);
  };
  const submit = async (event) => {
    event.preventDefault();
    try {
      setTold(await ask("POST", `${API}/rules/check`, { ...asked, topic: isOfTopics ? asked.topic : "" }));
    } catch (error) {
      setTold({ error: error.message });
    }
  };
  const isOfTopics = !["connect", "takeover"].includes(asked.action);
  const text = (name) => <input value={asked[name]} onInput={set(name)} autocomplete="off" spellcheck={false} />;
  return (
    <section>
      <h2>May a client do this?</h2>
      <form class="card form" onSubmit={submit}>
        <div class="filters">
          <Field name="Action">
            <select value={asked.action} onChange={set("action")}>
              {["publish", "subscribe", "receive", "create", "connect", "takeover"].map((each) => <option key={each}>{each}</option>)}
            </select>
          </Field>
          {isOfTopics && <Field name="Topic or filter">{text("topic")}</Field>}
          <Field name="User" about="Empty: anonymous">{text("user")}</Field>
          <Field name="Client id">{text("client_id")}</Field>
        </div>
        <button class="main">Check</button>
        <div role="status">
          {told && (
            <p class={`notice ${told.allowed ? "good" : "bad"}`}>
              {told.error ?? `${told.allowed ? "Allowed" : "Denied"}: ${told.why}${told.rule ? ` (${told.rule})` : ""}`}
            </p>
          )}
        </div>
      </form>
    </section>
  );
}
