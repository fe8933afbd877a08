// Numbers with their units, and times.
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const three = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export const NONE = "–";
const is = (value) => value !== null && value !== undefined && !Number.isNaN(value);

export const count = (value) => (is(value) ? whole.format(value) : NONE);

/** "1 message", "2 messages". */
export const counted = (value, what) => `${count(value)} ${what}${value === 1 ? "" : "s"}`;

/** 1,234,567 as "1.23 M". */
export function short(value) {
  if (!is(value)) {
    return NONE;
  }
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (Math.abs(value) >= size) {
      return `${three.format(value / (unit === "k" ? 1e3 : size))} ${unit}`;
    }
  }
  return Math.abs(value) >= 1000 ? whole.format(value) : three.format(value);
}

export const rate = (value) => (is(value) ? `${short(value)}/s` : NONE);

export function bytes(value) {
  if (!is(value)) {
    return NONE;
  }
  let left = value;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(left) < 1024) {
      return `${three.format(left)} ${unit}`;
    }
    left /= 1024;
  }
  return `${three.format(left)} TiB`;
}

export const byteRate = (value) => (is(value) ? `${bytes(value)}/s` : NONE);

export function duration(seconds) {
  if (!is(seconds)) {
    return NONE;
  }
  if (seconds === 0) {
    return "0 s";
  }
  if (seconds < 1) {
    return `${three.format(seconds * 1000)} ms`;
  }
  for (const [size, unit] of [[86_400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= 2 * size) {
      return `${three.format(seconds / size)} ${unit}`;
    }
  }
  return `${three.format(seconds)} s`;
}

const two = (value) => String(value).padStart(2, "0");

export const clock = (moment) =>
  moment === null ? NONE : `${two(moment.getHours())}:${two(moment.getMinutes())}:${two(moment.getSeconds())}`;

const day = (moment) => `${moment.getFullYear()}-${two(moment.getMonth() + 1)}-${two(moment.getDate())}`;

/** In the zone of whoever looks; without the day when it is today. */
export const stamp = (moment) => (day(moment) === day(new Date()) ? clock(moment) : `${day(moment)} ${clock(moment)}`);
