/** What a rule has done, and its versions. */

import { isAborted } from "../core/api.js";
import { every, fill, h } from "../core/dom.js";
import { count, milliseconds, moment, rate } from "../core/format.js";
import { ask, button, facts, problem, table } from "../core/parts.js";

const COUNTERS_MS = 2_000;

export function counters(api, id, signal) {
  const here = h("div");
  const actions = table(
    "Actions",
    [
      { label: "Action", cell: (one) => one.function },
      { label: "Done", cell: (one) => count(one.success), class: "number" },
      { label: "Failed", cell: (one) => count(one.failed), class: "number" },
      { label: "Retried", cell: (one) => count(one.retried), class: "number" },
      { label: "Waiting", cell: (one) => count(one.queued), class: "number" },
      { label: "Mean delay", cell: (one) => milliseconds(one.latency_ms_mean), class: "number" },
    ],
    { empty: "The rule has no action." },
  );
  const numbers = h("div");
  every(COUNTERS_MS, signal, async () => {
    if (!here.isConnected && numbers.hasChildNodes()) return;
    try {
      const found = await api.get(`/rules/${encodeURIComponent(id)}/metrics`, {}, signal);
      fill(
        numbers,
        facts([
          ["Match /s", rate(found.matched_per_second.now)],
          ["Matched", count(found.matched)],
          ["With outputs", count(found.passed)],
          ["Without", count(found.no_result)],
          ["Failed", count(found.failed)],
          ["Outputs", count(found.outputs)],
          found.late > 0 && ["Late", count(found.late)],
          ["Counted since", found.reset_at ? moment(found.reset_at) : "the beginning"],
        ]),
      );
      actions.show(found.actions);
    } catch (error) {
      if (!isAborted(error)) problem(numbers, error);
    }
  });
  return fill(here, numbers, actions.element);
}

export function versions(api, rule, signal, done) {
  const here = h("div", h("p.empty", "Reading…"));
  const difference = h("pre.payload.diff", {
    tabindex: 0,
    hidden: true,
    "aria-label": "Difference",
  });

  async function compare(version) {
    const found = await api.get(
      `/rules/${encodeURIComponent(rule.id)}/versions/${version}/diff/${rule.version}`,
      {},
      signal,
    );
    difference.hidden = false;
    fill(
      difference,
      (found.diff || "They are equal.").split("\n").map((line) => {
        const kind = line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : "";
        return h("span", { class: kind }, `${line}\n`);
      }),
    );
  }
  async function back(version) {
    if (
      !(await ask(
        `Give ${rule.id} the content of version ${version}, as a new version?`,
        "Roll back",
        "primary",
      ))
    )
      return;
    done(
      await api.send("POST", `/rules/${encodeURIComponent(rule.id)}/versions/${version}/rollback`),
    );
  }

  api.get(`/rules/${encodeURIComponent(rule.id)}/versions`, {}, signal).then(
    (found) => {
      const list = table("Versions", [
        { label: "Version", cell: (one) => String(one.version) },
        { label: "Made", cell: (one) => moment(one.updated_at) },
        { label: "Runs", cell: (one) => (one.enable ? "yes" : "no") },
        {
          label: "",
          cell: (one) =>
            one.version === rule.version
              ? "newest"
              : h(
                  "span.actions",
                  button("Compare", () => compare(one.version), {
                    kind: "quiet",
                    name: `Compare version ${one.version} with the newest`,
                  }),
                  api.may("editor") &&
                    button("Roll back", () => back(one.version), {
                      kind: "quiet",
                      name: `Roll back to version ${one.version}`,
                    }),
                ),
        },
      ]);
      list.show(found.items);
      fill(here, list.element, difference);
    },
    (error) => !isAborted(error) && problem(here, error),
  );
  return here;
}
