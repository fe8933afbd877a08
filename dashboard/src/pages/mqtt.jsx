// A client of the broker's own protocol, by its listener for WebSocket: what it may do is what its user may do.
import { useEffect, useRef, useState } from "preact/hooks";
import { API, useAsked } from "../api.js";
import { bytes, clock } from "../format.js";
import { MqttClient, reason } from "../mqtt.js";
import { Field, Head, State, Table, Waiting, tell } from "../parts.jsx";

const MESSAGES_MAX = 200;
const SHOWN_MAX = 1_000;
const OWN_ID = `dashboard-${Array.from(crypto.getRandomValues(new Uint8Array(4)), (each) => each.toString(16).padStart(2, "0")).join("")}`;

/** The address of a listener that this page may reach, null when there is none. */
function reachable(listeners) {
  const kinds = location.protocol === "https:" ? ["wss"] : ["ws", "wss"]; // a page over TLS may not do without
  for (const kind of kinds) {
    const port = listeners[kind]?.map((each) => each.match(/:(\d+)$/)?.[1]).find(Boolean);
    if (port) {
      return `${kind}://${location.hostname}:${port}`;
    }
  }
  return null;
}

const shown = (payload) => {
  const text = new TextDecoder().decode(payload.subarray(0, SHOWN_MAX));
  return payload.length > SHOWN_MAX ? `${text}…` : text;
};

export function Mqtt() {
  const asked = useAsked(`${API}/broker`, 0);
  const url = asked.data && reachable(asked.data.listeners);
  return (
    <>
      <Head title="MQTT client" asked={asked} />
      <Waiting asked={asked} name="The list of listeners" />
      {asked.data && !url && (
        <p class="notice">
          <span>
            This page can reach no listener for MQTT over WebSocket: set{" "}
            <code>{location.protocol === "https:" ? "listeners.wss" : "listeners.ws"}</code>.
          </span>
        </p>
      )}
      {url && <Client url={url} />}
    </>
  );
}

function Client({ url }) {
  const client = useRef(null);
  const number = useRef(0);
  const [state, setState] = useState("offline");
  const [why, setWhy] = useState("");
  const [messages, setMessages] = useState([]);
  const [given, setGiven] = useState({ path: "/mqtt", client_id: OWN_ID, user: "", password: "" });
  useEffect(() => () => client.current?.close(), []);
  const put = (name) => (event) => {
    const { value } = event.currentTarget;
    setGiven((old) => ({ ...old, [name]: value }));
  };
  const connect = (event) => {
    event.preventDefault();
    setState("connecting");
    setWhy("");
    client.current = new MqttClient(`${url}${given.path}`, given, {
      open: () => setState("connected"),
      message: (message) => {
        number.current += 1;
        const row = { ...message, number: number.current, at: new Date() };
        setMessages((old) => [row, ...old].slice(0, MESSAGES_MAX));
      },
      end: (told) => {
        setState("offline");
        setWhy(told);
      },
    });
  };
  const isAway = state === "offline";
  return (
    <>
      <form class="card form" onSubmit={connect}>
        <p><State of={state} /> <span class="muted mono">{url}</span></p>
        <div class="filters">
          <Field name="Path"><input value={given.path} onInput={put("path")} pattern="/.*" required disabled={!isAway} spellcheck={false} /></Field>
          <Field name="Client id"><input value={given.client_id} onInput={put("client_id")} disabled={!isAway} autocomplete="off" spellcheck={false} /></Field>
          <Field name="User"><input value={given.user} onInput={put("user")} disabled={!isAway} autocomplete="off" spellcheck={false} /></Field>
          <Field name="Password"><input type="password" value={given.password} onInput={put("password")} disabled={!isAway} autocomplete="off" /></Field>
        </div>
        {why && (
          <p class="notice bad" role="alert">
            {`Not connected: ${why}.`}
            {why === "there is no connection" && ` Is the path right, and may ${location.origin} connect (websocket.origins)?`}
          </p>
        )}
        {isAway ? <button class="main">Connect</button> : <button type="button" onClick={() => client.current.close()}>Disconnect</button>}
      </form>
      {state === "connected" && <Subscribe client={client.current} />}
      {state === "connected" && <Send client={client.current} />}
      <h2>Messages</h2>
      <Table
        label="Messages"
        rows={messages}
        id={(row) => row.number}
        none="None has come. The newest 200 are shown."
        columns={[
          { name: "Topic", isMain: true, cell: (row) => row.topic },
          { name: "Time", cell: (row) => clock(row.at) },
          { name: "QoS", isNumber: true, cell: (row) => row.qos },
          { name: "Retained", cell: (row) => (row.retain ? "yes" : "no") },
          { name: "Size", isNumber: true, cell: (row) => bytes(row.payload.length) },
          { name: "Payload", cell: (row) => <span class="long mono">{shown(row.payload)}</span> },
        ]}
      />
    </>
  );
}

function Subscribe({ client }) {
  const [filter, setFilter] = useState("#");
  const [qos, setQos] = useState(1);
  const submit = async (event) => {
    event.preventDefault();
    try {
      const code = await client.subscribe(filter, qos);
      tell(code < 0x80 ? `Subscribed to ${filter} with QoS ${code}.` : `Subscribe: ${reason(code)}`, code >= 0x80);
    } catch (error) {
      tell(`Subscribe: ${error.message}`, true);
    }
  };
  return (
    <form class="card form" onSubmit={submit}>
      <div class="filters">
        <Field name="Topic filter"><input value={filter} onInput={(event) => setFilter(event.currentTarget.value)} required autocomplete="off" spellcheck={false} /></Field>
        <Qos name="Highest QoS" value={qos} onChange={setQos} />
      </div>
      <button class="main">Subscribe</button>
    </form>
  );
}

function Send({ client }) {
  const [topic, setTopic] = useState("");
  const [payload, setPayload] = useState("");
  const [qos, setQos] = useState(1);
  const [retain, setRetain] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    try {
      const code = await client.publish(topic, payload, qos, retain);
      const done = qos ? `The broker has the message to ${topic}.` : `A message to ${topic} was sent.`;
      tell(code < 0x80 ? done : `Publish: ${reason(code)}`, code >= 0x80);
    } catch (error) {
      tell(`Publish: ${error.message}`, true);
    }
  };
  return (
    <form class="card form" onSubmit={submit}>
      <div class="filters">
        <Field name="Topic"><input value={topic} onInput={(event) => setTopic(event.currentTarget.value)} required autocomplete="off" spellcheck={false} /></Field>
        <Qos name="QoS" value={qos} onChange={setQos} />
      </div>
      <Field name="Payload"><textarea value={payload} onInput={(event) => setPayload(event.currentTarget.value)} spellcheck={false} /></Field>
      <label class="check"><input type="checkbox" checked={retain} onChange={(event) => setRetain(event.currentTarget.checked)} /> Retain</label>
      <button class="main">Publish</button>
    </form>
  );
}

const Qos = ({ name, value, onChange }) => (
  <Field name={name}>
    <select value={String(value)} onChange={(event) => onChange(Number(event.currentTarget.value))}>
      <option value="0">0, at most once</option>
      <option value="1">1, at least once</option>
    </select>
  </Field>
);
