import { useEffect, useState } from "preact/hooks";
import { enter, session } from "../api.js";
import { useStore } from "../stores.js";

export function Login() {
  const { why } = useStore(session);
  const [token, setToken] = useState("");
  const [isBusy, setBusy] = useState(false);
  useEffect(() => {
    document.title = "Log in – EmberMQ";
  }, []);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    await enter(token);
    setBusy(false);
  };
  return (
    <main class="alone card">
      <img src="dashboard/icon.svg" alt="" width="40" height="40" />
      <h1>EmberMQ</h1>
      <form onSubmit={submit}>
        <label class="field">
          <span>API token</span>
          <input
            type="password"
            value={token}
            onInput={(event) => setToken(event.currentTarget.value)}
            required
            autofocus
            autocomplete="off"
            aria-invalid={why !== ""}
            aria-describedby="why"
          />
        </label>
        <button class="main" disabled={isBusy}>Log in</button>
        <p id="why" class={why ? "notice bad" : ""} role="alert">{why}</p>
      </form>
      <p class="muted">
        A token is made on the broker's machine: <code>embermq tokens create NAME --scope read</code>, with{" "}
        <code>operate</code> or <code>admin</code> to change things. This tab keeps it until it is closed.
      </p>
    </main>
  );
}
