/**
 * Federation: which sites this one has links to, how far each of them has its log, and the map of all
 * sites that it has learned; live.
 */

import { fill, h, perFrame, say } from "../core/dom.js";
import { bytes, count } from "../core/format.js";
import { badge, facts, heading, panel, table } from "../core/parts.js";

const NONE =
  "This site is not federated. The command mqlake up --federation FILE connects it with others.";

export function mount({ metrics, signal }) {
  const state = h("div", { id: "federation" }, h("p.empty", "Not asked yet."));
  const links = linkTable();
  const known = siteTable();
  const map = h("div");
  const about = h("div");
  const detail = h("p.hint", { role: "status" }, "");
  const shown = h(
    "div",
    panel("State", about, detail),
    panel("Links", links.element),
    panel("Map", map, known.element),
  );
  const draw = perFrame(() => {
    const federation = metrics.latest?.federation;
    if (!federation) {
      fill(state, h("p.empty", NONE));
      return;
    }
    if (!shown.isConnected) fill(state, shown);
    say(detail, federation.detail);
    fill(about, factsOf(federation));
    links.show(federation.links);
    const { sites, apart } = federation.overlay ?? { sites: [], apart: [] };
    fill(map, drawing(sites));
    known.show(sites.map((one) => ({ ...one, apart: apart.includes(one.site) })));
  });
  metrics.watch(draw, signal);
  return h("div", heading("Federation"), state);
}

function linkTable() {
  const columns = [
    { label: "Site", cell: (one) => String(one.site) },
    { label: "State", cell: stateOf },
    { label: "Behind", cell: (one) => count(one.behind), class: "number" },
    { label: "Waiting", cell: (one) => count(one.waiting), class: "number" },
    { label: "Carries", cell: carriedBy, class: "wide code" },
    { label: "Sent", cell: (one) => count(one.counters.sent), class: "number" },
    { label: "Offered", cell: (one) => count(one.counters.offered), class: "number" },
    { label: "Traffic", cell: (one) => bytes(one.bytes), class: "number" },
    { label: "Federator", cell: (one) => one.uri || "connects to this site", class: "code" },
    { label: "Why not", cell: (one) => one.reason, class: "wide" },
  ];
  const empty = "This site has no neighbours.";
  return table("Links", columns, { empty, key: (one) => String(one.site) });
}

function siteTable() {
  const columns = [
    { label: "Site", cell: (one) => String(one.site) },
    { label: "State", cell: (one) => badge(...stateOnMap(one)) },
    { label: "Links to", cell: (one) => one.links.join(", "), class: "wide" },
    { label: "Where", cell: (one) => one.uri, class: "code" },
  ];
  const empty = "This site knows of no other.";
  return table("Sites on the map", columns, { empty, key: (one) => String(one.site) });
}

function factsOf({ site, healthy, counters, interests, asked, gaps, streams }) {
  return facts([
    ["Site", String(site)],
    ["Health", badge(...(healthy ? ["healthy", "good"] : ["not healthy", "bad"]))],
    ["New messages", count(counters.appended)],
    ["Had before", count(counters.duplicates)],
    ["Its own, come back", count(counters.echoes)],
    ["Filters wanted here", count(interests)],
    ["Asked for on another path", count(asked)],
    ["Gaps", `${count(gaps)} in ${count(streams)} partitions`],
  ]);
}

/** Of messages that are not retained; these cross whoever wants them. */
function carriedBy(link) {
  const more = link.wants - link.carries.length;
  return link.carries.join(", ") + (more > 0 ? ` and ${count(more)} more` : "");
}

function stateOnMap(one) {
  if (one.apart) return ["no way leads there", "warn"];
  return one.state === "self" ? ["this site", "good"] : [one.state, "good"];
}

const SIZE = 320;
const RADIUS = 130;

/** Return a picture of all sites in a ring, with the links between them. */
function drawing(sites) {
  const places = new Map(
    sites.map(({ site }, index) => {
      const angle = (2 * Math.PI * index) / sites.length - Math.PI / 2;
      const place = (turn) => SIZE / 2 + RADIUS * turn(angle);
      return [site, { x: place(Math.cos), y: place(Math.sin) }];
    }),
  );
  const lines = sites.flatMap(({ site, links }) =>
    links
      .filter((other) => site < other && places.has(other))
      .map((other) => {
        const [from, to] = [places.get(site), places.get(other)];
        const ends = { x1: from.x, y1: from.y, x2: to.x, y2: to.y };
        return shape("line", { ...ends, stroke: "currentColor", "stroke-opacity": 0.5 });
      }),
  );
  const dots = [...places].map(([site, { x, y }]) => {
    const label = shape("text", { x, y: y - 10, "text-anchor": "middle", fill: "currentColor" });
    label.textContent = String(site);
    const dot = shape("circle", { cx: x, cy: y, r: 6, fill: "currentColor" });
    return shape("g", {}, dot, label);
  });
  const plural = lines.length === 1 ? "link" : "links";
  const name = `${sites.length} sites, ${lines.length} ${plural} between them`;
  const props = { viewBox: `0 0 ${SIZE} ${SIZE}`, width: SIZE, role: "img", "aria-label": name };
  return shape("svg", props, ...lines, ...dots);
}

/** Return a new element of SVG. */
function shape(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  element.append(...children);
  return element;
}

function stateOf(link) {
  if (link.gone) return badge("has lost messages", "bad");
  if (link.held_because) return badge("held back", "warn");
  return link.there ? badge("there", "good") : badge("away", "warn");
}
