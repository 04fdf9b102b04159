/** An MQTT client in the page: connect to a gateway, subscribe, publish, see what comes. */

import { isAborted } from "../core/api.js";
import { atMost, fill, h, say } from "../core/dom.js";
import { bytes, count, moment } from "../core/format.js";
import { MqttClient, reason } from "../core/mqtt_client.js";
import {
  badge,
  button,
  check,
  field,
  heading,
  panel,
  problem,
  select,
  table,
} from "../core/parts.js";

const MOST_MESSAGES = 200;
const DRAW_MS = 200;
const MOST_SHOWN_CHARACTERS = 400;
const QOS = [
  ["0", "0: at most once"],
  ["1", "1: at least once"],
  ["2", "2: exactly once"],
];
const decoder = new TextDecoder("utf-8", { fatal: true });

export function mount({ api, signal }) {
  let client = null;
  let received = 0;
  const messages = [];
  const filters = new Map();
  signal.addEventListener("abort", () => client?.close());

  const address = select([["", "Reading…"]]);
  const clientId = h("input", {
    type: "text",
    value: `dashboard-${crypto.getRandomValues(new Uint32Array(1))[0].toString(36)}`,
    spellcheck: "false",
    autocapitalize: "off",
  });
  const username = h("input", { type: "text", autocomplete: "off" });
  const password = h("input", { type: "password", autocomplete: "off" });
  const clean = check("Clean start", { checked: true });
  const expiry = h("input", { type: "number", min: 0, max: 4294967295, value: "0" });
  const state = h("p", { role: "status" }, badge("not connected"));
  const wrong = h("div");
  const start = button("Connect", open, { kind: "primary", report: wrong });
  const stop = button("Disconnect", () => client?.close(), { report: wrong });

  const subscribeTo = h("input", {
    type: "text",
    value: "#",
    spellcheck: "false",
    autocapitalize: "off",
  });
  const subscribeQos = select(QOS, { value: "1" });
  const noLocal = check("No local");
  const subscribeWrong = h("div");
  const subscribed = h("ul.chips", { "aria-label": "Subscriptions" });

  const topic = h("input", {
    type: "text",
    value: "test/dashboard",
    spellcheck: "false",
    autocapitalize: "off",
  });
  const payload = h("textarea.code", {
    rows: 4,
    spellcheck: "false",
    value: '{"temperature": 21.5}',
  });
  const publishQos = select(QOS, { value: "1" });
  const retain = check("Retain");
  const contentType = h("input", { type: "text", spellcheck: "false" });
  const publishSaid = h("div", { role: "status", "aria-live": "polite" });

  const known = h("p.hint", { role: "status" }, "");
  const list = table(
    "Messages",
    [
      { label: "Topic", cell: (one) => one.topic },
      { label: "Payload", cell: (one) => one.text, class: "wide code" },
      { label: "QoS", cell: (one) => one.qos, class: "number" },
      { label: "Retain", cell: (one) => (one.retain ? "yes" : "") },
      { label: "Properties", cell: (one) => one.properties, class: "code" },
      { label: "At", cell: (one) => moment(one.at) },
    ],
    { empty: "No message yet." },
  );
  const draw = atMost(DRAW_MS, () => {
    say(
      known,
      received
        ? `${count(received)} messages${received > messages.length ? `, the last ${messages.length} are shown` : ""}`
        : "",
    );
    list.show(messages);
  });

  async function open() {
    if (!address.value)
      throw new Error("No gateway listens for WebSockets: bin/mqlake up --websocket-port");
    const made = new MqttClient();
    client?.close();
    client = made;
    fill(state, badge("connecting", "warn"));
    made.onMessage = take;
    made.onClose = (why) => {
      if (client !== made) return;
      client = null;
      filters.clear();
      showFilters();
      fill(state, badge("not connected"), ` ${why}`);
      enable(false);
    };
    const packet = await made.open(address.value, {
      clientId: clientId.value,
      username: username.value,
      password: password.value,
      cleanStart: clean.box.checked,
      sessionExpiry: Number(expiry.value),
    });
    const name = packet.properties.assigned_client_identifier ?? clientId.value;
    fill(
      state,
      badge("connected", "good"),
      ` as ${name}${packet.sessionPresent ? ", with the session that was there" : ""}`,
    );
    enable(true);
  }

  function take(packet) {
    received += 1;
    messages.unshift({
      topic: packet.topic,
      text: readable(packet.payload),
      qos: packet.qos,
      retain: packet.retain,
      properties: Object.keys(packet.properties).length
        ? JSON.stringify(packet.properties, (_name, value) =>
            value instanceof Uint8Array ? `${value.length} bytes` : value,
          )
        : "",
      at: new Date().toISOString(),
    });
    messages.length = Math.min(messages.length, MOST_MESSAGES);
    draw();
  }

  async function subscribe() {
    const filter = subscribeTo.value;
    const code = await connected().subscribe({
      filter,
      qos: Number(subscribeQos.value),
      noLocal: noLocal.box.checked,
    });
    if (code >= 0x80) throw new Error(`Not subscribed: ${reason(code)}`);
    filters.set(filter, code);
    showFilters();
  }

  function showFilters() {
    fill(
      subscribed,
      [...filters].map(([filter, qos]) =>
        h(
          "li",
          null,
          `${filter} `,
          h("small", null, `QoS ${qos}`),
          button(
            "×",
            async () => {
              await connected().unsubscribe(filter);
              filters.delete(filter);
              showFilters();
            },
            { kind: "link", report: subscribeWrong, name: `Unsubscribe from ${filter}` },
          ),
        ),
      ),
    );
  }

  async function publish() {
    const code = await connected().publish({
      topic: topic.value,
      payload: new TextEncoder().encode(payload.value),
      qos: Number(publishQos.value),
      retain: retain.box.checked,
      properties: { content_type: contentType.value },
    });
    if (code >= 0x80) throw new Error(`Not published: ${reason(code)}`);
    const how = { 0: "Sent.", 1: "Published: PUBACK has come.", 2: "Published: PUBCOMP has come." }[
      publishQos.value
    ];
    fill(
      publishSaid,
      h("p.hint", null, code === 0x10 ? `${how} Nobody has subscribed to it.` : how),
    );
  }

  function connected() {
    if (client === null) throw new Error("Not connected.");
    return client;
  }

  const subscribeButton = button("Subscribe", subscribe, {
    kind: "primary",
    report: subscribeWrong,
  });
  const publishButton = button("Publish", publish, { kind: "primary", report: publishSaid });
  function enable(isConnected) {
    stop.hidden = !isConnected;
    start.hidden = isConnected;
    subscribeButton.disabled = publishButton.disabled = !isConnected;
  }
  enable(false);
  draw();

  Promise.all([
    api.get("/gateways", { tenant: null }, signal),
    api.get("/processes", { tenant: null }, signal).catch(() => ({ entrances: [] })),
  ]).then(
    ([gateways, { entrances }]) => {
      const placed = { name: "balanced", alive: true, listeners: entrances };
      const urls = [placed, ...gateways.items]
        .filter((one) => one.alive)
        .flatMap((one) => webSockets(one.listeners).map((url) => [url, `${one.name}: ${url}`]));
      fill(
        address,
        urls.length
          ? urls.map(([url, label]) => h("option", { value: url }, label))
          : h("option", { value: "" }, "No gateway listens for WebSockets"),
      );
    },
    (error) => !isAborted(error) && problem(wrong, error),
  );

  return h(
    "div",
    null,
    heading("MQTT client"),
    panel(
      "Connection",
      null,
      h(
        "div.row",
        null,
        field("Gateway", address),
        field("Client identifier", clientId),
        field("User name", username),
        field("Password", password),
        field("Session lasts, s", expiry),
        clean.element,
      ),
      h("div.row", null, start, stop, state),
      wrong,
    ),
    h(
      "div.columns",
      null,
      panel(
        "Subscribe",
        null,
        h(
          "div.row",
          null,
          field("Topic filter", subscribeTo),
          field("QoS", subscribeQos),
          noLocal.element,
        ),
        subscribeButton,
        subscribeWrong,
        subscribed,
      ),
      panel(
        "Publish",
        null,
        h(
          "div.row",
          null,
          field("Topic name", topic),
          field("QoS", publishQos),
          field("Content type", contentType),
          retain.element,
        ),
        field("Payload", payload),
        publishButton,
        publishSaid,
      ),
    ),
    panel(
      "Messages",
      {
        actions: button(
          "Clear",
          () => {
            messages.length = 0;
            received = 0;
            draw();
          },
          { kind: "quiet" },
        ),
      },
      known,
      list.element,
    ),
  );
}

/** Addresses of the listeners for WebSockets, as this page reaches them. */
function webSockets(listeners) {
  return (
    listeners
      .filter((url) => /^wss?:/u.test(url))
      // A gateway that listens on all addresses has that of this page.
      .map((url) =>
        url.replace(
          /^(wss?:\/\/)(?:\*|0\.0\.0\.0|\[::\])(?=[:/])/u,
          (_all, scheme) => scheme + location.hostname,
        ),
      )
  );
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
