/** How the system is doing, each second. */

import { chart } from "../core/chart.js";
import { fill, h, perFrame, say } from "../core/dom.js";
import { bytes, count, milliseconds, rate, seconds } from "../core/format.js";
import { badge, heading, panel, stateBadge, table, tile } from "../core/parts.js";

/** Label, unit, and how its value is read from the metrics. */
const TILES = [
  ["Messages in", "/s", (now) => rate(now.messages_received_per_second)],
  ["Messages out", "/s", (now) => rate(now.messages_sent_per_second)],
  ["Stored", "/s", (now) => rate(now.messages_stored_per_second)],
  ["Payload in", "/s", (now) => bytes(now.payload_bytes_received_per_second)],
  ["Dropped", "/s", (now) => rate(now.dropped_per_second)],
  ["Clients", "", (now) => count(now.clients)],
  ["Subscriptions", "", (now) => count(now.subscriptions)],
  ["Retained", "", (now) => count(now.retained)],
  ["Rules running", "", (now) => `${count(now.rules.running)} of ${count(now.rules.rules)}`],
  ["Rules match", "/s", (now) => rate(now.rules.matched_per_second)],
];
const NOT_MEASURED = "Not measured yet.";

export function mount({ metrics, signal }) {
  const tiles = TILES.map(([label, unit, read]) => ({ ...tile(label, unit), read }));
  const flow = chart({
    label: "Messages a second in the last minutes",
    series: ["in", "stored", "out"],
    format: rate,
    span: 120,
    signal,
  });
  const gateways = gatewayTable();
  const processes = processTable();
  const latency = h("div", { id: "latency" }, h("p.empty", NOT_MEASURED));
  const queries = h("div", { id: "queries" }, h("p.empty", NOT_MEASURED));
  const showLatency = latencyTable(latency);
  const showQueries = queryTable(queries);

  const draw = perFrame(() => {
    const now = metrics.latest;
    for (const one of tiles) say(one.value, one.read(now));
    flow.show(metrics.history);
    gateways.show(now.gateways);
    processes.show(now.processes);
    showLatency(now);
    showQueries(now);
  });
  metrics.watch(draw, signal);
  const shown = tiles.map((one) => one.element);
  const delays = panel("Delay through each stage", latency);
  return h(
    "div",
    heading("Overview"),
    h("dl.tiles", { "aria-label": "Now" }, shown),
    panel("Messages a second", flow.element),
    h("div.columns", delays, panel("Queries", queries)),
    panel("Gateways", gateways.element),
    panel("Processes", processes.element),
  );
}

function gatewayTable() {
  const state = (one) => (one.alive ? stateBadge(one.state) : badge("away", "bad"));
  const columns = [
    { label: "Gateway", cell: (one) => one.name },
    { label: "State", cell: state },
    { label: "Clients", cell: (one) => count(one.clients), class: "number" },
    { label: "Catching up", cell: catchingUp, class: "number" },
    { label: "Overload", cell: (one) => count(one.overload_level), class: "number" },
    { label: "In /s", cell: (one) => rate(one.per_second.messages_received), class: "number" },
    { label: "Out /s", cell: (one) => rate(one.per_second.messages_sent), class: "number" },
    { label: "Subscriptions", cell: (one) => count(one.subscriptions), class: "number" },
  ];
  return table("Gateways", columns, {
    empty:
      "No gateway has been heard of: bin/mqlake up starts them, bin/mqlake doctor says what is wrong.",
  });
}

/** Sessions that are back and given what they missed, and for how long that goes on. */
function catchingUp(one) {
  const waiting = one.sessions_catching_up;
  const perSecond = one.per_second.sessions_caught_up;
  const isTold = waiting > 0 && perSecond > 0;
  return isTold ? `${count(waiting)}, ${seconds(waiting / perSecond)} left` : count(waiting);
}

function processTable() {
  const health = (one) => badge(...(one.healthy ? ["healthy", "good"] : ["not healthy", "bad"]));
  const columns = [
    { label: "Process", cell: (one) => one.name },
    { label: "Health", cell: health },
    { label: "CPU", cell: (one) => `${count(one.cpu_percent)} %`, class: "number" },
    { label: "Memory", cell: (one) => bytes(one.rss_bytes), class: "number" },
    { label: "Up for", cell: (one) => seconds(one.uptime_seconds), class: "number" },
    { label: "Restarts", cell: (one) => count(one.restarts), class: "number" },
    { label: "What it does", cell: (one) => one.detail, class: "wide" },
  ];
  return table("Processes", columns, { empty: "They run on other machines." });
}

/** The stages of a message's way, as `latency` names them. They are not parts that add up. */
const STAGES = {
  accept: ["Accepted", "PUBLISH with QoS 1 or 2 received to PUBACK or PUBREC sent"],
  route: ["Routed", "in the log to in the gateway's delivery topic"],
  deliver: ["Delivered", "PUBLISH received anywhere to PUBLISH sent to a subscriber"],
};

function latencyTable(place) {
  const shown = table("Delay through each stage", [
    { label: "Stage", cell: (one) => h("span", { title: one.meaning }, one.label) },
    { label: "Gateway", cell: (one) => one.gateway },
    { label: "p50", cell: (one) => milliseconds(one.p50_ms), class: "number" },
    { label: "p95", cell: (one) => milliseconds(one.p95_ms), class: "number" },
    { label: "p99", cell: (one) => milliseconds(one.p99_ms), class: "number" },
  ]);
  return whenThere(place, shown, (now) => {
    if (!now.latency) return null;
    const of = (gateway, latency) =>
      Object.entries(STAGES).map(([stage, [label, meaning]]) => ({
        gateway,
        label,
        meaning,
        ...latency?.[stage],
      }));
    const each =
      now.gateways.length > 1 ? now.gateways.flatMap((one) => of(one.name, one.latency)) : [];
    return [...of("all", now.latency), ...each];
  });
}

function queryTable(place) {
  const shown = table(
    "Queries",
    [
      { label: "Query", cell: (one) => (one.rule ? `rule ${one.rule}` : one.name) },
      { label: "State", cell: (one) => (one.active ? badge("active", "good") : badge("idle")) },
      { label: "Behind", cell: (one) => count(one.lag_records), class: "number" },
      { label: "Rows /s", cell: (one) => rate(one.input_rows_per_second), class: "number" },
      {
        label: "Batch",
        cell: (one) => (one.real_time ? "real time" : milliseconds(one.batch_ms)),
        class: "number",
      },
      { label: "State rows", cell: (one) => count(one.state_rows), class: "number" },
      { label: "Restarts", cell: (one) => count(one.restarts), class: "number" },
    ],
    { empty: "No engine has been heard of." },
  );
  return whenThere(place, shown, (now) => now.queries);
}

/** Show a table from the first time on that its numbers are there. */
function whenThere(place, shown, read) {
  return (now) => {
    const items = read(now);
    if (!items) return;
    if (!shown.element.isConnected) fill(place, shown.element);
    shown.show(items);
  };
}
