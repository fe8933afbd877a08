import { useState } from "preact/hooks";
import { API, ask, part, useAsked } from "../api.js";
import { Act, Field, Head, Table, Time, Waiting, tell } from "../parts.jsx";

export function Tokens() {
  const [made, setMade] = useState(null);
  const asked = useAsked(`${API}/tokens`, 10);
  return (
    <>
      <Head title="Tokens of the API" asked={asked} />
      {made?.token && (
        <p class="notice good" role="status">
          <span>The token {made.name}, which nobody can read again: <code>{made.token}</code></span>
          <button onClick={() => setMade(null)}>Hide</button>
        </p>
      )}
      <Waiting asked={asked} name="The tokens" />
      {asked.data && (
        <Table
          label="Tokens"
          rows={asked.data}
          id={(row) => row.name}
          none="There is no token."
          columns={[
            { name: "Name", isMain: true, cell: (row) => row.name },
            { name: "Scope", cell: (row) => row.scope },
            { name: "Made", cell: (row) => <Time of={row.created} /> },
            { name: "Until", cell: (row) => (row.expires ? <Time of={row.expires} /> : "it is revoked") },
            { name: "Certificate", cell: (row) => row.certificate || "none" },
            {
              name: "Actions",
              cell: (row) => (
                <Act
                  name="Revoke"
                  isDanger
                  method="DELETE"
                  path={`${API}/tokens/${part(row.name)}`}
                  question={`Revoke the token ${row.name}? What uses it is refused from then on.`}
                  done={() => `The token ${row.name} is revoked.`}
                  after={asked.again}
                />
              ),
            },
          ]}
        />
      )}
      <Add again={asked.again} onMade={setMade} />
    </>
  );
}

function Add({ again, onMade }) {
  const [name, setName] = useState("");
  const [scope, setScope] = useState("read");
  const [expires, setExpires] = useState("");
  const submit = async (event) => {
    event.preventDefault();
    try {
      onMade(await ask("POST", `${API}/tokens`, { name, scope, expires }));
      tell(`The token ${name} is made.`);
      setName("");
      again();
    } catch (error) {
      tell(`Make token: ${error.message}`, true);
    }
  };
  return (
    <section>
      <h2>Make a token</h2>
      <form class="card form" onSubmit={submit}>
        <div class="filters">
          <Field name="Name of the token">
            <input value={name} onInput={(event) => setName(event.currentTarget.value)} required autocomplete="off" spellcheck={false} />
          </Field>
          <Field name="What it may do">
            <select value={scope} onChange={(event) => setScope(event.currentTarget.value)}>
              <option value="read">read: see</option>
              <option value="operate">operate: send away, publish, purge</option>
              <option value="admin">admin: configure, delete, decide who may what</option>
              <option value="rules">rules: write rules of the pipeline, which see every message</option>
            </select>
          </Field>
          <Field name="Valid for" about="Such as 30d">
            <input value={expires} onInput={(event) => setExpires(event.currentTarget.value)} autocomplete="off" spellcheck={false} />
          </Field>
        </div>
        <p class="muted">It is shown once. Without a time it is valid until it is revoked.</p>
        <button class="main">Make token</button>
      </form>
    </section>
  );
}
