// MQTT 5 over WebSocket: as much of it as a page needs to try a broker, up to QoS 1.
const KEEP_ALIVE_S = 60;
const PING_MS = 20_000;
const PACKET_BYTES_MAX = 1024 * 1024;
const RECEIVE_MAX = 100;
const [CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, SUBACK, PINGREQ, PINGRESP, DISCONNECT] = [1, 2, 3, 4, 8, 9, 12, 13, 14];
const CODES = {
  0x80: "unspecified error",
  0x81: "malformed packet",
  0x82: "protocol error",
  0x85: "the client id is not valid",
  0x86: "wrong user name or password",
  0x87: "not authorized",
  0x88: "server unavailable",
  0x8a: "banned",
  0x8e: "another client has taken over its client id",
  0x8f: "the topic filter is not valid",
  0x90: "the topic is not valid",
  0x95: "the packet is too large",
  0x97: "quota exceeded",
  0x98: "ended by an operator",
};

/** A reason code for people. */
export const reason = (code) => CODES[code] ?? `reason code 0x${code.toString(16)}`;

const two = (value) => [value >> 8, value & 255];
const string = (value) => {
  const found = new TextEncoder().encode(value);
  return [...two(found.length), ...found];
};

function packet(kind, flags, body) {
  const head = [(kind << 4) | flags];
  let left = body.length;
  do {
    const more = left > 127;
    head.push((left & 127) | (more ? 128 : 0));
    left >>= 7;
  } while (left);
  return Uint8Array.from([...head, ...body]);
}

/** A number of one to four bytes at `at`: [it, where it ends], null when there is not all of it yet. */
function varint(bytes, at) {
  let value = 0;
  for (let index = 0; index < 4 && at + index < bytes.length; index += 1) {
    value |= (bytes[at + index] & 127) << (7 * index);
    if (bytes[at + index] < 128) {
      return [value, at + index + 1];
    }
  }
  return null;
}

function connectPacket({ client_id, user, password }) {
  const flags = 2 | (user ? 0x80 : 0) | (password ? 0x40 : 0); // Clean Start
  const properties = [0x21, ...two(RECEIVE_MAX), 0x27, ...two(PACKET_BYTES_MAX >> 16), ...two(PACKET_BYTES_MAX & 0xffff)];
  const fields = [...string(client_id), ...(user ? string(user) : []), ...(password ? string(password) : [])];
  return packet(CONNECT, 0, [...string("MQTT"), 5, flags, ...two(KEEP_ALIVE_S), properties.length, ...properties, ...fields]);
}

function messageOf(flags, body) {
  const qos = (flags >> 1) & 3;
  let at = 2 + ((body[0] << 8) | body[1]);
  const topic = new TextDecoder().decode(body.subarray(2, at));
  const id = qos ? (body[at] << 8) | body[at + 1] : 0;
  at += qos ? 2 : 0;
  const [length, behind] = varint(body, at);
  return { topic, qos, id, retain: (flags & 1) === 1, payload: body.slice(behind + length) };
}

/** `told` is called with what happens: open(), message({topic, payload, qos, retain}), end(why). */
export class MqttClient {
  #socket;
  #told;
  #held = new Uint8Array();
  #next = 0;
  #answers = new Map();
  #pings = null;
  #isOpen = false;
  #isOver = false;

  constructor(url, given, told) {
    this.#told = told;
    this.#socket = new WebSocket(url, ["mqtt"]);
    this.#socket.binaryType = "arraybuffer";
    this.#socket.onopen = () => this.#socket.send(connectPacket(given));
    this.#socket.onmessage = ({ data }) => this.#read(new Uint8Array(data));
    this.#socket.onclose = () => this.#end(this.#isOpen ? "the connection was lost" : "there is no connection");
  }

  /** Returns a promise of the reason code. */
  subscribe(filter, qos) {
    return this.#ask(SUBSCRIBE, 2, (id) => [...id, 0, ...string(filter), qos]);
  }

  /** Returns a promise of the reason code, which is 0 at once with QoS 0. */
  publish(topic, payload, qos, retain) {
    const body = (id) => [...string(topic), ...id, 0, ...new TextEncoder().encode(payload)];
    const flags = (qos << 1) | (retain ? 1 : 0);
    if (qos) {
      return this.#ask(PUBLISH, flags, body);
    }
    this.#socket.send(packet(PUBLISH, flags, body([])));
    return Promise.resolve(0);
  }

  close() {
    if (this.#isOpen && !this.#isOver) {
      this.#socket.send(packet(DISCONNECT, 0, []));
    }
    this.#end("");
  }

  #ask(kind, flags, body) {
    this.#next = (this.#next % 65_535) + 1;
    const id = this.#next;
    this.#socket.send(packet(kind, flags, body(two(id))));
    return new Promise((resolve, reject) => this.#answers.set(id, { resolve, reject }));
  }

  #read(data) {
    const bytes = new Uint8Array(this.#held.length + data.length);
    bytes.set(this.#held);
    bytes.set(data, this.#held.length);
    let at = 0;
    while (!this.#isOver) {
      const found = varint(bytes, at + 1);
      if (found === null || found[1] + found[0] > bytes.length) {
        break;
      }
      const end = found[1] + found[0];
      this.#take(bytes[at] >> 4, bytes[at] & 15, bytes.subarray(found[1], end));
      at = end;
    }
    this.#held = bytes.slice(at);
  }

  #take(kind, flags, body) {
    if (kind === CONNACK) {
      if (body[1] !== 0) {
        this.#end(reason(body[1]));
        return;
      }
      this.#isOpen = true;
      this.#pings = setInterval(() => this.#socket.send(packet(PINGREQ, 0, [])), PING_MS);
      this.#told.open();
    } else if (kind === PUBLISH) {
      const { id, ...message } = messageOf(flags, body);
      if (message.qos) {
        this.#socket.send(packet(PUBACK, 0, two(id)));
      }
      this.#told.message(message);
    } else if (kind === PUBACK || kind === SUBACK) {
      const id = (body[0] << 8) | body[1];
      this.#answers.get(id)?.resolve(kind === SUBACK ? body.at(-1) : body[2] ?? 0);
      this.#answers.delete(id);
    } else if (kind === DISCONNECT) {
      this.#end(reason(body[0] ?? 0));
    } else if (kind !== PINGRESP) {
      this.#end(`a packet of kind ${kind} was not asked for`);
    }
  }

  #end(why) {
    if (this.#isOver) {
      return;
    }
    this.#isOver = true;
    clearInterval(this.#pings);
    this.#socket.close();
    for (const { reject } of this.#answers.values()) {
      reject(new Error(why || "the client has left"));
    }
    this.#told.end(why);
  }
}
