/** Federation: which sites this one has links to, and how far each of them has its log; live. */

import { fill, h, perFrame, say } from "../core/dom.js";
import { bytes, count } from "../core/format.js";
import { badge, facts, heading, panel, table } from "../core/parts.js";

const NONE =
  "This site is not federated. The command mqlake up --federation FILE connects it with others.";

export function mount({ metrics, signal }) {
  const state = h("div", { id: "federation" }, h("p.empty", null, "Not asked yet."));
  const links = table(
    "Links",
    [
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
    ],
    { empty: "This site has no neighbours.", key: (one) => String(one.site) },
  );
  const about = h("div");
  const detail = h("p.hint", { role: "status" }, "");
  const shown = h(
    "div",
    null,
    panel("State", null, about, detail),
    panel("Links", null, links.element),
  );

  const draw = perFrame(() => {
    const federation = metrics.latest?.federation;
    if (!federation) {
      fill(state, h("p.empty", null, NONE));
      return;
    }
    if (!shown.isConnected) fill(state, shown);
    const { counters } = federation;
    say(detail, federation.detail);
    fill(
      about,
      facts([
        ["Site", String(federation.site)],
        ["Health", badge(...(federation.healthy ? ["healthy", "good"] : ["not healthy", "bad"]))],
        ["New messages", count(counters.appended)],
        ["Had before", count(counters.duplicates)],
        ["Its own, come back", count(counters.echoes)],
        ["Filters wanted here", count(federation.interests)],
        ["Asked for on another path", count(federation.asked)],
        ["Gaps", `${count(federation.gaps)} in ${count(federation.streams)} partitions`],
      ]),
    );
    links.show(federation.links);
  });
  metrics.watch(draw, signal);

  return h("div", null, heading("Federation"), state);
}

/** Of messages that are not retained; these cross whoever wants them. */
function carriedBy(link) {
  const more = link.wants - link.carries.length;
  return link.carries.join(", ") + (more > 0 ? ` and ${count(more)} more` : "");
}

function stateOf(link) {
  if (link.gone) return badge("has lost messages", "bad");
  return link.there ? badge("there", "good") : badge("away", "warn");
}
