/** The load balancer: which nodes take clients and why not, and what each proxy runs; live. */

import { inPath } from "../core/api.js";
import { fill, h, perFrame, say } from "../core/dom.js";
import { count, moment, rate } from "../core/format.js";
import { ask, badge, button, facts, field, heading, panel, table } from "../core/parts.js";

const SHOWN_VERSION = 12;
const NONE =
  "No balancer answers here. The command mqlake up --balanced starts one: clients then use one port.";

export function mount({ api, metrics, signal }) {
  const state = h("div", { id: "balancer" }, h("p.empty", "Not asked yet."));
  const perSecond = h("input", { type: "number", min: 1, max: 100_000, value: 50 });
  const asked = h("div");
  const mayDrain = api.may("admin");

  async function drain(node) {
    const many = Number(perSecond.value) || 50;
    const question = `Give ${node.name} no new clients, and move its clients, ${many} a second?`;
    if (!(await ask(question, "Drain"))) return;
    await api.send("POST", path(node), { connections_per_second: many });
  }
  const actions = (node) =>
    node.draining
      ? button("Undo drain", () => api.send("DELETE", path(node)), {
          report: asked,
          name: `Undo the drain of ${node.name}`,
        })
      : button("Drain", () => drain(node), { report: asked, name: `Drain ${node.name}` });
  const nodes = table(
    "Nodes",
    [
      { label: "Node", cell: (one) => one.name },
      { label: "New clients", cell: taking },
      { label: "Weight", cell: (one) => count(one.weight), class: "number" },
      { label: "CPU", cell: (one) => percent(one.cpu_percent), class: "number" },
      { label: "Overload", cell: overload, class: "number" },
      { label: "Health", cell: factors },
      { label: "Why not", cell: whyNot, class: "wide" },
      ...(mayDrain ? [{ label: "Drain", cell: actions }] : []),
    ],
    { empty: "No node has been found.", key: (one) => one.name },
  );
  const proxies = table(
    "Proxies",
    [
      { label: "Proxy", cell: (one) => one.name },
      { label: "State", cell: (one) => one.badge },
      { label: "Snapshot", cell: (one) => short(one.version), class: "code" },
      { label: "Changes", cell: (one) => count(one.changes), class: "number" },
      { label: "Repairs", cell: (one) => count(one.repairs), class: "number" },
      { label: "Problem", cell: (one) => one.problem, class: "wide" },
    ],
    { empty: "There is none." },
  );
  const drains = table(
    "Drains",
    [
      { label: "Node", cell: (one) => one.node },
      { label: "State", cell: (one) => one.state },
      { label: "Closed by proxies", cell: (one) => count(one.closed), class: "number" },
    ],
    { empty: "Nobody has asked for one." },
  );
  const about = h("div");
  const detail = h("p.hint", { role: "status" }, "");
  const shown = h(
    "div",
    panel("State", about, detail),
    panel(
      "Nodes",
      mayDrain && h("div.row", field("Clients moved a second", perSecond)),
      asked,
      nodes.element,
    ),
    panel("Proxies", proxies.element),
    panel("Drains", drains.element),
  );

  let known = "";
  const copies = h("span", "–");
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
    fill(
      about,
      facts([
        ["Health", badge(...(balancer.healthy ? ["healthy", "good"] : ["not healthy", "bad"]))],
        ["Strategy", balancer.strategy],
        ["Snapshot", h("code", { title: balancer.version }, short(balancer.version))],
        ["Copies of a message", copies],
        ["Placed together", `${count(balancer.talkers)} clients`],
        ["Loads expected as of", loadsOf(balancer.loads)],
        ["Taking clients", `${taken(balancer)} of ${count(balancer.nodes.length)} nodes`],
      ]),
    );
    nodes.show(balancer.nodes);
    proxies.show(balancer.proxies.map((one) => ({ ...one, badge: current(one, balancer) })));
    drains.show(balancer.drains);
  });
  metrics.watch(draw, signal);

  return h("div", heading("Balancer"), state);
}

const path = (node) => `/balancer/nodes/${inPath(node.name)}/drain`;
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
