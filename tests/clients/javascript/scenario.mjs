// The scenario of tests/clients/README.md with MQTT.js, in Node and in a browser alike.

const DEADLINE_MS = 20_000;
const MESSAGES = 200;
const AWAY = 20;

class Client {
  constructor(mqtt, config, id, options = {}) {
    const { session = false, will } = options;
    this.messages = [];
    this.ended = null;
    this.closed = false;
    this.waiting = new Set();
    const v5 = config.version === 5;
    const properties = { topicAliasMaximum: 10, ...(session ? { sessionExpiryInterval: 600 } : {}) };
    this.mqtt = mqtt.connect(config.url, {
      protocolId: config.version === 3 ? "MQIsdp" : "MQTT",
      clientId: `${config.name}${id}`,
      protocolVersion: config.version,
      clean: !session,
      reconnectPeriod: 0,
      resubscribe: false,
      connectTimeout: DEADLINE_MS,
      ...(config.ca ? { ca: config.ca } : {}),
      ...(will ? { will } : {}),
      ...(v5 ? { properties } : {}),
    });
    this.mqtt.on("message", (topic, payload, packet) => {
      this.messages.push({ topic, text: payload.toString(), packet });
      this.look();
    });
    this.mqtt.on("packetreceive", (packet) => {
      if (packet.cmd === "puback") {
        this.reason = packet.reasonCode;
      }
    });
    this.mqtt.on("disconnect", (packet) => {
      this.ended = packet.reasonCode;
      this.look();
    });
    this.mqtt.on("close", () => {
      this.closed = true;
      this.look();
    });
  }

  async connected() {
    await new Promise((done, failed) => {
      this.mqtt.once("connect", (packet) => {
        this.present = packet.sessionPresent;
        done();
      });
      this.mqtt.once("error", failed);
      this.mqtt.once("close", () => failed(new Error("closed before CONNACK")));
    });
    this.mqtt.on("error", (error) => console.error(String(error)));
    return this;
  }

  look() {
    for (const one of [...this.waiting]) {
      if (one.condition()) {
        this.waiting.delete(one);
        one.done();
      }
    }
  }

  until(condition, what) {
    return new Promise((done, failed) => {
      const timer = setTimeout(
        () => failed(new Error(`not within ${DEADLINE_MS} ms: ${what()}`)),
        DEADLINE_MS,
      );
      this.waiting.add({
        condition,
        done: () => {
          clearTimeout(timer);
          done();
        },
      });
      this.look();
    });
  }

  async take(count) {
    await this.until(
      () => this.messages.length >= count,
      () => `${count} messages, ${this.messages.length} came`,
    );
    return this.messages.splice(0);
  }

  subscribe(filter, qos, properties) {
    return this.mqtt.subscribeAsync(filter, { qos, ...(properties ? { properties } : {}) });
  }

  publish(topic, text, options) {
    return this.mqtt.publishAsync(topic, text, options);
  }

  end() {
    return this.mqtt.endAsync();
  }
}

const numbers = (messages) => messages.map((message) => Number(message.text));
const plain = (properties) => Object.fromEntries(Object.entries(properties ?? {}));

async function everyQos({ open, config, report }) {
  const [hearing, saying] = [await open("a"), await open("b")];
  for (const qos of [0, 1, 2]) {
    await hearing.subscribe(`${config.name}/q/${qos}`, 2);
    const said = [];
    for (let number = 0; number < MESSAGES; number += 1) {
      said.push(saying.publish(`${config.name}/q/${qos}`, String(number), { qos }));
    }
    await Promise.all(said);
    const heard = await hearing.take(MESSAGES);
    const grades = [...new Set(heard.map((message) => message.packet.qos))];
    report({ step: "qos", qos, numbers: numbers(heard), grades });
  }
  await hearing.end();
  await saying.end();
}

async function awayAndBack({ open, config, report }) {
  const topic = `${config.name}/away`;
  const before = await open("s", { session: true });
  await before.subscribe(`${topic}/+`, 2);
  await before.end();
  const saying = await open("b");
  for (let number = 0; number < AWAY; number += 1) {
    const qos = 1 + (number % 2);
    await saying.publish(`${topic}/${qos}`, String(number), { qos });
  }
  const after = await open("s", { session: true });
  const heard = await after.take(AWAY);
  const of = (qos) => numbers(heard.filter((message) => message.packet.qos === qos));
  report({ step: "away", present: after.present, qos1: of(1), qos2: of(2) });
  await after.end();
  await saying.end();
}

async function retained({ open, config, report }) {
  const topic = `${config.name}/retained`;
  const saying = await open("b");
  await saying.publish(topic, "kept", { qos: 1, retain: true });
  const first = await open("a");
  await first.subscribe(topic, 1);
  const [kept] = await first.take(1);
  await saying.publish(topic, "", { qos: 1, retain: true });
  const second = await open("c");
  await second.subscribe(topic, 1);
  await saying.publish(topic, "end", { qos: 1 });
  const [end] = await second.take(1);
  const told = (message) => [message.text, message.packet.retain];
  report({ step: "retained", before: told(kept), after: told(end) });
  await Promise.all([first.end(), second.end(), saying.end()]);
}

