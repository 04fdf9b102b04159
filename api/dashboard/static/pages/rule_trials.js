/** What a rule makes of one message, and what it would have made of stored ones. */

import { chart } from "../core/chart.js";
import { fill, h, say } from "../core/dom.js";
import { cell, count, moment, seconds } from "../core/format.js";
import { badge, block, button, facts, field, problem, select, table } from "../core/parts.js";
import { UNFINISHED } from "../core/vocabulary.js";

const FIRST_MESSAGE = {
  topic: "plant/1/temperature",
  payload: { temperature: 95 },
  clientid: "sensor-1",
  qos: 1,
};
const JOB_MS = 500;
const HOUR_MS = 3_600_000;
const HOURS = [
  ["1", "the last hour"],
  ["24", "the last day"],
  ["168", "the last week"],
  ["0", "everything"],
];

const COUNTED = ["matched", "outputs", "failed"];
const MESSAGE_HINT =
  "As JSON: topic, payload, clientid, username, qos, retain; what is left out is made up.";
const DRY_RUN_HINT =
  "Evaluates the SQL as it stands here on stored messages. No action runs, nothing is kept.";

/** What the rule makes of one made-up message. */
export function sampleTest({ api, signal }, sql, rule) {
  api.startSpark();
  const value = JSON.stringify(messageFor(rule), null, 2);
  const context = h("textarea.code", { rows: 8, spellcheck: "false", value });
  const result = h("div", { role: "status", "aria-live": "polite" });
  const wait = () => fill(result, h("p.hint", "Waiting for Spark…"));
  async function run() {
    const asked = { sql: sql.value, context: readJson(context.value) };
    const answer = await api.askSpark("/rule_test", asked, signal, wait);
    fill(result, sampleResult(await answer.json()));
  }
  const options = { kind: "primary", report: result, title: "Ctrl+Enter in the SQL" };
  const start = button("Test", run, options);
  const element = h("div", field("Message", context, MESSAGE_HINT), start, result);
  return { element, run: () => start.click() };
}

/** Return a message that the rule may match. */
function messageFor(rule) {
  const filter = rule?.from?.[0];
  if (!filter) return FIRST_MESSAGE;
  if (filter.startsWith("$events/")) return {};
  return { ...FIRST_MESSAGE, topic: filter.replaceAll("+", "x").replace("#", "x") };
}

function readJson(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`The message is not JSON: ${error.message}`, { cause: error });
  }
}

function sampleResult({ error, matched, outputs, reason }) {
  const said = outputs.length === 1 ? "1 output" : `${outputs.length} outputs`;
  return [
    error && h("p.problem", `The evaluation fails: ${error}`),
    matched && h("p", badge(said, "good")),
    outputs.map((one) => block("Output", JSON.stringify(one, null, 2))),
    reason && h("p", badge("no output", "idle"), " ", reason.detail),
  ];
}

/** What the rule would have made of stored messages, with a chart by the hour. */
export function dryRun({ api, signal }, sql, rule) {
  const hours = select(HOURS, { value: "24" });
  const result = h("div");
  const following = jobProgress(api, signal);
  async function run() {
    fill(result);
    const from = Number(hours.value)
      ? new Date(Date.now() - Number(hours.value) * HOUR_MS).toISOString()
      : null;
    const path = `/rules/${encodeURIComponent(rule?.id ?? "draft")}/dry_run`;
    const begun = await api.send("POST", path, { sql: sql.value, from }, {}, signal);
    const ended = await following.follow(begun.id);
    if (ended.error) problem(result, new Error(ended.error));
    else if (ended.result) fill(result, dryRunResult(ended.result, signal));
  }
  const start = button("Dry run", run, { kind: "primary", report: result });
  const controls = h("div.row", field("Messages of", hours), start, following.stop);
  return h("div", h("p.hint", DRY_RUN_HINT), controls, following.elements, result);
}

/** How far a job is, with a button that ends it; `follow` resolves to the job when it has ended. */
function jobProgress(api, signal) {
  const label = "Progress of the dry run";
  const progress = h("progress", { max: 1, value: 0, hidden: true, "aria-label": label });
  const said = h("p.hint", { role: "status" });
  let id = null;
  const stop = button("End it", () => api.send("DELETE", `/jobs/${id}`), { report: said });
  stop.hidden = true;
  async function follow(begun) {
    id = begun;
    progress.hidden = stop.hidden = false;
    try {
      const ended = await finished(api, id, signal, (now) => {
        progress.value = now.progress;
        say(said, now.note || now.state);
      });
      const took = ended.seconds === null ? "" : ` after ${seconds(ended.seconds)}`;
      say(said, ended.state + took);
      return ended;
    } finally {
      progress.hidden = stop.hidden = true;
    }
  }
  return { elements: [progress, said], stop, follow };
}

/** Resolve to a job when it has ended. */
async function finished(api, id, signal, tell) {
  for (;;) {
    const job = await api.get(`/jobs/${id}`, { tenant: null }, signal);
    tell(job);
    if (!UNFINISHED.includes(job.state)) return job;
    await new Promise((resolve) => setTimeout(resolve, JOB_MS));
  }
}

function dryRunResult(found, signal) {
  const { hours, errors, difference } = found;
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
    hours.length ? byHour(hours, signal) : h("p.empty", "No stored message matches."),
    difference && h("p", compared(difference)),
    h("h3", "Examples"),
    examples(found.samples),
    errors.length > 0 && [h("h3", "Failures"), failures(errors)],
  );
}

function byHour(hours, signal) {
  const label = "Messages and outputs by the hour";
  const options = { format: count, unit: 3_600, hasPoints: true, signal };
  const shown = chart({ label, series: COUNTED, ...options });
  const times = hours.map((one) => Date.parse(one.hour) / 1000);
  shown.show([times, ...COUNTED.map((name) => hours.map((one) => one[name]))]);
  return shown.element;
}

function compared({ version, same, changed, added, removed }) {
  const found = [
    `${count(same)} the same`,
    changed !== undefined && `${count(changed)} changed`,
    `${count(added)} added`,
    `${count(removed)} removed`,
  ];
  return `Against version ${version}: ${found.filter(Boolean).join(", ")}.`;
}

const MESSAGE_COLUMNS = [
  { label: "Topic", cell: (one) => one.topic ?? "–" },
  { label: "Payload", cell: (one) => one.payload ?? "–", class: "wide code" },
];

function examples(samples) {
  const outputs = (one) => (one.outputs ?? [one.output]).map(cell).join("\n");
  const columns = [
    { label: "Received", cell: (one) => moment(one.received_at ?? one.at) },
    ...MESSAGE_COLUMNS,
    { label: "Outputs", cell: outputs, class: "wide code" },
  ];
  const shown = table("Examples", columns, { empty: "No message gave an output." });
  shown.show(samples);
  return shown.element;
}

function failures(errors) {
  const shown = table("Failures", [
    { label: "Received", cell: (one) => moment(one.received_at) },
    ...MESSAGE_COLUMNS,
    { label: "Error", cell: (one) => one.error, class: "wide" },
  ]);
  shown.show(errors);
  return shown.element;
}
