/** An MQTT client in the page: connect to a gateway, subscribe, publish, see what comes. */

import { isAborted } from "../core/api.js";
import { atMost, fill, h, say } from "../core/dom.js";
import { bytes, count, moment } from "../core/format.js";
import { answered, connect, disconnect } from "../core/mqtt.js";
import {
  badge,
  button,
  check,
  field,
  heading,
  input,
  panel,
  problem,
  select,
  table,
} from "../core/parts.js";
import { MAX_UINT32 } from "../core/vocabulary.js";

const MOST_MESSAGES = 200;
const DRAW_MS = 200;
const MOST_SHOWN_CHARACTERS = 400;
const NO_GATEWAY = "No gateway listens for WebSockets";
const QOS = [
  ["0", "0: at most once"],
  ["1", "1: at least once"],
  ["2", "2: exactly once"],
];
const DONE = ["Sent.", "Published: PUBACK has come.", "Published: PUBCOMP has come."];
const decoder = new TextDecoder("utf-8", { fatal: true });

export function mount({ api, signal }) {
  /** The connection that the panels share; they are told of each change. */
  const shared = { client: null, watchers: [] };
  shared.use = (client) => {
    shared.client = client;
    for (const watcher of shared.watchers) watcher(client !== null);
  };
  signal.addEventListener("abort", () => shared.client && disconnect(shared.client));
  const messages = messageList();
  const page = h(
    "div",
    heading("MQTT client"),
    connectionPanel(api, shared, messages.take, signal),
    h("div.columns", subscribePanel(shared), publishPanel(shared)),
    messages.element,
  );
  shared.use(null);
  return page;
}

function connectionPanel(api, shared, take, signal) {
  const wrong = h("div");
  const address = addressSelect(api, wrong, signal);
  const clientId = input({ value: freshClientId() });
  const username = h("input", { type: "text", autocomplete: "off" });
  const password = h("input", { type: "password", autocomplete: "off" });
  const clean = check("Clean start", { checked: true });
  const expiry = h("input", { type: "number", min: 0, max: MAX_UINT32, value: "0" });
  const state = h("p", { role: "status" }, badge("not connected"));
  const options = () => ({
    clientId: clientId.value,
    username: username.value || undefined,
    password: password.value || undefined,
    clean: clean.box.checked,
    properties: { sessionExpiryInterval: Number(expiry.value) },
  });
  const open = () => openConnection(address.value, options(), shared, take, state, signal);
  const start = button("Connect", open, { kind: "primary", report: wrong });
  const stop = button("Disconnect", () => disconnect(shared.client), { report: wrong });
  shared.watchers.push((isConnected) => {
    stop.hidden = !isConnected;
    start.hidden = isConnected;
  });
  const fields = [
    field("Gateway", address),
    field("Client identifier", clientId),
    field("User name", username),
    field("Password", password),
    field("Session lasts, s", expiry),
  ];
  const controls = h("div.row", start, stop, state);
  return panel("Connection", h("div.row", fields, clean.element), controls, wrong);
}

/** The gateways to choose from, once they have been read. */
function addressSelect(api, wrong, signal) {
  const address = select([["", "Reading…"]]);
  readAddresses(api, signal).then(
    (urls) =>
      fill(
        address,
        urls.map(([url, label]) => h("option", { value: url }, label)),
      ),
    (error) => !isAborted(error) && problem(wrong, error),
  );
  return address;
}

function freshClientId() {
  return `dashboard-${crypto.getRandomValues(new Uint32Array(1))[0].toString(36)}`;
}

async function openConnection(url, options, shared, take, state, signal) {
  if (!url) throw new Error(`${NO_GATEWAY}: bin/mqlake up --websocket-port`);
  const close = (why) => {
    shared.use(null);
    fill(state, badge("not connected"), ` ${why}`);
  };
  fill(state, badge("connecting", "warn"));
  try {
    const { client, connack } = await connect(url, options, { message: take, close });
    if (signal.aborted) return disconnect(client);
    const name = connack.properties?.assignedClientIdentifier ?? options.clientId;
    const session = connack.sessionPresent ? ", with the session that was there" : "";
    fill(state, badge("connected", "good"), ` as ${name}${session}`);
    shared.use(client);
  } catch (error) {
    close("");
    throw error;
  }
}

function subscribePanel(shared) {
  const filter = input({ value: "#" });
  const qos = select(QOS, { value: "1" });
  const noLocal = check("No local");
  const wrong = h("div");
  const shown = h("ul.chips", { "aria-label": "Subscriptions" });
  const granted = new Map();

  async function subscribe() {
    const options = { qos: Number(qos.value), nl: noLocal.box.checked };
    const [one] = await answered(shared.client.subscribeAsync(filter.value, options));
    granted.set(one.topic, one.qos);
    show();
  }
  async function unsubscribe(topicFilter) {
    await answered(shared.client.unsubscribeAsync(topicFilter));
    granted.delete(topicFilter);
    show();
  }
  function chip([topicFilter, granting]) {
    const options = {
      kind: "link",
      report: wrong,
      name: `Unsubscribe from ${topicFilter}`,
    };
    const remove = button("×", () => unsubscribe(topicFilter), options);
    return h("li", `${topicFilter} `, h("small", `QoS ${granting}`), remove);
  }
  const show = () => fill(shown, [...granted].map(chip));
  const start = button("Subscribe", subscribe, { kind: "primary", report: wrong });
  shared.watchers.push((isConnected) => {
    start.disabled = !isConnected;
    granted.clear();
    show();
  });
  const row = h("div.row", field("Topic filter", filter), field("QoS", qos), noLocal.element);
  return panel("Subscribe", row, start, wrong, shown);
}

