/** All rules with what they do now; one of them, or a new one, opens in the editor. */

import { every, h } from "../core/dom.js";
import { count, rate } from "../core/format.js";
import { check, heading, panel, problem, stateBadge, table } from "../core/parts.js";
import { pagedList } from "../core/paged.js";
import { go } from "../core/place.js";
import { bodyOf, NEW, ruleEditor, save } from "./rule.js";

const REFRESH_MS = 2_000;
const PAGE = 200;
const NONE =
  "There is no rule yet. New rule opens the editor: a SELECT over topics, tried on a message before it runs.";
const NONE_TO_SEE = "There is no rule yet. Somebody with the role editor writes the first one.";

export function mount(context) {
  return context.place.item ? ruleEditor(context) : list(context);
}

function list({ api, signal }) {
  const mayChange = api.may("editor");
  const shown = ruleTable(mayChange, setEnabled);
  const rules = pagedList(shown, (cursor, mine) => read(api, cursor, mine), signal);

  async function setEnabled(rule, box) {
    box.disabled = true;
    try {
      await save(api, rule.id, { ...bodyOf(rule), enable: box.checked }, rule.version);
      await rules.load();
    } catch (error) {
      box.checked = rule.enable;
      problem(rules.wrong, error);
    } finally {
      box.disabled = false;
    }
  }
  every(REFRESH_MS, signal, rules.load);
  const add = mayChange && h("a.button.primary", { href: `#/rules/${NEW}` }, "New rule");
  return h("div", heading("Rules", add), rules.wrong, panel("All rules", ...rules.elements));
}

/** Both lists go by the identifier, so that pages with the same cursor are of the same rules. */
async function read(api, cursor, signal) {
  const asked = { limit: PAGE, cursor };
  const [found, did] = await Promise.all([
    api.get("/rules", asked, signal),
    api.get("/rule_metrics", asked, signal),
  ]);
  const byId = new Map(did.items.map((one) => [one.id, one]));
  const items = found.items.map((rule) => ({ rule, did: byId.get(rule.id) }));
  return { items, next_cursor: found.next_cursor };
}

/** `setEnabled` is called with a rule and the box that somebody has changed. */
function ruleTable(mayChange, setEnabled) {
  const onOff = ({ rule }) =>
    check("", {
      checked: rule.enable,
      disabled: !mayChange,
      "aria-label": `Run ${rule.id}`,
      on: { change: (event) => setEnabled(rule, event.target) },
    }).element;
  const state = ({ rule }) => h("span", { title: rule.error }, stateBadge(rule.state));
  const columns = [
    { label: "Rule", cell: (one) => one.rule.id },
    { label: "State", cell: state },
    { label: "From", cell: (one) => one.rule.from.join(", "), class: "wide" },
    { label: "Match /s", cell: (one) => rate(one.did?.matched_per_second.now), class: "number" },
    { label: "Matched", cell: (one) => count(one.did?.matched), class: "number" },
    { label: "Outputs", cell: (one) => count(one.did?.outputs), class: "number" },
    { label: "Failed", cell: (one) => count(one.did?.failed), class: "number" },
    { label: "Runs", cell: onOff },
  ];
  return table("Rules", columns, {
    empty: mayChange ? NONE : NONE_TO_SEE,
    open: (one) => go("rules", one.rule.id),
    key: (one) => one.rule.id,
  });
}
