/** Retained messages: what a new subscriber gets at once. */

import { isAborted } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { bytes, cell, moment, payloadBlock, payloadLine } from "../core/format.js";
import {
  ask,
  button,
  facts,
  field,
  heading,
  notice,
  panel,
  problem,
  table,
  input,
} from "../core/parts.js";
import { byClient } from "../core/hints.js";
import { pagedList } from "../core/paged.js";
import { link, note } from "../core/place.js";

const PAGE = 200;
const NOTHING =
  "No topic that the filter matches has a retained message. Publish one with RETAIN to keep it here.";

export function mount({ api, signal, place }) {
  const filter = input({ value: place.query.get("filter") ?? "", placeholder: "#" });
  const beside = h("div.beside");
  /** Topics whose message the table still has for some seconds. */
  const deleted = new Set();
  const wanted = () => filter.value.trim();
  const read = (cursor, mine) => {
    const asked = { topic_filter: wanted(), limit: PAGE, max_payload_bytes: 1024, cursor };
    return api.get("/retained", asked, mine).then((found) => ({
      ...found,
      items: found.items.filter((one) => !deleted.has(one.topic_name)),
    }));
  };
  const list = pagedList(messageTable(api, show), read, signal);

  async function show({ topic_name: topic }) {
    note("retained", topic, { filter: wanted() });
    try {
      const message = await api.get(`/retained/${encodeURIComponent(topic)}`, {}, signal);
      fill(beside, detail(topic, message, api.may("editor") && (() => remove(topic))));
    } catch (error) {
      if (!isAborted(error)) problem(fill(beside), error);
    }
  }
  async function remove(topic) {
    if (!(await ask(`Delete the retained message of ${topic}?`, "Delete"))) return;
    await api.send("DELETE", `/retained/${encodeURIComponent(topic)}`);
    notice(`Deleted: ${topic}. The table follows in some seconds.`);
    deleted.add(topic);
    fill(beside);
    note("retained", "", { filter: wanted() });
    await list.load();
  }
  list.load();
  if (place.item) show({ topic_name: place.item });
  const form = filterForm(filter, () => {
    deleted.clear();
    list.restart();
  });
  const listed = h("section.panel", { "aria-label": "List of retained messages" }, list.elements);
  return h("div", heading("Retained"), form, list.wrong, h("div.split", listed, beside));
}

function filterForm(filter, show) {
  const submit = (event) => {
    event.preventDefault();
    show();
  };
  const start = h("button.primary", { type: "submit" }, "Show");
  return h("form.row", { on: { submit } }, field("Topic filter", filter), start);
}

function messageTable(api, open) {
  const columns = [
    { label: "Topic", cell: (one) => one.topic_name },
    { label: "Payload", cell: payloadLine, class: "wide" },
    { label: "QoS", cell: (one) => one.qos, class: "number" },
    { label: "Size", cell: (one) => bytes(one.payload_bytes), class: "number" },
    { label: "Received", cell: (one) => moment(one.received_at) },
  ];
  const empty = [NOTHING, byClient(api)];
  return table("Retained messages", columns, { empty, open, key: (one) => one.topic_name });
}

/** One message; with `remove` it can be deleted. */
function detail(topic, message, remove) {
  const options = { kind: "danger", name: `Delete the retained message of ${topic}` };
  return panel(
    topic,
    { class: "detail", actions: remove && button("Delete", remove, options) },
    facts([
      ["Received", moment(message.received_at)],
      ["Client", message.client_id],
      ["User", message.username],
      ["QoS", message.qos],
      ["Size", bytes(message.payload_bytes)],
      message.expires_at && ["Expires", moment(message.expires_at)],
      ["Message", h("a", { href: link("trace", message.message_id) }, "trace")],
      message.properties && ["Properties", cell(message.properties)],
    ]),
    h("pre.payload", { tabindex: 0, "aria-label": "Payload" }, payloadBlock(message)),
  );
}
