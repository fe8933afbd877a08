// What pages are made of.
import { useEffect, useRef, useState } from "preact/hooks";
import { ask, missingSlots } from "./api.js";
import { NONE, clock, count, counted, duration, stamp } from "./format.js";
import { store, useStore } from "./stores.js";

/** The head of a page: its title, the time of what it shows, and what can be done. */
export function Head({ title, asked, children }) {
  useEffect(() => {
    document.title = `${title} – EmberMQ`;
  }, [title]);
  return (
    <header class="head">
      <h1 tabIndex={-1}>{title}</h1>
      {asked && (asked.at || !asked.error) && <span class="muted at">{asked.at ? `as of ${clock(asked.at)}` : "loading"}</span>}
      <div class="doing">{children}</div>
    </header>
  );
}

/** Nothing yet, why there is nothing new, or what is not in it. */
export function Waiting({ asked, name = "It" }) {
  if (asked.error) {
    const old = asked.at ? ` Shown is what was there at ${clock(asked.at)}.` : "";
    return <p class="notice bad" role="alert">{`${name} cannot be shown: ${asked.error.message}.${old}`}</p>;
  }
  if (asked.data === undefined) {
    return <p class="muted">Loading…</p>;
  }
  const missing = missingSlots.get(asked.data);
  return missing ? <p class="notice" role="status">{`Not all: no node has answered for slot ${missing.replaceAll(",", ", ")}.`}</p> : null;
}

/** A time in the zone of whoever looks; its tip has it in UTC. */
export function Time({ of }) {
  if (of === null || of === undefined || of === "" || of === 0) {
    return NONE;
  }
  const moment = new Date(of);
  return <time dateTime={moment.toISOString()} title={moment.toISOString()}>{stamp(moment)}</time>;
}

/** What a state is, in words and a colour. */
export function State({ of, good = ["ok", "open", "running", "connected"], bad = ["failed", "down", "backoff", "degraded"] }) {
  const kind = good.includes(of) ? "good" : bad.includes(of) ? "bad" : "";
  return <span class={`state ${kind}`}>{of}</span>;
}

