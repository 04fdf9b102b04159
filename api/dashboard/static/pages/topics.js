/** Topics seen lately, as a tree with their last values; one of them with a chart of its numbers. */

import { isAborted } from "../core/api.js";
import { chart } from "../core/chart.js";
import { atMost, every, fill, h, perFrame, say } from "../core/dom.js";
import { bytes, cell, count, moment, payloadBlock, payloadLine, rate } from "../core/format.js";
import { check, facts, field, heading, panel, problem, input } from "../core/parts.js";
import { link, note } from "../core/place.js";
import { TopicTree } from "../core/tree.js";

const ROW_PIXELS = 32;
const DRAW_MS = 150;
const SPARE_ROWS = 8;
/** More a second are of no use to eyes; counts are asked for. */
const MOST_RATE = 250;
const PAGE = 1_000;
const MOST_PAGES = 10;
const COUNTS_MS = 4_000;
const MOST_POINTS = 600;
const MOST_FIELDS = 8;

export function mount({ api, live, signal, place }) {
  const tree = new TopicTree();
  let filter = place.query.get("filter") || "#";
  let chosen = place.item;
  let stream = null;
  let detail = null;
  let rows = [];
  let active = 0;
  let isChanged = true;

  const wanted = input({ value: filter });
  const known = h("p.hint", { role: "status" }, "");
  const left = h("p.hint", "");
  const wrong = h("div");
  const spacer = h("div.tree-rows");
  const view = h(
    "div.tree",
    {
      role: "tree",
      tabindex: 0,
      "aria-label": "Topics",
      on: { scroll: () => draw(), keydown: onKey, focus: () => draw() },
    },
    spacer,
  );
  const beside = h(
    "div.beside",
    h("p.empty", "Choose a topic to see its last message and a chart of its numbers."),
  );

  const draw = perFrame(() => {
    if (isChanged) {
      rows = tree.rows();
      isChanged = false;
      active = Math.min(active, Math.max(rows.length - 1, 0));
    }
    spacer.style.height = `${rows.length * ROW_PIXELS}px`;
    const first = Math.max(Math.floor(view.scrollTop / ROW_PIXELS) - SPARE_ROWS, 0);
    const last = Math.min(
      first + Math.ceil(view.clientHeight / ROW_PIXELS) + 2 * SPARE_ROWS,
      rows.length,
    );
    const shown = [];
    for (let index = first; index < last; index += 1) shown.push(row(rows[index], index));
    fill(spacer, shown);
    if (rows.length) view.setAttribute("aria-activedescendant", `row-${active}`);
    else view.removeAttribute("aria-activedescendant");
    say(known, topics(tree.size));
  });
  const drawSoon = atMost(DRAW_MS, draw);

  function row(node, index) {
    const topic = node.topic === null ? null : tree.topic(node.topic);
    const hasMore = node.children.size > 0;
    const element = h(
      "div.tree-row",
      {
        id: `row-${index}`,
        role: "treeitem",
        "aria-level": node.depth,
        "aria-setsize": node.place[1],
        "aria-posinset": node.place[0],
        "aria-selected": String(node.topic !== null && node.topic === chosen),
        "aria-expanded": hasMore ? String(node.isOpen) : undefined,
        class: index === active ? "active" : "",
        on: { click: (event) => onClick(event, node, index) },
      },
      h("span.twist", { "aria-hidden": "true" }, hasMore ? (node.isOpen ? "▾" : "▸") : ""),
      h("span.level", node.level || "(empty)"),
      hasMore && h("span.below", topics(node.topics)),
      topic && h("span.value", payloadLine(topic.last)),
      topic && h("span.rate", topic.rate >= 0.05 ? `${rate(topic.rate)}/s` : count(topic.messages)),
    );
    element.style.top = `${index * ROW_PIXELS}px`;
    element.style.setProperty("--depth", node.depth - 1);
    return element;
  }

  function onClick(event, node, index) {
    active = index;
    if (node.children.size && (node.topic === null || event.target.closest(".twist")))
      toggle(node, !node.isOpen);
    else choose(node.topic);
    draw();
  }

  function onKey(event) {
    const node = rows[active];
    if (!node) return;
    const page = Math.max(Math.floor(view.clientHeight / ROW_PIXELS) - 1, 1);
    const steps = {
      ArrowDown: 1,
      ArrowUp: -1,
      PageDown: page,
      PageUp: -page,
      Home: -active,
      End: rows.length - 1 - active,
    };
    if (event.key in steps) moveTo(active + steps[event.key]);
    else if (event.key === "ArrowRight" && node.children.size) {
      if (node.isOpen) moveTo(active + 1);
      else toggle(node, true);
    } else if (event.key === "ArrowLeft") {
      if (node.isOpen && node.children.size) toggle(node, false);
      else if (node.parent?.parent) moveTo(rows.indexOf(node.parent));
    } else if (event.key === "Enter" || event.key === " ") {
      if (node.topic !== null) choose(node.topic);
      else toggle(node, !node.isOpen);
    } else return;
    event.preventDefault();
    draw();
  }

  function moveTo(index) {
    active = Math.min(Math.max(index, 0), rows.length - 1);
    const top = active * ROW_PIXELS;
    if (top < view.scrollTop) view.scrollTop = top;
    else if (top + ROW_PIXELS > view.scrollTop + view.clientHeight) {
      view.scrollTop = top + ROW_PIXELS - view.clientHeight;
    }
  }

  function toggle(node, isOpen) {
    node.isOpen = isOpen;
    isChanged = true;
  }

  function choose(topic) {
    chosen = topic;
    note("topics", topic, { filter: filter === "#" ? "" : filter });
    detail?.abort();
    detail = new AbortController();
    signal.addEventListener("abort", () => detail.abort(), { once: true, signal: detail.signal });
    fill(
      beside,
      topicDetail({
        live,
        api,
        topic,
        last: tree.topic(topic)?.last ?? null,
        signal: detail.signal,
      }),
    );
  }

  /** Read what is known, then follow what comes. */
  function look() {
    stream?.abort();
    stream = new AbortController();
    const { signal: mine } = stream;
    signal.addEventListener("abort", () => stream.abort(), { once: true, signal: mine });
    tree.clear();
    isChanged = true;
    fill(wrong);
    say(left, "");
    live.follow(
      {
        stream: "messages",
        tenant: api.tenant,
        topic_filters: [filter],
        max_rate: MOST_RATE,
        max_payload_bytes: 1024,
      },
      (event, data) => {
        if (event === "message") {
          const before = tree.topic(data.topic_name);
          isChanged =
            tree.put(data.topic_name, { last: data, messages: (before?.messages ?? 0) + 1 }) ||
            isChanged;
          drawSoon();
        } else if (event === "left_out") {
          say(
            left,
            `${count(data.rate + data.slow)} messages were left out in the last second: more than ${MOST_RATE} a second are not shown. Counts have all of them.`,
          );
        } else if (event === "error") {
          problem(wrong, new Error(data.detail));
        }
      },
      mine,
    );
    every(COUNTS_MS, mine, async () => {
      try {
        let cursor = null;
        for (let page = 0; page < MOST_PAGES; page += 1) {
          const found = await api.get(
            "/topics",
            { topic_filter: filter, limit: PAGE, max_payload_bytes: 256, cursor },
            mine,
          );
          for (const one of found.items) {
            isChanged =
              tree.put(one.topic_name, {
                last: one.last,
                messages: one.messages,
                rate: one.rate,
              }) || isChanged;
          }
          draw();
          cursor = found.next_cursor;
          if (!cursor) break;
        }
      } catch (error) {
        if (!isAborted(error)) problem(wrong, error);
      }
    });
  }

  const form = h(
    "form.row",
    {
      on: {
        submit: (event) => {
          event.preventDefault();
          filter = wanted.value.trim() || "#";
          note("topics", chosen, { filter: filter === "#" ? "" : filter });
          look();
        },
      },
    },
    field("Topic filter", wanted),
    h("button.primary", { type: "submit" }, "Show"),
  );
  look();
  if (chosen) choose(chosen);
  return h(
    "div",
    heading("Topics"),
    form,
    wrong,
    h(
      "div.split",
      h("section.panel", { "aria-label": "Topics seen lately" }, h("div.over", known, left), view),
      beside,
    ),
  );
}

/** One topic: its last message, and its numbers as they come. */
function topicDetail({ live, api, topic, last, signal }) {
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
export function numbers(payload) {
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

function topics(number) {
  return number === 1 ? "1 topic" : `${count(number)} topics`;
}
