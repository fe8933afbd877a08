// What /metrics tells, sample by sample: the charts of the last minutes.
import { API, ask, link, repeat, session } from "./api.js";
import { store } from "./stores.js";

const EVERY_S = 3;
const LARGE_BYTES = 200_000; // very many queues: asked for less often
const EVERY_LARGE_S = 15;
export const KEPT_MS = 15 * 60_000;
const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** Samples of the last minutes, oldest first: `at` in Unix milliseconds and the values by name. */
export const samples = store([]);
/** Figures of the broker from before this page was opened, second by second: as it gives them, and `at`. */
export const past = store([]);
/** The newest answer of /metrics: [{labels, value}] by name. */
export const metrics = store(new Map());

/** The text format of Prometheus. */
export function parsed(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = line.startsWith("#") ? null : LINE.exec(line);
    if (match === null) {
      continue;
    }
    const [, name, inside, number] = match;
    const labels = {};
    for (const [, label, value] of (inside ?? "").matchAll(LABEL)) {
      labels[label] = value.replace(/\\(.)/g, (_, each) => (each === "n" ? "\n" : each));
    }
    const value = number === "+Inf" ? Infinity : Number(number);
    found.set(name, [...(found.get(name) ?? []), { labels, value }]);
  }
  return found;
}

export const value = (found, name) => found.get(name)?.[0].value ?? null;
export const sum = (found, name) => found.get(name)?.reduce((all, each) => all + each.value, 0) ?? null;
export const highest = (found, name) => found.get(name)?.reduce((most, each) => Math.max(most, each.value), 0) ?? null;

const buckets = (found, name) =>
  (found.get(`${name}_bucket`) ?? []).map(({ labels, value: upTo }) => [
    labels.le === "+Inf" ? Infinity : Number(labels.le),
    upTo,
  ]);

/** What is charted, of one answer. */
function sample(found) {
  const kept = { at: Date.now() };
  for (const name of [
    "messages_received_total", "messages_sent_total", "bytes_received_total", "bytes_sent_total", "connections",
    "sessions", "connections_accepted_total",
  ]) {
    kept[name] = value(found, `embermq_${name}`);
  }
  kept.cpu = value(found, "process_cpu_seconds_total");
  kept.depth = sum(found, "mqtt_queue_depth") ?? 0;
  kept.started = value(found, "process_start_time_seconds");
  kept.reader_behind = highest(found, "embermq_log_reader_behind");
  kept.lag = highest(found, "embermq_pipeline_lag_messages");
  for (const name of ["commit", "acknowledged", "sync"]) {
    kept[name] = buckets(found, `embermq_${name}_seconds`);
  }
  return kept;
}

/** The last five minutes, as the broker has them: once, since from then on the page sees for itself. */
export async function askPast() {
  try {
    const found = await ask("GET", `${API}/broker/figures`);
    // By this browser's clock, which need not be the broker's.
    const ahead = found.length ? Date.now() - Date.parse(found.at(-1).time) : 0;
    past.set(found.map((each) => ({ ...each, at: Date.parse(each.time) + ahead })));
  } catch {
    past.set([]); // charts begin now
  }
}

/** `points` behind those of the past, where `field` is `scale` times what `points` have. */
export function withPast(older, field, points, scale = 1) {
  const first = points[0]?.[0] ?? Infinity;
  const before = older.filter(({ at }) => at < first).map((each) => [each.at, each[field] === null ? null : each[field] / scale]);
  return [...before, ...points];
}

/** Asks while somebody is in and looks; the heartbeat of `link`. */
export function watchFigures() {
  let every = EVERY_S;
  const look = async () => {
    try {
      const answer = await fetch("metrics", { cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(20_000) });
      const text = await answer.text();
      if (!answer.ok) {
        throw new Error(answer.statusText);
      }
      every = text.length > LARGE_BYTES ? EVERY_LARGE_S : EVERY_S;
      const found = parsed(text);
      const next = sample(found);
      samples.set([...samples.get().filter(({ at }) => at > next.at - KEPT_MS), next]);
      metrics.set(found);
      const { lost, epoch } = link.get();
      if (lost !== null) {
        link.set({ lost: null, next: null, epoch: epoch + 1 });
      }
      return true;
    } catch {
      const { lost, epoch } = link.get();
      link.set({ lost: lost ?? new Date(), next: null, epoch });
      return false;
    }
  };
  const onWait = (moment) => {
    if (link.get().lost !== null) {
      link.set({ ...link.get(), next: moment });
    }
  };
  return repeat(look, () => every, onWait);
}

/** Points [ms, value] of a gauge. */
export const gauge = (all, name) => all.map((each) => [each.at, each[name]]);

/** Points of a counter's rate a second; none over a restart of the broker. */
export function rates(all, name) {
  return pairs(all).map(([before, after]) => {
    const grown = after[name] - before[name];
    const isKnown = after[name] !== null && before[name] !== null && grown >= 0;
    return [after.at, isKnown ? (grown * 1000) / (after.at - before.at) : null];
  });
}

/** Points of a quantile in seconds, of what a histogram has counted over about `over_ms`. */
export function quantiles(all, name, share, over_ms = 15_000) {
  let first = 0;
  return all.map((after, last) => {
    while (first < last && all[first + 1].at <= after.at - over_ms) {
      first += 1;
    }
    const before = all[first];
    return [after.at, before.started === after.started ? quantile(before[name], after[name], share) : null];
  });
}

function quantile(before, after, share) {
  const grown = after.map(([bound, upTo], at) => [bound, upTo - (before[at]?.[1] ?? 0)]);
  const total = grown.at(-1)?.[1] ?? 0;
  if (total <= 0) {
    return null;
  }
  let [low, under] = [0, 0];
  for (const [bound, upTo] of grown) {
    if (upTo >= total * share) {
      // Even within a bucket, as Prometheus takes it.
      return bound === Infinity ? low : low + ((bound - low) * (total * share - under)) / Math.max(upTo - under, 1);
    }
    [low, under] = [bound, upTo];
  }
  return low;
}

function pairs(all) {
  const found = [];
  for (let at = 1; at < all.length; at += 1) {
    found.push([all[at - 1], all[at]]);
  }
  return found;
}

session.watch(({ state }) => {
  if (state === "out") {
    samples.set([]);
    past.set([]);
  }
});
