// SCRAM with MQTT.js, by RFC 5802 and Node's own cryptography. Words: url, method, user, password, client id.
// It prints one JSON object: whether the broker has shown that it knows the password as well and what came back of a
// message of its own, or the reason code of the refusal.
import { createHash, createHmac, pbkdf2Sync, randomBytes, timingSafeEqual } from "node:crypto";
import { createRequire } from "node:module";

const mqtt = createRequire(new URL("../../build/clients/javascript/", import.meta.url))("mqtt");
const [url, method, user, password, clientId] = process.argv.slice(2);
const hash = { "SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512" }[method];
const size = createHash(hash).digest().length;
const hmac = (key, text) => createHmac(hash, key).update(text).digest();
const nonce = randomBytes(18).toString("base64");
const firstBare = `n=${user.replaceAll("=", "=3D").replaceAll(",", "=2C")},r=${nonce}`;
let expected;

function proof(serverFirst) {
  const said = Object.fromEntries(serverFirst.split(",").map((part) => [part[0], part.slice(2)]));
  if (!said.r.startsWith(nonce) || said.r === nonce) {
    throw new Error("the nonce is not ours");
  }
  const salted = pbkdf2Sync(password, Buffer.from(said.s, "base64"), Number(said.i), size, hash);
  const clientKey = hmac(salted, "Client Key");
  const withoutProof = `c=${Buffer.from("n,,").toString("base64")},r=${said.r}`;
  const all = `${firstBare},${serverFirst},${withoutProof}`;
  const signature = hmac(createHash(hash).update(clientKey).digest(), all);
  expected = hmac(hmac(salted, "Server Key"), all);
  return `${withoutProof},p=${Buffer.from(clientKey.map((byte, at) => byte ^ signature[at])).toString("base64")}`;
}

function report(found) {
  console.log(JSON.stringify(found));
  process.exit(0);
}

const client = mqtt.connect(url, {
  clientId,
  protocolVersion: 5,
  reconnectPeriod: 0,
  connectTimeout: 20_000,
  properties: { authenticationMethod: method, authenticationData: Buffer.from(`n,,${firstBare}`) },
});
client.handleAuth = (packet, answer) => {
  const data = Buffer.from(proof(packet.properties.authenticationData.toString()));
  answer(null, { cmd: "auth", reasonCode: 0x18, properties: { authenticationMethod: method, authenticationData: data } });
};
client.on("connect", (packet) => {
  const said = Buffer.from(packet.properties.authenticationData.toString().slice(2), "base64");
  const verified = packet.properties.authenticationMethod === method && timingSafeEqual(said, expected);
  client.on("message", (_topic, payload) => report({ verified, payload: payload.toString() }));
  client.subscribe(clientId, { qos: 1 }, () => client.publish(clientId, "hello", { qos: 1 }));
});
client.on("error", (error) => report({ refused: error.code }));
setTimeout(() => process.exit(1), 20_000);
