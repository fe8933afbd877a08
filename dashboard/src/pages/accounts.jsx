import { useState } from "preact/hooks";
import { API, ask, part, query, useAsked } from "../api.js";
import { Act, Field, Head, Pager, Search, State, Table, Time, Waiting, tell, usePages, wildcards } from "../parts.jsx";

const SIZE = 100;
const at = (user, more = "") => `${API}/accounts/${part(user)}${more}`;

export function Accounts() {
  const [match, setMatch] = useState("");
  const [made, setMade] = useState(null);
  const pages = usePages({ match });
  const asked = useAsked(`${API}/accounts${query({ limit: SIZE, match: wildcards(match), ...pages.after })}`, 10);
  const rows = asked.data ?? [];
  return (
    <>
      <Head title="Accounts" asked={asked} />
      {made?.password && (
        <p class="notice good" role="status">
          <span>The password of {made.name}, which nobody can read again: <code>{made.password}</code></span>
          <button onClick={() => setMade(null)}>Hide</button>
        </p>
      )}
      <div class="filters">
        <Search name="Name" value={match} onChange={setMatch} about="Part of it, or with * and ?" />
      </div>
      <Waiting asked={asked} name="The accounts" />
      {asked.data && (
        <>
          <Table
            label="Accounts"
            rows={rows}
            id={(row) => row.name}
            none={match ? "No account fits." : "There is no account."}
            columns={[
              { name: "Name", isMain: true, cell: (row) => row.name },
              { name: "State", cell: (row) => <State of={row.disabled ? "disabled" : "enabled"} good={["enabled"]} bad={["disabled"]} /> },
              { name: "Type", cell: (row) => row.type },
              { name: "SCRAM", cell: (row) => (row.scram ? "yes" : "no") },
              { name: "Made", cell: (row) => <Time of={row.created} /> },
              { name: "Actions", cell: (row) => <Actions of={row} again={asked.again} onMade={setMade} /> },
            ]}
          />
          <Pager pages={pages} rows={rows} size={SIZE} after={(row) => ({ after: row.name })} what="account" />
        </>
      )}
      <Add again={asked.again} onMade={setMade} />
    </>
  );
}

function Actions({ of: { name, disabled, scram }, again, onMade }) {
  return (
    <div class="doing">
      <Act
        name={disabled ? "Enable" : "Disable"}
        method="POST"
        path={at(name, disabled ? "/enable" : "/disable")}
        question={disabled ? null : `Refuse logins of ${name} from now on? Its connections end.`}
        done={() => `The account ${name} is ${disabled ? "enabled" : "disabled"}.`}
        after={again}
      />
      <Act
        name="New password"
        method="PUT"
        path={at(name, "/password")}
        body={{ scram }}
        question={`Make a new password for ${name}? Connections with the old one end.`}
        done={() => `The account ${name} has a new password.`}
        after={onMade}
      />
      <Act
        name="Remove"
        isDanger
        method="DELETE"
        path={at(name)}
        question={`Remove the account ${name}? Its connections end.`}
        done={() => `The account ${name} is gone.`}
        after={again}
      />
    </div>
  );
}

function Add({ again, onMade }) {
  const [name, setName] = useState("");
  const [type, setType] = useState("device");
  const [scram, setScram] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    try {
      onMade(await ask("POST", `${API}/accounts`, { name, type, scram }));
      tell(`The account ${name} is made.`);
      setName("");
      again();
    } catch (error) {
      tell(`Add account: ${error.message}`, true);
    }
  };
  return (
    <section>
      <h2>Add an account</h2>
      <form class="card form" onSubmit={submit}>
        <div class="filters">
          <Field name="Name of the account">
            <input value={name} onInput={(event) => setName(event.currentTarget.value)} required autocomplete="off" spellcheck={false} />
          </Field>
          <Field name="Type">
            <select value={type} onChange={(event) => setType(event.currentTarget.value)}>
              <option value="device">DEVICE</option>
              <option value="application">APPLICATION</option>
            </select>
          </Field>
        </div>
        <label class="check">
          <input type="checkbox" checked={scram} onChange={(event) => setScram(event.currentTarget.checked)} /> May log in by SCRAM too
        </label>
        <p class="muted">Its password is made by the broker and shown once.</p>
        <button class="main">Add account</button>
      </form>
    </section>
  );
}
