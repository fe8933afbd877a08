import { useState } from "preact/hooks";
import { API, ask, part, query, useAsked } from "../api.js";
import { Act, Field, Head, Pager, Table, Time, Waiting, tell, usePages } from "../parts.jsx";

const SIZE = 100;
const KINDS = { client_id: "Client id", user: "User", address: "Address" };
const at = ({ kind, value }) => `${API}/bans/${part(kind)}/${part(value)}`;

export function Bans() {
  const pages = usePages({});
  const asked = useAsked(`${API}/bans${query({ limit: SIZE, ...pages.after })}`, 10);
  const rows = asked.data ?? [];
  return (
    <>
      <Head title="Bans" asked={asked} />
      <Waiting asked={asked} name="The bans" />
      {asked.data && (
        <>
          <Table
            label="Bans"
            rows={rows}
            id={(row) => `${row.kind} ${row.value}`}
            none="Nobody is banned."
            columns={[
              { name: "Who", isMain: true, cell: (row) => row.value },
              { name: "Kind", cell: (row) => KINDS[row.kind] },
              { name: "Since", cell: (row) => <Time of={row.since} /> },
              { name: "Until", cell: (row) => (row.until ? <Time of={row.until} /> : "it is lifted") },
              { name: "Reason", cell: (row) => row.reason },
              {
                name: "Actions",
                cell: (row) => (
                  <Act
                    name="Lift"
                    method="DELETE"
                    path={at(row)}
                    question={`Let ${row.value} in again?`}
                    done={() => `The ban of ${row.value} is lifted.`}
                    after={asked.again}
                  />
                ),
              },
            ]}
          />
          <Pager pages={pages} rows={rows} size={SIZE} after={(row) => ({ after_kind: row.kind, after: row.value })} what="ban" />
        </>
      )}
      <Add again={asked.again} />
    </>
  );
}

function Add({ again }) {
  const [kind, setKind] = useState("client_id");
  const [value, setValue] = useState("");
  const [lasts, setLasts] = useState("");
  const [reason, setReason] = useState("");
  const submit = async (event) => {
    event.preventDefault();
    try {
      const { disconnected } = await ask("PUT", at({ kind, value }), { lasts, reason });
      tell(`${value} is banned; sent away: ${disconnected}.`);
      setValue("");
      again();
    } catch (error) {
      tell(`Ban: ${error.message}`, true);
    }
  };
  return (
    <section>
      <h2>Ban somebody</h2>
      <form class="card form" onSubmit={submit}>
        <div class="filters">
          <Field name="Kind of ban">
            <select value={kind} onChange={(event) => setKind(event.currentTarget.value)}>
              {Object.entries(KINDS).map(([each, name]) => <option key={each} value={each}>{name}</option>)}
            </select>
          </Field>
          <Field name="Whom">
            <input value={value} onInput={(event) => setValue(event.currentTarget.value)} required autocomplete="off" spellcheck={false} />
          </Field>
          <Field name="For how long" about="Such as 12h">
            <input value={lasts} onInput={(event) => setLasts(event.currentTarget.value)} autocomplete="off" spellcheck={false} />
          </Field>
          <Field name="Reason">
            <input value={reason} onInput={(event) => setReason(event.currentTarget.value)} maxlength={200} autocomplete="off" />
          </Field>
        </div>
        <p class="muted">Connections end and sessions stay. Without a time it lasts until it is lifted. An address may be a network, such as 192.0.2.0/24.</p>
        <button class="main">Ban</button>
      </form>
    </section>
  );
}
