// Messages that applications did not acknowledge, however often they were sent.
import { API, query, useAsked } from "../api.js";
import { bytes, count, counted } from "../format.js";
import { Act, Facts, Head, Pager, State, Table, Time, Waiting, usePages } from "../parts.jsx";
import { Body } from "./payload.jsx";

const SIZE = 100;
const at = (what, given) => `${API}/parked${what}${query(given)}`;
const place = (...names) => `#/${["parked", ...names.map(encodeURIComponent)].join("/")}`;
const back = ({ messages }) => `Sent again when the client is there: ${counted(messages, "message")}.`;

export function Parked({ rest: [client_id, number] }) {
  if (!client_id) {
    return <Clients />;
  }
  return number ? <Message client_id={client_id} number={number} /> : <Messages key={client_id} client_id={client_id} />;
}

function Clients() {
  const asked = useAsked(at("/clients", {}), 10);
  return (
    <>
      <Head title="Parked messages" asked={asked} />
      <p class="muted">What an application was sent again and again and did not acknowledge is put aside here, and waits for you.</p>
      <Waiting asked={asked} name="The clients" />
      {asked.data && (
        <Table
          label="Clients with parked messages"
          rows={asked.data}
          id={(row) => row.client_id}
          none="No message is parked."
          columns={[
            { name: "Client id", isMain: true, cell: (row) => <a href={place(row.client_id)}>{row.client_id}</a> },
            { name: "Parked", isNumber: true, cell: (row) => count(row.parked) },
            { name: "To be sent again", isNumber: true, cell: (row) => count(row.messages - row.parked) },
          ]}
        />
      )}
    </>
  );
}

function Messages({ client_id }) {
  const pages = usePages({ client_id });
  const asked = useAsked(at("", { client_id, limit: SIZE, ...pages.after }), 10);
  const rows = asked.data ?? [];
  return (
    <>
      <p><a href={place()}>Parked messages</a></p>
      <Head title={client_id} asked={asked}>
        {rows.length > 0 && (
          <>
            <Act
              name="Redrive all"
              method="POST"
              path={at("/redrive", { client_id })}
              question={`Have all parked messages of ${client_id} sent again?`}
              done={back}
              after={asked.again}
            />
            <Act
              name="Delete all"
              isDanger
              method="DELETE"
              path={at("", { client_id })}
              question={`Delete all parked messages of ${client_id} for good?`}
              done={({ messages }) => `Deleted: ${counted(messages, "message")}.`}
              after={asked.again}
            />
          </>
        )}
      </Head>
      <Waiting asked={asked} name="The messages" />
      {asked.data && (
        <>
          <Table
            label="Parked messages"
            rows={rows}
            id={(row) => row.number}
            none="No message is parked for this client."
            columns={[
              { name: "Topic", isMain: true, cell: (row) => <a href={place(client_id, row.number)}>{row.topic}</a> },
              { name: "Number", isNumber: true, cell: (row) => row.number },
              { name: "State", cell: (row) => <State of={row.state} bad={["parked"]} /> },
              { name: "QoS", isNumber: true, cell: (row) => row.qos },
              { name: "Size", isNumber: true, cell: (row) => bytes(row.payload_bytes) },
              { name: "Times sent", isNumber: true, cell: (row) => count(row.attempts) },
              { name: "Parked at", cell: (row) => <Time of={row.parked} /> },
              {
                name: "Actions",
                cell: (row) => (
                  <Act name="Redrive" method="POST" path={at("/redrive", { client_id, number: row.number })} done={back} after={asked.again} />
                ),
              },
            ]}
          />
          <Pager pages={pages} rows={rows} size={SIZE} after={(row) => ({ after: row.number })} what="message" />
        </>
      )}
    </>
  );
}

function Message({ client_id, number }) {
  const asked = useAsked(at("/message", { client_id, number }), 0);
  const found = asked.data;
  const leave = () => (location.hash = place(client_id));
  return (
    <>
      <p><a href={place()}>Parked messages</a> / <a href={place(client_id)}>{client_id}</a></p>
      <Head title={found ? found.about.topic : `Message ${number}`} asked={asked}>
        {found && (
          <>
            <Act name="Redrive" method="POST" path={at("/redrive", { client_id, number })} done={back} after={leave} />
            <Act
              name="Delete"
              isDanger
              method="DELETE"
              path={at("", { client_id, number })}
              question="Delete this message for good?"
              done={() => "The message was deleted."}
              after={leave}
            />
          </>
        )}
      </Head>
      <Waiting asked={asked} name="The message" />
      {found && (
        <>
          <Facts
            of={[
              ["Client", client_id],
              ["State", <State of={found.about.state} bad={["parked"]} />],
              ["QoS", found.about.qos],
              ["Times sent", count(found.about.attempts)],
              ["Parked at", <Time of={found.about.parked} />],
              ["Publisher", found.publisher || "the broker or an operator"],
              ["Accepted", <Time of={found.accepted} />],
              ["Expires", found.expires ? <Time of={found.expires} /> : "never"],
            ]}
          />
          <h2>Message</h2>
          <Body of={found} properties={found.properties} size={found.about.payload_bytes} />
        </>
      )}
    </>
  );
}
