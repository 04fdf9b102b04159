/** One rule: write it, check it while it is written, try it on a message and on history, run it. */

import { isAborted } from "../core/api.js";
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
import { MAX_RULE_DESCRIPTION, MAX_RULE_NAME } from "../core/vocabulary.js";
import { actionList } from "./rule_actions.js";
import { dryRun, sampleTest } from "./rule_trials.js";
import { counters, versions } from "./rule_versions.js";

/** In place of an identifier: no rule can have this one. */
export const NEW = "+new";
const FIRST_SQL =
  'SELECT payload.temperature AS temperature, clientid\nFROM "plant/+/temperature"\nWHERE payload.temperature > 80';
const TYPING_PAUSE_MS = 350;
/** States in which a rule may be told to go on. */
const STOPPED = ["paused", "failed"];

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

/** The editor of a rule, or of a new one (null). What it holds stays when another version is shown. */
function form(context, given) {
  const { api } = context;
  const page = h("div.page");
  const wrong = h("div");
  const fields = ruleFields(context, given, () => test.run());
  const test = sampleTest(context, fields.sql, given);

  async function keep(rule) {
    const kept = await fields.marking(() =>
      rule === null
        ? api.send("POST", "/rules", { ...fields.read(), id: fields.id() })
        : save(api, rule.id, fields.read(), rule.version),
    );
    told(kept);
    if (rule === null) go("rules", kept.id);
    else show(kept);
  }
  function show(rule) {
    const mayChange = api.may("editor");
    const definition = panel("Definition", ...fields.elements, wrong, actions(rule, mayChange));
    const tried = trials(context, fields.sql, test, rule);
    fill(
      page,
      headingOf(rule),
      rule?.error && h("p.problem", { role: "alert" }, rule.error),
      STOPPED.includes(rule?.state) && mayChange && resumption(api, rule, show),
      h("div.rule", definition, tried),
    );
  }
  function actions(rule, mayChange) {
    if (!mayChange)
      return h("p.hint", "Your role may look at rules and try them, not change them.");
    const label = rule === null ? "Create" : "Save";
    const keeping = button(label, () => keep(rule), { kind: "primary", report: wrong });
    const options = { kind: "danger", report: wrong };
    const removing = rule && button("Delete", () => remove(api, rule), options);
    return h("div.actions", keeping, removing);
  }
  show(given);
  return page;
}

function headingOf(rule) {
  const all = h("a", { href: "#/rules" }, "All rules");
  if (rule === null) return heading("New rule", all);
  return heading(rule.id, stateBadge(rule.state), h("span.hint", `version ${rule.version}`), all);
}

/** Say what has become of a rule that was changed. */
function told(rule, more = "") {
  const kind = rule.state === "failed" ? "bad" : "good";
  notice(`Rule ${rule.id}, version ${rule.version}: ${rule.state}${more}`, kind);
}

async function remove(api, rule) {
  if (!(await ask(`Delete the rule ${rule.id} with all its versions?`, "Delete"))) return;
  await api.send("DELETE", `/rules/${encodeURIComponent(rule.id)}`);
  notice(`Deleted: ${rule.id}`);
  go("rules");
}

/** Say that a change makes somebody else's rule one's own. */
function becomesYours(api, rule) {
  if (rule.made_by === api.session.name) return null;
  const whose = rule.made_by
    ? `It has the rights of ${rule.made_by}`
    : "It has an administrator's rights";
  return h(
    "p.hint",
    `${whose}. To go on, or any other change, makes it yours: it then has your rights.`,
  );
}

/** Let a rule go on that has stopped: with what comes from now on, or with what it has missed as well. */
function resumption(api, rule, show) {
  const said = h("div");
  const from = (place) => async () => {
    const path = `/rules/${encodeURIComponent(rule.id)}/resume`;
    const { rule: now, job } = await api.send("POST", path, { from: place });
    told(now, job ? "; a job takes what came during the pause" : "");
    show(now);
  };
  return h(
    "div.actions",
    becomesYours(api, rule),
    button("Go on from now", from("now"), { report: said }),
    button("Go on from the pause", from("pause"), { report: said }),
    said,
  );
}

/** The controls of a rule's definition, checked while somebody writes. */
function ruleFields({ api, signal }, rule, run) {
  const placeholder = rule === null ? "made up when empty" : null;
  const id = input({ value: rule?.id ?? "", disabled: rule !== null, placeholder });
  const name = h("input", { type: "text", value: rule?.name ?? "", maxlength: MAX_RULE_NAME });
  const maxlength = MAX_RULE_DESCRIPTION;
  const description = h("textarea", { rows: 2, value: rule?.description ?? "", maxlength });
  const enable = check("Run this rule", { checked: rule?.enable ?? true });
  const actions = actionList(api, signal, rule?.actions ?? [], () => examine());
  const value = rule?.sql ?? FIRST_SQL;
  const onChange = () => examine();
  const sql = editor({ label: "SQL of the rule", rows: 9, value, onChange, onRun: run });
  const meaning = h("div.meaning", { role: "status" });
  const examine = checker(api, sql, actions, meaning, signal);
  examine();
  const named = h("div.row", field("Identifier", id), field("Name", name));
  const written = [named, field("Description", description), sql.element, meaning];
  return {
    sql,
    elements: [...written, h("h3", "Actions"), actions.element, enable.element],
    id: () => id.value.trim() || null,
    read: () => ({
      name: name.value,
      description: description.value,
      sql: sql.value,
      enable: enable.box.checked,
      actions: actions.read(),
    }),
    /** Do something; what it finds wrong in the SQL is marked there, too. */
    async marking(work) {
      try {
        return await work();
      } catch (error) {
        if (error.body?.line) sql.mark([{ problem: error.message, ...error.body }]);
        throw error;
      }
    },
  };
}

/** Return a function that has the API check what is written, when that has not changed for a while. */
function checker(api, sql, actions, meaning, signal) {
  let checking = new AbortController();
  signal.addEventListener("abort", () => checking.abort());
  return afterPause(TYPING_PAUSE_MS, async () => {
    checking.abort();
    checking = new AbortController();
    const body = { sql: sql.value, actions: [] };
    try {
      body.actions = actions.read();
    } catch {
      // What is wrong with them stands beside them.
    }
    try {
      const found = await api.send("POST", "/rules/validate", body, {}, checking.signal);
      sql.mark(found.errors, found.warnings);
      fill(meaning, found.compiled && compiledFacts(found));
    } catch (error) {
      if (isAborted(error)) return;
      const { line, column } = error.body ?? {};
      if (error.status === 422) sql.mark([{ problem: error.message, line, column }]);
      else problem(meaning, error);
    }
  });
}

/** What can be tried, and of a rule that is there what it has done. */
function trials(context, sql, test, rule) {
  const { api, signal } = context;
  const label = "Try and look back";
  const pages = [
    { label: "Test", make: () => test.element },
    { label: "Dry run", make: () => dryRun(context, sql, rule) },
  ];
  if (rule !== null) {
    const back = (kept) => go("rules", kept.id, { version: kept.version });
    pages.push(
      { label: "Counters", make: () => counters(api, rule.id, signal) },
      { label: "Versions", make: () => versions(api, rule, signal, back) },
    );
  }
  return h("section.panel", { "aria-label": label }, tabs(label, pages).element);
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
