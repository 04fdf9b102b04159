/** MQTT 5.0 over WebSocket by MQTT.js, for trying things out: nothing is sent again, nothing kept. */

const KEEP_ALIVE_SECONDS = 30;
const ANSWER_MS = 15_000;
const RECEIVE_MAXIMUM = 100;

let loading = null;
function library() {
  loading ??= import("../vendor/mqtt/mqtt.esm.js").then((module) => module.default);
  return loading;
}

/**
 * Connect; resolve to the client and the CONNACK.
 *
 * @param {string} url ws://… or wss://…
 * @param {Object} options As MQTT.js takes them.
 * @param {Object} handlers `message` is called with each PUBLISH that comes, `close` once, with why,
 *   when a connection is over that was accepted.
 */
export async function connect(url, options, handlers) {
  const mqtt = await library();
  const client = mqtt.connect(url, {
    protocolVersion: 5,
    keepalive: KEEP_ALIVE_SECONDS,
    connectTimeout: ANSWER_MS,
    reconnectPeriod: 0,
    // Those of a worker would need a script made of a text, which the policy refuses.
    timerVariant: "native",
    ...options,
    properties: { receiveMaximum: RECEIVE_MAXIMUM, ...options.properties },
  });
  let why = "";
  client.on("error", (error) => (why ||= error.message));
  client.on("disconnect", (packet) => (why = `the server ended it: ${reason(mqtt, packet)}`));
  client.on("message", (_topic, _payload, packet) => handlers.message(packet));
  return new Promise((resolve, reject) => {
    let connack = null;
    client.on("packetreceive", (packet) => {
      if (packet.cmd === "connack") connack = packet;
    });
    client.once("connect", () => resolve({ client, connack }));
    client.once("close", () => {
      if (client.connected || connack?.reasonCode === 0) handlers.close(why || "disconnected");
      else if (connack) reject(new Error(`Refused: ${reason(mqtt, connack)}`));
      else reject(new Error(why || `${url} cannot be reached`));
    });
  });
}

/** Send DISCONNECT, at the latest when what is in flight has had its time to be answered. */
export function disconnect(client) {
  client.end();
  const late = setTimeout(() => client.stream.destroy(), ANSWER_MS);
  client.once("close", () => clearTimeout(late));
}

/** Resolve to what a request of a client is answered with; what is refused or late is an error. */
export async function answered(request) {
  let timer = 0;
  const late = new Promise((_resolve, reject) => {
    const text = `No answer within ${ANSWER_MS / 1000} s.`;
    timer = setTimeout(() => reject(new Error(text)), ANSWER_MS);
  });
  try {
    return await Promise.race([request, late]);
  } catch (error) {
    if (error.code === undefined) throw error;
    const packet = { reasonCode: error.code, properties: error.packet?.properties };
    throw new Error(reason(await library(), packet), { cause: error });
  } finally {
    clearTimeout(timer);
  }
}

/** Return a packet's reason code in words [MQTT5-2.4]. */
function reason({ ReasonCodes }, { reasonCode = 0, properties }) {
  const code = `0x${reasonCode.toString(16).padStart(2, "0")}`;
  return [code, ReasonCodes[reasonCode]?.toLowerCase(), properties?.reasonString]
    .filter(Boolean)
    .join(", ");
}
