// Words: url, version (3, 4 or 5), name, and with TLS the file of the authority. It prints one JSON line a step.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { scenario } from "./scenario.mjs";

// scripts/foreign-clients puts the packages there, outside of the sources.
const mqtt = createRequire(new URL("../../../build/clients/javascript/", import.meta.url))("mqtt");
const [url, version, name, authority] = process.argv.slice(2);
const ca = authority ? readFileSync(authority) : undefined;
try {
  await scenario(mqtt, { url, version: Number(version), name, ca }, (line) => console.log(JSON.stringify(line)));
} catch (error) {
  console.error(error);
  process.exit(1);
}
process.exit(0);