/** `columns`: [{name, cell(row), isNumber, isMain, isLong}], of which long ones wrap; `id(row)` tells rows apart. */
export function Table({ label, columns, rows, id, none = "There are none." }) {
  if (rows.length === 0) {
    return <p class="muted">{none}</p>;
  }
  return (
    <div class="table" role="region" aria-label={label} tabIndex={0}>
      <table>
        <thead>
          <tr>{columns.map(({ name, isNumber }) => <th key={name} scope="col" class={isNumber ? "number" : ""}>{name}</th>)}</tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={id(row)}>
              {columns.map(({ name, cell, isNumber, isMain, isLong }) =>
                isMain ? <th key={name} scope="row">{cell(row)}</th> : <td key={name} class={isNumber ? "number" : isLong ? "wrap" : ""}>{cell(row)}</td>,
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** Names with values. */
export const Facts = ({ of }) => (
  <dl class="facts">
    {of.filter(Boolean).map(([name, value]) => (
      <div key={name}>
        <dt>{name}</dt>
        <dd>{value ?? NONE}</dd>
      </div>
    ))}
  </dl>
);

/** One figure. */
export const Tile = ({ name, value, about }) => (
  <div class="tile">
    <dt>{name}</dt>
    <dd>
      <b>{value}</b>
      {about && <small class="muted">{about}</small>}
    </dd>
  </div>
);

/** Pages of a list that is asked for behind the last entry of the page before. `size` rows a page. */
export function usePages(filters) {
  const key = JSON.stringify(filters);
  const [pages, setPages] = useState({ key, behind: [{}] });
  const behind = pages.key === key ? pages.behind : [{}];
  return {
    after: behind.at(-1),
    number: behind.length,
    next: (after) => setPages({ key, behind: [...behind, after] }),
    back: () => setPages({ key, behind: behind.slice(0, -1) }),
    first: () => setPages({ key, behind: [{}] }),
  };
}

/** `what` one row is. */
export function Pager({ pages, rows, size, after, what }) {
  const from = (pages.number - 1) * size;
  const isLast = rows.length < size;
  if (pages.number === 1 && rows.length === 0) {
    return null;
  }
  if (pages.number === 1 && isLast) {
    return <p class="muted">{counted(rows.length, what)}</p>;
  }
  return (
    <nav class="pager" aria-label={`Pages of ${what}s`}>
      <button onClick={pages.first} disabled={pages.number === 1}>First</button>
      <button onClick={pages.back} disabled={pages.number === 1}>Previous</button>
      <button onClick={() => pages.next(after(rows.at(-1)))} disabled={isLast}>Next</button>
      <span class="muted">{rows.length ? `${what}s ${count(from + 1)} to ${count(from + rows.length)}` : `no more ${what}s`}</span>
    </nav>
  );
}

/** What was done last, told to those who see and those who listen. */
const told = store(null);

export function Told() {
  const last = useStore(told);
  return (
    <div class="told" role="status" aria-live="polite">
      {last && (
        <p class={`notice ${last.isBad ? "bad" : "good"}`}>
          <span>{`${clock(last.at)} ${last.text}`}</span>
          <button class="plain" aria-label="Dismiss this message" onClick={() => told.set(null)}>×</button>
        </p>
      )}
    </div>
  );
}

export const tell = (text, isBad = false) => told.set({ text, isBad, at: new Date() });

/**
 * A button that asks the broker to do something; `question` is confirmed first. `done(answer)` has the words for it,
 * `after` is called when it was done.
 */
export function Act({ name, method, path, body, question, isDanger, done, after, disabled }) {
  const dialog = useRef(null);
  const [isBusy, setBusy] = useState(false);
  const act = async () => {
    setBusy(true);
    try {
      const answer = await ask(method, path, body);
      tell(done(answer));
      after?.(answer);
    } catch (error) {
      tell(`${name}: ${error.message}`, true);
    }
    setBusy(false);
  };
  const answered = () => {
    if (dialog.current.returnValue === "yes") {
      act();
    }
    dialog.current.returnValue = "";
  };
  return (
    <>
      <button class={isDanger ? "danger" : ""} disabled={disabled || isBusy} onClick={() => (question ? dialog.current.showModal() : act())}>
        {name}
      </button>
      {question && (
        <dialog ref={dialog} onClose={answered} aria-label={name}>
          <form method="dialog">
            <p>{question}</p>
            <div class="doing">
              <button value="no" autofocus>Cancel</button>
              <button value="yes" class={isDanger ? "danger" : "main"}>{name}</button>
            </div>
          </form>
        </dialog>
      )}
    </>
  );
}

/** A field with its name above it. */
export const Field = ({ name, about, children }) => (
  <label class="field">
    <span>{name}</span>
    {children}
    {about && <small class="muted">{about}</small>}
  </label>
);

/** Text that is asked for when nobody has typed for a moment. */
export function Search({ name, value, onChange, about }) {
  const [text, setText] = useState(value);
  const waiting = useRef(null);
  useEffect(() => () => clearTimeout(waiting.current), []);
  const typed = (event) => {
    const next = event.currentTarget.value;
    setText(next);
    clearTimeout(waiting.current);
    waiting.current = setTimeout(() => onChange(next), 300);
  };
  return (
    <Field name={name} about={about}>
      <input type="search" value={text} onInput={typed} autocomplete="off" spellcheck={false} />
    </Field>
  );
}

/** Shell wildcards for what somebody types: what has none is looked for anywhere in the name. */
export const wildcards = (text) => (text === "" || /[*?[]/.test(text) ? text : `*${text}*`);

/** An age that a table shows. */
export const age = (seconds) => (seconds ? duration(seconds) : NONE);
