/** One rule: write it, check it while it is written, try it on a message and on history, run it. */

import { isAborted, Problem } from "../core/api.js";
import { chart } from "../core/chart.js";
import { afterPause, every, fill, h } from "../core/dom.js";
import { editor } from "../core/editor.js";
import { cell, count, milliseconds, moment, rate, seconds } from "../core/format.js";
import {
  ask,
  badge,
  button,
  check,
  facts,
  field,
  heading,
  notice,
  panel,
  problem,
  select,
  stateBadge,
  table,
  tabs,
  input,
} from "../core/parts.js";
import { go } from "../core/place.js";

/** In place of an identifier: no rule can have this one. */
export const NEW = "+new";
const FIRST_SQL =
  'SELECT payload.temperature AS temperature, clientid\nFROM "plant/+/temperature"\nWHERE payload.temperature > 80';
const FIRST_MESSAGE = {
  topic: "plant/1/temperature",
  payload: { temperature: 95 },
  clientid: "sensor-1",
  qos: 1,
};
const TYPING_PAUSE_MS = 350;
const JOB_MS = 500;
const COUNTERS_MS = 2_000;
const HOURS = [
  ["1", "the last hour"],
  ["24", "the last day"],
  ["168", "the last week"],
  ["0", "everything"],
];

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

/** The actions of a rule: a function each, with its arguments as JSON. */
function actionList(api, signal, given, changed) {
  const rows = h("div.action-list");
  const items = [];
  let schemas = {};

  function add(spec) {
    const name = select(Object.keys(schemas).length ? Object.keys(schemas) : [spec.function], {
      value: spec.function,
      "aria-label": "Function",
    });
    const args = h("textarea.code", {
      rows: 3,
      spellcheck: "false",
      value: JSON.stringify(spec.args ?? {}, null, 1),
      "aria-label": "Arguments as JSON",
    });
    const hint = h("p.hint");
    const item = { name, args, hint, fallback: spec.fallback ?? [] };
    const remove = h(
      "button.quiet",
      { type: "button", "aria-label": "Remove this action" },
      "Remove",
    );
    const element = h("div.action", h("div.row", name, remove), args, hint);
    item.element = element;
    remove.addEventListener("click", () => {
      items.splice(items.indexOf(item), 1);
      element.remove();
      changed();
    });
    name.addEventListener("change", () => {
      args.value = JSON.stringify(example(schemas[name.value]), null, 1);
      explain(item);
      changed();
    });
    args.addEventListener("input", () => {
      explain(item);
      changed();
    });
    items.push(item);
    rows.append(element);
    explain(item);
  }

  function explain(item) {
    const schema = schemas[item.name.value];
    const names = Object.keys(schema?.properties ?? {}).map((one) =>
      schema.required?.includes(one) ? `${one} (needed)` : one,
    );
    try {
      JSON.parse(item.args.value);
      item.args.removeAttribute("aria-invalid");
      fill(item.hint, names.length ? `Takes ${names.join(", ")}.` : "");
    } catch (error) {
      item.args.setAttribute("aria-invalid", "true");
      fill(item.hint, h("span.bad", `Not JSON: ${error.message}`));
    }
  }

  api.get("/rule_actions", { tenant: null }, signal).then(
    (found) => {
      schemas = found;
      for (const item of items) {
        const now = item.name.value;
        fill(
          item.name,
          Object.keys(schemas).map((one) => h("option", { value: one }, one)),
        );
        item.name.value = now;
        explain(item);
      }
    },
    () => {},
  );
  for (const spec of given) add(spec);
  return {
    element: h(
      "div",
      rows,
      h(
        "button.quiet",
        {
          type: "button",
          on: {
            click: () => {
              add({ function: "republish", args: { topic: "alarms/${clientid}" } });
              changed();
            },
          },
        },
        "Add an action",
      ),
    ),
    /** Throws when arguments are not JSON. */
    read: () =>
      items.map((item) => ({
        function: item.name.value,
        args: JSON.parse(item.args.value),
        fallback: item.fallback,
      })),
  };
}

function example(schema) {
  return Object.fromEntries(
    (schema?.required ?? []).map((name) => [
      name,
      schema.properties[name]?.type === "integer" ? 0 : "",
    ]),
  );
}

/** What the rule makes of one made-up message. */
function sampleTest({ api, signal }, sql, rule) {
  api.startSpark();
  const firstFilter = rule?.from?.[0];
  const message = firstFilter
    ? firstFilter.startsWith("$events/")
      ? {}
      : { ...FIRST_MESSAGE, topic: firstFilter.replaceAll("+", "x").replace("#", "x") }
    : FIRST_MESSAGE;
  const context = h("textarea.code", {
    rows: 8,
    spellcheck: "false",
    value: JSON.stringify(message, null, 2),
  });
  const result = h("div", { role: "status", "aria-live": "polite" });
  async function run() {
    let given;
    try {
      given = JSON.parse(context.value);
    } catch (error) {
      throw new Error(`The message is not JSON: ${error.message}`, { cause: error });
    }
    const asked = { sql: sql.value, context: given };
    const answer = await api.askSpark("/rule_test", asked, signal, () =>
      fill(result, h("p.hint", "Waiting for Spark…")),
    );
    const found = await answer.json();
    fill(
      result,
      found.error && h("p.problem", `The evaluation fails: ${found.error}`),
      found.matched &&
        h(
          "p",
          badge(
            found.outputs.length === 1 ? "1 output" : `${found.outputs.length} outputs`,
            "good",
          ),
        ),
      found.outputs.map((one) => h("pre.payload", { tabindex: 0 }, JSON.stringify(one, null, 2))),
      found.reason && h("p", badge("no output", "idle"), " ", found.reason.detail),
    );
  }
  const start = button("Test", run, {
    kind: "primary",
    report: result,
    title: "Ctrl+Enter in the SQL",
  });
  return {
    element: h(
      "div",
      field(
        "Message",
        context,
        "As JSON: topic, payload, clientid, username, qos, retain; what is left out is made up.",
      ),
      start,
      result,
    ),
    run: () => start.click(),
  };
}

