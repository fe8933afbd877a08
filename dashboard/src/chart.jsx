// A line chart as SVG. Its picture is stretched to the room there is; words and numbers are HTML.
import { useState } from "preact/hooks";
import { KEPT_MS } from "./figures.js";
import { clock } from "./format.js";

const WIDTH = 600;
const HEIGHT = 120;
const MINUTES = KEPT_MS / 60_000;

/** `lines`: [{name, points: [[ms, value or null]]}], `show` writes a value with its unit. */
export function Chart({ title, about, lines, show, floor = 1, base = 10 }) {
  const [chosen, choose] = useState(null);
  const times = lines[0].points.map(([at]) => at);
  const end = times.at(-1) ?? Date.now();
  const begin = end - Math.max(Math.min(KEPT_MS, end - (times[0] ?? end)), 60_000);
  const most = Math.max(floor, ...lines.flatMap(({ points }) => points.map(([, value]) => value ?? 0)));
  const top = round(most, base);
  const x = (at) => ((at - begin) / (end - begin)) * WIDTH;
  const y = (value) => HEIGHT - (value / top) * (HEIGHT - 2) - 1;
  const index = chosen === null ? times.length - 1 : Math.min(chosen, times.length - 1);
  const shown = lines.map(({ name, points }) => ({ name, value: points[index]?.[1] ?? null }));
  const point = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const wanted = begin + ((event.clientX - box.left) / box.width) * (end - begin);
    choose(nearest(times, wanted));
  };
  const key = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step !== undefined) {
      event.preventDefault();
      choose(Math.max(0, Math.min(times.length - 1, index + step)));
    } else if (event.key === "Escape") {
      choose(null);
    }
  };
  const told = shown.map(({ name, value }) => `${name} ${show(value)}`).join(", ");
  return (
    <figure class="chart">
      <figcaption>
        <h3>{title}</h3>
        <p class="muted">{about}</p>
      </figcaption>
      <ul class="legend">
        {shown.map(({ name, value }, at) => (
          <li key={name}>
            <i class={`key line-${at}`} /> {name} <b>{show(value)}</b>
          </li>
        ))}
        <li class="muted">{times.length ? `at ${clock(new Date(times[index]))}` : "no figures yet"}</li>
      </ul>
      <div
        class="plot"
        tabIndex={0}
        role="img"
        aria-label={`${title}, ${told}${times.length ? `, at ${clock(new Date(times[index]))}` : ""}. Arrow keys go through the times.`}
        onPointerMove={point}
        onPointerLeave={() => choose(null)}
        onKeyDown={key}
        onBlur={() => choose(null)}
      >
        <span class="top muted">{show(top)}</span>
        <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
          <path class="grid" d={`M0 1H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT - 1}H${WIDTH}`} />
          {chosen !== null && times.length > 0 && <path class="cursor" d={`M${x(times[index])} 0V${HEIGHT}`} />}
          {lines.map(({ name, points }, at) => (
            <path key={name} class={`line line-${at}`} d={path(points, x, y)} />
          ))}
        </svg>
      </div>
      <div class="times muted">
        <span>{clock(new Date(begin))}</span>
        <span>{clock(new Date(end))}</span>
      </div>
    </figure>
  );
}

export const ABOUT_TIME = `Charts begin with the five minutes before the page was opened, and hold ${MINUTES} at most.`;

function path(points, x, y) {
  let isOpen = false;
  let d = "";
  for (const [at, value] of points) {
    if (value === null || Number.isNaN(value)) {
      isOpen = false;
    } else {
      d += `${isOpen ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      isOpen = true;
    }
  }
  return d;
}

/** The next number of 1, 2, 5, 10, 20, ...; to the base 2 of 1, 2, 4, 8, ... */
function round(value, base) {
  const size = base ** Math.floor(Math.log(value) / Math.log(base));
  return size * (base === 2 ? [1, 2] : [1, 2, 5, 10]).find((step) => step * size >= value * 0.999);
}

function nearest(times, wanted) {
  let best = 0;
  times.forEach((at, index) => {
    if (Math.abs(at - wanted) < Math.abs(times[best] - wanted)) {
      best = index;
    }
  });
  return best;
}
