// Does one exchange (see exchange.py, whose JSON is the only argument) with MQTT.js and prints
// {"connack": code, "received": [message, ...]}.
"use strict";

const mqtt = require("mqtt");

const LEVELS = { "3.1.1": 4, "5.0": 5 };
const ANSWER_MS = 30000;

// MQTT.js keeps user properties as an object: {name: value}, or {name: [value, ...]} when repeated.
function toProperties(message) {
  if (message.user_properties.length === 0) return undefined;
  const userProperties = {};
  for (const [name, value] of message.user_properties) {
    userProperties[name] = name in userProperties ? [userProperties[name], value].flat() : value;
  }
  return { userProperties };
}

function toPairs(properties) {
  const pairs = Object.entries(properties?.userProperties ?? {});
  return pairs.flatMap(([name, values]) => [values].flat().map((value) => [name, value]));
}

function connect(exchange, url, will) {
  const options = { protocolVersion: LEVELS[exchange.version], reconnectPeriod: 0 };
  if (will) {
    const { topic, payload, qos, retain } = will;
    options.will = { topic, payload: Buffer.from(payload), qos, retain };
    if (exchange.version === "5.0") options.will.properties = toProperties(will);
  }
  return new Promise((resolve, reject) => {
    const client = mqtt.connect(url, options);
    client.once("error", reject);
    client.once("connect", ({ reasonCode, returnCode }) => {
      client.on("error", () => {}); // a publisher with a will vanishes
      resolve([client, reasonCode ?? returnCode]);
    });
  });
}

function publish(exchange, client, { topic, payload, qos, retain, user_properties }) {
  const options = { qos, retain };
  if (exchange.version === "5.0") options.properties = toProperties({ user_properties });
  return client.publishAsync(topic, payload, options);
}

async function main(exchange) {
  const [publisher] = await connect(exchange, exchange.publisher, exchange.will);
  for (const message of exchange.kept) await publish(exchange, publisher, message);

  const received = [];
  const [subscriber, connack] = await connect(exchange, exchange.subscriber);
  const complete = new Promise((resolve) => {
    subscriber.on("message", (topic, payload, { qos, retain, properties }) => {
      const user_properties = toPairs(properties);
      received.push({ topic, payload: payload.toString(), qos, retain, user_properties });
      if (received.length >= exchange.expected) resolve();
    });
  });
  const granted = await subscriber.subscribeAsync(exchange.topic_filter, { qos: exchange.qos });
  if (granted[0].qos !== exchange.qos) throw new Error(`granted ${granted[0].qos}`);

  for (const message of exchange.sent) await publish(exchange, publisher, message);
  if (exchange.will) publisher.stream.destroy();
  else await publisher.endAsync();
  await complete;
  await subscriber.endAsync();
  return { connack, received };
}

setTimeout(() => {
  console.error("not within the time");
  process.exit(1);
}, ANSWER_MS).unref();

main(JSON.parse(process.argv[2])).then(
  (result) => {
    console.log(JSON.stringify(result));
    process.exit(0);
  },
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