/** What the rule would have made of stored messages, with a chart by the hour. */
function dryRun({ api, signal }, sql, rule) {
  const hours = select(HOURS, { value: "24" });
  const progress = h("progress", {
    max: 1,
    value: 0,
    hidden: true,
    "aria-label": "Progress of the dry run",
  });
  const said = h("p.hint", { role: "status" });
  const result = h("div");
  let job = null;
  const stop = button("End it", () => api.send("DELETE", `/jobs/${job}`), { report: said });
  stop.hidden = true;

  async function run() {
    const from = Number(hours.value)
      ? new Date(Date.now() - Number(hours.value) * 3_600_000).toISOString()
      : null;
    fill(result);
    const begun = await api.send(
      "POST",
      `/rules/${encodeURIComponent(rule?.id ?? "draft")}/dry_run`,
      { sql: sql.value, from },
      {},
      signal,
    );
    job = begun.id;
    progress.hidden = stop.hidden = false;
    try {
      const ended = await finished(api, job, signal, (now) => {
        progress.value = now.progress;
        said.textContent = now.note || now.state;
      });
      said.textContent =
        ended.seconds === null ? ended.state : `${ended.state} after ${seconds(ended.seconds)}`;
      if (ended.error) problem(result, new Error(ended.error));
      else if (ended.result) fill(result, dryRunResult(ended.result, signal));
    } finally {
      progress.hidden = stop.hidden = true;
    }
  }

  return h(
    "div",
    h(
      "p.hint",
      "Evaluates the SQL as it stands here on stored messages. No action runs, nothing is kept.",
    ),
    h(
      "div.row",
      field("Messages of", hours),
      button("Dry run", run, { kind: "primary", report: result }),
      stop,
    ),
    progress,
    said,
    result,
  );
}

/** Resolve to a job when it has ended. */
async function finished(api, id, signal, tell) {
  for (;;) {
    const job = await api.get(`/jobs/${id}`, { tenant: null }, signal);
    tell(job);
    if (!["queued", "running"].includes(job.state)) return job;
    await new Promise((resolve) => setTimeout(resolve, JOB_MS));
  }
}

function dryRunResult(found, signal) {
  const byHour = chart({
    label: "Messages and outputs by the hour",
    series: ["matched", "outputs", "failed"],
    format: count,
    unit: 3_600,
    hasPoints: true,
    signal,
  });
  byHour.show([
    found.hours.map((one) => Date.parse(one.hour) / 1000),
    ...["matched", "outputs", "failed"].map((name) => found.hours.map((one) => one[name])),
  ]);
  const examples = table(
    "Examples",
    [
      { label: "Received", cell: (one) => moment(one.received_at ?? one.at) },
      { label: "Topic", cell: (one) => one.topic ?? "–" },
      { label: "Payload", cell: (one) => one.payload ?? "–", class: "wide code" },
      {
        label: "Outputs",
        cell: (one) => (one.outputs ?? [one.output]).map(cell).join("\n"),
        class: "wide code",
      },
    ],
    { empty: "No message gave an output." },
  );
  examples.show(found.samples);
  const errors = table("Failures", [
    { label: "Received", cell: (one) => moment(one.received_at) },
    { label: "Topic", cell: (one) => one.topic ?? "–" },
    { label: "Payload", cell: (one) => one.payload ?? "–", class: "wide code" },
    { label: "Error", cell: (one) => one.error, class: "wide" },
  ]);
  errors.show(found.errors);
  const { difference } = found;
  return h(
    "div.result",
    facts([
      ["Matched", count(found.matched)],
      ["With outputs", count(found.passed)],
      ["Without", count(found.no_result)],
      ["Failed", count(found.failed)],
      ["Outputs", count(found.outputs)],
      ["Table version", found.table_version],
    ]),
    found.hours.length ? byHour.element : h("p.empty", "No stored message matches."),
    difference &&
      h(
        "p",
        `Against version ${difference.version}: ${count(difference.same)} the same, `,
        difference.changed !== undefined && `${count(difference.changed)} changed, `,
        `${count(difference.added)} added, ${count(difference.removed)} removed.`,
      ),
    h("h3", "Examples"),
    examples.element,
    found.errors.length > 0 && h("h3", "Failures"),
    found.errors.length > 0 && errors.element,
  );
}

function counters(api, id, signal) {
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

function versions(api, rule, signal, done) {
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
