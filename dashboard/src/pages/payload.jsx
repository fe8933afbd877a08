// A payload as text, as JSON that can be read, or as bytes in hexadecimal.
import { bytes, counted } from "../format.js";

const HEX_MAX = 1024;

export function Body({ of: { payload, payload_base64 }, properties = {}, size }) {
  const shown = Object.entries(properties).filter(([, value]) => value !== null && value !== "" && String(value) !== "");
  return (
    <>
      {shown.length > 0 && <pre tabIndex={0} aria-label="Properties">{JSON.stringify(Object.fromEntries(shown), null, 2)}</pre>}
      {payload === undefined && payload_base64 === undefined ? (
        <p class="muted">The payload cannot be read any more.</p>
      ) : (
        <pre tabIndex={0} aria-label="Payload">{payload === undefined ? hex(payload_base64) : readable(payload)}</pre>
      )}
      <p class="muted">{`${bytes(size)}${payload === undefined && payload_base64 ? ", not UTF-8: in hexadecimal" : ""}`}</p>
    </>
  );
}

function readable(text) {
  if (!/^\s*[[{]/.test(text)) {
    return text;
  }
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function hex(base64) {
  const all = Uint8Array.from(atob(base64), (each) => each.charCodeAt(0));
  const shown = [...all.subarray(0, HEX_MAX)].map((each) => each.toString(16).padStart(2, "0")).join(" ");
  return all.length > HEX_MAX ? `${shown} … of ${counted(all.length, "byte")}` : shown;
}