function publishPanel(shared) {
  const topic = input({ value: "test/dashboard" });
  const value = '{"temperature": 21.5}';
  const payload = h("textarea.code", { rows: 4, spellcheck: "false", value });
  const qos = select(QOS, { value: "1" });
  const retain = check("Retain");
  const contentType = h("input", { type: "text", spellcheck: "false" });
  const said = h("div", { role: "status", "aria-live": "polite" });

  async function publish() {
    const options = {
      qos: Number(qos.value),
      retain: retain.box.checked,
      properties: contentType.value ? { contentType: contentType.value } : {},
    };
    await answered(shared.client.publishAsync(topic.value, payload.value, options));
    fill(said, h("p.hint", DONE[options.qos]));
  }
  const start = button("Publish", publish, { kind: "primary", report: said });
  shared.watchers.push((isConnected) => (start.disabled = !isConnected));
  const fields = [
    field("Topic name", topic),
    field("QoS", qos),
    field("Content type", contentType),
  ];
  const row = h("div.row", fields, retain.element);
  return panel("Publish", row, field("Payload", payload), start, said);
}

/** What has come, the newest first; `take` takes one more. */
function messageList() {
  let received = 0;
  let messages = [];
  const known = h("p.hint", { role: "status" });
  const columns = [
    { label: "Topic", cell: (one) => one.topic },
    { label: "Payload", cell: (one) => one.text, class: "wide code" },
    { label: "QoS", cell: (one) => one.qos, class: "number" },
    { label: "Retain", cell: (one) => (one.retain ? "yes" : "") },
    { label: "Properties", cell: (one) => one.properties, class: "code" },
    { label: "At", cell: (one) => moment(one.at) },
  ];
  const list = table("Messages", columns, {
    empty:
      "No message yet. Connect, subscribe to a topic filter, then publish to a topic that it matches.",
  });
  const draw = atMost(DRAW_MS, () => {
    const part = received > messages.length ? `, the last ${messages.length} are shown` : "";
    say(known, received ? `${count(received)} messages${part}` : "");
    list.show(messages);
  });
  function take({ topic, payload, qos, retain, properties }) {
    received += 1;
    const at = new Date().toISOString();
    const one = { topic, text: readable(payload), qos, retain, properties: listed(properties), at };
    messages = [one, ...messages].slice(0, MOST_MESSAGES);
    draw();
  }
  function clear() {
    received = 0;
    messages = [];
    draw();
  }
  draw();
  const actions = button("Clear", clear, { kind: "quiet" });
  return { element: panel("Messages", { actions }, known, list.element), take };
}

/** Read where gateways and balancers take WebSockets; `[url, label]` each, as for a `select`. */
async function readAddresses(api, signal) {
  const [gateways, { entrances }] = await Promise.all([
    api.get("/gateways", { tenant: null }, signal),
    api.get("/processes", { tenant: null }, signal).catch(() => ({ entrances: [] })),
  ]);
  const balanced = { name: "balanced", alive: true, listeners: entrances };
  const urls = [balanced, ...gateways.items]
    .filter((one) => one.alive)
    .flatMap((one) => webSockets(one.listeners).map((url) => [url, `${one.name}: ${url}`]));
  return urls.length ? urls : [["", NO_GATEWAY]];
}

/** Addresses of the listeners for WebSockets, as this page reaches them. */
function webSockets(listeners) {
  // A gateway that listens on all addresses has that of this page.
  const everywhere = /^(wss?:\/\/)(?:\*|0\.0\.0\.0|\[::\])(?=[:/])/u;
  return listeners
    .filter((url) => /^wss?:/u.test(url))
    .map((url) => url.replace(everywhere, (_all, scheme) => scheme + location.hostname));
}

/** Properties as JSON, by the names that the API has for them; no text without any. */
function listed(properties) {
  const pairs = Object.entries(properties ?? {}).map(([name, value]) => [
    name.replace(/[A-Z]/gu, (letter) => `_${letter.toLowerCase()}`),
    value instanceof Uint8Array ? `${value.length} bytes` : value,
  ]);
  return pairs.length ? JSON.stringify(Object.fromEntries(pairs)) : "";
}

function readable(payload) {
  let text;
  try {
    text = decoder.decode(payload);
  } catch {
    return `(${bytes(payload.length)}, not text)`;
  }
  return text.length > MOST_SHOWN_CHARACTERS ? `${text.slice(0, MOST_SHOWN_CHARACTERS)}…` : text;
}
