/** Retained messages: what a new subscriber gets at once. */

import { inPath, isAborted } from "../core/api.js";
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
import { note } from "../core/place.js";

const PAGE = 200;

export function mount({ api, signal, place }) {
  const filter = input({ value: place.query.get("filter") ?? "", placeholder: "#" });
  const wrong = h("div");
  const beside = h("div.beside");
  let cursor = null;
  let items = [];

  const list = table(
    "Retained messages",
    [
      { label: "Topic", cell: (one) => one.topic_name },
      { label: "Payload", cell: payloadLine, class: "wide" },
      { label: "QoS", cell: (one) => one.qos, class: "number" },
      { label: "Size", cell: (one) => bytes(one.payload_bytes), class: "number" },
      { label: "Received", cell: (one) => moment(one.received_at) },
    ],
    { empty: "No topic has a retained message.", open: show, key: (one) => one.topic_name },
  );
  const more = button("More", () => load(true));
  more.hidden = true;

  async function load(isMore = false) {
    try {
      const found = await api.get(
        "/retained",
        {
          topic_filter: filter.value.trim(),
          limit: PAGE,
          max_payload_bytes: 1024,
          cursor: isMore ? cursor : null,
        },
        signal,
      );
      items = isMore ? [...items, ...found.items] : found.items;
      cursor = found.next_cursor;
      list.show(items);
      more.hidden = !cursor;
      fill(wrong);
    } catch (error) {
      if (!isAborted(error)) problem(wrong, error);
    }
  }

  async function show({ topic_name: topic }) {
    note("retained", topic, { filter: filter.value.trim() });
    let message;
    try {
      message = await api.get(`/retained/${inPath(topic)}`, {}, signal);
    } catch (error) {
      if (!isAborted(error)) problem(fill(beside), error);
      return;
    }
    fill(
      beside,
      panel(
        topic,
        {
          class: "detail",
          actions:
            api.may("editor") &&
            button("Delete", () => remove(topic), {
              kind: "danger",
              name: `Delete the retained message of ${topic}`,
            }),
        },
        facts([
          ["Received", moment(message.received_at)],
          ["Client", message.client_id],
          ["User", message.username],
          ["QoS", message.qos],
          ["Size", bytes(message.payload_bytes)],
          message.expires_at && ["Expires", moment(message.expires_at)],
          message.properties && ["Properties", cell(message.properties)],
        ]),
        h("pre.payload", { tabindex: 0, "aria-label": "Payload" }, payloadBlock(message)),
      ),
    );
  }

  async function remove(topic) {
    if (!(await ask(`Delete the retained message of ${topic}?`, "Delete"))) return;
    await api.send("DELETE", `/retained/${inPath(topic)}`);
    notice(`Deleted: ${topic}. The table follows in some seconds.`);
    items = items.filter((one) => one.topic_name !== topic);
    list.show(items);
    fill(beside);
    note("retained", "", { filter: filter.value.trim() });
  }

  load();
  if (place.item) show({ topic_name: place.item });
  return h(
    "div",
    heading("Retained"),
    h(
      "form.row",
      {
        on: {
          submit: (event) => {
            event.preventDefault();
            load();
          },
        },
      },
      field("Topic filter", filter),
      h("button.primary", { type: "submit" }, "Show"),
    ),
    wrong,
    h(
      "div.split",
      h("section.panel", { "aria-label": "List of retained messages" }, list.element, more),
      beside,
    ),
  );
}
