/** What a rule has done, and its versions. */

import { isAborted } from "../core/api.js";
import { every, fill, h } from "../core/dom.js";
import { count, milliseconds, moment, rate } from "../core/format.js";
import { ask, attempt, button, facts, problem, table } from "../core/parts.js";

const COUNTERS_MS = 2_000;

export function counters(api, id, signal) {
  const numbers = h("div");
  const wrong = h("div");
  const actions = actionTable();
  const here = h("div", wrong, numbers, actions.element);
  const path = `/rules/${encodeURIComponent(id)}/metrics`;
  every(COUNTERS_MS, signal, async () => {
    if (!here.isConnected && numbers.hasChildNodes()) return;
    await attempt(wrong, async () => {
      const found = await api.get(path, {}, signal);
      fill(numbers, countersOf(found));
      actions.show(found.actions);
    });
  });
  return here;
}

function countersOf(found) {
  return facts([
    ["Match /s", rate(found.matched_per_second.now)],
    ["Matched", count(found.matched)],
    ["With outputs", count(found.passed)],
    ["Without", count(found.no_result)],
    ["Failed", count(found.failed)],
    ["Outputs", count(found.outputs)],
    found.late > 0 && ["Late", count(found.late)],
    ["Counted since", found.reset_at ? moment(found.reset_at) : "the beginning"],
  ]);
}

function actionTable() {
  const columns = [
    { label: "Action", cell: (one) => one.function },
    { label: "Done", cell: (one) => count(one.success), class: "number" },
    { label: "Failed", cell: (one) => count(one.failed), class: "number" },
    { label: "Retried", cell: (one) => count(one.retried), class: "number" },
    { label: "Waiting", cell: (one) => count(one.queued), class: "number" },
    { label: "Mean delay", cell: (one) => milliseconds(one.latency_ms_mean), class: "number" },
  ];
  const empty = "The rule has no action: add one to its definition, or see its outputs on Alarms.";
  return table("Actions", columns, { empty });
}

/** `done` is called with the rule after a rollback. */
export function versions(api, rule, signal, done) {
  const path = `/rules/${encodeURIComponent(rule.id)}/versions`;
  const difference = diffBlock();
  const compare = async (version) => {
    const found = await api.get(`${path}/${version}/diff/${rule.version}`, {}, signal);
    difference.show(found.diff || "They are equal.");
  };
  const back = async (version) => {
    const question = `Give ${rule.id} the content of version ${version}, as a new version?`;
    if (!(await ask(question, "Roll back", "primary"))) return;
    done(await api.send("POST", `${path}/${version}/rollback`));
  };
  const list = versionTable(rule, compare, api.may("editor") && back);
  const here = h("div", h("p.empty", "Reading…"));
  api.get(path, {}, signal).then(
    (found) => {
      list.show(found.items);
      fill(here, list.element, difference.element);
    },
    (error) => !isAborted(error) && problem(here, error),
  );
  return here;
}

function versionTable(rule, compare, back) {
  const buttons = ({ version }) => {
    if (version === rule.version) return "newest";
    const quiet = (name) => ({ kind: "quiet", name });
    const comparing = quiet(`Compare version ${version} with the newest`);
    return h(
      "span.actions",
      button("Compare", () => compare(version), comparing),
      back && button("Roll back", () => back(version), quiet(`Roll back to version ${version}`)),
    );
  };
  return table("Versions", [
    { label: "Version", cell: (one) => String(one.version) },
    { label: "Made", cell: (one) => moment(one.updated_at) },
    { label: "Runs", cell: (one) => (one.enable ? "yes" : "no") },
    { label: "", cell: buttons },
  ]);
}

/** A difference, line by line; hidden until there is one. */
function diffBlock() {
  const names = { tabindex: 0, hidden: true, "aria-label": "Difference" };
  const element = h("pre.payload.diff", names);
  function show(text) {
    element.hidden = false;
    const lines = text.split("\n").map((line) => {
      const kind = line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : "";
      return h("span", { class: kind }, `${line}\n`);
    });
    fill(element, lines);
  }
  return { element, show };
}
