/** All rules with what they do now; one of them, or a new one, opens in the editor. */

import { isAborted } from "../core/api.js";
import { every, fill, h } from "../core/dom.js";
import { count, rate } from "../core/format.js";
import { button, check, heading, panel, problem, stateBadge, table } from "../core/parts.js";
import { go } from "../core/place.js";
import { bodyOf, NEW, ruleEditor, save } from "./rule.js";

const REFRESH_MS = 2_000;
const PAGE = 200;

export function mount(context) {
  return context.place.item ? ruleEditor(context) : list(context);
}

function list({ api, signal }) {
  const wrong = h("div");
  let pages = 1;
  const mayChange = api.may("editor");
  const rules = table(
    "Rules",
    [
      { label: "Rule", cell: (one) => one.rule.id },
      {
        label: "State",
        cell: (one) => h("span", { title: one.rule.error }, stateBadge(one.rule.state)),
      },
      { label: "From", cell: (one) => one.rule.from.join(", "), class: "wide" },
      { label: "Match /s", cell: (one) => rate(one.did?.matched_per_second.now), class: "number" },
      { label: "Matched", cell: (one) => count(one.did?.matched), class: "number" },
      { label: "Outputs", cell: (one) => count(one.did?.outputs), class: "number" },
      { label: "Failed", cell: (one) => count(one.did?.failed), class: "number" },
      { label: "Runs", cell: (one) => onOff(one.rule) },
    ],
    {
      empty: "There is no rule yet.",
      open: (one) => go("rules", one.rule.id),
      key: (one) => one.rule.id,
    },
  );
  const more = button("More", () => {
    pages += 1;
    return load();
  });
  more.hidden = true;

  function onOff(rule) {
    const { element } = check("", {
      checked: rule.enable,
      disabled: !mayChange,
      "aria-label": `Run ${rule.id}`,
      on: { change: (event) => setEnabled(rule, event.target) },
    });
    return element;
  }

  async function setEnabled(rule, box) {
    box.disabled = true;
    try {
      await save(api, rule.id, { ...bodyOf(rule), enable: box.checked }, rule.version);
      await load();
    } catch (error) {
      box.checked = rule.enable;
      problem(wrong, error);
    } finally {
      box.disabled = false;
    }
  }

  async function load() {
    try {
      const shown = [];
      let cursor = null;
      for (let page = 0; page < pages; page += 1) {
        const asked = { limit: PAGE, cursor };
        // Both lists go by the identifier, so that pages with the same cursor are of the same rules.
        const [found, did] = await Promise.all([
          api.get("/rules", asked, signal),
          api.get("/rule_metrics", asked, signal),
        ]);
        const byId = new Map(did.items.map((one) => [one.id, one]));
        shown.push(...found.items.map((rule) => ({ rule, did: byId.get(rule.id) })));
        cursor = found.next_cursor;
        if (!cursor) break;
      }
      rules.show(shown);
      more.hidden = !cursor;
      fill(wrong);
    } catch (error) {
      if (!isAborted(error)) problem(wrong, error);
    }
  }

  every(REFRESH_MS, signal, load);
  return h(
    "div",
    heading("Rules", mayChange && h("a.button.primary", { href: `#/rules/${NEW}` }, "New rule")),
    wrong,
    panel("All rules", rules.element, more),
  );
}
