/** The load balancer: which nodes take clients and why not, and what each proxy runs; live. */

import { fill, h, perFrame, say } from "../core/dom.js";
import { count, moment, rate } from "../core/format.js";
import { ask, badge, button, facts, field, heading, panel, table } from "../core/parts.js";
import { DRAIN_PER_SECOND, MAX_DRAIN_PER_SECOND } from "../core/vocabulary.js";

const SHOWN_VERSION = 12;
const NONE =
  "No balancer answers here. The command mqlake up --balanced starts one: clients then use one port.";

export function mount({ api, metrics, signal }) {
  const state = h("div", { id: "balancer" }, h("p.empty", "Not asked yet."));
  const copies = h("span", "–");
  const detail = h("p.hint", { role: "status" }, "");
  const about = h("div");
  const nodes = nodePanel(api);
  const proxies = proxyTable();
  const drains = drainTable();
  const shown = h(
    "div",
    panel("State", about, detail),
    nodes.element,
    panel("Proxies", proxies.element),
    panel("Drains", drains.element),
  );
  let known = "";
  const draw = perFrame(() => {
    say(copies, copiesOf(metrics.latest));
    const balancer = metrics.latest?.balancer;
    if (!balancer) {
      known = "";
      fill(state, h("p.empty", NONE));
      return;
    }
    if (!shown.isConnected) fill(state, shown);
    say(detail, balancer.detail);
    // Rows with buttons are made anew only when they say something else: who is about to press one
    // is not to lose it.
    const now = JSON.stringify({ ...balancer, nodes: balancer.nodes.map(rounded) });
    if (now === known) return;
    known = now;
    fill(about, factsOf(balancer, copies));
    nodes.show(balancer.nodes);
    proxies.show(balancer.proxies.map((one) => ({ ...one, badge: current(one, balancer) })));
    drains.show(balancer.drains);
  });
  metrics.watch(draw, signal);
  return h("div", heading("Balancer"), state);
}

function factsOf(balancer, copies) {
  return facts([
    ["Health", badge(...(balancer.healthy ? ["healthy", "good"] : ["not healthy", "bad"]))],
    ["Strategy", balancer.strategy],
    ["Snapshot", h("code", { title: balancer.version }, short(balancer.version))],
    ["Copies of a message", copies],
    ["Placed together", `${count(balancer.talkers)} clients`],
    ["Loads expected as of", loadsOf(balancer.loads)],
    ["Taking clients", `${taken(balancer)} of ${count(balancer.nodes.length)} nodes`],
  ]);
}

/** The nodes; who may drain them has the buttons for it. */
function nodePanel(api) {
  const range = { min: 1, max: MAX_DRAIN_PER_SECOND, value: DRAIN_PER_SECOND };
  const perSecond = h("input", { type: "number", ...range });
  const asked = h("div");
  const mayDrain = api.may("admin");
  const columns = [
    { label: "Node", cell: (one) => one.name },
    { label: "New clients", cell: taking },
    { label: "Weight", cell: (one) => count(one.weight), class: "number" },
    { label: "CPU", cell: (one) => percent(one.cpu_percent), class: "number" },
    { label: "Overload", cell: overload, class: "number" },
    { label: "Health", cell: factors },
    { label: "Why not", cell: whyNot, class: "wide" },
  ];
  if (mayDrain) {
    const cell = (one) => drainButton(api, one, perSecond, asked);
    columns.push({ label: "Drain", cell });
  }
  const key = (one) => one.name;
  const nodes = table("Nodes", columns, { empty: "No node has been found.", key });
  const row = mayDrain && h("div.row", field("Clients moved a second", perSecond));
  return { element: panel("Nodes", row, asked, nodes.element), show: nodes.show };
}

function drainButton(api, node, perSecond, report) {
  const undo = () => api.send("DELETE", path(node));
  async function drain() {
    const many = Number(perSecond.value) || DRAIN_PER_SECOND;
    const question = `Give ${node.name} no new clients, and move its clients, ${many} a second?`;
    if (!(await ask(question, "Drain"))) return;
    await api.send("POST", path(node), { connections_per_second: many });
  }
  return node.draining
    ? button("Undo drain", undo, { report, name: `Undo the drain of ${node.name}` })
    : button("Drain", drain, { report, name: `Drain ${node.name}` });
}

function proxyTable() {
  const columns = [
    { label: "Proxy", cell: (one) => one.name },
    { label: "State", cell: (one) => one.badge },
    { label: "Snapshot", cell: (one) => short(one.version), class: "code" },
    { label: "Changes", cell: (one) => count(one.changes), class: "number" },
    { label: "Repairs", cell: (one) => count(one.repairs), class: "number" },
    { label: "Problem", cell: (one) => one.problem, class: "wide" },
  ];
  return table("Proxies", columns, { empty: "There is none." });
}

function drainTable() {
  const columns = [
    { label: "Node", cell: (one) => one.node },
    { label: "State", cell: (one) => one.state },
    { label: "Closed by proxies", cell: (one) => count(one.closed), class: "number" },
  ];
  return table("Drains", columns, {
    empty: "Nobody has asked for one. Drain, beside a node, has its clients go to others.",
  });
}

const path = (node) => `/balancer/nodes/${encodeURIComponent(node.name)}/drain`;
const copiesOf = (now) => (now?.copies_per_message == null ? "–" : rate(now.copies_per_message));
const loadsOf = ({ made_at: at, problem }) =>
  [at === null ? "not known yet" : moment(at), problem].filter(Boolean).join("; ");
const short = (version) => version.slice(0, SHOWN_VERSION) || "–";
const percent = (value) => (value === null ? "–" : `${rate(value)} %`);
const rounded = (node) => ({ ...node, cpu_percent: Math.round(node.cpu_percent ?? -1) });
const taken = (balancer) => count(balancer.nodes.filter((one) => one.takes_clients).length);

function taking(node) {
  if (node.takes_clients) return badge("takes", "good");
  return node.draining ? badge("drained", "warn") : badge("none", "bad");
}

function overload(node) {
  if (node.overload_level === null) return "–";
  return node.overloaded ? badge(String(node.overload_level), "bad") : count(node.overload_level);
}

function factors(node) {
  return Object.entries(node.factors).map(([name, one]) =>
    badge(name, one.healthy === null ? "idle" : one.healthy ? "good" : "bad"),
  );
}

function whyNot(node) {
  const reasons = Object.entries(node.factors)
    .filter(([, one]) => one.healthy !== true)
    .map(([name, one]) => `${name}: ${one.reason || "not known yet"}`);
  if (node.draining) reasons.push("drained");
  if (node.overloaded) reasons.push("overloaded");
  return reasons.join("; ");
}

function current(proxy, balancer) {
  if (proxy.problem) return badge("not reached", "bad");
  return proxy.version === balancer.version ? badge("current", "good") : badge("older", "warn");
}