async function will({ open, config, report }) {
  const hearing = await open("a");
  await hearing.subscribe(`${config.name}/will`, 1);
  const last = { topic: `${config.name}/will`, payload: "gone", qos: 1, retain: false };
  const first = await open("w", { will: last });
  const second = await open("w");
  const [heard] = await hearing.take(1);
  await first.until(
    () => first.closed,
    () => "the end of the client that was taken over",
  );
  report({ step: "will", payload: heard.text, taken_over: config.version === 5 ? first.ended : null });
  await Promise.all([hearing.end(), second.end(), first.end()]);
}

async function properties({ open, config, report }) {
  const topic = `${config.name}/p`;
  const [hearing, saying] = [await open("a"), await open("b")];
  await hearing.subscribe(`${config.name}/+`, 1, { subscriptionIdentifier: 7 });
  await saying.publish(topic, "x", {
    qos: 1,
    properties: {
      userProperties: { k: ["1", "2"], l: "3" },
      contentType: "text/plain",
      responseTopic: "reply",
      correlationData: new Uint8Array([0, 1, 255]),
      messageExpiryInterval: 60,
      payloadFormatIndicator: true,
    },
  });
  const found = (await hearing.take(1))[0].packet.properties;
  const user = Object.entries(plain(found.userProperties)).flatMap(([key, values]) =>
    [values].flat().map((value) => [key, value]),
  );
  report({
    step: "properties",
    user,
    identifiers: [found.subscriptionIdentifier].flat(),
    content_type: found.contentType,
    response_topic: found.responseTopic,
    correlation: [...found.correlationData],
    expiry: found.messageExpiryInterval,
    text: found.payloadFormatIndicator,
  });
  await hearing.end();
  await saying.end();
}

async function alias({ open, config, report }) {
  const topic = `${config.name}/alias`;
  const [hearing, saying] = [await open("a"), await open("b")];
  await hearing.subscribe(topic, 1);
  for (const [name, text] of [[topic, "0"], ["", "1"], ["", "2"]]) {
    await saying.publish(name, text, { qos: 1, properties: { topicAlias: 1 } });
  }
  const heard = await hearing.take(3);
  report({ step: "alias", topics: heard.map((message) => message.topic), numbers: numbers(heard) });
  await hearing.end();
  await saying.end();
}

async function expiry({ open, config, report }) {
  const topic = `${config.name}/expiry`;
  const before = await open("s", { session: true });
  await before.subscribe(topic, 1);
  await before.end();
  const saying = await open("b");
  await saying.publish(topic, "short", { qos: 1, properties: { messageExpiryInterval: 1 } });
  await saying.publish(topic, "lasting", { qos: 1 });
  await new Promise((done) => {
    setTimeout(done, 1_500);
  });
  const after = await open("s", { session: true });
  const heard = await after.take(1);
  report({ step: "expiry", payloads: heard.map((message) => message.text) });
  await after.end();
  await saying.end();
}

async function shared({ open, config, report }) {
  const members = [await open("m"), await open("n")];
  const saying = await open("b");
  for (const member of members) {
    await member.subscribe(`$share/g/${config.name}/shared`, 1);
  }
  for (let number = 0; number < AWAY; number += 1) {
    await saying.publish(`${config.name}/shared`, String(number), { qos: 1 });
  }
  const heard = await Promise.all(members.map((member) => member.take(AWAY / 2)));
  const all = heard.flatMap(numbers).sort((one, other) => one - other);
  report({ step: "shared", shares: heard.map((messages) => messages.length), numbers: all });
  await Promise.all([...members, saying].map((client) => client.end()));
}

async function codes({ open, config, report }) {
  const client = await open("a");
  const granted = await client.subscribe(`${config.name}/codes/#`, 2);
  await client.publish(`${config.name}/nobody`, "x", { qos: 1 });
  const none = await client.mqtt.unsubscribeAsync(`${config.name}/none`);
  report({
    step: "codes",
    granted: granted.map((one) => one.qos),
    no_subscriber: client.reason,
    no_subscription: none.granted[0],
  });
  await client.end();
}

const EVERY_VERSION = [everyQos, awayAndBack, retained, will];
const ONLY_5 = [properties, alias, expiry, shared, codes];

export async function scenario(mqtt, config, report) {
  const open = (id, options) => new Client(mqtt, config, id, options).connected();
  for (const step of config.version === 5 ? [...EVERY_VERSION, ...ONLY_5] : EVERY_VERSION) {
    await step({ open, config, report });
  }
  report({ step: "end" });
}
