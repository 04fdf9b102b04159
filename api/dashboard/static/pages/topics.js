/** Topics seen lately, as a tree with their last values; one of them with a chart of its numbers. */

import { isAborted } from "../core/api.js";
import { atMost, every, fill, h, perFrame, say } from "../core/dom.js";
import { count, payloadLine, rate } from "../core/format.js";
import { field, heading, input, problem } from "../core/parts.js";
import { note } from "../core/place.js";
import { TopicTree } from "../core/tree.js";
import { topicDetail } from "./topic.js";

const ROW_PIXELS = 32;
const DRAW_MS = 150;
const SPARE_ROWS = 8;
/** More a second are of no use to eyes; counts are asked for. */
const MOST_RATE = 250;
const PAGE = 1_000;
const MOST_PAGES = 10;
const COUNTS_MS = 4_000;

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

function topics(number) {
  return number === 1 ? "1 topic" : `${count(number)} topics`;
}
