/** What a rule makes of one message, and what it would have made of stored ones. */

import { chart } from "../core/chart.js";
import { fill, h } from "../core/dom.js";
import { cell, count, moment, seconds } from "../core/format.js";
import { badge, button, facts, field, problem, select, table } from "../core/parts.js";

const FIRST_MESSAGE = {
  topic: "plant/1/temperature",
  payload: { temperature: 95 },
  clientid: "sensor-1",
  qos: 1,
};
const JOB_MS = 500;
const HOURS = [
  ["1", "the last hour"],
  ["24", "the last day"],
  ["168", "the last week"],
  ["0", "everything"],
];

/** What the rule makes of one made-up message. */
export function sampleTest({ api, signal }, sql, rule) {
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
export function dryRun({ api, signal }, sql, rule) {
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
