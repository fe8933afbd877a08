import { useState } from "preact/hooks";
import { API, ask } from "../api.js";
import { Field, Head, tell } from "../parts.jsx";

export function Publish() {
  const [message, setMessage] = useState({ topic: "", payload: "", qos: 1, retain: false });
  const [contentType, setContentType] = useState("");
  const [isBusy, setBusy] = useState(false);
  const set = (name, value) => setMessage((old) => ({ ...old, [name]: value }));
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const properties = contentType ? { content_type: contentType } : {};
      const { stored, told } = await ask("POST", `${API}/publish`, { ...message, properties });
      tell(`Published to ${message.topic}: ${stored ? "stored" : "not stored"}${told && `, ${told}`}.`);
    } catch (error) {
      tell(`Publish: ${error.message}`, true);
    }
    setBusy(false);
  };
  return (
    <>
      <Head title="Publish" />
      <form class="card form" onSubmit={submit}>
        <Field name="Topic" about="A topic, or $queue/NAME for a durable queue">
          <input value={message.topic} onInput={(event) => set("topic", event.currentTarget.value)} required autocomplete="off" spellcheck={false} />
        </Field>
        <Field name="Payload" about="Text in UTF-8, 1 MiB at most">
          <textarea value={message.payload} onInput={(event) => set("payload", event.currentTarget.value)} spellcheck={false} />
        </Field>
        <div class="filters">
          <Field name="QoS">
            <select value={String(message.qos)} onChange={(event) => set("qos", Number(event.currentTarget.value))}>
              <option value="0">0, at most once</option>
              <option value="1">1, at least once</option>
              <option value="2">2, exactly once</option>
            </select>
          </Field>
          <Field name="Content type" about="May be left out">
            <input value={contentType} onInput={(event) => setContentType(event.currentTarget.value)} autocomplete="off" spellcheck={false} />
          </Field>
        </div>
        <label class="check">
          <input type="checkbox" checked={message.retain} onChange={(event) => set("retain", event.currentTarget.checked)} /> Retain
        </label>
        <p class="muted">No rules are asked: who may operate the broker may publish anywhere.</p>
        <button class="main" disabled={isBusy}>Publish</button>
      </form>
    </>
  );
}
