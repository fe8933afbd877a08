// Requests to the broker, the token that they carry, and whether it can be reached.
import { useCallback, useEffect, useState } from "preact/hooks";
import { store, useStore } from "./stores.js";

const KEY = "embermq-token";
const TIMEOUT_MS = 20_000;
const RETRY_MAX_S = 30;
const RETRY_MS = 5_000;
const EVENTS_MAX = 100;
export const API = "api/v1";

/** Who is in: `state` is "unknown", "in" or "out"; `why` says what was refused; `hasToken` is false without a token. */
export const session = store({ state: "unknown", why: "", hasToken: false });
/** Since when there is no answer, when the next attempt is, and how often it has come back. */
export const link = store({ lost: null, next: null, epoch: 0 });

/** Of a list: the slots of the cluster whose part is not in it, "1,2"; see `ask`. */
export const missingSlots = new WeakMap();

let token = sessionStorage.getItem(KEY) ?? ""; // this tab's alone: gone when it is closed, never in an address

/** The broker has answered and does not do it. */
export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** There was no answer. */
export class Unreachable extends Error {}

export async function ask(method, path, body) {
  const answer = await answered(method, path, body);
  if (answer.ok) {
    const isJson = (answer.headers.get("content-type") ?? "").includes("json");
    const found = answer.status === 204 ? null : await read(() => (isJson ? answer.json() : answer.text()));
    const missing = answer.headers.get("embermq-missing-slots");
    if (missing && Array.isArray(found)) {
      missingSlots.set(found, missing);
    }
    return found;
  }
  const detail = await answer.json().then((told) => told.detail ?? told.title, () => answer.statusText);
  if (answer.status === 401) {
    leave(token ? detail : "");
  }
  throw new Refused(answer.status, detail);
}

/** What /health and /ready say, with 503 too. */
export async function state(path) {
  const answer = await answered("GET", path);
  return read(() => answer.json());
}

const GIVEN = { cache: "no-store", credentials: "omit", redirect: "error", referrerPolicy: "no-referrer" };

async function answered(method, path, body) {
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  if (body !== undefined) {
    headers["content-type"] = "application/json";
  }
  return read(() =>
    fetch(path, {
      ...GIVEN,
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(TIMEOUT_MS),
    }),
  );
}

/** Server-sent events of the broker, from `begun()` on each handed to `take(kind, value)`, until the stream ends or `signal` is given. */
async function follow(path, begun, take, signal) {
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const answer = await read(() => fetch(path, { ...GIVEN, headers, signal }));
  if (!answer.ok) {
    throw new Refused(answer.status, await answer.json().then((told) => told.detail ?? told.title, () => answer.statusText));
  }
  begun();
  const pieces = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let piece = await read(() => pieces.read()); !piece.done; piece = await read(() => pieces.read())) {
    const events = (rest + piece.value).split("\n\n");
    rest = events.pop();
    for (const lines of events.map((each) => each.split("\n")).filter(([kind]) => kind.startsWith("event: "))) {
      take(lines[0].slice("event: ".length), JSON.parse(lines[1].slice("data: ".length)));
    }
  }
}

/**
 * What happens to a client from now on, the newest first: `rows`, `since` when, and `error` why nothing more is heard.
 * After the end of a stream it begins anew.
 */
export function useClientEvents(id) {
  const { epoch } = useStore(link);
  const [heard, set] = useState({ id, rows: [], since: null, error: null });
  useEffect(() => {
    const over = new AbortController();
    let timer = null;
    let number = 0;
    const change = (next) => over.signal.aborted || set((old) => next(old.id === id ? old : { id, rows: [], since: null, error: null }));
    const take = (kind, value) => {
      if (kind === "client" && value.client_id === id) {
        number += 1;
        change((old) => ({ ...old, rows: [{ ...value, key: `${Date.now()} ${number}` }, ...old.rows].slice(0, EVENTS_MAX) }));
      }
    };
    const begun = () => change((old) => ({ ...old, since: old.since ?? new Date(), error: null }));
    const listen = async () => {
      try {
        await follow(`${API}/events/stream?figures=false&clients=true`, begun, take, over.signal);
      } catch (error) {
        change((old) => ({ ...old, error }));
      }
      if (!over.signal.aborted) {
        timer = setTimeout(listen, RETRY_MS);
      }
    };
    listen();
    return () => {
      over.abort();
      clearTimeout(timer);
    };
  }, [id, epoch]);
  return heard.id === id ? heard : { rows: [], since: null, error: null };
}

