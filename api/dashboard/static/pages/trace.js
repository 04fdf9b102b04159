/** What became of one message: accepted, routed, delivered or not and why, what rules made of it. */

import { fill, h, say } from "../core/dom.js";
import { form } from "../core/form.js";
import { bytes, cell, count, moment } from "../core/format.js";
import { badge, facts, field, heading, input, panel, table } from "../core/parts.js";
import { link, note } from "../core/place.js";

const RECENT = "SELECT id, ts, topic, client_id FROM messages ORDER BY ts DESC LIMIT 20";
const KINDS = {
  acked: "good",
  delivered: "good",
  done: "good",
  in_flight: "warn",
  waiting: "warn",
  handed_over: "warn",
  dropped: "bad",
  failed: "bad",
};
const DIGITS = "32 hexadecimal digits";

export function mount({ api, signal, place }) {
  const id = input({
    value: place.item,
    pattern: "[0-9a-f]{32}",
    title: DIGITS,
    placeholder: DIGITS,
    required: true,
  });
  const client = input({ value: place.query.get("client") ?? "" });
  const said = h("p.hint", { role: "status" }, "");
  const found = h("div.page", emptyTrace());
  async function trace() {
    const wanted = id.value.trim();
    note("trace", wanted, { client: client.value });
    say(said, "Looking…");
    fill(found);
    try {
      const query = { client_id: client.value || null };
      const wait = () => say(said, "Waiting for Spark…");
      const shown = await api.getSpark(`/messages/${wanted}/trace`, query, signal, wait);
      fill(found, traceOf(shown));
    } finally {
      say(said, "");
    }
  }
  const fields = [field("Message", id), field("Only at this client", client)];
  const asking = form("Trace", fields, trace, { class: "row" });
  if (place.item) asking.send();
  return h("div", heading("Message trace"), asking.element, said, found);
}

/** Where identifiers of messages are. */
function emptyTrace() {
  return h(
    "p.empty",
    "A trace begins with the identifier of a message. The detail of a topic has a link to the trace of its last message: ",
    h("a", { href: link("topics") }, "Topics"),
    ". The column id of the history has it of every message: ",
    h("a", { href: link("sql", "", { query: RECENT }) }, "the latest 20"),
    ".",
  );
}

function traceOf(trace) {
  return [
    panel("What became of it", h("p", trace.summary), acceptance(trace.accepted)),
    panel("Routed to gateways", routeTable(trace.routed)),
    panel("Subscribers", subscriberTable(trace.subscribers), recording(trace.recording)),
    ...trace.rules.map(ruleTrace),
    trace.not_known.length > 0 && panel("Not known", h("ul", listOf(trace.not_known))),
  ];
}

function acceptance(accepted) {
  return facts([
    ["Topic", h("a", { href: link("topics", accepted.topic_name) }, accepted.topic_name)],
    ["Accepted", moment(accepted.at)],
    ["By", accepted.origin],
    ["Publisher", accepted.client_id],
    ["User", accepted.username],
    ["QoS", accepted.qos],
    ["Retain", accepted.retain ? "yes" : "no"],
    ["Size", bytes(accepted.payload_bytes)],
    ["Place in the log", `${accepted.partition}:${accepted.offset}`],
    ["Found in", accepted.found_in],
  ]);
}

function routeTable(routed) {
  const columns = [
    { label: "Gateway", cell: (one) => one.gateway },
    { label: "Known by", cell: (one) => one.basis },
    { label: "Offset", cell: (one) => count(one.offset), class: "number" },
  ];
  const empty = "To none: no gateway had a subscriber for its topic.";
  return filled("Gateways", columns, empty, routed);
}

function subscriberTable(subscribers) {
  const columns = [
    {
      label: "Client",
      cell: (one) => h("a", { href: link("clients", one.client_id) }, one.client_id),
    },
    { label: "Filter", cell: (one) => one.topic_filter ?? "–" },
    { label: "QoS", cell: (one) => one.qos ?? "–", class: "number" },
    { label: "Gateway", cell: (one) => one.gateway ?? "–" },
    { label: "What became of it", cell: outcome },
    { label: "When", cell: (one) => moment(one.at) },
    { label: "Known by", cell: (one) => one.basis },
    { label: "Why", cell: (one) => one.detail, class: "wide" },
  ];
  return filled("Subscribers", columns, "No client had a subscription for it.", subscribers);
}

function outcome(one) {
  const text = one.reason ? `${one.outcome}: ${one.reason}` : one.outcome;
  return badge(text.replaceAll("_", " "), KINDS[one.outcome]);
}

/** Gateways tell of deliveries while a rule reads these events. */
function recording({ delivered, acked }) {
  if (delivered && acked) return null;
  const events = [!delivered && "$events/message_delivered", !acked && "$events/message_acked"];
  const text = `No running rule reads ${events.filter(Boolean).join(" and ")}: single deliveries are not recorded.`;
  return h("p.hint", text);
}

function ruleTrace(rule) {
  const columns = [
    { label: "Output", cell: (one) => one.output_id },
    { label: "When", cell: (one) => moment(one.at) },
    { label: "Row", cell: (one) => cell(one.row), class: "wide code" },
    {
      label: "Actions",
      cell: ({ actions }) => h("ul", listOf(actions, actionTrace)),
      class: "wide",
    },
  ];
  return panel(
    `Rule ${rule.rule_id}, version ${rule.version}`,
    h(
      "p",
      h("a", { href: link("rules", rule.rule_id) }, rule.rule_id),
      `: ${rule.detail} (${rule.basis})`,
    ),
    filled(`Outputs of ${rule.rule_id}`, columns, "It made no output.", rule.outputs),
    rule.dead_letters.length > 0 && h("ul", listOf(rule.dead_letters, letter)),
  );
}

function actionTrace(one) {
  const made = one.message_id && h("a", { href: link("trace", one.message_id) }, "its message");
  return [`${one.action} `, outcome(one), ` ${one.detail} `, made];
}

function letter(one) {
  return `Failed at ${one.stage}, ${moment(one.at)}: ${one.error}`;
}

function listOf(items, show = (one) => one) {
  return items.map((one) => h("li", show(one)));
}

/** A table whose items do not change. */
function filled(caption, columns, empty, items) {
  const shown = table(caption, columns, { empty });
  shown.show(items);
  return shown.element;
}
