/** Topics seen lately, as a tree with their last values; one of them with a chart of its numbers. */

import { isAborted } from "../core/api.js";
import { atMost, every, fill, h, inTurn, say } from "../core/dom.js";
import { count } from "../core/format.js";
import { byClient } from "../core/hints.js";
import { field, heading, input, problem } from "../core/parts.js";
import { note } from "../core/place.js";
import { TopicTree } from "../core/tree.js";
import { topics, TreeView } from "../core/tree_view.js";
import { MAX_LIMIT } from "../core/vocabulary.js";
import { topicDetail } from "./topic.js";

const DRAW_MS = 150;
/** More a second are of no use to eyes; counts are asked for. */
const MOST_RATE = 250;
const MOST_PAGES = 10;
const COUNTS_MS = 4_000;
const NOTHING = "No message has come on these topics. Publish one, and its topic appears here.";
const NONE_CHOSEN = "Choose a topic to see its last message and a chart of its numbers.";

export function mount(context) {
  const { place, signal } = context;
  let filter = place.query.get("filter") || "#";
  const wanted = input({ value: filter });
  const beside = h("div.beside", h("p.empty", NONE_CHOSEN));
  const list = topicList(context, choose);
  const { tree, view } = list;
  const follow = inTurn(signal, (mine) => followTopics(context, filter, list, mine));
  const show = inTurn(signal, (mine) => {
    const topic = view.chosen;
    const last = tree.topic(topic)?.last ?? null;
    fill(beside, topicDetail({ ...context, topic, last, signal: mine }));
  });
  const here = () => note("topics", view.chosen, { filter: filter === "#" ? "" : filter });
  function choose(topic) {
    view.chosen = topic;
    here();
    show();
  }
  function submit(event) {
    event.preventDefault();
    filter = wanted.value.trim() || "#";
    here();
    follow();
  }
  follow();
  if (place.item) choose(place.item);
  const start = h("button.primary", { type: "submit" }, "Show");
  const form = h("form.row", { on: { submit } }, field("Topic filter", wanted), start);
  const split = h("div.split", list.element, beside);
  return h("div", heading("Topics"), form, list.wrong, split);
}

/** The tree of topics, with how many there are; `draw` shows what has changed. */
function topicList({ api, place }, choose) {
  const tree = new TopicTree();
  const view = new TreeView(tree, place.item, choose);
  const known = h("p.hint", { role: "status" }, "");
  const left = h("p.hint", "");
  const nothing = h("p.empty", { hidden: true }, NOTHING, byClient(api));
  function draw() {
    view.draw();
    say(known, topics(tree.size));
    nothing.hidden = tree.size > 0;
  }
  const shown = [h("div.over", known, left), nothing, view.element];
  const element = h("section.panel", { "aria-label": "Topics seen lately" }, shown);
  return { tree, view, left, wrong: h("div"), draw, element };
}

/** Read what is known, then follow what comes. */
function followTopics({ api, live }, filter, { tree, view, left, wrong, draw }, signal) {
  tree.clear();
  view.change();
  fill(wrong);
  say(left, "");
  const drawSoon = atMost(DRAW_MS, draw);
  const put = (name, known) => tree.put(name, known) && view.change();
  const asked = { stream: "messages", tenant: api.tenant, topic_filters: [filter] };
  const handlers = {
    message(data) {
      const messages = (tree.topic(data.topic_name)?.messages ?? 0) + 1;
      put(data.topic_name, { last: data, messages });
      drawSoon();
    },
    left_out({ rate, slow }) {
      const many = count(rate + slow);
      const text = `${many} messages were left out in the last second: more than ${MOST_RATE} a second are not shown. Counts have all of them.`;
      say(left, text);
    },
    error: (data) => problem(wrong, new Error(data.detail)),
  };
  const limits = { max_rate: MOST_RATE, max_payload_bytes: 1024 };
  live.follow({ ...asked, ...limits }, (event, data) => handlers[event]?.(data), signal);
  every(COUNTS_MS, signal, async () => {
    try {
      await readTopics(api, filter, put, draw, signal);
    } catch (error) {
      if (!isAborted(error)) problem(wrong, error);
    }
  });
}

/** Read what is known of each topic, page by page. */
async function readTopics(api, filter, put, draw, signal) {
  const asked = { topic_filter: filter, limit: MAX_LIMIT, max_payload_bytes: 256 };
  let cursor = null;
  for (let page = 0; page < MOST_PAGES; page += 1) {
    const found = await api.get("/topics", { ...asked, cursor }, signal);
    for (const { topic_name: name, last, messages, rate } of found.items) {
      put(name, { last, messages, rate });
    }
    draw();
    cursor = found.next_cursor;
    if (!cursor) break;
  }
}
