/** One rule: write it, check it while it is written, try it on a message and on history, run it. */

import { isAborted, Problem } from "../core/api.js";
import { afterPause, fill, h } from "../core/dom.js";
import { editor } from "../core/editor.js";
import {
  ask,
  badge,
  button,
  check,
  facts,
  field,
  heading,
  input,
  notice,
  panel,
  problem,
  stateBadge,
  tabs,
} from "../core/parts.js";
import { go } from "../core/place.js";
import { actionList } from "./rule_actions.js";
import { dryRun, sampleTest } from "./rule_trials.js";
import { counters, versions } from "./rule_versions.js";

/** In place of an identifier: no rule can have this one. */
export const NEW = "+new";
const FIRST_SQL =
  'SELECT payload.temperature AS temperature, clientid\nFROM "plant/+/temperature"\nWHERE payload.temperature > 80';
const TYPING_PAUSE_MS = 350;

export function ruleEditor(context) {
  const { api, signal, place } = context;
  const here = h("div", heading("Rule"), h("p.empty", "Reading…"));
  if (place.item === NEW) {
    fill(here, form(context, null));
  } else {
    api.get(`/rules/${encodeURIComponent(place.item)}`, {}, signal).then(
      (rule) => fill(here, form(context, rule)),
      (error) => {
        if (isAborted(error)) return;
        fill(here, heading("Rule", h("a", { href: "#/rules" }, "All rules")));
        problem(here.appendChild(h("div")), error);
      },
    );
  }
  return here;
}

/** Return what PUT takes of a rule. */
export function bodyOf(rule) {
  const { name, description, sql, enable, actions } = rule;
  return { name, description, sql, enable, actions };
}

/** Give a rule another content; with a version: only if that is still the newest. */
export function save(api, id, body, version = undefined) {
  return api.send("PUT", `/rules/${encodeURIComponent(id)}`, { ...body, version });
}

function form(context, rule) {
  const { api, signal } = context;
  const isNew = rule === null;
  const mayChange = api.may("editor");
  const wrong = h("div");
  const id = input({
    value: rule?.id ?? "",
    disabled: !isNew,
    placeholder: isNew ? "made up when empty" : null,
  });
  const name = h("input", { type: "text", value: rule?.name ?? "", maxlength: 200 });
  const description = h("textarea", { rows: 2, value: rule?.description ?? "", maxlength: 2000 });
  const enable = check("Run this rule", { checked: rule?.enable ?? true });
  const meaning = h("div.meaning", { role: "status" });
  const actions = actionList(api, signal, rule?.actions ?? [], () => examine());
  const sql = editor({
    label: "SQL of the rule",
    rows: 9,
    value: rule?.sql ?? FIRST_SQL,
    onChange: () => examine(),
    onRun: () => test.run(),
  });
  let checking = new AbortController();
  signal.addEventListener("abort", () => checking.abort());

  const examine = afterPause(TYPING_PAUSE_MS, async () => {
    checking.abort();
    checking = new AbortController();
    const { signal: mine } = checking;
    let listed;
    try {
      listed = actions.read();
    } catch {
      listed = []; // what is wrong with them stands beside them
    }
    try {
      const found = await api.send(
        "POST",
        "/rules/validate",
        { sql: sql.value, actions: listed },
        {},
        mine,
      );
      sql.mark(found.errors, found.warnings);
      fill(meaning, found.compiled ? compiledFacts(found) : null);
    } catch (error) {
      if (isAborted(error)) return;
      if (error instanceof Problem && error.status === 422)
        sql.mark([{ problem: error.message, line: error.body.line, column: error.body.column }]);
      else problem(meaning, error);
    }
  });

  const body = () => ({
    name: name.value,
    description: description.value,
    sql: sql.value,
    enable: enable.box.checked,
    actions: actions.read(),
  });

  async function keep() {
    try {
      const kept = isNew
        ? await api.send("POST", "/rules", { ...body(), id: id.value.trim() || null })
        : await save(api, rule.id, body(), rule.version);
      notice(
        `Rule ${kept.id}, version ${kept.version}: ${kept.state}`,
        kept.state === "failed" ? "bad" : "good",
      );
      if (isNew) go("rules", kept.id);
      else fill(all, ...parts(kept));
    } catch (error) {
      if (error instanceof Problem && error.body.line) {
        sql.mark([{ problem: error.message, ...error.body }]);
      }
      throw error;
    }
  }

  /** Let a paused rule go on: with what comes from now on, or with what it has missed as well. */
  function resumption() {
    const said = h("div");
    const from = (place) => async () => {
      const path = `/rules/${encodeURIComponent(rule.id)}/resume`;
      const { rule: now, job } = await api.send("POST", path, { from: place });
      notice(
        `Rule ${now.id}, version ${now.version}: ${now.state}` +
          (job ? "; a job takes what came during the pause" : ""),
        now.state === "failed" ? "bad" : "good",
      );
      fill(all, ...parts(now));
    };
    return h(
      "div.actions",
      button("Go on from now", from("now"), { report: said }),
      button("Go on from the pause", from("pause"), { report: said }),
      said,
    );
  }

  const test = sampleTest(context, sql, rule);
  const all = h("div.page");

  function parts(now) {
    rule = now;
    return [
      heading(
        isNew ? "New rule" : rule.id,
        !isNew && stateBadge(rule.state),
        !isNew && h("span.hint", `version ${rule.version}`),
        h("a", { href: "#/rules" }, "All rules"),
      ),
      !isNew && rule.error && h("p.problem", { role: "alert" }, rule.error),
      !isNew && rule.state === "paused" && mayChange && resumption(),
      h(
        "div.rule",
        panel(
          "Definition",
          h("div.row", field("Identifier", id), field("Name", name)),
          field("Description", description),
          sql.element,
          meaning,
          h("h3", "Actions"),
          actions.element,
          enable.element,
          wrong,
          mayChange
            ? h(
                "div.actions",
                button(isNew ? "Create" : "Save", keep, { kind: "primary", report: wrong }),
                !isNew &&
                  button(
                    "Delete",
                    async () => {
                      if (
                        !(await ask(`Delete the rule ${rule.id} with all its versions?`, "Delete"))
                      )
                        return;
                      await api.send("DELETE", `/rules/${encodeURIComponent(rule.id)}`);
                      notice(`Deleted: ${rule.id}`);
                      go("rules");
                    },
                    { kind: "danger", report: wrong },
                  ),
              )
            : h("p.hint", "Your role may look at rules and try them, not change them."),
        ),
        h(
          "section.panel",
          { "aria-label": "Try and look back" },
          tabs("Try and look back", [
            { label: "Test", make: () => test.element },
            { label: "Dry run", make: () => dryRun(context, sql, isNew ? null : rule) },
            ...(isNew
              ? []
              : [
                  { label: "Counters", make: () => counters(api, rule.id, signal) },
                  {
                    label: "Versions",
                    make: () =>
                      versions(api, rule, signal, (kept) =>
                        go("rules", kept.id, { version: kept.version }),
                      ),
                  },
                ]),
          ]).element,
        ),
      ),
    ];
  }

  examine();
  return fill(all, ...parts(rule));
}

function compiledFacts({ compiled, valid }) {
  return facts([
    ["Check", valid ? badge("valid", "good") : badge("not valid", "bad")],
    ["Reads", compiled.from.join(", ")],
    ["Gives", compiled.columns.join(", ")],
    compiled.plan && ["Memory", "it has a query of its own"],
    compiled.schemas.length > 0 && ["Schemas", compiled.schemas.join(", ")],
  ]);
}
