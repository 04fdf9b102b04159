/** One topic: its last message, and a chart of its numbers. */

import { chart } from "../core/chart.js";
import { atMost, fill, h, inTurn, say } from "../core/dom.js";
import { bytes, cell, moment, payloadBlock } from "../core/format.js";
import { block, check, facts, panel } from "../core/parts.js";
import { link } from "../core/place.js";
import { quoted } from "../core/sql.js";
import { MAX_KEPT_BYTES } from "../core/vocabulary.js";

const DRAW_MS = 150;
const MOST_POINTS = 600;
const MOST_FIELDS = 8;
const SHOWN_FIELDS = 4;
const MOST_DEPTH = 4;
const LIMITS = { max_rate: 50, max_payload_bytes: 16_384 };

/** The panel of a topic, followed until a signal ends it; `last` is its last message, if known. */
export function topicDetail({ live, api, topic, last, signal }) {
  let message = last;
  const shown = lastMessage();
  const graph = numberChart(topic, signal);
  const draw = atMost(DRAW_MS, () => {
    if (signal.aborted) return;
    shown.show(message);
    graph.draw();
  });
  function take(data) {
    message = data;
    graph.take(data);
    draw();
  }
  if (last) take(last);
  else {
    const asked = { topic_filter: topic, max_payload_bytes: MAX_KEPT_BYTES, limit: 1 };
    api.get("/topics", asked, signal).then(
      (found) => !message && found.items[0] && take(found.items[0].last),
      () => {}, // what comes will be shown
    );
  }
  const stream = { stream: "messages", tenant: api.tenant, topic_filters: [topic], ...LIMITS };
  live.follow(stream, (event, data) => event === "message" && take(data), signal);
  draw();
  const actions = [shown.trace, h("a", { href: link("sql", "", historyOf(topic)) }, "History")];
  return panel(topic, { class: "detail", actions }, shown.elements, graph.elements);
}

function historyOf(topic) {
  return {
    query: `SELECT ts, payload_text, client_id, qos FROM messages\nWHERE topic = ${quoted(topic)} AND ts > now() - INTERVAL 1 HOUR\nORDER BY ts DESC LIMIT 100`,
  };
}

/** A message, and a link to where it went. */
function lastMessage() {
  const payload = block("Payload", "No message yet.");
  const about = h("div");
  const trace = h("a", { hidden: true }, "Trace");
  function show(message) {
    if (!message) return;
    say(payload, payloadBlock(message));
    trace.hidden = false;
    trace.setAttribute("href", link("trace", message.message_id));
    fill(about, factsOf(message));
  }
  return { elements: [about, payload], trace, show };
}

function factsOf(message) {
  return facts([
    ["Received", moment(message.received_at)],
    ["Client", message.client_id],
    ["QoS", message.qos],
    ["Retain", message.retain ? "yes" : "no"],
    ["Size", bytes(message.payload_bytes)],
    message.properties && ["Properties", cell(message.properties)],
  ]);
}

/** A chart of the numbers in the payloads that it takes, and boxes that say which of them are shown. */
function numberChart(topic, signal) {
  const lines = new Lines();
  const fields = h("fieldset.fields");
  const plot = h("div");
  let shape = "";
  let drawn = null;
  const wanted = () => lines.names.filter((name) => lines.isShown(name));
  const redraw = inTurn(signal, (mine) => {
    const names = wanted();
    const label = `Numbers of ${topic}`;
    const options = { label, series: names, format: cell, signal: mine, hasPoints: true };
    drawn = names.length ? chart(options) : null;
    fill(plot, drawn?.element);
    draw();
  });
  function offer() {
    const boxes = lines.names.map((name) => {
      const change = (event) => {
        lines.choose(name, event.target.checked);
        redraw();
      };
      return check(name, { checked: lines.isShown(name), on: { change } }).element;
    });
    fill(fields, h("legend", "Numbers in the payload"), boxes);
    redraw();
  }
  function draw() {
    const now = lines.names.join("\n");
    if (now !== shape) {
      shape = now;
      offer();
    }
    drawn?.show(lines.columns(wanted()));
  }
  return { elements: [fields, plot], take: (message) => lines.take(message), draw };
}

/** The latest numbers of a topic's payloads, by name, with their times. */
class Lines {
  #times = [];
  #lines = new Map();

  get names() {
    return [...this.#lines.keys()];
  }

  isShown(name) {
    return this.#lines.get(name).isShown;
  }

  choose(name, isShown) {
    this.#lines.get(name).isShown = isShown;
  }

  /** Return times in seconds, then the values of each name, null where there is none. */
  columns(names) {
    return [this.#times, ...names.map((name) => this.#lines.get(name).values)];
  }

  take(message) {
    const times = this.#times;
    const at = Date.parse(message.received_at) / 1000;
    // Several within a millisecond are one point: the last.
    if (at > (times.at(-1) ?? 0)) times.push(at);
    for (const [name, value] of numbers(message.payload)) {
      const line = this.#line(name);
      if (line) line.values[times.length - 1] = value;
    }
    for (const { values } of this.#lines.values()) {
      while (values.length < times.length) values.push(null);
      if (times.length > MOST_POINTS) values.shift();
    }
    if (times.length > MOST_POINTS) times.shift();
  }

  #line(name) {
    const { size } = this.#lines;
    if (!this.#lines.has(name) && size < MOST_FIELDS) {
      const values = this.#times.map(() => null);
      this.#lines.set(name, { values, isShown: size < SHOWN_FIELDS });
    }
    return this.#lines.get(name);
  }
}

/** Return the numbers in a payload with their paths; of one that is a number, the number. */
function numbers(payload) {
  const found = [];
  let value;
  try {
    value = JSON.parse(payload);
  } catch {
    return found;
  }
  const walk = (one, path, depth) => {
    if (found.length >= MOST_FIELDS) return;
    if (typeof one === "number") found.push([path || "value", one]);
    else if (typeof one === "boolean") found.push([path || "value", Number(one)]);
    else if (one !== null && typeof one === "object" && depth < MOST_DEPTH) {
      for (const [name, inner] of Object.entries(one))
        walk(inner, path ? `${path}.${name}` : name, depth + 1);
    }
  };
  walk(value, "", 0);
  return found;
}