async function read(get) {
  try {
    return await get();
  } catch (error) {
    throw new Unreachable(error.name === "TimeoutError" ? `no answer within ${TIMEOUT_MS / 1000} s` : "no answer");
  }
}

/** With a token, or with what the tab still has. */
export async function enter(given = token) {
  token = given.trim();
  try {
    await ask("GET", `${API}/clients?limit=1`);
    if (token !== given.trim()) {
      return; // somebody else has come, or left, meanwhile
    }
    sessionStorage.setItem(KEY, token);
    session.set({ state: "in", why: "", hasToken: token !== "" });
  } catch (error) {
    if (error instanceof Refused && error.status !== 401) {
      leave(error.message);
    } else if (error instanceof Unreachable) {
      session.set({ ...session.get(), state: "out", why: `The broker does not answer: ${error.message}.` });
    }
  }
}

export function leave(why = "") {
  token = "";
  sessionStorage.removeItem(KEY);
  session.set({ state: "out", why, hasToken: false });
}

/** Calls `look` every `every_s()` seconds while the page is seen; without an answer later and later. */
export function repeat(look, every_s, onWait = () => {}) {
  let timer = null;
  let over = false;
  let failures = 0;
  const next = (seconds) => {
    onWait(new Date(Date.now() + seconds * 1000));
    timer = setTimeout(turn, seconds * 1000);
  };
  const turn = async () => {
    timer = null;
    if (document.hidden) {
      document.addEventListener("visibilitychange", turn, { once: true });
      return;
    }
    const isReached = await look();
    failures = isReached ? 0 : failures + 1;
    if (!over) {
      next(isReached ? every_s() : Math.min(2 ** (failures - 1), RETRY_MAX_S));
    }
  };
  turn();
  return {
    now() {
      if (timer !== null) {
        clearTimeout(timer);
        turn();
      }
    },
    stop() {
      over = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", turn);
    },
  };
}

/**
 * What is at `path` now and every few seconds from then on: `data` (undefined at first, and kept while there is no
 * answer), `at` its time, `error` why there is nothing newer, `again` asks at once. `every_s` 0: once. `path` null: not
 * at all.
 */
export function useAsked(path, every_s = 5, get = (each) => ask("GET", each)) {
  const { epoch } = useStore(link);
  const [found, set] = useState({ path, data: undefined, at: null, error: null });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (path === null) {
      return undefined;
    }
    let isCurrent = true;
    const look = async () => {
      try {
        const data = await get(path);
        if (isCurrent) {
          set({ path, data, at: new Date(), error: null });
        }
        return true;
      } catch (error) {
        if (isCurrent) {
          set((old) => ({ ...(old.path === path ? old : { path, data: undefined, at: null }), error }));
        }
        return !(error instanceof Unreachable);
      }
    };
    if (every_s === 0) {
      look();
      return () => (isCurrent = false);
    }
    const repeated = repeat(look, () => every_s);
    return () => {
      isCurrent = false;
      repeated.stop();
    };
  }, [path, turn, epoch, every_s]);
  const again = useCallback(() => setTurn((old) => old + 1), []);
  const shown = found.path === path ? found : { data: undefined, at: null, error: null };
  return { ...shown, again };
}

/**
 * A name as a part of a path. U+0000, which the broker leaves out, is in front of what a browser would take for a step,
 * percent-encoded or not.
 */
export const part = (name) => (name === "." || name === ".." ? `%00${name}` : encodeURIComponent(name));

/** Parameters that have a value, as `?a=b`. */
export function query(given) {
  const told = new URLSearchParams();
  for (const [name, value] of Object.entries(given)) {
    if (value !== "" && value !== null && value !== undefined) {
      told.set(name, value);
    }
  }
  const text = told.toString();
  return text && `?${text}`;
}
