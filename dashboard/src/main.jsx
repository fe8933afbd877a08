// The frame: who is in, which page is shown, whether the broker answers.
import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { enter, leave, link, session } from "./api.js";
import { askPast, watchFigures } from "./figures.js";
import { clock } from "./format.js";
import { Accounts } from "./pages/accounts.jsx";
import { Audit } from "./pages/audit.jsx";
import { Bans } from "./pages/bans.jsx";
import { Clients } from "./pages/clients.jsx";
import { Cluster } from "./pages/cluster.jsx";
import { Login } from "./pages/login.jsx";
import { Mqtt } from "./pages/mqtt.jsx";
import { Overview } from "./pages/overview.jsx";
import { Parked } from "./pages/parked.jsx";
import { Pipeline } from "./pages/pipeline.jsx";
import { Publish } from "./pages/publish.jsx";
import { Queues } from "./pages/queues.jsx";
import { Retained } from "./pages/retained.jsx";
import { Rules } from "./pages/rules.jsx";
import { Tokens } from "./pages/tokens.jsx";
import { Told } from "./parts.jsx";
import { useStore } from "./stores.js";

/** Each with its address, its name in the menu, and the pages below it. */
const PAGES = [
  { at: "", name: "Overview", page: Overview },
  { at: "clients", name: "Clients", page: Clients },
  { at: "queues", name: "Durable queues", page: Queues },
  { at: "parked", name: "Parked messages", page: Parked },
  { at: "retained", name: "Retained messages", page: Retained },
  { at: "publish", name: "Publish", page: Publish },
  { at: "mqtt", name: "MQTT client", page: Mqtt },
  { at: "pipeline", name: "Pipeline", page: Pipeline },
  { at: "cluster", name: "Cluster", page: Cluster },
  { at: "accounts", name: "Accounts", page: Accounts },
  { at: "rules", name: "Access rules", page: Rules },
  { at: "bans", name: "Bans", page: Bans },
  { at: "tokens", name: "Tokens", page: Tokens },
  { at: "audit", name: "Audit trail", page: Audit },
];

const place = () =>
  location.hash
    .replace(/^#\/?/, "")
    .split("/")
    .map((each) => {
      try {
        return decodeURIComponent(each).replace(/^\0/, ""); // see part
      } catch {
        return each;
      }
    });

function usePlace() {
  const [now, set] = useState(place);
  useEffect(() => {
    const moved = () => set(place());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return now;
}

function App() {
  const { state } = useStore(session);
  useEffect(() => {
    enter();
  }, []);
  if (state === "unknown") {
    return <p class="muted alone">Asking the broker…</p>;
  }
  return state === "in" ? <Frame /> : <Login />;
}

function Frame() {
  const figures = useRef(null);
  const [first, ...more] = usePlace();
  const [isOpen, setOpen] = useState(false);
  const { hasToken } = useStore(session);
  const main = useRef(null);
  const isMoved = useRef(false);
  useEffect(() => {
    askPast();
    figures.current = watchFigures();
    return () => figures.current.stop();
  }, []);
  useEffect(() => {
    setOpen(false);
    if (isMoved.current) {
      main.current.querySelector("h1")?.focus(); // who listens hears the new page's title
      scrollTo(0, 0);
    }
    isMoved.current = true;
  }, [first, ...more]);
  const found = PAGES.find(({ at }) => at === first);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), main.current.focus())}>To the content</a>
      <div class="frame">
        <aside>
          <div class="brand">
            <img src="dashboard/icon.svg" alt="" width="28" height="28" />
            <b>EmberMQ</b>
            <button class="menu" aria-expanded={isOpen} aria-controls="menu" onClick={() => setOpen(!isOpen)}>Menu</button>
          </div>
          <nav id="menu" aria-label="Pages" class={isOpen ? "open" : ""}>
            {PAGES.map(({ at, name }) => (
              <a key={at} href={`#/${at}`} aria-current={at === first ? "page" : undefined}>{name}</a>
            ))}
            <a class="apart" href="api/v1/docs">HTTP API</a>
            {hasToken && <button onClick={() => leave()}>Leave</button>}
          </nav>
        </aside>
        <main id="main" ref={main} tabIndex={-1}>
          <Lost retry={() => figures.current.now()} />
          {!hasToken && (
            <p class="notice">
              No token is set, so every program on this machine may operate this broker. To change that:{" "}
              <code>embermq tokens create NAME --scope admin</code>
            </p>
          )}
          <Told />
          {found ? <found.page rest={more} /> : <p>There is no such page. <a href="#/">To the overview</a></p>}
        </main>
      </div>
    </>
  );
}

/** Shown while the broker does not answer. */
function Lost({ retry }) {
  const { lost, next } = useStore(link);
  return (
    <div role="alert">
      {lost && (
        <p class="notice bad">
          <span>{`No answer from the broker since ${clock(lost)}. ${next ? `Next attempt at ${clock(next)}.` : "Trying…"} What is shown is older.`}</span>
          <button onClick={retry}>Try now</button>
        </p>
      )}
    </div>
  );
}

render(<App />, document.getElementById("app"));
