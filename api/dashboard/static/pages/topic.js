/** One topic: its last message, and a chart of its numbers. */

import { chart } from "../core/chart.js";
import { atMost, fill, h, say } from "../core/dom.js";
import { bytes, cell, moment, payloadBlock } from "../core/format.js";
import { check, facts, panel } from "../core/parts.js";
import { link } from "../core/place.js";

const DRAW_MS = 150;
const MOST_POINTS = 600;
const MOST_FIELDS = 8;

/** The panel of a topic, followed until a signal ends it; `last` is its last message, if known. */
export function topicDetail({ live, api, topic, last, signal }) {
  const lines = new Map();
  const times = [];
  let message = last;
  let shape = "";
  let drawn = null;
  let ended = new AbortController();
  signal.addEventListener("abort", () => ended.abort());

  const payload = h("pre.payload", { tabindex: 0, "aria-label": "Payload" });
  const about = h("div");
  const fields = h("fieldset.fields");
  const plot = h("div");

  const draw = atMost(DRAW_MS, () => {
    if (signal.aborted) return;
    if (message) {
      say(payload, payloadBlock(message));
      fill(
        about,
        facts([
          ["Received", moment(message.received_at)],
          ["Client", message.client_id],
          ["QoS", message.qos],
          ["Retain", message.retain ? "yes" : "no"],
          ["Size", bytes(message.payload_bytes)],
          message.properties && ["Properties", cell(message.properties)],
        ]),
      );
    } else {
      say(payload, "No message yet.");
    }
    const names = [...lines.keys()];
    if (names.join("\n") !== shape) {
      shape = names.join("\n");
      offer(names);
    }
    drawn?.show([times, ...wanted().map((name) => lines.get(name).values)]);
  });

  function wanted() {
    return [...lines].filter(([, line]) => line.isShown).map(([name]) => name);
  }

  function offer(names) {
    fill(
      fields,
      h("legend", "Numbers in the payload"),
      names.map(
        (name) =>
          check(name, {
            checked: lines.get(name).isShown,
            on: {
              change: (event) => {
                lines.get(name).isShown = event.target.checked;
                redraw();
              },
            },
          }).element,
      ),
    );
    redraw();
  }

  function redraw() {
    ended.abort();
    ended = new AbortController();
    const names = wanted();
    drawn = names.length
      ? chart({
          label: `Numbers of ${topic}`,
          series: names,
          format: cell,
          signal: ended.signal,
          hasPoints: true,
        })
      : null;
    fill(plot, drawn?.element);
    draw();
  }

  function take(data) {
    message = data;
    const at = Date.parse(data.received_at) / 1000;
    const found = numbers(data.payload);
    // Several within a millisecond are one point: the last.
    const isNew = at > (times.at(-1) ?? 0);
    if (isNew) times.push(at);
    for (const [name, value] of found) {
      if (!lines.has(name) && lines.size < MOST_FIELDS) {
        lines.set(name, { values: times.map(() => null), isShown: lines.size < 4 });
      }
      const line = lines.get(name);
      if (line) line.values[times.length - 1] = value;
    }
    for (const line of lines.values()) {
      while (line.values.length < times.length) line.values.push(null);
      if (times.length > MOST_POINTS) line.values.shift();
    }
    if (times.length > MOST_POINTS) times.shift();
    draw();
  }

  if (last) take(last);
  else {
    api.get("/topics", { topic_filter: topic, max_payload_bytes: 4096, limit: 1 }, signal).then(
      (found) => !message && found.items[0] && take(found.items[0].last),
      () => {}, // what comes will be shown
    );
  }
  live.follow(
    {
      stream: "messages",
      tenant: api.tenant,
      topic_filters: [topic],
      max_rate: 50,
      max_payload_bytes: 16_384,
    },
    (event, data) => event === "message" && take(data),
    signal,
  );
  draw();
  const query = `SELECT ts, payload_text, client_id, qos FROM messages\nWHERE topic = '${topic.replaceAll("'", "''")}' AND ts > now() - INTERVAL 1 HOUR\nORDER BY ts DESC LIMIT 100`;
  return panel(
    topic,
    { class: "detail", actions: h("a", { href: link("sql", "", { query }) }, "History") },
    about,
    payload,
    fields,
    plot,
  );
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
    else if (one !== null && typeof one === "object" && depth < 4) {
      for (const [name, inner] of Object.entries(one))
        walk(inner, path ? `${path}.${name}` : name, depth + 1);
    }
  };
  walk(value, "", 0);
  return found;
}
